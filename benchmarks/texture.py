"""Texture lookups next to torch.nn.functional.grid_sample: forward, backward to coordinates, backward to the texture.

    python -m benchmarks.texture --json texture.json --markdown texture.md

Both look up the same 1024 x 1024 positions with the bilinear filter and a clamped border, each on its own layout:
(1, H, W, C) texels and coordinates in [0, 1] here, (1, C, H, W) and [-1, 1] there. Positions are a turned and
shrunk square, as a renderer makes them ("turned"), or random ("random"). Trilinear lookups, over all levels, are
compared with linear ones; their levels have been built before.

How a cell is decided, by the same rule for all. In a *slot* every contestant runs once, in turn, in an order that
turns around from slot to slot; a cell has some slots in each of several rounds over the whole table, so that what
disturbs the machine for a while meets few of them. The first slot of a round warms up and does not count. Cells of long
slots are in one round only, with three of them, or one that is very long (--long). A fixed piece of work, the
*control*, is timed before and after every slot: one next to which it took 1.25 times its least time in that round is
left out and measured again, at most as often as there are slots. A ratio is the median over the slots of the ratio
within one; times are the least. With one thread it is processor time, else time on the clock. Before each call whose
result is more than 32 MB of values, as much memory is written and given back, so that all find the system alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import diffrender as dr

ACTIONS = ("forward", "coordinates", "texels")
PATTERNS = ("turned", "random")
TRILINEAR_LIMIT = 2.5
DISTURBED = 1.25
# Results above this are fresh memory from the system in every call. What that costs depends on what was given back just
# before, so for each the same is.
FRESH_BYTES, MAX_TOUCHED_BYTES = 32 << 20, 256 << 20

Contestants = dict[str, Callable[[], object]]


@dataclasses.dataclass
class Cell:
    """Samples of one texture size, channel count, pattern of lookups and number of threads."""

    size: int
    channels: int
    pattern: str
    threads: int
    ms: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    disturbed: int = 0  # slots that were measured again
    long: bool = False

    @property
    def label(self) -> str:
        return f"{self.size} {self.channels} {self.pattern} {self.threads}"

    def ratio(self, first: str, second: str) -> float:
        return statistics.median(a / b for a, b in zip(self.ms[first], self.ms[second], strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every cell; returns the exit code."""
    parser = argparse.ArgumentParser(description="Texture lookups next to grid_sample.")
    parser.add_argument("--lookups", type=int, default=1024, help="side of the square of lookups")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024, 4096], help="side of the texture")
    parser.add_argument("--channels", type=int, nargs="+", default=[1, 2, 3, 4, 16, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--rounds", type=int, default=3, help="over the whole table")
    parser.add_argument("--slots", type=int, default=4, help="of a cell in a round, at most")
    parser.add_argument("--seconds", type=float, default=0.7, help="after these no further slot of a round begins")
    parser.add_argument("--long", type=float, default=1.5, help="seconds of a long slot; three times this: very long")
    parser.add_argument("--max-gib", type=float, default=12.0, help="leave out cells that need more memory")
    parser.add_argument("--json", type=Path, help="write the samples here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    options = parser.parse_args(arguments)

    cells = [
        Cell(*key) for key in itertools.product(options.sizes, options.channels, options.patterns, options.threads)
    ]
    for round_ in range(options.rounds):
        for (size, channels), group in itertools.groupby(cells, key=lambda cell: (cell.size, cell.channels)):
            todo = [cell for cell in group if not cell.long]
            # The texture and one gradient, and as much again for the levels, the values and their gradients.
            need = 4 * channels * (2.7 * size**2 + 4 * options.lookups**2) / 2**30
            if need > options.max_gib and round_ == 0:
                print(f"left out: texture {size}, {channels} channels need {need:.1f} GiB (--max-gib)", flush=True)
            if not todo or need > options.max_gib:
                continue
            measure_texture(todo, options.lookups, options.slots, options.seconds, options.long)
            print(f"round {round_ + 1}: {size}, {channels} channels done", file=sys.stderr, flush=True)
            write([cell for cell in cells if cell.ms], options.json, options.markdown)
    print(markdown([cell for cell in cells if cell.ms]))
    return 0


def write(cells: Sequence[Cell], json_path: Path | None, markdown_path: Path | None) -> None:
    """After every texture: a run that is stopped keeps what it has."""
    if json_path is not None:
        json_path.write_text(json.dumps([dataclasses.asdict(cell) for cell in cells], indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(markdown(cells) + "\n")


def measure_texture(cells: Sequence[Cell], lookups: int, slots: int, seconds: float, long: float) -> None:
    """One round of cells of one texture."""
    texels = make_texels(cells[0].size, cells[0].channels)
    values = lookups**2 * cells[0].channels
    for pattern, group in itertools.groupby(cells, key=lambda cell: cell.pattern):
        contestants = make_contestants(texels, cells[0].size, cells[0].channels, pattern, lookups)
        for cell in group:
            torch.set_num_threads(cell.threads)
            start = time.perf_counter()
            measured = [measure_slot(contestants, values, cell.threads, turn=False)]
            first = time.perf_counter() - start
            cell.long = first > long
            wanted = slots + 1 if not cell.long else 3 if first < 3 * long else 1
            begin = 0 if cell.long else 1
            while sum(quiet(measured[begin:])) < wanted - begin and len(measured) < 2 * wanted - 1:
                if not cell.long and len(measured) > 1 and time.perf_counter() - start > seconds:
                    break
                measured.append(measure_slot(contestants, values, cell.threads, turn=len(measured) % 2 == 1))
            counted = measured[begin:]
            kept = [slot for slot, is_quiet in zip(counted, quiet(counted), strict=True) if is_quiet]
            cell.disturbed += len(counted) - len(kept)
            for name in contestants:
                cell.ms.setdefault(name, []).extend(times[name] for _, times in kept)


def quiet(slots: Sequence[tuple[float, dict[str, float]]]) -> list[bool]:
    """Which slots no other program disturbed, by their control."""
    least = min((control for control, _ in slots), default=0.0)
    return [control < DISTURBED * least for control, _ in slots]


def measure_slot(contestants: Contestants, values: int, threads: int, turn: bool) -> tuple[float, dict[str, float]]:
    """The longer time of the control before and after; milliseconds of every contestant."""
    names = list(contestants)[::-1] if turn else list(contestants)
    before = measure(control, processor_time=False)
    times = {}
    for name in names:
        if FRESH_BYTES < 4 * values <= MAX_TOUCHED_BYTES and "forward" in name:
            torch.empty(values).zero_()
        times[name] = measure(contestants[name], processor_time=threads == 1)
    return max(before, measure(control, processor_time=False)), times


def control() -> torch.Tensor:
    return CONTROL.exp()


CONTROL = torch.linspace(0, 1, 1 << 20)


def measure(call: Callable[[], object], processor_time: bool) -> float:
    clock = time.thread_time if processor_time else time.perf_counter
    start = clock()
    call()
    return (clock() - start) * 1e3


@dataclasses.dataclass
class Texels:
    """The same numbers serve as texels of either layout: what is sampled does not matter, where it lies does."""

    ours: torch.Tensor  # (1, H, W, C)
    theirs: torch.Tensor  # (1, C, H, W)
    packed: torch.Tensor  # (1, N, C) levels 1 and on
    last_level: int


def make_texels(size: int, channels: int) -> Texels:
    texels = torch.rand(size * size * channels)
    ours = texels.view(1, size, size, channels)
    mips = dr.build_mips(ours)
    packed = torch.cat([level.reshape(1, -1, channels) for level in mips], 1)
    return Texels(ours, texels.view(1, channels, size, size), packed, len(mips))


def make_contestants(texels: Texels, size: int, channels: int, pattern: str, lookups: int) -> Contestants:
    """Calls named "ours forward", "torch texels", ...; and "trilinear forward", ... of ours."""
    ours, theirs, packed, last = texels.ours, texels.theirs, texels.packed, texels.last_level
    uv = positions(pattern, lookups)
    grid = 2 * uv - 1
    grad = torch.rand(lookups * lookups * channels)
    grad_ours, grad_theirs = grad.view(1, lookups, lookups, channels), grad.view(1, channels, lookups, lookups)
    # A footprint of 1.4 texels of the middle level, for those who choose a level by it.
    steps = torch.eye(2).reshape(4).expand(1, lookups, lookups, 4) * (1.4 / math.sqrt(size))
    steps = steps.contiguous()

    def forward_ours():
        return dr.texture(ours, uv, filter="linear", wrap="clamp")

    def forward_theirs():
        return torch.nn.functional.grid_sample(theirs, grid, padding_mode="border", align_corners=False)

    def forward_trilinear():
        return torch.ops.diffrender.texture(ours, packed, uv, steps, None, 3, 1, 1, last, 1)

    def backward_theirs(which: str):
        mask = [which == "texels", which == "coordinates"]

        def call():
            return torch.ops.aten.grid_sampler_2d_backward(grad_theirs, theirs, grid, 0, 1, False, mask)

        return call

    def backward_kernel(which: str, filter_code: int):
        """The backward kernel alone, as for grid_sample."""
        trilinear = filter_code == 3
        modes = (filter_code, 1, 1, last if trilinear else 0, 1)
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


def markdown(cells: Sequence[Cell]) -> str:
    """Verdicts, and a table of all cells."""
    lines = []
    comparisons = [("faster than grid_sample", "ours", "torch", 1.0)]
    comparisons += [(f"trilinear at most {TRILINEAR_LIMIT} x linear", "trilinear", "ours", TRILINEAR_LIMIT)]
    for goal, first, second, limit in comparisons:
        for action in ACTIONS:
            ratios = sorted((cell.ratio(f"{first} {action}", f"{second} {action}"), cell.label) for cell in cells)
            lost = [f"{label} ({ratio:.2f})" for ratio, label in ratios if ratio > limit]
            verdict = "MISS in " + ", ".join(lost) if lost else f"all {len(ratios)} cells"
            largest = ", ".join(f"{ratio:.2f} ({label})" for ratio, label in ratios[:-4:-1])
            lines.append(f"- {action}, {goal}: {verdict}; largest {largest}")
    slots = [len(cell.ms["ours forward"]) for cell in cells]
    lines.append(f"- slots of a cell: {min(slots)} to {max(slots)}; {sum(cell.disturbed for cell in cells)} left out")
    lines += ["", "| texture | channels | lookups | " + " | ".join(ACTIONS) + " |", "|---" * (3 + len(ACTIONS)) + "|"]
    for key, group in itertools.groupby(cells, key=lambda cell: (cell.size, cell.channels, cell.pattern)):
        by_threads = list(group)
        row = [str(value) for value in key] + [entry(by_threads, action) for action in ACTIONS]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def entry(cells: Sequence[Cell], action: str) -> str:
    """Times of the first cell, and ratios of each: to grid_sample, then trilinear to linear."""
    ours, theirs = (min(cells[0].ms[f"{who} {action}"]) for who in ("ours", "torch"))
    to_torch = ", ".join(f"**{cell.ratio(f'ours {action}', f'torch {action}'):.2f}**" for cell in cells)
    to_linear = ", ".join(f"{cell.ratio(f'trilinear {action}', f'ours {action}'):.1f} x" for cell in cells)
    return f"{ours:.1f} / {theirs:.1f} = {to_torch}; {to_linear}"


if __name__ == "__main__":
    sys.exit(main())
