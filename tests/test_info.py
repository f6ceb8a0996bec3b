"""`python -m diffrender.info`: every line of the report is there and true."""

import subprocess
import sys
from pathlib import Path

import torch

import diffrender
from diffrender import _library, info

ROOT = Path(__file__).resolve().parent.parent


def test_collect_reports_the_running_versions_and_the_loaded_level():
    report = info.collect()
    assert report["diffrender"] == diffrender.__version__
    assert report["torch"] == torch.__version__
    assert report["level"] == _library.loaded_level
    assert report["level"] in report["levels_built"]
    assert report["level"] in report["levels_supported"]
    assert report["build"]["levels"] == report["levels_built"]
    assert Path(report["library"]).is_file()
    assert report["threads"] == torch.get_num_threads()


def test_collect_lists_the_operators_with_the_devices_they_were_built_for():
    operators = info.collect()["operators"]
    compiled = {name: devices for name, devices in operators.items() if name != "edge_topology"}
    assert {"rasterize", "rasterize_backward", "interpolate", "interpolate_backward"} <= set(compiled)
    expected = ["cpu"] if info.collect()["build"]["cuda"] is None else ["cpu", "cuda"]
    assert {name for name, devices in compiled.items() if devices != expected} == set()
    assert operators["edge_topology"] == ["cpu", "cuda"]  # written in torch, runs wherever torch runs


def test_describe_says_when_cuda_kernels_are_missing():
    report = info.collect()
    report["build"] = {**report["build"], "cuda": None}
    assert "CUDA kernels     not built" in info.describe(report)
    report["build"] = {**report["build"], "cuda": {"version": "13.0", "archs": ["sm_80", "sm_90"]}}
    assert "CUDA kernels     CUDA 13.0 for sm_80 sm_90" in info.describe(report)


def test_command_prints_the_report():
    command = [sys.executable, "-W", "error", "-m", "diffrender.info"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    labels = [line[:15].strip() for line in result.stdout.splitlines()]
    expected = ["diffrender", "torch", "numpy", "python", "library", "compiled by", "CUDA kernels", "instruction set"]
    assert labels[: len(expected)] == expected
    assert labels.count("operator") == len(info.collect()["operators"])


def test_import_leaves_the_compiler_alone():
    """torch._dynamo takes over a second to import, for people who may never compile anything."""
    program = "import sys, torch; before = set(sys.modules); import diffrender; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert "diffrender.ops.coverage" in loaded
    assert not [name for name in loaded if name.startswith(("torch._dynamo", "torch._inductor", "sympy"))]
