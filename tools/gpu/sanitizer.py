"""Section `sanitizer`: memcheck and racecheck of compute-sanitizer over one call of every op (workload.py)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.build_library import ROOT
from tools.gpu.section import Section, Skipped, require


def find_sanitizer() -> str | None:
    """PATH, the CUDA toolkit, and where NVIDIA's packages for Python keep their programs."""
    candidates = [Path(home) / "bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    candidates += [Path(folder) / "nvidia" for folder in sys.path]
    found = shutil.which("compute-sanitizer")
    if found:
        return found
    for folder in candidates:
        for path in folder.glob("**/compute-sanitizer"):
            if path.is_file() and os.access(path, os.X_OK):
                return str(path)
    return None


def check_tool(section: Section, tool: str, seconds: float) -> str:
    command = [sys.executable, "-m", "tools.gpu.workload", section.device, "2" if section.dry_run else "99"]
    if not section.dry_run:
        sanitizer = find_sanitizer()
        if sanitizer is None:
            raise Skipped("there is no compute-sanitizer")
        # torch's own allocations would hide what is read beyond the end of a tensor.
        options = ["--tool", tool, "--print-limit", "20", "--error-exitcode", "9", "--target-processes", "all"]
        command = [sanitizer, *options, *command]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"not finished after {seconds:.0f} s") from error
    output = done.stdout + done.stderr
    if "Device not supported" in output:
        raise Skipped("compute-sanitizer does not support this device or runtime")
    require("workload: done" in output and done.returncode == 0, f"exit status {done.returncode}\n{output[-2500:]}")
    summary = re.search(r"(ERROR SUMMARY|RACECHECK SUMMARY): .*", output)
    return summary[0] if summary else "ran without the tool"


def main() -> None:
    section = Section()
    for number, tool in enumerate(("memcheck",) if section.dry_run else ("memcheck", "racecheck")):
        share = section.seconds_left() / (2 - number)
        section.check(tool, lambda tool=tool, share=share: check_tool(section, tool, share))


if __name__ == "__main__":
    main()
