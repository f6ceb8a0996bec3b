"""Time the operations of diffrender next to embree, llvmpipe and memcpy, interleaved in one run.

    python -m benchmarks.run --json results.json --markdown results.md
    python -m benchmarks.run --sizes 1024 --scenes 5k big --threads 1 --only rasterize forward_backward

Every thread count has its own child process (`torch.set_num_threads`). For each scene and size these take turns: one
slot of every contestant in the first process, then one in the second, and again, `--repeat` times. Medians are over
the slots; a ratio is the median of the ratios within a slot. README.md in this folder says how to read them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

import torch

import diffrender
from benchmarks import worker, yardsticks
from benchmarks.operations import OPERATION_NAMES
from benchmarks.report import markdown
from benchmarks.scenes import SCENE_NAMES

BATCH, BATCH_SIZE = 8, 256
# Lines of a Markdown file between which --markdown puts the tables.
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
# Idle OpenMP threads spin for some milliseconds. (Letting them sleep at once, OMP_WAIT_POLICY=passive, is no way out: a
# woken thread often lands on the core of the one that wakes it, and two threads are then as slow as one.)
SETTLE_SECONDS = 0.02
BATCH_OPERATIONS = ("rasterize", "forward_backward")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that the command line asks for; returns the exit code."""
    options = _parse(arguments)
    results = measure(options)
    text = markdown(results)
    print(text)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.markdown is not None:
        options.markdown.write_text(_placed(text, options.markdown))
    return 0


def _placed(text: str, path: Path) -> str:
    """The contents of the file with `text` between its marker lines, or `text` alone if it has none."""
    old = path.read_text() if path.exists() else ""
    if BEGIN not in old or END not in old:
        return text + "\n"
    head, tail = old[: old.index(BEGIN)], old[old.index(END) :]
    return f"{head}{BEGIN}\n\n{text}\n\n{tail}"


def measure(options: argparse.Namespace) -> dict:
    """Measure every cell; returns the machine and one record per contestant, ready for JSON."""
    missing = yardsticks.available()
    for line in filter(None, missing.values()):
        print(line, file=sys.stderr)
    renderers = [name for name, line in missing.items() if line is None]
    operations = [name for name in OPERATION_NAMES if name in options.only]
    context = multiprocessing.get_context("spawn")
    pools = {
        threads: ProcessPoolExecutor(1, context, worker.start, (threads,)) for threads in dict.fromkeys(options.threads)
    }
    records: list[dict] = []
    try:
        for scene in options.scenes:
            for size in options.sizes if operations else []:
                _progress(f"{scene} at {size} x {size}")
                # The other renderers have one thread; they run in the process where ours have one too.
                arguments = {t: (scene, size, operations, renderers if t == min(pools) else []) for t in pools}
                cell = _cell(pools, worker.prepare_cell, arguments, options.repeat)
                records += [{"scene": scene, "size": size, **record} for record in cell]
            if "batch" in options.only:
                _progress(f"{scene}, batch of {BATCH} at {options.batch_size} x {options.batch_size}")
                arguments = dict.fromkeys(pools, (scene, options.batch_size, BATCH, BATCH_OPERATIONS))
                cell = _cell(pools, worker.prepare_batch, arguments, options.repeat)
                records += [{"scene": scene, "size": options.batch_size, **record} for record in cell]
    finally:
        for pool in pools.values():
            pool.shutdown()
    return {
        "machine": _machine(),
        "left_out": [line for line in missing.values() if line],
        "repeat": options.repeat,
        "records": records,
    }


def _cell(
    pools: dict[int, ProcessPoolExecutor], prepare: Callable, arguments: dict[int, tuple], repeat: int
) -> list[dict]:
    """Prepare a cell in every process, then let them take turns."""
    known = {threads: pool.submit(prepare, *arguments[threads]).result() for threads, pool in pools.items()}
    records: dict[tuple[int, str], dict] = {}
    for _ in range(repeat):
        for threads, pool in pools.items():
            time.sleep(SETTLE_SECONDS)
            for name, (wall_ms, cpu_ms) in pool.submit(worker.slot).result().items():
                empty = {"name": name, "threads": threads, **known[threads].get(name, {}), "wall_ms": [], "cpu_ms": []}
                record = records.setdefault((threads, name), empty)
                record["wall_ms"].append(wall_ms)
                record["cpu_ms"].append(cpu_ms)
    return list(records.values())


def _machine() -> dict:
    versions = {"diffrender": diffrender.__version__}
    for name in ("torch", "numpy", "embreex", "moderngl"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "load_average": os.getloadavg()[0],
        **versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 2048], help="sides of the square image")
    parser.add_argument("--scenes", nargs="+", default=list(SCENE_NAMES), help="5k, 80k, 1.3M, big, levelN")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=7, help="slots per contestant")
    everything = [*OPERATION_NAMES, "batch"]
    parser.add_argument("--only", nargs="+", choices=everything, default=everything, help="operations to time")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="side of the images of the batch of 8")
    parser.add_argument("--json", type=Path, help="write every sample here")
    parser.add_argument("--markdown", type=Path, help="write the tables here, between its marker lines if it has them")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
