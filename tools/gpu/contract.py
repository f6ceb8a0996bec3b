"""Section `contract`: the tests, on the GPU.

Three groups, each cut into shares that run at the same time:
  contract   tests/ops/test_contract*.py and tests/cases with every tensor on the GPU and deterministic sums, so that
             gradients can be compared bit for bit
  atomics    of the contract what compares with tolerances, with the atomic sums that are the default
  cuda       the tests marked `cuda`: CPU against GPU, streams, memory; and the comparison with nvdiffrast
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.build_library import ROOT
from tools.gpu.section import Section

CONTRACT = ["tests/ops/test_contract.py", "tests/ops/test_contract_transforms.py"]

# pytest arguments, environment, number of shares relative to the others.
GROUPS: dict[str, tuple[list[str], dict[str, str], int]] = {
    "cuda": (["-m", "cuda", "tests/ops", "tests/compat"], {}, 1),
    "atomics": (
        [*CONTRACT, "-k", "gradcheck or reference or second_derivative or vmap_of_grad"],
        {"DIFFRENDER_TEST_DEVICE": "cuda", "DIFFRENDER_TEST_DETERMINISTIC": "0"},
        2,
    ),
    # Of the cases those about files have nothing to do with a device, and forked workers may not use CUDA.
    "contract": (
        [*CONTRACT, "tests/cases", "--ignore=tests/cases/test_cases_i.py", "-k", "not data_loader"],
        {"DIFFRENDER_TEST_DEVICE": "cuda", "DIFFRENDER_CHECKS": "1"},
        5,
    ),
}
DRY_RUN: dict[str, tuple[list[str], dict[str, str], int]] = {
    "contract": (["tests/ops/test_scatter.py", "-k", "fixed_point"], {"DIFFRENDER_TEST_DEVICE": "cpu"}, 2),
}


def main() -> None:
    section = Section()
    if importlib.util.find_spec("pytest") is None:
        section.data["checks"].append({"name": "pytest", "status": "skipped", "detail": "pytest is not installed"})
        section.write()
        return
    groups = DRY_RUN if section.dry_run else GROUPS
    total = sum(weight for _, _, weight in groups.values())
    workers = total if section.dry_run else max(total, min(14, (os.cpu_count() or 2) - 2))
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for group, (arguments, environment, weight) in groups.items():
            shares = round(workers * weight / total)
            for share in range(shares):
                record = Path(folder) / f"{group}-{share}.jsonl"
                running.append((group, record, start(arguments, environment, record, f"{share}/{shares}")))
        for group, record, process in running:
            code = wait(process, section.seconds_left())
            collect(section, group, record, code)
    section.write()


def start(arguments: list[str], environment: dict[str, str], record: Path, shard: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.gpu.recorder", "-p", "no:cacheprovider"]
    variables = {
        **os.environ,
        **environment,
        "GPU_CHECK_RECORD": str(record),
        "GPU_CHECK_SHARD": shard,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    with open(record.with_suffix(".log"), "wb") as log:
        return subprocess.Popen([*command, *arguments], cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT)


def wait(process: subprocess.Popen[bytes], seconds: float) -> int | str:
    try:
        return process.wait(timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "timeout"


def collect(section: Section, group: str, record: Path, code: int | str) -> None:
    """Counts of a share; failures one by one, and a share that ended otherwise than pytest does."""
    groups: dict[str, Any] = section.data.setdefault("groups", {})
    counts = groups.setdefault(group, {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0})
    for line in record.read_text().splitlines() if record.is_file() else []:
        test = json.loads(line)
        counts[test["outcome"]] += 1
        counts["seconds"] = round(counts["seconds"] + test["seconds"], 2)
        if test["outcome"] == "failed":
            section.data["checks"].append({"name": test["name"], "status": "failed", "detail": test["text"]})
    # 0 = passed, 1 = tests failed, 5 = nothing to run in this share.
    if code not in (0, 1, 5):
        tail = record.with_suffix(".log").read_text(errors="replace")[-1500:]
        status = "skipped" if code == "timeout" else "failed"
        name = f"{group}: {record.stem} ended with {code} at {time.strftime('%H:%M:%S')}"
        section.data["checks"].append({"name": name, "status": status, "detail": tail})
    section.write()


if __name__ == "__main__":
    main()
