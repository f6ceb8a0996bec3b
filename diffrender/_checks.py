"""Argument checks with one message format: `function: argument must be EXPECTED, got ACTUAL. HINT`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

import numpy
import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils.weak import WeakIdKeyDictionary

from ._autograd import is_captured

_FLOATING = (torch.float32, torch.float64)
_HALF = (torch.float16, torch.bfloat16)

# Choices of `cull` and their numbers in the kernels.
CULL = {None: 0, "back": 1, "front": 2}

_device_checks = os.environ.get("DIFFRENDER_CHECKS", "") not in ("", "0")


def set_checks(enabled: bool) -> None:
    """Check index ranges on CUDA too, at the price of one device synchronisation per check.

    On the CPU they are checked always. The environment variable DIFFRENDER_CHECKS=1 sets the initial state.
    """
    global _device_checks
    _device_checks = bool(enabled)


def fail(error: type[Exception], function: str, argument: str, expected: str, actual: str, hint: str = "") -> NoReturn:
    """Raise `error` in the project's message format."""
    raise error(f"{function}: {argument} must {expected}, got {actual}." + (f" {hint}" if hint else ""))


def shape_text(tensor: torch.Tensor) -> str:
    """Shape as people write it: `(3, 128)`."""
    return "(" + ", ".join(str(int(size)) for size in tensor.shape) + ("," if tensor.dim() == 1 else "") + ")"


