"""Section `benchmark`: milliseconds of every stage over image sizes, batches and meshes, by CUDA events.

The cells are taken from the middle outwards until the time is used up. A figure is the median of the calls of one cell;
where a call does not wait for the device it is measured a second time as a CUDA graph, which leaves its launches out.
nvdiffrast takes turns with it on the same inputs, where it imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tools.gpu.operations import Inputs, Timed, peer_stages, stages
from tools.gpu.section import Section, Skipped

SIZES, BATCHES, MESHES = (1024, 512, 2048, 256), (1, 8, 32), ("80k", "5k", "1.3M")
BYTES_PER_PIXEL = 900  # of everything that a cell keeps, graphs included; for the choice of cells that fit
SECONDS_PER_FIGURE = 0.06


def cells() -> list[tuple[str, int, int]]:
    """(mesh, size, batch), small deviations from ("80k", 1024, 1) first."""
    everything = [(m, s, b) for m in MESHES for s in SIZES for b in BATCHES]
    rank = {cell: MESHES.index(cell[0]) + SIZES.index(cell[1]) + BATCHES.index(cell[2]) for cell in everything}
    return sorted(everything, key=lambda cell: rank[cell])


def milliseconds(call: Callable[[], object], device: str) -> float:
    """Median over as many calls as fill SECONDS_PER_FIGURE, at least 5 and at most 200."""
    for _ in range(2):
        call()
    if device == "cpu":
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = int(min(200, max(5, SECONDS_PER_FIGURE / max(time.perf_counter() - start, 1e-6))))
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def graph_milliseconds(call: Callable[[], object]) -> float:
    """The call as a CUDA graph; captured with its memory pool, replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return milliseconds(graph.replay, "cuda")


def copy_rate(device: str) -> float:
    """Bytes read and written per second by a copy of 1 GiB (dry run: 1 MiB)."""
    source = torch.empty((1 << 20) if device == "cpu" else (1 << 30), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2e3 * source.numel() / milliseconds(lambda: target.copy_(source), device)


def find_peer(section: Section) -> tuple[Any, Any] | None:
    """nvdiffrast's module and a context, or None with the reason in the result."""
    if section.device == "cpu":
        section.data["nvdiffrast"] = "needs a GPU"
        return None
    for name in ("nvdiffrast.torch", "diffrp_nvdiffrast.torch"):
        if importlib.util.find_spec(name.split(".")[0]) is None:
            continue
        try:
            module = importlib.import_module(name)
            context = module.RasterizeCudaContext()
        except Exception as error:  # compiles itself at import: anything can go wrong
            section.data["nvdiffrast"] = f"{name} does not work here: {error}"
            return None
        section.data["nvdiffrast"] = name
        return module, context
    section.data["nvdiffrast"] = "not installed"
    return None


def measure_cell(section: Section, mesh: str, size: int, batch: int, peer: tuple[Any, Any] | None) -> str:
    if section.device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        if batch * size * size * BYTES_PER_PIXEL > free:
            raise Skipped("does not fit in memory")
    inputs = Inputs(mesh, size, batch, section.device)
    ours = stages(inputs)
    theirs: dict[str, Timed] = {}
    if peer is not None:
        try:
            theirs = {timed.name: timed for timed in peer_stages(inputs, *peer)}
        except Exception as error:
            section.data["nvdiffrast"] = f"{section.data['nvdiffrast']}; failed at {mesh} {size} {batch}: {error}"
    for timed in ours:
        row: dict[str, Any] = {"mesh": mesh, "size": size, "batch": batch, "name": timed.name, "bytes": timed.bytes}
        row["ms"] = milliseconds(timed.call, section.device)
        if timed.name in theirs:
            row["nvdiffrast_ms"] = milliseconds(theirs[timed.name].call, section.device)
        if section.device == "cuda":
            row["graph_ms"] = graph_milliseconds(timed.call)
        section.data["rows"].append(row)
        section.write()
    return f"{len(ours)} stages"


def main() -> None:
    section = Section()
    section.data["rows"] = []
    section.check("device copy", lambda: section.data.update(copy_bytes_per_s=copy_rate(section.device)))
    peer = find_peer(section)
    for mesh, size, batch in [("level1", 16, 2)] if section.dry_run else cells():
        if section.seconds_left() < 3 and not section.dry_run:
            section.data["unfinished"] = "the time was used up; larger cells were not measured"
            break
        section.check(
            f"{mesh} triangles, {size} x {size}, batch {batch}",
            lambda mesh=mesh, size=size, batch=batch: measure_cell(section, mesh, size, batch, peer),
        )
        if section.device == "cuda":
            torch.cuda.empty_cache()
    section.write()


if __name__ == "__main__":
    main()
