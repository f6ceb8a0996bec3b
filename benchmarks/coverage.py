"""Exact coverage next to rasterize and antialias: forward, and forward with backward, on the scenes of scenes.py.

    python -m benchmarks.coverage --size 1024 --scenes 5k 80k --json coverage.json

The yardstick is rasterize and antialias (method "pairs") with their backward passes on the same mesh and size. All run
in turn in every slot; times are the shortest of the slots in milliseconds, processor time where there is one thread,
so that other programs disturb it less. The goal is at most 6 times the yardstick.
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
from benchmarks.scenes import make_scene

LIMIT = 6.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every scene; returns the exit code."""
    parser = argparse.ArgumentParser(description="Exact coverage next to rasterize and antialias.")
    parser.add_argument("--size", type=int, default=1024, help="side of the square image")
    parser.add_argument("--scenes", nargs="+", default=["5k", "80k"], help="names of benchmarks/scenes.py")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    records = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        clock = time.thread_time if threads == 1 else time.perf_counter
        for name in options.scenes:
            calls = make_calls(name, options.size)
            times = shortest(calls, options.repeat, clock)
            yardstick = times["rasterize + backward"] + times["antialias + backward"]
            record = {"scene": name, "size": options.size, "threads": threads, "ms": times}
            for mode in ("exact", "merged"):
                record[f"{mode} ratio"] = times[f"{mode} + backward"] / yardstick
            records.append(record)
            print(f"{name}, {options.size}, {threads} threads")
            for label, value in times.items():
                print(f"  {label:24s} {value:9.1f} ms")
            for mode in ("exact", "merged"):
                ratio = record[f"{mode} ratio"]
                print(f"  {mode}: {ratio:.1f} times the yardstick, {'pass' if ratio <= LIMIT else 'MISS'}")
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))
    return 0


def make_calls(name: str, size: int) -> dict[str, Callable[[], object]]:
    """What is timed, by label. Cotangents are made beforehand; an edge op gets a picture that is there already."""
    scene = make_scene(name)
    positions = torch.from_numpy(scene.clip_positions).requires_grad_()
    triangles = torch.from_numpy(scene.triangles)
    resolution = (size, size)
    topology = dr.edge_topology(triangles, positions)
    fragments = dr.rasterize(positions, triangles, resolution)
    image = dr.interpolate(torch.from_numpy(scene.colors), triangles, fragments).detach().requires_grad_()
    grad_barycentrics, grad_image = torch.rand_like(fragments.barycentrics), torch.rand_like(image)
    frozen = dr.Fragments(*(x if x is None else x.detach() for x in fragments))

    def rasterize():
        made = dr.rasterize(positions, triangles, resolution)
        return torch.autograd.grad(made.barycentrics, positions, grad_barycentrics)

    def antialias():
        blended = dr.antialias(image, frozen, positions, triangles, method="pairs", topology=topology)
        return torch.autograd.grad(blended, (image, positions), grad_image)

    calls = {"rasterize + backward": rasterize, "antialias + backward": antialias}
    for mode, merge in (("exact", False), ("merged", True)):
        count = len(dr.coverage(positions, triangles, resolution, merge_adjacent=merge).weight)
        cotangents = (torch.rand(count), torch.rand(count, 2))

        def forward(merge=merge):
            return dr.coverage(positions, triangles, resolution, merge_adjacent=merge)

        def both(merge=merge, cotangents=cotangents):
            made = dr.coverage(positions, triangles, resolution, merge_adjacent=merge)
            return torch.autograd.grad((made.weight, made.barycentrics), positions, cotangents)

        calls[mode] = forward
        calls[f"{mode} + backward"] = both
    return calls


def shortest(calls: dict[str, Callable[[], object]], repeat: int, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds of each call: the shortest of `repeat` slots, in each of which all run in turn."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeat):
        for label, call in calls.items():
            start = clock()
            call()
            best[label] = min(best[label], 1e3 * (clock() - start))
    return best


if __name__ == "__main__":
    sys.exit(main())