def check_tensor(function: str, argument: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        hint = "torch.as_tensor makes one." if isinstance(value, numpy.ndarray) else ""
        fail(TypeError, function, argument, "be a tensor", type(value).__name__, hint)


def check_floating(function: str, argument: str, value: object) -> torch.Tensor:
    """`value` as a float32 or float64 tensor. Half precision is refused, except under autocast, where it is widened."""
    check_tensor(function, argument, value)
    assert isinstance(value, torch.Tensor)
    if value.dtype in _HALF and torch.is_autocast_enabled(value.device.type):
        return value.float()
    if value.dtype not in _FLOATING:
        hint = "Convert it with .float()." if value.dtype in _HALF else ""
        fail(TypeError, function, argument, "be float32 or float64", str(value.dtype), hint)
    return value


def check_picture(function: str, argument: str, value: object) -> None:
    """Floats of any width. Integers count to 255 instead of 1, and no arithmetic would notice."""
    check_tensor(function, argument, value)
    assert isinstance(value, torch.Tensor)
    if not value.is_floating_point():
        hint = (
            "Convert it with .float()." if value.dtype == torch.bool else "diffrender.load_image makes linear floats."
        )
        fail(TypeError, function, argument, "be a float tensor", str(value.dtype), hint)


def check_same_type(function: str, argument: str, value: torch.Tensor, other: str, like: torch.Tensor) -> None:
    """Both tensors on one device, and of one type if both are floating."""
    if value.device != like.device:
        raise ValueError(
            f"{function}: {argument} is on {value.device} but {other} is on {like.device}. Move one of them."
        )
    if value.is_floating_point() and like.is_floating_point() and value.dtype != like.dtype:
        raise TypeError(f"{function}: {argument} is {value.dtype} but {other} is {like.dtype}. Convert one of them.")


def check_triangles(function: str, value: object, like: torch.Tensor, argument: str = "triangles") -> torch.Tensor:
    """`value` (T, 3) as int32 on the device of `like`."""
    check_tensor(function, argument, value)
    assert isinstance(value, torch.Tensor)
    if value.dtype not in (torch.int32, torch.int64):
        fail(TypeError, function, argument, "be int32 or int64", str(value.dtype))
    if value.dim() != 2 or value.shape[1] != 3:
        hint = "Transpose it?" if value.dim() == 2 and value.shape[0] == 3 else ""
        fail(ValueError, function, argument, "have shape (T, 3)", shape_text(value), hint)
    check_same_type(function, argument, value, "what it indexes", like)
    return value


def check_vertex_range(function: str, triangles: torch.Tensor, count: int, owner: str) -> None:
    """Every index in [0, count): always on the CPU, on CUDA if set_checks asked for it."""
    if triangles.numel() == 0 or not can_read(triangles):
        return
    low, high = _bounds(triangles)
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise ValueError(f"{function}: triangles refers to vertex {wrong} but {owner} has {count} vertices.")


_known_bounds = WeakIdKeyDictionary()


def _bounds(tensor: torch.Tensor) -> tuple[int, int]:
    """Smallest and largest value.

    Index arrays go through one op after another: they are read once for all of them, and again if torch changed them in
    place or gave them other memory (`tensor.data = other`, which counts as no change). What numpy or `tensor.data[...]`
    changes goes unseen; kernels never read outside of their arrays anyway.
    """
    state = None if tensor.is_inference() else (tensor._version, tensor.data_ptr(), tensor.shape)
    known = _known_bounds.get(tensor)
    if known is not None and state is not None and known[0] == state:
        return known[1]
    low, high = torch.aminmax(tensor.detach())
    bounds = int(low), int(high)
    _known_bounds[tensor] = state, bounds
    return bounds


def check_triangle_id(function: str, argument: str, triangle_id: torch.Tensor) -> None:
    """Ids as `rasterize` makes them: (B, H, W) int32."""
    check_tensor(function, argument, triangle_id)
    if triangle_id.dtype != torch.int32:
        fail(TypeError, function, argument, "be int32", str(triangle_id.dtype))
    if triangle_id.dim() != 3:
        fail(ValueError, function, argument, "have shape (B, H, W)", shape_text(triangle_id))


def check_pixels(function: str, argument: str, value: torch.Tensor, triangle_id: torch.Tensor, channels: int) -> None:
    """One vector of `channels` numbers for every pixel of `triangle_id`."""
    if tuple(value.shape) != (*triangle_id.shape, channels):
        expected = f"have shape {shape_text(triangle_id)[:-1]}, {channels})"
        fail(ValueError, function, argument, expected, shape_text(value))


def check_rows(function: str, triangles: torch.Tensor, triangle_id: torch.Tensor) -> None:
    """Every visible triangle is a row of `triangles`: on the CPU, on CUDA if set_checks asked for it."""
    if triangle_id.numel() == 0 or not can_read(triangle_id):
        return
    highest = _bounds(triangle_id)[1]
    if highest >= triangles.shape[0]:
        raise ValueError(
            f"{function}: triangles has {triangles.shape[0]} rows but fragments show triangle {highest}. "
            "Its rows must stand for the triangles that were rasterized."
        )


def check_ranges(function: str, ranges: object, positions: torch.Tensor, count: int) -> torch.Tensor:
    """`ranges` (B, 2) of (first triangle, count) within `count` triangles, as int32; positions are (B or 1, V, 4)."""
    check_tensor(function, "ranges", ranges)
    assert isinstance(ranges, torch.Tensor)
    if ranges.dtype not in (torch.int32, torch.int64):
        fail(TypeError, function, "ranges", "be int32 or int64", str(ranges.dtype))
    if ranges.dim() != 2 or ranges.shape[1] != 2:
        fail(ValueError, function, "ranges", "have shape (B, 2)", shape_text(ranges))
    if positions.shape[0] not in (1, ranges.shape[0]):
        expected = f"have one row per item of clip_positions ({positions.shape[0]})"
        fail(ValueError, function, "ranges", expected, str(ranges.shape[0]))
    if can_read(ranges):
        for first, size in ranges.tolist():
            if first < 0 or size < 0 or first + size > count:
                fail(ValueError, function, "ranges", f"lie within {count} triangles", f"({first}, {size})")
    return ranges.to(device=positions.device, dtype=torch.int32)


def check_choice(function: str, argument: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        fail(ValueError, function, argument, "be one of " + ", ".join(repr(c) for c in choices), repr(value))


def check_resolution(function: str, value: object) -> tuple[int, int]:
    """(height, width), both at least 1."""
    if not isinstance(value, (tuple, list, torch.Size)) or len(value) != 2:
        fail(ValueError, function, "resolution", "be (height, width)", repr(value))
    height, width = (size.__index__() if isinstance(size, numpy.integer) else size for size in value)
    for name, size in (("height", height), ("width", width)):
        if isinstance(size, bool) or not isinstance(size, (int, torch.SymInt)):
            fail(TypeError, function, name, "be an int", type(size).__name__)
        if size < 1:
            fail(ValueError, function, name, "be at least 1", str(size))
        if size > 1 << 21:
            fail(ValueError, function, name, f"be at most {1 << 21}", str(size))
    return height, width


def can_read(tensor: torch.Tensor) -> bool:
    """Whether values can be looked at here and now: not while tracing, not inside vmap, not by a silent device sync."""
    if torch.compiler.is_compiling() or is_functorch_wrapped_tensor(tensor):
        return False
    if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.is_meta:
        return False
    return tensor.device.type == "cpu" or (_device_checks and not is_captured(tensor))


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """As `torch.broadcast_shapes`, which takes as long as a small kernel.

    Raises:
        RuntimeError: where the shapes do not fit together.
    """
    if torch.compiler.is_compiling():
        return tuple(torch.broadcast_shapes(*shapes))
    result = [1] * max(map(len, shapes))
    for shape in shapes:
        for axis in range(-len(shape), 0):
            size = shape[axis]
            if size == 1 or size == result[axis]:
                continue
            if result[axis] != 1:
                raise RuntimeError(f"Shapes do not fit together: {', '.join(str(tuple(s)) for s in shapes)}.")
            result[axis] = size
    return tuple(result)
