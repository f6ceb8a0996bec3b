"""Mip levels of a texture: each is half the size of the one before, a texel the mean over the area that it covers.

Any size is legal. An axis of n texels becomes max(1, n // 2); where n is odd, the coarser texels do not fall on whole
finer ones, and weights are the shares of area. So constants stay constant and every level has the mean of the texture.

A custom Function because the forward leaves the framework (compiled kernels). The op is linear, so its derivatives of
any order are its two kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .. import _checks
from .._autograd import apply, register_fake, register_vmap


def build_mips(texture: torch.Tensor, *, max_level: int | None = None) -> tuple[torch.Tensor, ...]:
    """Mip levels 1, 2, ... of a texture, down to one texel.

    `texture` and `texture_cube` build them by themselves; this is for those who change the levels, or use them often.

    Args:
        texture: (B, H, W, C) or (H, W, C), or (B, 6, S, S, C) for a cube, whose faces are taken one by one (so that
            (6, S, S, C), read as six textures, gives the levels of a cube without batch axis).
        max_level: the last level to build; None for all.

    Returns:
        One tensor per level, of the texture's shape with both sides max(1, side >> level).

    Gradients: exact to the texture, at any order.
    Memory: saves nothing.

    Raises:
        TypeError, ValueError: a wrong type or shape.

    Example:
        >>> [tuple(level.shape) for level in dr.build_mips(torch.rand(5, 12, 3))]
        [(2, 6, 3), (1, 3, 3), (1, 1, 3)]
    """
    values = _checks.check_floating("build_mips", "texture", texture)
    if values.dim() not in (3, 4, 5):
        expected = "have shape (B, H, W, C), (H, W, C) or (B, 6, S, S, C)"
        _checks.fail(ValueError, "build_mips", "texture", expected, _checks.shape_text(values))
    batch, faces = {3: (1, 1), 4: (values.shape[0], 1), 5: tuple(values.shape[:2])}[values.dim()]
    height, width, channels = values.shape[-3:]
    if height < 1 or width < 1:
        _checks.fail(ValueError, "build_mips", "texture", "have at least one texel", _checks.shape_text(values))
    last = last_level("build_mips", height, width, max_level)
    packed = pack_mips(values.reshape(batch, faces, height, width, channels), last)
    levels, start = [], 0
    for level in range(1, last + 1):
        h, w = max(1, height >> level), max(1, width >> level)
        count = faces * h * w
        levels.append(packed[:, start : start + count].reshape(*values.shape[:-3], h, w, channels).contiguous())
        start += count
    return tuple(levels)


def last_level(function: str, height: int, width: int, max_level: int | None) -> int:
    """Index of the last level: that of one texel, or `max_level`."""
    last = max(int(height), int(width)).bit_length() - 1
    if max_level is None:
        return last
    if isinstance(max_level, bool) or not isinstance(max_level, int):
        _checks.fail(TypeError, function, "max_level", "be an int or None", type(max_level).__name__)
    if max_level < 0:
        _checks.fail(ValueError, function, "max_level", "be at least 0", str(max_level))
    return min(last, max_level)


def pack_mips(texture: torch.Tensor, last: int) -> torch.Tensor:
    """Levels 1 ... last of a texture (B, F, H, W, C) one after the other, (B, texels, C)."""
    return apply(_BuildMips, texture, last)


@dataclass(frozen=True)
class PackedMips:
    """All mips of a texture as the kernels read them; `dr.texture` takes it in place of the levels.

    Attributes:
        values: (B, texels, C), levels 1 ... last one after the other; B is 1 for a texture without batch axis.
        last: index of the last level.
    """

    values: torch.Tensor
    last: int

    @classmethod
    def of(cls, texture: torch.Tensor) -> PackedMips:
        """Of a texture (B, H, W, C) or (H, W, C)."""
        batched = texture if texture.dim() == 4 else texture[None]
        last = last_level("build_mips", batched.shape[1], batched.shape[2], None)
        return cls(pack_mips(batched.unsqueeze(1), last), last)


class _BuildMips(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(texture, last):
        return torch.ops.diffrender.build_mips(texture, last)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        texture, last = inputs
        ctx.sizes = (*texture.shape[1:4], last)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        return apply(_BuildMipsBackward, grads[0], *ctx.sizes), None

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        return apply(_BuildMips, tangents[0], inputs[1])


class _BuildMipsBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(grad_mips, faces, height, width, last):
        return torch.ops.diffrender.build_mips_backward(grad_mips, faces, height, width, last)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        ctx.last = inputs[4]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        return apply(_BuildMips, grads[0], ctx.last), None, None, None, None


@register_fake("build_mips")
def _(texture, last_level):
    batch, faces, height, width, channels = texture.shape
    texels = sum(faces * max(1, height >> level) * max(1, width >> level) for level in range(1, last_level + 1))
    return texture.new_empty((batch, texels, channels))


@register_fake("build_mips_backward")
def _(grad_mips, faces, height, width, last_level):
    return grad_mips.new_empty((grad_mips.shape[0], faces, height, width, grad_mips.shape[2]))


register_vmap("build_mips")
register_vmap("build_mips_backward")
