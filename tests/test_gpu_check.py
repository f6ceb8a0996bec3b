"""tools/gpu_check.py without a GPU: every section runs in a dry run, and a broken one hides nothing of the others."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools.gpu import driver, report

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["compare", "special", "benchmark"])
def test_section_runs_on_the_cpu(name, tmp_path, monkeypatch):
    """In this process, which spares the imports; the sections of a real run are processes. The other two below."""
    path = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", [name, "--result", str(path), "--budget-s", "100", "--dry-run"])
    importlib.import_module(f"tools.gpu.{name}").main()
    result = json.loads(path.read_text())
    failed = [check for check in result["checks"] if check["status"] == "failed"]
    assert not failed
    assert any(check["status"] == "passed" for check in result["checks"])
    if name == "benchmark":
        assert all(row["ms"] > 0 for row in result["rows"])
        assert {"rasterize", "fit step, segments"} < {row["name"] for row in result["rows"]}


def test_command_writes_its_report(tmp_path):
    command = [sys.executable, "tools/gpu_check.py", "--dry-run", "--only", "contract", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["environment"]["dry_run"]
    assert results["sections"]["contract"]["exit_status"] == 0
    assert results["sections"]["contract"]["groups"]["contract"]["passed"] == 2  # one test in each of two processes
    text = (tmp_path / "results.md").read_text()
    assert "dry run: says nothing about a GPU" in text
    assert "| contract | 2 | 0 | 0 |" in text


def test_section_that_can_not_start_is_reported(tmp_path):
    result = driver.run_section("no_such_section", tmp_path, 5.0, 25.0, True)
    assert result["exit_status"] == 1
    assert "No module named" in result["log_tail"]
    assert report.has_failed(result)
    page = report.markdown({"environment": {"dry_run": False}, "sections": {"no_such_section": result}})
    assert "**failed**: nothing was checked" in page
    assert "Ended with 1" in page


def test_failed_check_stops_no_other(tmp_path, monkeypatch):
    from tools.gpu.section import Section, Skipped, require

    path = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["x", "--result", str(path), "--dry-run"])
    section = Section()
    section.check("broken", lambda: require(False, "seen 3"))
    assert json.loads(path.read_text())["checks"][0]["status"] == "failed"  # kept before the next one runs

    def impossible():
        raise Skipped("one device only")

    section.check("impossible", impossible)
    section.check("good", lambda: "fine")
    checks = {check["name"]: check for check in json.loads(path.read_text())["checks"]}
    assert "seen 3" in checks["broken"]["detail"]
    assert checks["impossible"] == {**checks["impossible"], "status": "skipped", "detail": "one device only"}
    assert checks["good"]["status"] == "passed"


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ("9.0", ["sm_80", "sm_90"], True),
        ("8.6", ["sm_80"], True),
        ("8.0", ["sm_86"], False),
        ("9.0", ["sm_80"], False),
        ("10.3", ["sm_100"], True),
        ("12.1", ["sm_100", "compute_120"], True),
        ("7.0", ["sm_75", "compute_75"], False),
    ],
)
def test_has_code_for_follows_the_rules_of_cuda(capability, archs, runs):
    assert driver.has_code_for(capability, archs) == runs


def test_difference_sees_what_is_not_finite():
    from tools.gpu.compare import difference

    truth = torch.tensor([1.0, -4.0, torch.inf])
    assert difference(torch.tensor([1.0, -4.0, torch.inf]), truth) == 0
    assert difference(torch.tensor([1.0, -3.0, torch.inf]), truth) == 0.25
    assert difference(torch.tensor([1.0, torch.nan, torch.inf]), truth) == float("inf")


@pytest.mark.slow
def test_whole_dry_run(tmp_path):
    command = [sys.executable, "tools/gpu_check.py", "--dry-run", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["sections"]) == list(driver.SECTIONS)
    assert "| fit step, pairs |" in (tmp_path / "results.md").read_text()
