"""keep_freed_memory: pages of a freed picture are not faulted in again."""

import mmap
import os
import platform
import subprocess
import sys

import pytest

import diffrender as dr

# Minor page faults of a picture of 36 MiB that is freed before the next: the middle one of nine, since the system may
# add some of its own (it moves pages between the memories of two processors). Those before fill the gaps: the allocator
# aligns what it gives to torch, so that the first hole is a little too small for the next picture.
PROGRAM = """
import resource, sys, torch
import diffrender as dr
if sys.argv[1] == "keep":
    dr.keep_freed_memory()
counts = []
for _ in range(15):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(36 << 20, dtype=torch.uint8).fill_(1)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(counts[6:])[4])
"""


def faults(mode: str) -> int:
    run = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or "LD_PRELOAD" in os.environ,
    reason="glibc's allocator, and no other in its place",
)
def test_freed_pictures_are_used_again():
    pages = (36 << 20) // mmap.PAGESIZE
    if faults("as it is") < pages // 2:
        pytest.skip("this system has huge pages or another allocator: there is nothing to gain")
    assert faults("keep") < pages // 100


def test_other_c_libraries_are_named(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    with pytest.raises(RuntimeError, match=r"keep_freed_memory: the C library must be glibc, got \w+\. Leave"):
        dr.keep_freed_memory()
