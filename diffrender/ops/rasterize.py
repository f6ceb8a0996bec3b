"""Rasterization: which triangle each pixel shows, where on it, and how deep.

A custom Function because the forward leaves the framework (compiled kernels) and because its derivative is that of
barycentrics and depth at a fixed triangle: visibility is piecewise constant, and its gradient comes from `antialias`.

Coverage is decided in integers on vertices rounded to 1/256 pixel with a top-left rule, so that triangles that share an
edge leave no gap and no overlap. Barycentrics and depth come from the unrounded homogeneous positions without dividing
by the w of a vertex (Olano and Greer 1997), so they hold for triangles that reach behind the camera. Not handled: lines
and points, multisampling.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from .. import _checks
from .._autograd import apply, no_second_derivative, register_fake, register_vmap, scatter_algorithm

_DRIVER_NATIVE, _DRIVER_GPU = 0, 1


class Fragments(NamedTuple):
    """What `rasterize` knows of each pixel; row 0 is the top."""

    triangle_id: torch.Tensor
    """(B, H, W) int32: row of `triangles`, -1 = background."""
    barycentrics: torch.Tensor
    """(B, H, W, 2): perspective-correct weights of corners 0 and 1; 0 on background. A little outside of [0, 1] beside
    an edge, far outside for triangles narrower than 1/256 pixel: see `rasterize`."""
    depth: torch.Tensor
    """(B, H, W): z/w in NDC; 1 on background."""
    derivatives: torch.Tensor | None
    """(B, H, W, 4): d(b0)/dx, d(b0)/dy, d(b1)/dx, d(b1)/dy per pixel step, x right and y down; 0 on background."""


def rasterize(
    clip_positions: torch.Tensor,
    triangles: torch.Tensor,
    resolution: tuple[int, int],
    *,
    ranges: torch.Tensor | None = None,
    cull: str | None = None,
    beneath: Fragments | None = None,
    derivatives: bool = False,
    least_width: float = 0.0,
) -> Fragments:
    """Find the nearest triangle at every pixel centre.

    Args:
        clip_positions: (B, V, 4) or (V, 4) homogeneous clip-space vertices, y up; without batch axis shared by all.
        triangles: (T, 3) int32 or int64 vertex indices. Both windings are drawn.
        resolution: (height, width) in pixels.
        ranges: (B, 2) integers (first triangle, count): item b draws these rows only. Packs different meshes in one
            batch; vertex indices still address the common vertex array, and triangle_id the packed `triangles`.
        cull: "back" drops triangles that run clockwise on screen, "front" the others.
        beneath: fragments of an earlier call with the same mesh: draw the nearest surface strictly behind them
            (depth peeling). At equal depth the order is that of the triangle index, so coincident layers all appear.
        derivatives: also return the screen-space derivatives of the barycentrics.
        least_width: pixels. Where a triangle is narrower, on screen at the pixel's centre, the gradient of that pixel
            is multiplied by width / least_width. 0 changes nothing. One triangle seen on edge may else outweigh all
            others: the chance to hit it is about its width, and the gradient there about 1 / width. Good for fits is
            1/16, which `Renderer` takes.

    Returns:
        Fragments. Near and far planes cut (|z| <= w). At equal depth the lowest triangle index is shown. Triangles
        without area, or with NaN or infinite corners, draw nothing. Which triangle shows is decided by vertices rounded
        to 1/256 pixel, barycentrics and depth by the vertices as they are: the centre may lie up to 1/512 pixel outside
        of its triangle, and barycentrics leave [0, 1] by that over the triangle's width. For triangles narrower than
        1/256 pixel that is far, values interpolated there may be too, and a loss may see single wild pixels: `clamp`
        the barycentrics (`fragments._replace`) or the values. `least_width` tames the gradient, not the values.

    Gradients: barycentrics, depth and derivatives give clip_positions their exact derivative (x, y, z and w) at fixed
        visibility, but for `least_width`; triangle_id has none. Moving silhouettes: see `antialias`.
    Memory: saves clip_positions, triangles and triangle_id.

    Raises:
        TypeError, ValueError: a wrong type, shape or device, or (on the CPU) an index outside of the vertices.

    Example:
        >>> corners = torch.tensor([[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]])
        >>> fragments = dr.rasterize(corners, torch.tensor([[0, 1, 2]]), (256, 256))
        >>> int((fragments.triangle_id >= 0).sum())
        20706
    """
    return _rasterize_with_driver(
        clip_positions, triangles, resolution, ranges, cull, beneath, derivatives, least_width, _DRIVER_NATIVE
    )


def _rasterize_with_driver(
    clip_positions: torch.Tensor,
    triangles: torch.Tensor,
    resolution: tuple[int, int],
    ranges: torch.Tensor | None = None,
    cull: str | None = None,
    beneath: Fragments | None = None,
    derivatives: bool = False,
    least_width: float = 0.0,
    driver: int = _DRIVER_GPU,
) -> Fragments:
    """`rasterize` with a choice of algorithm: tests run the GPU's on the CPU."""
    height, width = _checks.check_resolution("rasterize", resolution)
    positions = _checks.check_floating("rasterize", "clip_positions", clip_positions)
    if positions.dim() not in (2, 3) or positions.shape[-1] != 4:
        expected = "have shape (B, V, 4) or (V, 4)"
        _checks.fail(ValueError, "rasterize", "clip_positions", expected, _checks.shape_text(positions))
    if positions.dim() == 2:
        positions = positions.unsqueeze(0)
    indices = _checks.check_triangles("rasterize", triangles, positions)
    _checks.check_vertex_range("rasterize", indices, positions.shape[1], "clip_positions")
    _checks.check_choice("rasterize", "cull", cull, tuple(_checks.CULL))
    if not isinstance(derivatives, bool):
        _checks.fail(TypeError, "rasterize", "derivatives", "be True or False", repr(derivatives))
    least_width = check_least_width("rasterize", least_width)
    batch = positions.shape[0]
    if ranges is not None:
        ranges = _checks.check_ranges("rasterize", ranges, positions, indices.shape[0])
        batch = ranges.shape[0]
    beneath_id = None
    if beneath is not None:
        if not isinstance(beneath, Fragments):
            _checks.fail(TypeError, "rasterize", "beneath", "be the result of rasterize", type(beneath).__name__)
        beneath_id = beneath.triangle_id
        _checks.check_triangle_id("rasterize", "beneath.triangle_id", beneath_id)
        if tuple(beneath_id.shape) != (batch, height, width):
            expected = f"have fragments of shape ({batch}, {height}, {width})"
            _checks.fail(ValueError, "rasterize", "beneath", expected, _checks.shape_text(beneath_id))
        _checks.check_same_type("rasterize", "beneath", beneath_id, "clip_positions", positions)
    triangle_id, barycentrics, depth, gradients = apply(
        _Rasterize,
        positions,
        indices.to(torch.int32),
        ranges,
        beneath_id,
        height,
        width,
        _checks.CULL[cull],
        derivatives,
        driver,
        least_width,
    )
    return Fragments(triangle_id, barycentrics, depth, gradients if derivatives else None)


