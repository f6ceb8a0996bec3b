"""Lat-long panorama to cube map: every texel of the cube is the mean of the panorama over its solid angle.

A custom Function because the forward leaves the framework (compiled kernels). The op is linear, so its derivatives of
any order are its two kernels. How the mean is taken: csrc/cube_from_lat_long.h.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from .._autograd import apply, register_fake, register_vmap, scatter_algorithm


def cube_from_lat_long(panorama: Tensor, size: int | None = None) -> Tensor:
    """Resamples a lat-long picture to a cube map.

    Args:
        panorama: (H, W, C) or (B, H, W, C). Row 0 looks to +y (up), the middle column to -z, columns go on to +x. It is
            taken as bilinear between texel centres, around its seam and over its poles.
        size: side of the faces; default the power of two next to W / 4, which keeps the resolution at the horizon.

    Returns:
        (6, size, size, C) or (B, 6, size, size, C), faces as `texture_cube` takes them. A constant stays constant, and
        the integral over the sphere to a few percent for a single bright texel, much better for pictures.

    Gradients: exact to the panorama, at any order.
    Memory: saves nothing.

    Raises:
        TypeError, ValueError: a wrong type, shape or size.

    Example:
        >>> cube_from_lat_long(torch.rand(32, 64, 3)).shape
        torch.Size([6, 16, 16, 3])
    """
    name = "cube_from_lat_long"
    picture = _checks.check_floating(name, "panorama", panorama)
    if picture.dim() not in (3, 4):
        expected = "have shape (B, H, W, C) or (H, W, C)"
        _checks.fail(ValueError, name, "panorama", expected, _checks.shape_text(picture))
    height, width = picture.shape[-3:-1]
    if height < 1 or width < 1:
        _checks.fail(ValueError, name, "panorama", "have at least one texel", _checks.shape_text(picture))
    if size is None:
        size = 2 ** max(0, round(math.log2(width / 4)))
    if isinstance(size, bool) or not isinstance(size, int):
        _checks.fail(TypeError, name, "size", "be an int or None", type(size).__name__)
    if not 1 <= size <= 8192:
        _checks.fail(ValueError, name, "size", "lie in [1, 8192]", str(size))
    shared = picture.dim() == 3
    cube = apply(_CubeFromLatLong, picture[None] if shared else picture, size)
    return cube[0] if shared else cube


class _CubeFromLatLong(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(panorama, size):
        return torch.ops.diffrender.cube_from_lat_long(panorama, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        panorama, ctx.size = inputs
        ctx.shape = tuple(panorama.shape[1:3])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return apply(_CubeFromLatLongBackward, grads[0], *ctx.shape, ctx.size), None

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        return apply(_CubeFromLatLong, tangents[0], inputs[1])


class _CubeFromLatLongBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(grad_cube, height, width, size):
        algorithm = scatter_algorithm(grad_cube)
        return torch.ops.diffrender.cube_from_lat_long_backward(grad_cube, height, width, algorithm)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.size = inputs[3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        # The transpose of the transpose.
        return apply(_CubeFromLatLong, grads[0], ctx.size), None, None, None


@register_fake("cube_from_lat_long")
def _(panorama, size):
    return panorama.new_empty((panorama.shape[0], 6, size, size, panorama.shape[3]))


@register_fake("cube_from_lat_long_backward")
def _(grad_cube, height, width, scatter):
    return grad_cube.new_empty((grad_cube.shape[0], height, width, grad_cube.shape[4]))


register_vmap("cube_from_lat_long")
register_vmap("cube_from_lat_long_backward")
