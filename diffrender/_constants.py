"""Small tensors that an op needs beside its arguments, on the device of the arguments.

A copy from ordinary host memory waits for a CUDA device, and no CUDA graph can hold it. So numbers are written by the
device itself, and tables are copied once and kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

# More numbers than this are copied: each one costs a launch.
_FEW = 32


def constant(values: Any, like: Tensor) -> Tensor:
    """Numbers, nested sequences of them, an array or a tensor as a tensor of the type and on the device of `like`.

    Raises:
        TypeError, ValueError: as torch.as_tensor does.
    """
    values = joined(values)
    if isinstance(values, Tensor):
        return values.to(like)
    is_fake = isinstance(like, torch._subclasses.FakeTensor)  # numbers have no values there, and nothing is copied
    if like.device.type == "cpu" or torch.compiler.is_compiling() or is_fake:
        return torch.as_tensor(values, dtype=like.dtype, device=like.device)
    on_host = torch.as_tensor(values, dtype=like.dtype, device="cpu")
    if on_host.numel() > _FEW or on_host.numel() == 0:
        return on_host.to(like.device)
    numbers = [torch.full((), value, dtype=like.dtype, device=like.device) for value in on_host.flatten().tolist()]
    return torch.stack(numbers).view(on_host.shape)


def joined(values: Any) -> Any:
    """Sequences that hold tensors somewhere, as one tensor that passes on the gradient; anything else as it is.

    torch.as_tensor would take the values of such tensors and cut them off from autograd.
    """
    if not isinstance(values, (tuple, list)):
        return values
    members = [joined(value) for value in values]
    like = next((value for value in members if isinstance(value, Tensor)), None)
    if like is None:
        return values
    return torch.stack([value if isinstance(value, Tensor) else constant(value, like) for value in members])


def table(make: Callable[..., Tensor], *arguments: Hashable, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """make(*arguments) on the device of `like`, in its type or the given one; kept for later calls.

    Not kept where something looks at the operations that make it, and in inference mode, whose tensors can not take
    part in a graph later.
    """
    dtype = like.dtype if dtype is None else dtype
    is_traced = torch.compiler.is_compiling() or is_functorch_wrapped_tensor(like)
    if is_traced or isinstance(like, torch._subclasses.FakeTensor) or like.is_meta or torch.is_inference_mode_enabled():
        return make(*arguments).to(device=like.device, dtype=dtype)
    return _kept(make, arguments, dtype, str(like.device))


@functools.lru_cache(maxsize=16)
def _kept(make: Callable[..., Tensor], arguments: tuple[Hashable, ...], dtype: torch.dtype, device: str) -> Tensor:
    return make(*arguments).to(device=device, dtype=dtype)
