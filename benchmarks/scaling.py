"""How the cost of rasterizing and of the whole step grows with pixels and with triangles.

    python -m benchmarks.scaling --json scaling.json && python -m benchmarks.plot scaling.json scaling.png

Two sweeps with one thread: images of growing size of one mesh, and meshes of growing triangle count at one size. All
points of a sweep are interleaved. Growth is linear at most when a step that multiplies the work by k multiplies the
time by no more than k; the script prints the largest ratio of the two and says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.operations import Inputs, make_operation
from benchmarks.scenes import make_scene
from benchmarks.worker import measure_call

OPERATIONS = ("rasterize", "forward_backward")
# Time may grow this much faster than the work within one step before it counts as more than linear: noise.
TOLERANCE = 1.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both sweeps; returns the exit code."""
    parser = argparse.ArgumentParser(description="Cost against pixels and against triangles, one thread.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--levels", type=int, nargs="+", default=[2, 3, 4, 5, 6, 7, 8], help="levels of the icosphere")
    parser.add_argument("--size", type=int, default=1024, help="side of the image in the sweep over triangles")
    parser.add_argument("--level", type=int, default=6, help="level of the icosphere in the sweep over pixels")
    parser.add_argument("--repeat", type=int, default=7, help="times that every point is visited")
    parser.add_argument("--json", type=Path, help="write the samples here")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)

    sweeps = {
        "pixels": [(size * size, options.level, size) for size in options.sizes],
        "triangles": [(20 * 4**level, level, options.size) for level in options.levels],
    }
    results = []
    for axis, points in sweeps.items():
        for operation in OPERATIONS:
            # Memory for the largest images is only taken while their own operation is measured.
            sweep = _sweep([(work, _prepare(operation, level, size)) for work, level, size in points], options.repeat)
            results.append({"axis": axis, "operation": operation, **sweep})
            print(_verdict(results[-1]))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def _prepare(operation: str, level: int, size: int) -> Callable[[], object]:
    call = make_operation(operation, Inputs(make_scene(f"level{level}"), size)).call
    call()
    return call


def _sweep(points: list[tuple[int, Callable[[], object]]], repeat: int) -> dict[str, list]:
    samples: list[list[float]] = [[] for _ in points]
    for _ in range(repeat):
        for (_, call), times in zip(points, samples, strict=True):
            times.append(measure_call(call, 1)[1])
    return {
        "work": [work for work, _ in points],
        "cpu_ms": [statistics.median(times) for times in samples],
        "samples_cpu_ms": samples,
    }


def _verdict(sweep: dict) -> str:
    work, times = sweep["work"], sweep["cpu_ms"]
    steps = zip(work, work[1:], times, times[1:], strict=False)
    worst = max(((t1 / t0) / (w1 / w0) for w0, w1, t0, t1 in steps), default=1.0)
    verdict = "pass" if worst <= TOLERANCE else "MISS"
    points = ", ".join(f"{w}: {t:.2f} ms" for w, t in zip(work, times, strict=True))
    return f"{sweep['operation']} against {sweep['axis']}: growth at most {worst:.2f} x linear, {verdict} ({points})"


if __name__ == "__main__":
    sys.exit(main())
