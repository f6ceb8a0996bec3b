"""NumPy arrays as the tensors of a mesh."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _checks

Array = Tensor | np.ndarray

_FLOATS = ("vertices", "texcoords", "normals", "tangents", "colors")


def as_tensors(like: Tensor | None = None, **arguments: Any) -> dict[str, Any]:
    """The arguments of a mesh, with tensors in place of NumPy arrays; all else as it is.

    Tensors are copies. Floats take the type and the device of `like`, or of the first float tensor among the floats,
    float32 on the CPU without one.

    Raises:
        TypeError: numbers that are neither floats nor, in tables, integers.
    """
    if not any(isinstance(value, np.ndarray) for value in arguments.values()):
        return arguments
    given = [value for name, value in arguments.items() if name in _FLOATS and isinstance(value, Tensor)]
    if like is None:
        like = next((tensor for tensor in given if tensor.is_floating_point()), torch.empty(0, dtype=torch.float32))
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            arguments[name] = _as_tensor(name, value, like)
    return arguments


def _as_tensor(name: str, array: np.ndarray, like: Tensor) -> Tensor:
    """A copy of the machine's byte order, contiguous, and no window into what the caller may change."""
    if name in (*_FLOATS, "offset"):
        if array.dtype.kind != "f":
            hint = "Divide bytes by 255." if array.dtype == np.uint8 else ""
            _checks.fail(TypeError, "Mesh", name, "be an array of floats", str(array.dtype), hint)
        wide = torch.from_numpy(np.array(array, dtype=np.float64))
        if name == "offset":
            return wide
        if name == "vertices" and array.ndim in (2, 3) and array.shape[-1] == 3:
            warn_of_lost_digits("Mesh", wide, like.dtype, "Center it, or pass a float64 tensor.", stacklevel=5)
        return wide.to(dtype=like.dtype, device=like.device)
    if array.dtype.kind not in "iu":
        _checks.fail(TypeError, "Mesh", name, "be an array of integers", str(array.dtype))
    return torch.from_numpy(np.array(array, dtype=np.int64)).to(like.device)


def warn_of_lost_digits(where: str, vertices: Tensor, dtype: torch.dtype, hint: str, stacklevel: int) -> None:
    """A warning if coordinates are so large that the shape itself gets coarse in `dtype`."""
    if vertices.numel() == 0:
        return
    low, high = vertices.reshape(-1, 3).aminmax(dim=0)
    largest, extent = float(vertices.abs().max()), float((high - low).max())
    step = largest * torch.finfo(dtype).eps
    if 0 < extent < float("inf") and step > 1e-4 * extent:
        warnings.warn(
            f"{where}: coordinates up to {largest:.2g} lose {step / extent:.0%} of the mesh's extent of "
            f"{extent:.2g} in {dtype}. {hint}",
            stacklevel=stacklevel,
        )