def check_least_width(op: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        _checks.fail(ValueError, op, "least_width", "be a number of pixels, 0 or more", repr(value))
    return float(value)


class _Rasterize(torch.autograd.Function):
    generate_vmap_rule = True
    takes_missing_cotangents = True

    @staticmethod
    def forward(positions, triangles, ranges, beneath, height, width, cull, derivatives, driver, least_width):
        return torch.ops.diffrender.rasterize(
            positions, triangles, ranges, beneath, height, width, cull, derivatives, driver
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        positions, triangles = inputs[:2]
        ctx.save_for_backward(positions, triangles, output[0])
        ctx.mark_non_differentiable(output[0])
        ctx.set_materialize_grads(False)
        ctx.has_derivatives, ctx.least_width = inputs[7], inputs[9]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple:
        _, grad_barycentrics, grad_depth, grad_derivatives = grads
        if not ctx.has_derivatives:
            grad_derivatives = None
        nothing = (None,) * 9
        if not ctx.needs_input_grad[0] or (grad_barycentrics is grad_depth is grad_derivatives is None):
            return (None, *nothing)
        positions, triangles, triangle_id = ctx.saved_tensors
        grad = apply(
            _RasterizeBackward,
            positions,
            triangles,
            triangle_id,
            grad_barycentrics,
            grad_depth,
            grad_derivatives,
            -1,
            0,
            ctx.least_width,
        )
        return (grad, *nothing)

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        # It is made of ops that need the Fragments of this module.
        from ._fragment_tangents import fragment_tangents

        positions, triangles, _, _, height, _, _, has_derivatives, _, least_width = inputs
        moved = fragment_tangents(
            positions, triangles, outputs[0], outputs[1], tangents[0], height, 0, has_derivatives, least_width
        )
        return None, *moved[:2], moved[2] if has_derivatives else torch.zeros_like(outputs[3])


class _RasterizeBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        positions,
        triangles,
        triangle_id,
        grad_barycentrics,
        grad_depth,
        grad_derivatives,
        height,
        first_row,
        least_width,
    ):
        return torch.ops.diffrender.rasterize_backward(
            positions,
            triangles,
            triangle_id,
            grad_barycentrics,
            grad_depth,
            grad_derivatives,
            scatter_algorithm(positions),
            height,
            first_row,
            least_width,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        no_second_derivative("rasterize")


@register_fake("rasterize")
def _(positions, triangles, ranges, beneath, height, width, cull, derivatives, driver):
    batch = positions.shape[0] if ranges is None else ranges.shape[0]
    return (
        positions.new_empty((batch, height, width), dtype=torch.int32),
        positions.new_empty((batch, height, width, 2)),
        positions.new_empty((batch, height, width)),
        positions.new_empty((batch if derivatives else 0, height, width, 4)),
    )


@register_fake("rasterize_backward")
def _(
    positions,
    triangles,
    triangle_id,
    grad_barycentrics,
    grad_depth,
    grad_derivatives,
    scatter,
    height=-1,
    first_row=0,
    least_width=0.0,
):
    return positions.new_empty(positions.shape)


register_vmap("rasterize")
register_vmap("rasterize_backward")
