"""Cost of the edge ops next to rasterize, and how it grows with triangles, pixels and crumpling.

    python -m benchmarks.edges_cost --json edges_cost.json --plot edges_cost.png

The table: forward and backward of antialias (methods "segments", with window and exact visibility, and "pairs") and of
coverage, at 1024 squared on the 80k mesh. Goals: "segments" at most 1.0 times rasterize forward, coverage at most 6
times rasterize and "segments", each with its backward pass. The sweeps, on one thread, change one thing at a time;
crumpling moves every vertex by noise of that part of the radius, which turns inner edges into silhouettes. Everything
runs in turn in every slot; times are the shortest of the slots, processor time where there is one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import diffrender as dr
from benchmarks.coverage import shortest
from benchmarks.scenes import clip_from_world, make_scene

SEGMENTS_LIMIT, COVERAGE_LIMIT = 1.0, 6.0
SWEPT = ("rasterize", "segments", "exact", "pairs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the table and the sweeps; returns the exit code."""
    parser = argparse.ArgumentParser(description="Cost of the edge ops next to rasterize.")
    parser.add_argument("--size", type=int, default=1024, help="side of the square image")
    parser.add_argument("--level", type=int, default=6, help="level of the icosphere: 20 * 4 ** level triangles")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--levels", type=int, nargs="*", default=[3, 4, 5, 6, 7, 8], help="of the sweep over triangles")
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 512, 1024, 2048], help="of the sweep over pixels")
    parser.add_argument("--noise", type=float, nargs="*", default=[0.0, 0.001, 0.002, 0.004, 0.008])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="draw the sweeps; needs matplotlib")
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    try:
        results = {
            "table": [table(options.level, options.size, threads, options.repeat) for threads in options.threads],
            "sweeps": sweeps(options),
        }
    finally:
        torch.set_num_threads(before)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.plot:
        draw(results["sweeps"], options.plot)
    return 0


def table(level: int, size: int, threads: int, repeat: int) -> dict:
    """Milliseconds of everything on one mesh, and the two ratios that have a goal."""
    torch.set_num_threads(threads)
    times = shortest(make_calls(level, size), repeat, time.thread_time if threads == 1 else time.perf_counter)
    ratios = {
        "segments / rasterize": (times["segments"] / times["rasterize"], SEGMENTS_LIMIT),
        "coverage / (rasterize + segments)": (
            times["coverage"] / (times["rasterize + backward"] + times["segments"]),
            COVERAGE_LIMIT,
        ),
    }
    print(f"{20 * 4**level} triangles, {size} squared, {threads} threads")
    for label, value in times.items():
        print(f"  {label:22s} {value:9.2f} ms")
    for label, (ratio, limit) in ratios.items():
        print(f"  {label} = {ratio:.2f}, {'pass' if ratio <= limit else 'MISS'} (at most {limit})")
    return {
        "triangles": 20 * 4**level,
        "size": size,
        "threads": threads,
        "ms": times,
        "ratios": {label: ratio for label, (ratio, _) in ratios.items()},
    }


def sweeps(options: argparse.Namespace) -> list[dict]:
    """One curve per op and axis; all points of an axis are interleaved."""
    torch.set_num_threads(1)
    axes = {
        "triangles": [(20 * 4**level, {"level": level}) for level in options.levels],
        "pixels": [(size * size, {"size": size}) for size in options.sizes],
        "noise": [(noise, {"noise": noise}) for noise in options.noise],
    }
    results = []
    for axis, points in axes.items():
        calls: dict[str, Callable[[], object]] = {}
        for work, change in points:
            made = make_calls(**{"level": options.level, "size": options.size, **change})
            calls.update({f"{name} {work}": made[name] for name in SWEPT})
        times = shortest(calls, options.repeat, time.thread_time)
        for name in SWEPT if points else ():
            work = [value for value, _ in points]
            results.append({"axis": axis, "op": name, "work": work, "ms": [times[f"{name} {w}"] for w in work]})
            print(f"{axis}: {name} " + ", ".join(f"{w:g}: {times[f'{name} {w}']:.1f} ms" for w in work))
    return results


def make_calls(level: int, size: int, noise: float = 0.0) -> dict[str, Callable[[], object]]:
    """What is timed, by label: all with their backward pass but "rasterize"."""
    scene = make_scene(f"level{level}")
    vertices = torch.from_numpy(scene.vertices).double()
    vertices += noise * torch.randn(vertices.shape, generator=torch.Generator().manual_seed(0), dtype=vertices.dtype)
    clip = torch.nn.functional.pad(vertices, (0, 1), value=1.0) @ torch.from_numpy(clip_from_world()).T
    positions = clip.float().requires_grad_()
    triangles = torch.from_numpy(scene.triangles)
    topology = dr.edge_topology(triangles, positions)
    fragments = dr.rasterize(positions.detach(), triangles, (size, size))
    image = dr.interpolate(torch.from_numpy(scene.colors), triangles, fragments).requires_grad_()
    grad_image, grad_barycentrics = torch.rand_like(image), torch.rand_like(fragments.barycentrics)
    grads_of_areas: dict[bool, tuple[torch.Tensor, torch.Tensor]] = {}

    def rasterize(backward: bool):
        if not backward:
            return dr.rasterize(positions.detach(), triangles, (size, size))
        made = dr.rasterize(positions, triangles, (size, size))
        return torch.autograd.grad(made.barycentrics, positions, grad_barycentrics)

    def antialias(**options: str):
        blended = dr.antialias(image, fragments, positions, triangles, topology=topology, **options)
        return torch.autograd.grad(blended, (image, positions), grad_image)

    def coverage(merge: bool):
        made = dr.coverage(positions, triangles, (size, size), merge_adjacent=merge)
        if merge not in grads_of_areas:  # how many fragments there are, only the first call knows
            grads_of_areas[merge] = (torch.rand_like(made.weight), torch.rand_like(made.barycentrics))
        return torch.autograd.grad((made.weight, made.barycentrics), positions, grads_of_areas[merge])

    return {
        "rasterize": lambda: rasterize(False),
        "rasterize + backward": lambda: rasterize(True),
        "segments": lambda: antialias(method="segments"),
        "exact": lambda: antialias(method="segments", visibility="exact"),
        "pairs": lambda: antialias(method="pairs"),
        "coverage": lambda: coverage(False),
        "coverage, merged": lambda: coverage(True),
    }


def draw(curves: list[dict], path: Path) -> None:
    """One panel per axis."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("edges_cost: matplotlib must be installed. pip install diffrender-torch[fit]") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = {"triangles": "triangles", "pixels": "pixels", "noise": "noise, part of the radius"}
    axes = list(dict.fromkeys(curve["axis"] for curve in curves))
    figure, panels = pyplot.subplots(1, len(axes), figsize=(4.2 * len(axes), 3.8), squeeze=False, layout="constrained")
    for axis, panel in zip(axes, panels[0], strict=True):
        for curve in (curve for curve in curves if curve["axis"] == axis):
            panel.plot(curve["work"], curve["ms"], marker="o", label=curve["op"])
        panel.set_yscale("log")
        if axis != "noise":
            panel.set_xscale("log")
        panel.set_xlabel(labels[axis])
        panel.set_ylabel("milliseconds, one thread")
        panel.grid(True, which="major", alpha=0.3)
    panels[0][0].legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
