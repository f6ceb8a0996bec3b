"""Texture lookups next to torch.nn.functional.grid_sample: forward, backward to coordinates, backward to the texture.

    python -m benchmarks.texture --json texture.json --markdown texture.md

Both look up the same 1024 x 1024 positions with the bilinear filter and a clamped border, each on its own layout:
(1, H, W, C) texels and coordinates in [0, 1] here, (1, C, H, W) and [-1, 1] there. Positions are a turned and
shrunk square, as a renderer makes them ("turned"), or random ("random"). Trilinear lookups, over all levels, are
compared with linear ones; their levels have been built before.

How a cell is decided, by the same rule for all. In a *slot* every contestant runs once, in turn, in an order that
turns around from slot to slot. A ratio is the median over the slots of the ratio within one; times are the least. A
fixed piece of work, the *control*, is timed before and after every slot, each time the least of three: a slot is
disturbed, and does not count, where the longer of the two exceeds 1.25 times the least control of the whole run with
as many threads. So a neighbour that stays through a whole cell is noticed too. Where a cell has no other slots, its
ratios are those of the least disturbed one, and it is named.

Every comparison gets three undisturbed slots; one whose ratio is within a factor of 1.5 of its limit, on either side,
gets seven; a slot runs those contestants only that still lack some. They come in rounds over the table, from the second
on the cheapest textures first, until none is missing or the time is up (--minutes). In each round the first slot of a
cell warms up and does not count, and others follow for about --seconds. A slot that takes more than --long seconds does
not warm up, and a cell gets at most three of these in a round, in the first more than one only for what is close. With
one thread contestants are timed in processor time, else on the clock. Before each call whose result is more than 32 MB
of values, as much memory is written and given back, so that all find the system alike.
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
from typing import Any

import torch

import diffrender as dr

ACTIONS = ("forward", "coordinates", "texels")
PATTERNS = ("turned", "random")
TRILINEAR_LIMIT = 2.5
DISTURBED = 1.25
SLOTS, CLOSE_SLOTS, CLOSE = 3, 7, 1.5
# Results above this are fresh memory from the system in every call. What that costs depends on what was given back just
# before, so for each the same is.
FRESH_BYTES, MAX_TOUCHED_BYTES = 32 << 20, 256 << 20

Contestants = dict[str, Callable[[], Any]]


COMPARISONS = [(f"ours {action}", f"torch {action}", 1.0) for action in ACTIONS]
COMPARISONS += [(f"trilinear {action}", f"ours {action}", TRILINEAR_LIMIT) for action in ACTIONS]


@dataclasses.dataclass
class Slot:
    control: float  # milliseconds, the longer of before and after
    ms: dict[str, float]  # of the contestants that ran


@dataclasses.dataclass
class Cell:
    """Slots of one texture size, channel count, pattern of lookups and number of threads."""

    size: int
    channels: int
    pattern: str
    threads: int
    slots: list[Slot] = dataclasses.field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.size} {self.channels} {self.pattern} {self.threads}"

    def quiet(self, names: Sequence[str], least: float) -> list[Slot]:
        """Slots with all of these contestants that nothing disturbed. `least`: control of the run."""
        return [slot for slot in self.slots if slot.control <= DISTURBED * least and slot.ms.keys() >= set(names)]

    def counted(self, names: Sequence[str], least: float) -> list[Slot]:
        """The undisturbed ones, or where there are none the least disturbed one."""
        every = [slot for slot in self.slots if slot.ms.keys() >= set(names)]
        return self.quiet(names, least) or sorted(every, key=lambda slot: slot.control)[:1]

    def ratio(self, first: str, second: str, least: float) -> float:
        slots = self.counted([first, second], least)
        return statistics.median(slot.ms[first] / slot.ms[second] for slot in slots)

    def lacks(self, first: str, second: str, limit: float, least: float, brief: bool) -> int:
        """How many undisturbed slots of a comparison are missing. `brief`: none of one that is decided."""
        if not self.counted([first, second], least):
            return SLOTS
        is_close = 1 / CLOSE < self.ratio(first, second, least) / limit < CLOSE
        wanted = (SLOTS if is_close else 0) if brief else (CLOSE_SLOTS if is_close else SLOTS)
        return max(0, wanted - len(self.quiet([first, second], least)))

    def missing(self, least: float, brief: bool = False) -> tuple[set[str], int]:
        """Contestants that lack slots, and of how many."""
        lacking = {c: self.lacks(*c, least, brief) for c in COMPARISONS}
        names = {name for (first, second, _), count in lacking.items() if count > 0 for name in (first, second)}
        return names, max(lacking.values())

    def seconds(self, names: set[str]) -> float:
        """What a slot of these contestants will take; 0 before the first."""
        return sum(min((slot.ms[n] for slot in self.slots if n in slot.ms), default=0.0) for n in names) * 1e-3


class Run:
    """All cells, the least control of each number of threads, and the time that is left."""

    def __init__(self, cells: Sequence[Cell], options: argparse.Namespace) -> None:
        self.cells, self.options = list(cells), options
        self.end = time.perf_counter() + 60 * options.minutes
        self.setup_seconds: dict[tuple[int, int], float] = {}
        self.least: dict[int, float] = {}
        for threads in options.threads:
            torch.set_num_threads(threads)
            self.least[threads] = min(time_control() for _ in range(50))

    def left(self) -> float:
        return self.end - time.perf_counter()

    def measured(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.slots]

    def round(self, number: int) -> bool:
        """Slots for what lacks some, of every texture for which there is time. False: nothing was left to do."""
        plan = []
        for texture, group in itertools.groupby(self.cells, key=lambda cell: (cell.size, cell.channels)):
            todo = [(cell, *cell.missing(self.least[cell.threads])) for cell in group]
            todo = [(cell, names, count) for cell, names, count in todo if count > 0]
            if todo:
                setup, slots = self.setup_seconds.get(texture, 0.0), [cell.seconds(names) for cell, names, _ in todo]
                plan.append((setup + sum(slots), setup + min(slots), texture, [cell for cell, _, _ in todo]))
        if number > 0:
            plan.sort(key=lambda entry: entry[0])
        for _, cost, (size, channels), todo in plan:
            # The texture and one gradient, and as much again for the levels, the values and their gradients.
            need = 4 * channels * (2.7 * size**2 + 4 * self.options.lookups**2) / 2**30
            if need > self.options.max_gib and number == 0:
                print(f"left out: texture {size}, {channels} channels need {need:.1f} GiB (--max-gib)", flush=True)
            if need > self.options.max_gib or self.left() <= cost:
                continue
            self.measure_texture(todo, number)
            done = f"round {number + 1}: {size}, {channels} channels done, {self.left():.0f} s left"
            print(done, file=sys.stderr, flush=True)
            self.write()
        return bool(plan) and self.left() > 0

    def measure_texture(self, cells: Sequence[Cell], number: int) -> None:
        start = time.perf_counter()
        size, channels, lookups = cells[0].size, cells[0].channels, self.options.lookups
        texels = make_texels(size, channels)
        # At first every cell gets a slot, then the close ones of long slots get more of them.
        for again in (False, True) if number == 0 else (True,):
            todo = [cell for cell in cells if number > 0 or not again or self.is_long(cell)]
            for pattern, group in itertools.groupby(todo, key=lambda cell: cell.pattern):
                contestants = make_contestants(texels, size, channels, pattern, lookups)
                self.setup_seconds.setdefault((size, channels), time.perf_counter() - start)
                for cell in group:
                    self.measure_cell(cell, contestants, lookups**2 * channels, number, SLOTS if again else 1)

    def is_long(self, cell: Cell) -> bool:
        return cell.seconds(set().union(*(slot.ms for slot in cell.slots))) > self.options.long

    def expected(self, cell: Cell, names: set[str]) -> float:
        """Seconds of a slot: of a cell that has none, as of those of the same texture."""
        alike = [c for c in self.measured() if (c.size, c.channels) == (cell.size, cell.channels)]
        return cell.seconds(names) if cell.slots else min((c.seconds(names) for c in alike), default=0.0)

    def measure_cell(self, cell: Cell, contestants: Contestants, values: int, number: int, most_long: int) -> None:
        torch.set_num_threads(cell.threads)
        start, first = time.perf_counter(), len(cell.slots)
        warm = False
        while True:
            least = self.least[cell.threads]
            is_long = self.is_long(cell)
            names, _ = cell.missing(least, brief=is_long and number == 0)
            if not names or self.expected(cell, names) > self.left():
                return
            if len(cell.slots) - first >= (most_long if is_long else 2 * CLOSE_SLOTS):
                return
            if not is_long and len(cell.slots) > first and time.perf_counter() - start > self.options.seconds:
                return
            chosen = {name: call for name, call in contestants.items() if name in names}
            slot = measure_slot(chosen, values, cell.threads, turn=len(cell.slots) % 2 == 1)
            self.least[cell.threads] = min(least, slot.control)
            if warm or sum(slot.ms.values()) * 1e-3 > self.options.long:
                cell.slots.append(slot)
            warm = True

    def write(self) -> None:
        """After every texture: a run that is stopped keeps what it has."""
        if self.options.json is not None:
            cells = [{"label": cell.label, **dataclasses.asdict(cell)} for cell in self.measured()]
            self.options.json.write_text(json.dumps({"least_control": self.least, "cells": cells}, indent=1) + "\n")
        if self.options.markdown is not None:
            self.options.markdown.write_text(markdown(self.measured(), self.least) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every cell; returns the exit code."""
    parser = argparse.ArgumentParser(description="Texture lookups next to grid_sample.")
    parser.add_argument("--lookups", type=int, default=1024, help="side of the square of lookups")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024, 4096], help="side of the texture")
    parser.add_argument("--channels", type=int, nargs="+", default=[1, 2, 3, 4, 16, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--minutes", type=float, default=11.5, help="after these no further slot begins")
    parser.add_argument("--rounds", type=int, default=20, help="over the table, at most")
    parser.add_argument("--seconds", type=float, default=0.6, help="after these no further slot of a cell in a round")
    parser.add_argument("--long", type=float, default=0.7, help="seconds of a long slot")
    parser.add_argument("--max-gib", type=float, default=12.0, help="leave out cells that need more memory")
    parser.add_argument("--json", type=Path, help="write the slots here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    options = parser.parse_args(arguments)
    keys = itertools.product(options.sizes, options.channels, options.patterns, options.threads)
    run = Run([Cell(*key) for key in keys], options)
    for number in range(options.rounds):
        if not run.round(number):
            break
    run.write()
    print(markdown(run.measured(), run.least))
    return 0


def measure_slot(contestants: Contestants, values: int, threads: int, turn: bool) -> Slot:
    before = time_control()
    times = {}
    for name in list(contestants)[::-1] if turn else list(contestants):
        if FRESH_BYTES < 4 * values <= MAX_TOUCHED_BYTES and "forward" in name:
            torch.empty(values).zero_()
        times[name] = measure(contestants[name], processor_time=threads == 1)
    return Slot(max(before, time_control()), times)


def time_control() -> float:
    return min(measure(control, processor_time=False) for _ in range(3))


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

    calls: Contestants = {"ours forward": forward_ours, "torch forward": forward_theirs}
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


def markdown(cells: Sequence[Cell], least: dict[int, float]) -> str:
    """Verdicts, and a table of all cells. `least`: control by number of threads."""
    lines = []
    for first, second, limit in COMPARISONS:
        ratios = sorted((cell.ratio(first, second, least[cell.threads]), cell.label) for cell in cells)
        lost = [f"{label} ({ratio:.2f})" for ratio, label in ratios if ratio > limit]
        verdict = "MISS in " + ", ".join(lost) if lost else f"all {len(ratios)} cells"
        largest = ", ".join(f"{ratio:.2f} ({label})" for ratio, label in ratios[:-4:-1])
        lines.append(f"- {first} at most {limit} x {second}: {verdict}; largest {largest}")
    quiet = {c.label: min(len(c.quiet(pair, least[c.threads])) for *pair, _ in COMPARISONS) for c in cells}
    few = [f"{label} ({count})" for label, count in quiet.items() if count < SLOTS]
    slots = [(slot.control > DISTURBED * least[cell.threads]) for cell in cells for slot in cell.slots]
    lines.append(f"- {len(slots)} slots, {sum(slots)} of them disturbed")
    lines.append(f"- fewer than {SLOTS} undisturbed slots in some comparison: {', '.join(few) or 'none'}")
    lines += ["", "| texture | channels | lookups | " + " | ".join(ACTIONS) + " |", "|---" * (3 + len(ACTIONS)) + "|"]
    for key, group in itertools.groupby(cells, key=lambda cell: (cell.size, cell.channels, cell.pattern)):
        by_threads = list(group)
        row = [str(value) for value in key] + [entry(by_threads, action, least) for action in ACTIONS]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def entry(cells: Sequence[Cell], action: str, least: dict[int, float]) -> str:
    """Times of the first cell, and ratios of each: to grid_sample, then trilinear to linear."""
    pair = [f"ours {action}", f"torch {action}"]
    counted = cells[0].counted(pair, least[cells[0].threads])
    ours, theirs = (min(slot.ms[name] for slot in counted) for name in pair)

    def ratios(first: str, second: str) -> list[float]:
        return [cell.ratio(first, second, least[cell.threads]) for cell in cells]

    to_torch = ", ".join(f"**{ratio:.2f}**" for ratio in ratios(*pair))
    to_linear = ", ".join(f"{ratio:.1f} x" for ratio in ratios(f"trilinear {action}", pair[0]))
    return f"{ours:.1f} / {theirs:.1f} = {to_torch}; {to_linear}"


if __name__ == "__main__":
    sys.exit(main())
