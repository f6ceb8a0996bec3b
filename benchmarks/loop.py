"""Repeat one operation for some seconds, so that a profiler has something to look at.

perf record -g --call-graph dwarf -- .venv/bin/python -m benchmarks.loop rasterize 80k 1024
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

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
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    call = make_operation(options.operation, Inputs(make_scene(options.scene), options.size)).call
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < options.seconds:
        call()
        calls += 1
    print(f"{options.operation}, {options.scene}, {options.size}: {(time.perf_counter() - start) / calls * 1e3:.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
