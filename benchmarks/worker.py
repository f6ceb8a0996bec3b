"""Runs inside one child process per thread count: prepares the contestants of a cell and times one slot of each.

A cell is one scene at one image size. All its contestants, ours and the yardsticks, are prepared together; then the
parent asks for one slot at a time, in turn from the process of each thread count, so that whatever disturbs the
machine disturbs all of them alike.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks import yardsticks
from benchmarks.operations import Inputs, image_loss, make_operation
from benchmarks.scenes import Scene, make_scene

# A slot repeats a short call until it has taken about this long, so that clocks and cold caches do not dominate.
_SLOT_SECONDS = 0.01

_contestants: dict[str, tuple[Callable[[], object], int]] = {}


def start(threads: int) -> None:
    """Initializer of the process."""
    torch.set_num_threads(threads)


def prepare_cell(scene_name: str, size: int, operations: Sequence[str], renderers: Sequence[str]) -> dict[str, dict]:
    """Set up the operations, a memcpy for each, and the renderers among "embree" and "llvmpipe".

    Returns:
        name of each contestant -> what is known of it: `output_bytes` of an operation, facts of a renderer and
        `same_triangle`, the fraction of pixels where it sees the same triangle as `rasterize` (when that runs).
    """
    _contestants.clear()
    scene = _scene(scene_name)
    inputs = Inputs(scene, size)
    known: dict[str, dict] = {}
    for name in operations:
        operation = make_operation(name, inputs)
        known[name] = {"output_bytes": operation.output_bytes}
        _add(name, operation.call)
        _add(f"memcpy:{name}", yardsticks.memcpy(operation.output_bytes).call)
    _add("image_loss", image_loss(inputs))
    _add("control", yardsticks.parallel_control().call)
    for name in renderers:
        yardstick = {"embree": yardsticks.embree, "llvmpipe": yardsticks.llvmpipe}[name](scene, size)
        _add(name, yardstick.call)
        known[name] = dict(yardstick.facts)
        if "rasterize" in operations and yardstick.triangle_id is not None:
            ours = inputs.rasterize().triangle_id[0].numpy()
            known[name]["same_triangle"] = float((ours == yardstick.triangle_id()).mean())
    return known


def prepare_batch(scene_name: str, size: int, batch: int, operations: Sequence[str]) -> dict[str, dict]:
    """Set up each operation as one call for `batch` turned views ("batch:NAME") and as single calls ("single:NAME")."""
    _contestants.clear()
    scene = _scene(scene_name)
    together = Inputs(scene, size, batch)
    alone = [Inputs(scene, size) for _ in range(batch)]
    for inputs, vertices in zip(alone, together.vertices.unbind(0), strict=True):
        inputs.vertices = vertices
    known: dict[str, dict] = {}
    for name in operations:
        operation = make_operation(name, together)
        known[f"batch:{name}"] = {"output_bytes": operation.output_bytes}
        _add(f"batch:{name}", operation.call)
        singles = [make_operation(name, inputs).call for inputs in alone]
        _add(f"single:{name}", lambda singles=singles: [call() for call in singles])
    return known


def slot() -> dict[str, tuple[float, float]]:
    """Time one slot of every contestant: name -> milliseconds per call as from measure_call()."""
    return {name: measure_call(call, repeats) for name, (call, repeats) in _contestants.items()}


def _add(name: str, call: Callable[[], object]) -> None:
    """Warm a contestant up and choose how many calls fill its slot."""
    call()
    wall_ms, _ = measure_call(call, 1)
    _contestants[name] = (call, max(1, min(200, round(_SLOT_SECONDS * 1e3 / max(wall_ms, 1e-3)))))


def measure_call(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Wall and processor milliseconds per call, over `repeats` calls in a row."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - wall) * 1e3 / repeats, (time.process_time() - cpu) * 1e3 / repeats


@functools.lru_cache(maxsize=1)
def _scene(name: str) -> Scene:
    return make_scene(name)
