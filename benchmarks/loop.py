"""Repeat one operation for some seconds, so that a profiler has something to look at.

perf record -g --call-graph dwarf -- .venv/bin/python -m benchmarks.loop rasterize 80k 1024
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.operations import OPERATION_NAMES, Inputs, make_operation
from benchmarks.scenes import make_scene


def main(arguments: Sequence[str] | None = None) -> int:
    """Repeat the operation; returns the exit code."""
    parser = argparse.ArgumentParser(description="Repeat one operation, to be profiled.")
    parser.add_argument("operation", choices=OPERATION_NAMES)
    parser.add_argument("scene", help="5k, 80k, 1.3M, big, levelN")
    parser.add_argument("size", type=int, help="side of the square image")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--perf", type=Path, help="sample the loop alone with Linux perf, into this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    call = make_operation(options.operation, Inputs(make_scene(options.scene), options.size)).call
    with _perf(options.perf) if options.perf else contextlib.nullcontext():
        calls, wall, cpu = 0, time.perf_counter(), time.process_time()
        while calls == 0 or time.perf_counter() - wall < options.seconds:
            call()
            calls += 1
        wall, cpu = ((t1 - t0) / calls * 1e3 for t0, t1 in ((wall, time.perf_counter()), (cpu, time.process_time())))
    print(f"{options.operation}, {options.scene}, {options.size}: {wall:.3f} ms, processor {cpu:.3f} ms, {calls} calls")
    return 0


@contextlib.contextmanager
def _perf(path: Path) -> Iterator[None]:
    """Let perf sample this process, by timer, while the block runs: the imports and the preparation are left out."""
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "2000", "-o", str(path), "-p", str(os.getpid())]
    process = subprocess.Popen(command)
    # perf needs a moment to attach; it says nothing when it has.
    time.sleep(0.5)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
