"""Texture lookups next to torch.nn.functional.grid_sample: forward, backward to coordinates, backward to the texture.

    python -m benchmarks.texture --json texture.json --markdown texture.md

Both look up the same 1024 x 1024 positions with the bilinear filter and a clamped border, each on its own layout:
(1, H, W, C) texels and coordinates in [0, 1] here, (1, C, H, W) and [-1, 1] there. Positions are a turned and
shrunk square, as a renderer makes them ("turned"), or random ("random"). In every slot both run in turn; times are the
shortest of the slots, ratios the median over the slots of the ratio within one. With one thread it is processor time,
so that other programs disturb it less. Trilinear lookups, over all levels, are compared with linear ones; their levels
have been built before.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

import diffrender as dr

ACTIONS = ("forward", "coordinates", "texels")
PATTERNS = ("turned", "random")
TRILINEAR_LIMIT = 2.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every cell; returns the exit code."""
    parser = argparse.ArgumentParser(description="Texture lookups next to grid_sample.")
    parser.add_argument("--lookups", type=int, default=1024, help="side of the square of lookups")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024, 4096], help="side of the texture")
    parser.add_argument("--channels", type=int, nargs="+", default=[1, 2, 3, 4, 16, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--repeat", type=int, default=7, help="slots of every cell, at most")
    parser.add_argument("--seconds", type=float, default=2.0, help="after these no further slot of a cell begins")
    parser.add_argument("--max-gib", type=float, default=12.0, help="leave out cells that need more memory")
    parser.add_argument("--json", type=Path, help="write the samples here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    options = parser.parse_args(arguments)

    records = []
    for size in options.sizes:
        for channels in options.channels:
            # The texture and one gradient, and as much again for the levels, the values and their gradients.
            need = 4 * channels * (2.7 * size**2 + 4 * options.lookups**2) / 2**30
            if need > options.max_gib:
                print(f"left out: texture {size}, {channels} channels need {need:.1f} GiB (--max-gib)", flush=True)
                continue
            for pattern in options.patterns:
                slots = (options.repeat, options.seconds)
                records += measure_cell(size, channels, pattern, options.lookups, options.threads, slots)
                print(records[-1]["label"], "done", file=sys.stderr, flush=True)
                write(records, options.json, options.markdown)
    print(markdown(records))
    return 0


def write(records: list[dict], json_path: Path | None, markdown_path: Path | None) -> None:
    """After every cell: a run that is stopped keeps what it has."""
    if json_path is not None:
        json_path.write_text(json.dumps(records, indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(markdown(records) + "\n")


def measure_cell(
    size: int, channels: int, pattern: str, lookups: int, threads: Sequence[int], slots: tuple[int, float]
) -> list[dict]:
    """All actions at one texture size, channel count and pattern of lookups, for each number of threads.

    slots: how many at most, and after how many seconds no further one begins.
    """
    contestants = make_contestants(size, channels, pattern, lookups)
    records = []
    for count in threads:
        torch.set_num_threads(count)
        samples: dict[str, list[float]] = {name: [] for name in contestants}
        for call in contestants.values():
            call()
        start, slot = time.perf_counter(), 0
        while slot == 0 or (slot < slots[0] and time.perf_counter() - start < slots[1]):
            for name, call in contestants.items():
                samples[name].append(measure(call, processor_time=count == 1))
            slot += 1
        label = f"{size} {channels} {pattern} {count}"
        records.append(
            {"label": label, "size": size, "channels": channels, "pattern": pattern, "threads": count, "ms": samples}
        )
    return records


def measure(call: Callable[[], object], processor_time: bool) -> float:
    clock = time.thread_time if processor_time else time.perf_counter
    start = clock()
    call()
    return (clock() - start) * 1e3


def make_contestants(size: int, channels: int, pattern: str, lookups: int) -> dict[str, Callable[[], object]]:
    """Calls named "ours forward", "torch texels", ...; and "trilinear forward", ... of ours."""
    # The same numbers serve as texels of either layout: what is sampled does not matter, where it lies does.
    texels = torch.rand(size * size * channels)
    ours, theirs = texels.view(1, size, size, channels), texels.view(1, channels, size, size)
    uv = positions(pattern, lookups)
    grid = 2 * uv - 1
    grad = torch.rand(lookups * lookups * channels)
    grad_ours, grad_theirs = grad.view(1, lookups, lookups, channels), grad.view(1, channels, lookups, lookups)
    # A footprint of 1.4 texels of the middle level, for those who choose a level by it.
    steps = torch.eye(2).reshape(4).expand(1, lookups, lookups, 4) * (1.4 / math.sqrt(size))
    steps = steps.contiguous()
    mips = dr.build_mips(ours)
    packed = torch.cat([level.reshape(1, -1, channels) for level in mips], 1)

    def forward_ours():
        return dr.texture(ours, uv, filter="linear", wrap="clamp")

    def forward_theirs():
        return torch.nn.functional.grid_sample(theirs, grid, padding_mode="border", align_corners=False)

    def forward_trilinear():
        return torch.ops.diffrender.texture(ours, packed, uv, steps, None, 3, 1, 1, len(mips), 1)

    def backward_theirs(which: str):
        mask = [which == "texels", which == "coordinates"]

        def call():
            return torch.ops.aten.grid_sampler_2d_backward(grad_theirs, theirs, grid, 0, 1, False, mask)

        return call

    def backward_kernel(which: str, filter_code: int):
        """The backward kernel alone, as for grid_sample."""
        trilinear = filter_code == 3
        modes = (filter_code, 1, 1, len(mips) if trilinear else 0, 1)
        needs = (which == "texels", which == "texels" and trilinear, which == "coordinates", False, False)
        levels, derivatives = (packed, steps) if trilinear else (None, None)

        def call():
            return torch.ops.diffrender.texture_backward(
                ours, levels, uv, derivatives, None, grad_ours, *modes, *needs, 0
            )

        return call

    calls: dict[str, Callable[[], object]] = {"ours forward": forward_ours, "torch forward": forward_theirs}
    calls["trilinear forward"] = forward_trilinear
    for which in ("coordinates", "texels"):
        calls[f"ours {which}"] = backward_kernel(which, 1)
        calls[f"torch {which}"] = backward_theirs(which)
        calls[f"trilinear {which}"] = backward_kernel(which, 3)
    return calls


def positions(pattern: str, side: int) -> torch.Tensor:
    """(1, side, side, 2) texture coordinates."""
    if pattern == "random":
        return torch.rand(1, side, side, 2, generator=torch.Generator().manual_seed(0))
    y, x = torch.meshgrid(torch.linspace(-0.35, 0.35, side), torch.linspace(-0.35, 0.35, side), indexing="ij")
    return torch.stack([0.5 + 0.8 * x - 0.6 * y, 0.5 + 0.6 * x + 0.8 * y], -1)[None].contiguous()


def ratios(records: Sequence[dict], first: str, second: str) -> Iterator[float]:
    """Median over the slots of first / second, record by record."""
    for record in records:
        pairs = zip(record["ms"][first], record["ms"][second], strict=True)
        yield statistics.median(a / b for a, b in pairs)


def markdown(records: Sequence[dict]) -> str:
    """Verdicts, and a table of all cells."""
    lines = ["### Goals", ""]
    for action in ACTIONS:
        worst = list(ratios(records, f"ours {action}", f"torch {action}"))
        lost = [record["label"] for record, ratio in zip(records, worst, strict=True) if ratio >= 1]
        verdict = "pass" if not lost else "MISS in " + ", ".join(lost)
        lines.append(f"- {action} faster than grid_sample in every cell: {verdict} (largest ratio {max(worst):.2f})")
    for action in ACTIONS:
        worst = list(ratios(records, f"trilinear {action}", f"ours {action}"))
        lost = [record["label"] for record, ratio in zip(records, worst, strict=True) if ratio > TRILINEAR_LIMIT]
        verdict = "pass" if not lost else "MISS in " + ", ".join(lost)
        lines.append(f"- {action}, trilinear at most {TRILINEAR_LIMIT} x linear: {verdict} (largest {max(worst):.2f})")
    lines += ["", "### Times", "", "Milliseconds: ours / grid_sample / trilinear, shortest of the slots.", ""]
    lines += [
        "| texture | channels | lookups | threads | " + " | ".join(ACTIONS) + " |",
        "|---" * (4 + len(ACTIONS)) + "|",
    ]
    for record in records:
        best = {name: min(times) for name, times in record["ms"].items()}
        cells = [" / ".join(f"{best[f'{who} {a}']:.1f}" for who in ("ours", "torch", "trilinear")) for a in ACTIONS]
        row = [record["size"], record["channels"], record["pattern"], record["threads"], *cells]
        lines.append("| " + " | ".join(str(cell) for cell in row) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
