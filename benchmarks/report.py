"""Turns the records of run.py into ratios, goals and Markdown tables.

Which clock: figures of one thread are processor time of the whole process, which other programs on the machine disturb
least and which counts the work of every thread; figures of several threads and of llvmpipe are wall time. A ratio is
the median over the slots of the ratio within one slot; the gain of a second thread, whose two sides are taken in
different processes, is the ratio of the shortest wall times.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.operations import OPERATION_NAMES

# Largest allowed time of one thread as a fraction of embree's, on the same mesh at 1024 x 1024.
GOAL_SIZE = 1024
EMBREE_GOALS = {
    "rasterize": {"5k": 1 / 20, "80k": 1 / 10, "1.3M": 1 / 2.5, "big": 1 / 10},
    "forward_backward": {"5k": 1 / 4, "80k": 1 / 3, "1.3M": 1.0, "big": 1.0},
}
# Smallest allowed gain of two threads, for images of this side and more.
THREADS_GOAL, THREADS_GOAL_SIZE = 1.7, 1024
# Gains of the control between which a goal of two threads is decided: others took a core from one side or the other.
THREADS_CONTROL = (1.8, 2.2)
# Largest allowed time of rasterizing two screen-filling triangles, in copies of its output.
MEMCPY_GOAL = 4.0
# Largest allowed time of a batch of 8, in 8 single calls. A difference of 5 percent is not told from none here.
BATCH_GOAL = 1.05


@dataclass(frozen=True)
class Goal:
    """One goal: what was measured, its value, the limit, and whether it was reached.

    A goal for two threads is open where the machine had no second core to give, as the control shows.
    """

    what: str
    value: float
    limit: float
    at_least: bool = False
    open: bool = False

    @property
    def reached(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


class Table:
    """Looks up records by scene, size, threads and contestant."""

    def __init__(self, results: dict) -> None:
        self._records = {(r["scene"], r["size"], r["threads"], r["name"]): r for r in results["records"]}
        self.cells = list(dict.fromkeys((r["scene"], r["size"]) for r in results["records"]))
        self.threads = sorted({r["threads"] for r in results["records"]})

    def get(self, scene: str, size: int, threads: int, name: str) -> dict | None:
        return self._records.get((scene, size, threads, name))

    def milliseconds(self, scene: str, size: int, threads: int, name: str, clock: str | None = None) -> float | None:
        """Median of a contestant's samples, on the processor's clock for one thread unless `clock` says otherwise."""
        record = self.get(scene, size, threads, name)
        return None if record is None else statistics.median(record[clock or _clock(threads)])

    def ratio(self, scene: str, size: int, threads: int, name: str, other: str) -> float | None:
        """Median over the slots of the time of `name` as a fraction of the time of `other`."""
        ours, theirs = self.get(scene, size, threads, name), self.get(scene, size, threads, other)
        if ours is None or theirs is None:
            return None
        clock = _clock(threads)
        return statistics.median(a / b for a, b in zip(ours[clock], theirs[clock], strict=True))

    def thread_gain(self, scene: str, size: int, name: str) -> float | None:
        """Shortest wall time of one thread divided by the shortest of two."""
        one, two = self.get(scene, size, 1, name), self.get(scene, size, 2, name)
        return None if one is None or two is None else min(one["wall_ms"]) / min(two["wall_ms"])


def goals(table: Table) -> list[Goal]:
    """All goals that the measured cells decide."""
    found: list[Goal] = []

    def add(what: str, value: float | None, limit: float, **options: bool) -> None:
        if value is not None:
            found.append(Goal(what, value, limit, **options))

    for scene, size in table.cells:
        where = f"{scene}, {size} x {size}"
        for name in EMBREE_GOALS if size == GOAL_SIZE else ():
            if scene in EMBREE_GOALS[name]:
                value = table.ratio(scene, size, 1, name, "embree")
                add(f"{name} / embree, {where}", value, EMBREE_GOALS[name][scene])
        if scene == "big":
            value = table.ratio(scene, size, 1, "rasterize", "memcpy:rasterize")
            add(f"rasterize / memcpy, {where}", value, MEMCPY_GOAL)
        control = table.thread_gain(scene, size, "control") or 0.0
        for name in OPERATION_NAMES if size >= THREADS_GOAL_SIZE else ():
            what = f"{name}, gain of 2 threads, {where} (control {_number(control)})"
            gain = table.thread_gain(scene, size, name)
            add(what, gain, THREADS_GOAL, at_least=True, open=not THREADS_CONTROL[0] <= control <= THREADS_CONTROL[1])
        for name in OPERATION_NAMES:
            value = table.ratio(scene, size, 1, f"batch:{name}", f"single:{name}")
            add(f"{name}, batch of 8 / 8 single calls, {where}", value, BATCH_GOAL)
    return found


def markdown(results: dict) -> str:
    """All tables as one Markdown text."""
    table = Table(results)
    machine = results["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("diffrender", "torch", "embreex", "moderngl"))
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['cpu_capability']}; {versions}; "
        f"{machine['date']}; load average at the end {machine['load_average']:.1f}; "
        f"medians of {results['repeat']} slots.",
        "",
        *(f"- {line}" for line in results["left_out"]),
        "",
        *_goal_lines(goals(table)),
        *_operation_lines(table),
        *_yardstick_lines(table),
        *_batch_lines(table),
    ]
    return "\n".join(lines).strip()


def _goal_lines(found: list[Goal]) -> list[str]:
    if not found:
        return []
    decided = [goal for goal in found if not goal.open]
    title = f"### Goals: {sum(goal.reached for goal in decided)} of {len(decided)} reached"
    undecided = len(found) - len(decided)
    lines = [title + (f", {undecided} open because other programs took a core" if undecided else ""), ""]
    rows = []
    for goal in found:
        sign = ">=" if goal.at_least else "<="
        rows.append([goal.what, _number(goal.value), f"{sign} {_number(goal.limit)}", _verdict(goal)])
    return lines + _rows(["goal", "measured", "limit", ""], rows)


def _operation_lines(table: Table) -> list[str]:
    header = ["scene", "size", "operation", "1 thread, cpu ms", "wall ms", "2 threads, wall ms", "gain"]
    header += ["/ embree", "goal", "/ llvmpipe", "/ memcpy"]
    rows = []
    for scene, size in table.cells:
        for name in OPERATION_NAMES:
            if all(table.get(scene, size, threads, name) is None for threads in table.threads):
                continue
            limit = EMBREE_GOALS.get(name, {}).get(scene) if size == GOAL_SIZE else None
            of_embree = table.ratio(scene, size, 1, name, "embree")
            goal = "" if limit is None or of_embree is None else _verdict(Goal("", of_embree, limit))
            rows.append(
                [
                    scene,
                    str(size),
                    name,
                    _number(table.milliseconds(scene, size, 1, name)),
                    _number(table.milliseconds(scene, size, 1, name, "wall_ms")),
                    _number(table.milliseconds(scene, size, 2, name)),
                    _number(table.thread_gain(scene, size, name)),
                    _number(of_embree),
                    goal if limit is None else f"<= {_number(limit)} {goal}",
                    _number(table.ratio(scene, size, 1, name, "llvmpipe")),
                    _number(table.ratio(scene, size, 1, name, f"memcpy:{name}")),
                ]
            )
    return ["### Operations", "", *_rows(header, rows)] if rows else []


def _yardstick_lines(table: Table) -> list[str]:
    header = ["scene", "size", "embree, cpu ms", "wall ms", "its tree, cpu ms", "same triangle", "llvmpipe, wall ms"]
    header += ["cpu ms", "same triangle", "memcpy of rasterize's output, ms", "GB/s copied"]
    header += ["image loss alone, cpu ms"]
    threads = min(table.threads)
    rows = []
    for scene, size in table.cells:
        embree = table.get(scene, size, threads, "embree") or {}
        llvmpipe = table.get(scene, size, threads, "llvmpipe") or {}
        copy = table.milliseconds(scene, size, threads, "memcpy:rasterize")
        output = (table.get(scene, size, threads, "rasterize") or {}).get("output_bytes")
        if not embree and not llvmpipe and copy is None:
            continue
        rows.append(
            [
                scene,
                str(size),
                _number(table.milliseconds(scene, size, threads, "embree", "cpu_ms")),
                _number(table.milliseconds(scene, size, threads, "embree", "wall_ms")),
                _number(embree.get("build_cpu_ms")),
                _percent(embree.get("same_triangle")),
                _number(table.milliseconds(scene, size, threads, "llvmpipe", "wall_ms")),
                _number(table.milliseconds(scene, size, threads, "llvmpipe", "cpu_ms")),
                _percent(llvmpipe.get("same_triangle")),
                _number(copy),
                _number(None if copy is None or output is None else output / copy / 1e6),
                _number(table.milliseconds(scene, size, threads, "image_loss", "cpu_ms")),
            ]
        )
    return ["### Yardsticks", "", *_rows(header, rows)] if rows else []


def _batch_lines(table: Table) -> list[str]:
    rows = []
    for scene, size in table.cells:
        for name in OPERATION_NAMES:
            for threads in table.threads:
                ratio = table.ratio(scene, size, threads, f"batch:{name}", f"single:{name}")
                if ratio is not None:
                    times = [table.milliseconds(scene, size, threads, f"{kind}:{name}") for kind in ("batch", "single")]
                    rows.append([scene, str(size), name, str(threads), *map(_number, times), _number(ratio)])
    header = ["scene", "size", "operation", "threads", "batch of 8, ms", "8 single calls, ms", "ratio"]
    return ["### Batch of 8", "", *_rows(header, rows)] if rows else []


def _clock(threads: int) -> str:
    return "cpu_ms" if threads == 1 else "wall_ms"


def _rows(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]


def _verdict(goal: Goal) -> str:
    return "open" if goal.open else ("pass" if goal.reached else "**MISS**")


def _number(value: float | None) -> str:
    """Three significant digits, blank where nothing was measured."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100.0 * value:.2f} %"
