"""The shading benchmark runs in a tiny configuration, and its plain formulas are those of the ops. No times here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import shade

ROOT = Path(__file__).resolve().parents[1]


def test_script_runs_on_tiny_pictures(tmp_path):
    options = [
        "--size",
        "16",
        "--repeat",
        "1",
        "--threads",
        "1",
        "--no-compile",
        "--json",
        str(tmp_path / "shade.json"),
    ]
    command = [sys.executable, "-m", "benchmarks.shade", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    records = json.loads((tmp_path / "shade.json").read_text())
    assert [r["operation"] for r in records] == list(shade.OPERATIONS)
    assert done.stdout.count("\n| ") == len(records)


@pytest.mark.parametrize("name", shade.OPERATIONS)
def test_fused_op_keeps_its_inputs_only(name):
    case = shade.Case(name, 32, 4)
    total, beside = shade.saved_bytes(case.forward("fused"), case.inputs)
    # Beside the inputs: scaled coefficients, types of the lights, an absent energy map.
    assert beside < 300
    assert total <= sum(x.untyped_storage().nbytes() for x in case.inputs) + 300
    plain, _ = shade.saved_bytes(case.forward("eager"), case.inputs)
    assert plain > 5 * total


@pytest.mark.parametrize("name", shade.OPERATIONS)
def test_plain_formula_gives_the_same_picture(name):
    case = shade.Case(name, 32, 7)
    fused, plain = case.forward("fused")(), case.forward("eager")()
    assert torch.allclose(fused, plain, rtol=1e-3, atol=1e-4)


def test_unknown_operation_is_refused():
    with pytest.raises(ValueError, match="Case: name must be one of shade_lambert"):
        shade.Case("phong", 8, 4)


def test_report_says_where_a_goal_is_missed():
    def record(eager_ms, eager_bytes):
        return {
            "operation": "shade_lambert",
            "fused": {"ms": 10.0, "saved_bytes": 100},
            "eager": {"ms": eager_ms, "saved_bytes": eager_bytes},
            "compiled": {"ms": 12.0, "saved_bytes": 100},
        }

    assert "| pass |" in shade.report([record(51.0, 501)])
    assert "| **MISS** |" in shade.report([record(49.0, 501)])
    assert "| **MISS** |" in shade.report([record(51.0, 499)])
