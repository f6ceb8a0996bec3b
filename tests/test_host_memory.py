"""keep_freed_memory: pages of a freed picture are not faulted in again."""

import platform
import subprocess
import sys

import pytest

import diffrender as dr

# Minor page faults of four pictures of 36 MiB, each freed before the next. Those before fill the gaps: the allocator
# aligns what it gives to torch, so that the first hole is a little too small for the next picture.
PROGRAM = """
import resource, sys, torch
import diffrender as dr
if sys.argv[1] == "keep":
    dr.keep_freed_memory()
for _ in range(6):
    torch.empty(36 << 20, dtype=torch.uint8).fill_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.empty(36 << 20, dtype=torch.uint8).fill_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    run = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_freed_pictures_are_used_again():
    pages = 4 * (36 << 20) // 4096
    if faults("as it is") < pages // 2:
        pytest.skip("this system has huge pages or another allocator: there is nothing to gain")
    assert faults("keep") < pages // 100


def test_other_c_libraries_are_named(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    with pytest.raises(RuntimeError, match=r"keep_freed_memory: the C library must be glibc, got \w+\. Leave"):
        dr.keep_freed_memory()
