"""Runs the sections one after the other, each as a process with its share of the time, and writes the report."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools import build_library
from tools.gpu import report

# In the order they run; seconds as shares of the whole budget. What comes first is what matters most.
SECTIONS = {"compare": 0.12, "special": 0.12, "sanitizer": 0.12, "benchmark": 0.3, "contract": 0.34}
LIBRARIES = build_library.ROOT / build_library.LIBRARIES


def run(sections: list[str], out: Path, budget_s: float, dry_run: bool) -> int:
    """Exit status 0 when no check failed."""
    start = time.monotonic()
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"environment": environment(dry_run), "sections": {}}
    build_text = prepare_library(results["environment"], out, dry_run)
    results["environment"]["library"] = build_text
    print(report.environment_lines(results["environment"]), flush=True)
    for position, name in enumerate(n for n in SECTIONS if n in sections):
        remaining = [SECTIONS[n] for n in list(SECTIONS) if n in sections][position:]
        left = budget_s - (time.monotonic() - start)
        share = max(left * SECTIONS[name] / sum(remaining), 1.0)
        results["sections"][name] = run_section(name, out, share, min(1.15 * share + 20, max(left, 1.0) + 10), dry_run)
        print(report.section_line(name, results["sections"][name]), flush=True)
        # After every section: a machine that goes away leaves what was found so far.
        results["seconds"] = round(time.monotonic() - start, 1)
        (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (out / "results.md").write_text(report.markdown(results))
    print(f"{out / 'results.md'} ({results.get('seconds', 0)} s)")
    return 1 if any(report.has_failed(section) for section in results["sections"].values()) else 0


def run_section(name: str, out: Path, seconds: float, limit: float, dry_run: bool) -> dict[str, Any]:
    """The section's result with its exit status, its time, and the end of what it printed.

    Sections watch their seconds themselves; the limit is for one that hangs.
    """
    path, log = out / f"{name}.json", out / f"{name}.log"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"tools.gpu.{name}", "--result", str(path), "--budget-s", str(round(seconds, 1))]
    command += ["--dry-run"] if dry_run else []
    start = time.monotonic()
    with open(log, "w") as stream:
        process = subprocess.Popen(command, cwd=build_library.ROOT, stdout=stream, stderr=subprocess.STDOUT)
        try:
            status: int | str = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = "timeout"
    result = json.loads(path.read_text()) if path.is_file() else {"checks": []}
    result["exit_status"] = status
    result["seconds"] = round(time.monotonic() - start, 1)
    if status != 0:
        result["log_tail"] = log.read_text(errors="replace")[-3000:]
    return result


def environment(dry_run: bool) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
        "dry_run": dry_run,
        "cpus": os.cpu_count(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["memory_gib"] = round(properties.total_memory / 2**30, 1)
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            found["driver"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            found["driver"] = f"unknown ({error})"
    return found


def prepare_library(found: dict[str, Any], out: Path, dry_run: bool) -> str:
    """Builds the library where it has no code for the GPU. Returns what was done; sections fail where that failed."""
    if dry_run:
        return "as it is (dry run)"
    if "capability" not in found:
        return "no CUDA device: every section will fail. Use --dry-run on a machine without one."
    info = LIBRARIES / "build_info.json"
    built = json.loads(info.read_text())["cuda"] if info.is_file() else None
    if built is not None and has_code_for(found["capability"], built["archs"]):
        return f"as it was, CUDA {built['version']} for {' '.join(built['archs'])}"
    environment = {**os.environ, "DIFFRENDER_CUDA": "1", "TORCH_CUDA_ARCH_LIST": found["capability"]}
    start = time.monotonic()
    with open(out / "build.log", "w") as log:
        command = [sys.executable, "-c", "from tools import build_library; build_library.build()"]
        done = subprocess.run(
            command, cwd=build_library.ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    seconds = time.monotonic() - start
    if done.returncode != 0:
        return f"build failed after {seconds:.0f} s: " + (out / "build.log").read_text(errors="replace")[-1500:]
    return f"built here for {found['capability']} in {seconds:.0f} s"


def has_code_for(capability: str, archs: list[str]) -> bool:
    """Machine code of the same major and no newer minor version, or PTX that is no newer."""
    major, minor = (int(part) for part in capability.split("."))
    for arch in archs:
        kind, _, number = arch.partition("_")
        if not number.isdigit():
            continue  # sm_90a and the like run on exactly that chip; this build makes none
        arch_major, arch_minor = int(number[:-1]), int(number[-1])
        if kind == "sm" and arch_major == major and arch_minor <= minor:
            return True
        if kind == "compute" and (arch_major, arch_minor) <= (major, minor):
            return True
    return False
