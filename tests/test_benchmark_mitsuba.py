"""benchmarks.mitsuba_edges: two independent renderers agree on the gradient to the vertices."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mitsuba_edges import newest_llvm

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_gradient_of_coverage_is_what_mitsuba_converges_to(tmp_path):
    """In a process of its own: LLVM ends it where it is too old for Mitsuba's kernels."""
    pytest.importorskip("mitsuba", reason="mitsuba is not installed: pip install diffrender-torch[test]")
    command = [sys.executable, "-m", "benchmarks.mitsuba_edges", "--size", "48", "--detail", "1", "--repeat", "3"]
    files = ["--samples", "8", "512", "--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    run = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=600)
    if run.returncode != 0 and "LLVM" in run.stderr:
        pytest.skip("Mitsuba finds no LLVM of version 16 or newer")
    assert run.returncode == 0, run.stderr
    results = json.loads((tmp_path / "a.json").read_text())
    error = {row["label"]: row["gradient_error"] for row in results["rows"]}
    assert error['edges="coverage"'] < 1e-4
    # Errors of sampling fall with the root of the number of samples, 512 / 8 = 8^2, towards coverage and nothing else.
    assert error["512 samples"] < 0.03
    assert error["8 samples"] / error["512 samples"] == pytest.approx(8, rel=0.5)
    assert results["mean_of_mitsuba"] < 0.8 * error["512 samples"]
    assert error['edges="segments"'] < error['edges="pairs"']
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_the_newest_library_that_is_new_enough_is_chosen():
    names = ["libLLVM-14.so", "libLLVM-15.so.1", "libLLVM.so.19.1", "libLLVM-16.so.1", "libLLVMdemangle.so"]
    assert newest_llvm(Path("/usr/lib/x") / name for name in names) == Path("/usr/lib/x/libLLVM.so.19.1")
    assert newest_llvm(Path(name) for name in names[:2]) is None
