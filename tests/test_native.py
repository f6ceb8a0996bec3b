"""The algorithms for GPUs on emulated ones (tests/native), under sanitizers: no GPU, no torch, two compilations."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("gpu_algorithms", "gpu_coverage", "gpu_segments", "gpu_sums", "gpu_texture")
OPTIONS = [
    "-std=c++20",
    "-O1",
    "-g",
    "-ffp-contract=off",
    "-fopenmp-simd",
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",
]
# Threads have to be looked at in a program of their own.
SANITIZERS = {
    "memory": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "threads": ["-fsanitize=thread", "-fno-sanitize-recover=all"],
    "plain": ["-O0"],
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpu_algorithms", "threads"),
        ("gpu_coverage", "plain"),
        ("gpu_segments", "plain"),
        ("gpu_sums", "plain"),
        ("gpu_texture", "plain"),
        # Compile long under "memory", and wait long at emulated barriers under "threads".
        *(pytest.param(name, "memory", marks=pytest.mark.slow) for name in PROGRAMS),
        *(pytest.param(name, "threads", marks=pytest.mark.slow) for name in PROGRAMS[1:]),
    ],
)
def test_gpu_algorithms_on_emulated_threads(name, kind, tmp_path):
    """Work splitting, packed minimum, sums within warps, order-free sums and lists equal plain loops."""
    program = tmp_path / name
    command = ["g++", *OPTIONS, *SANITIZERS[kind], "-pthread"]
    command += ["-Icsrc", "-Itests/native", '-DDR_EMULATED_GPU="emulated_gpu.h"', f"tests/native/{name}.cpp"]
    compiled = subprocess.run([*command, "-o", str(program)], cwd=ROOT, capture_output=True, text=True, check=False)
    if "cannot find" in compiled.stderr:
        pytest.skip(f"the libraries of {SANITIZERS[kind][0]} are not installed")
    assert compiled.returncode == 0, compiled.stderr
    assert "warning" not in compiled.stderr, compiled.stderr
    # A preloaded library, as tools that watch processes use them, has to come after the sanitizer's.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=300, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel places memory where the thread sanitizer can not have it")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout == f"{name} agrees\n"
