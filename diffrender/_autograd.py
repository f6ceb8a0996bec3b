"""What the ops share around autograd: second-derivative guard, scatter algorithm, vmap by a loop over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

# Scatter algorithms of the kernels (csrc/core/launch.h).
SCATTER_NATIVE, SCATTER_FIXED_POINT = 0, 1


def scatter_algorithm(tensor: torch.Tensor) -> int:
    """Order-free sums on CUDA if deterministic algorithms are asked for. On the CPU sums are deterministic anyway."""
    if tensor.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        return SCATTER_FIXED_POINT
    return SCATTER_NATIVE


def no_second_derivative(op: str) -> NoReturn:
    """For the backward of a backward: raise instead of a wrong number.

    `once_differentiable` would not do: it stays silent when the cotangent needs no gradient but the inputs do.
    """
    raise NotImplementedError(
        f"{op}: second derivatives are not implemented. Take the first gradient without create_graph=True, "
        "or detach what enters this op."
    )


def register_fake(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Shapes and types of a kernel's results, for torch.compile and meta tensors."""
    return torch.library.register_fake(f"diffrender::{op}")


def register_vmap(op: str) -> None:
    """Under vmap the op runs once per slice: kernels have their own batch axis, whose meaning a fold would change."""
    overload = getattr(torch.ops.diffrender, op).default

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        slices = []
        for index in range(info.batch_size):
            pairs = zip(args, in_dims, strict=True)
            picked = [value if dim is None else value.select(dim, index) for value, dim in pairs]
            slices.append(overload(*picked))
        if isinstance(slices[0], torch.Tensor):
            return torch.stack(slices), 0
        return tuple(torch.stack(parts) for parts in zip(*slices, strict=True)), (0,) * len(slices[0])

    torch.library.register_vmap(f"diffrender::{op}", rule)
