"""Lookups by direction in a cube map, filtered across its seams at every mip level.

A custom Function because the forward leaves the framework (compiled kernels). A tap beyond one side of a face is the
texel of the face that lies there; beyond a corner of the cube there is none, and the mean of the three around it takes
its place. The level comes from the footprint of the pixel on the face, as in `texture`; through the projection it
depends on the direction too, and the gradient says so. Mips are built face by face. The nearest filter mends no seams.

Second derivatives raise NotImplementedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _checks
from .._autograd import apply, no_second_derivative, register_fake, register_vmap, scatter_algorithm
from .build_mips import last_level, pack_mips
from .texture import (
    FILTERS,
    check_level,
    check_lookups,
    check_per_lookup,
    check_texture,
    choose_filter,
    lookup_tangents,
    pack_levels,
)


def texture_cube(
    texture: torch.Tensor,
    directions: torch.Tensor,
    *,
    direction_derivatives: torch.Tensor | None = None,
    level: torch.Tensor | None = None,
    level_bias: torch.Tensor | None = None,
    mips: Sequence[torch.Tensor] | None = None,
    filter: str = "auto",
    max_level: int | None = None,
) -> torch.Tensor:
    """Values of a cube map in given directions.

    Args:
        texture: (B, 6, S, S, C) or (6, S, S, C): faces +X, -X, +Y, -Y, +Z, -Z, each as seen from inside, in OpenGL's
            orientation; without batch axis, or with one of size 1, shared by all items.
        directions: (B, H, W, 3) or (H, W, 3), of any length. Equal components choose X before Y before Z.
        direction_derivatives: (B, H, W, 6) as (dx/dX, dx/dY, dy/dX, dy/dY, dz/dX, dz/dY) per pixel step, as
            `interpolate` returns them.
        level, level_bias, mips, filter, max_level: as in `texture`.

    Returns:
        (B, H, W, C). In a direction that is zero (below the smallest normal number), NaN or infinite: 0.

    Gradients: exact to texture, mips (to the texture where they are built from it), directions,
    direction_derivatives, level and level_bias, with the same exceptions as in `texture`. A direction without value has
    none and gives none.
    Memory: saves the arguments, and the mips if it built them (a third of the texture).

    Raises:
        TypeError, ValueError: a wrong type, shape, device or mode.
        NotImplementedError: for a second derivative.

    Example:
        >>> faces = torch.rand(6, 16, 16, 3)
        >>> directions = torch.nn.functional.normalize(torch.randn(1, 20, 30, 3), dim=-1)
        >>> dr.texture_cube(faces, directions, level=torch.full((1, 20, 30), 1.5)).shape
        torch.Size([1, 20, 30, 3])
    """
    values, shared = check_texture("texture_cube", texture, (5, 4), "(B, 6, S, S, C) or (6, S, S, C)")
    if values.shape[1] != 6 or values.shape[2] != values.shape[3]:
        expected = "have six square faces"
        _checks.fail(ValueError, "texture_cube", "texture", expected, _checks.shape_text(texture))
    lookups = check_lookups("texture_cube", "directions", directions, 3, values)
    grid = lookups.shape[:3]
    steps = check_per_lookup("texture_cube", "direction_derivatives", direction_derivatives, grid, values, 6)
    bias = check_level("texture_cube", level, level_bias, steps, grid, values)
    mode = choose_filter("texture_cube", filter, steps is not None or bias is not None, mips is not None)
    packed, last = None, 0
    if mode.startswith("mip"):
        last = last_level("texture_cube", values.shape[2], values.shape[3], max_level)
        if mips is None:
            packed = pack_mips(values, last)
        else:
            packed, last = pack_levels("texture_cube", mips, values, shared, last)
    else:
        steps = bias = None
    return apply(_TextureCube, values, packed, lookups, steps, bias, FILTERS[mode], last)


class _TextureCube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(texture, mips, directions, derivatives, bias, filter_mode, last):
        return torch.ops.diffrender.texture_cube(texture, mips, directions, derivatives, bias, filter_mode, last)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.modes = inputs[5:]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        needs = ctx.needs_input_grad[:5]
        if not any(needs):
            return (None,) * 7
        results = apply(_TextureCubeBackward, *ctx.saved_tensors, grads[0], ctx.modes, needs)
        return *(grad if need else None for grad, need in zip(results, needs, strict=True)), None, None

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        modes = tuple(inputs[5:])

        def look_up(texture: Any, mips: Any) -> Any:
            return apply(_TextureCube, texture, mips, *inputs[2:5], *modes)

        def gradients(texture: Any, mips: Any, ones: Any, needs: tuple[bool, ...]) -> Any:
            return apply(_TextureCubeBackward, texture, mips, *inputs[2:5], ones, modes, needs)

        return lookup_tangents(look_up, gradients, inputs[0], inputs[1], outputs[0], tangents[:5])


class _TextureCubeBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(texture, mips, directions, derivatives, bias, grad_values, modes, needs):
        filter_mode, last = modes
        need_texture, need_mips, need_directions, need_derivatives, need_bias = needs
        # The nearest texel does not move with the direction.
        slides = filter_mode != FILTERS["nearest"]
        results = torch.ops.diffrender.texture_cube_backward(
            texture, mips, directions, derivatives, bias, grad_values, filter_mode, last,
            need_texture, need_mips, need_directions and slides, need_derivatives, need_bias,
            scatter_algorithm(texture),
        )  # fmt: skip
        if need_directions and not slides:
            return *results[:2], torch.zeros_like(directions), *results[3:]
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        no_second_derivative("texture_cube")


@register_fake("texture_cube")
def _(texture, mips, directions, derivatives, bias, filter, last_level):
    return texture.new_empty((*directions.shape[:3], texture.shape[4]))


@register_fake("texture_cube_backward")
def _(
    texture, mips, directions, derivatives, bias, grad_values, filter, last_level,
    need_texture, need_mips, need_directions, need_derivatives, need_bias, scatter,
):  # fmt: skip
    batch, faces, size, _, channels = texture.shape
    items, *grid = directions.shape[:3]
    texels = 0 if mips is None else mips.shape[1]
    return (
        texture.new_empty((batch if need_texture else 0, faces, size, size, channels)),
        texture.new_empty((batch if need_mips and mips is not None else 0, texels, channels)),
        texture.new_empty((items if need_directions else 0, *grid, 3)),
        texture.new_empty((items if need_derivatives else 0, *grid, 6)),
        texture.new_empty((items if need_bias else 0, *grid)),
    )


register_vmap("texture_cube")
register_vmap("texture_cube_backward")
