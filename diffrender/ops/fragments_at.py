"""Fragments of pixels whose triangles are known: what `rasterize` returned beside the ids, without the search for them.

A custom Function for the same reasons as `rasterize`, and because it buys memory: a picture can be kept as its
triangle_id alone, 4 bytes a pixel, and everything else computed again when the backward pass needs it
(`diffrender.recompute`). Values and gradients are bit for bit those of `rasterize`.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _checks
from .._autograd import apply, no_second_derivative, register_fake, register_vmap
from .rasterize import Fragments, _RasterizeBackward, check_least_width


def fragments_at(
    clip_positions: torch.Tensor,
    triangles: torch.Tensor,
    triangle_id: torch.Tensor,
    *,
    height: int | None = None,
    first_row: int = 0,
    derivatives: bool = False,
    least_width: float = 0.0,
) -> Fragments:
    """Barycentrics and depth of given triangles at the pixel centres.

    Args:
        clip_positions: (B, V, 4) or (V, 4) homogeneous clip-space vertices, as for `rasterize`.
        triangles: (T, 3) int32 or int64 vertex indices.
        triangle_id: (B, h, W) int32, which triangle each pixel shows; what is no row of `triangles` is background. The
            triangle need not cover the pixel: its plane is continued, and barycentrics leave [0, 1].
        height: rows of the whole image, if `triangle_id` is only a band of them; default h.
        first_row: row of the image that the band begins with.
        derivatives: also return the screen-space derivatives of the barycentrics.
        least_width: as of `rasterize`: what narrow triangles lose of their gradient.

    Returns:
        Fragments of shape (B, h, W), with the given triangle_id.

    Gradients: as of `rasterize`, exact to clip_positions but for `least_width`.
    Memory: saves clip_positions, triangles and triangle_id.

    Raises:
        TypeError, ValueError: a wrong type, shape or device, or (on the CPU) an index outside of the vertices.

    Example:
        >>> corners = torch.tensor([[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]])
        >>> fragments = dr.rasterize(corners, torch.tensor([[0, 1, 2]]), (8, 8))
        >>> again = dr.fragments_at(corners, torch.tensor([[0, 1, 2]]), fragments.triangle_id)
        >>> torch.equal(again.barycentrics, fragments.barycentrics)
        True
    """
    name = "fragments_at"
    positions = _checks.check_floating(name, "clip_positions", clip_positions)
    if positions.dim() not in (2, 3) or positions.shape[-1] != 4:
        expected = "have shape (B, V, 4) or (V, 4)"
        _checks.fail(ValueError, name, "clip_positions", expected, _checks.shape_text(positions))
    if positions.dim() == 2:
        positions = positions.unsqueeze(0)
    indices = _checks.check_triangles(name, triangles, positions)
    _checks.check_vertex_range(name, indices, positions.shape[1], "clip_positions")
    _checks.check_triangle_id(name, "triangle_id", triangle_id)
    _checks.check_same_type(name, "triangle_id", triangle_id, "clip_positions", positions)
    if positions.shape[0] not in (1, triangle_id.shape[0]):
        expected = f"have the batch size of triangle_id ({triangle_id.shape[0]}), or 1"
        _checks.fail(ValueError, name, "clip_positions", expected, str(positions.shape[0]))
    rows = triangle_id.shape[1]
    height = rows if height is None else height
    if not 0 <= first_row <= height - rows:
        expected = f"lie in [0, {height - rows}], so that {rows} rows fit an image of {height}"
        _checks.fail(ValueError, name, "first_row", expected, str(first_row))
    least_width = check_least_width(name, least_width)
    barycentrics, depth, gradients = apply(
        _FragmentsAt, positions, indices.to(torch.int32), triangle_id, height, first_row, bool(derivatives), least_width
    )
    return Fragments(triangle_id, barycentrics, depth, gradients if derivatives else None)


class _FragmentsAt(torch.autograd.Function):
    generate_vmap_rule = True
    takes_missing_cotangents = True

    @staticmethod
    def forward(positions, triangles, triangle_id, height, first_row, derivatives, least_width):
        return torch.ops.diffrender.fragments_at(positions, triangles, triangle_id, height, first_row, derivatives)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        positions, triangles, triangle_id, ctx.height, ctx.first_row, ctx.has_derivatives, ctx.least_width = inputs
        ctx.save_for_backward(positions, triangles, triangle_id)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple:
        grad_barycentrics, grad_depth, grad_derivatives = grads
        if not ctx.has_derivatives:
            grad_derivatives = None
        nothing = (None,) * 6
        if not ctx.needs_input_grad[0] or (grad_barycentrics is grad_depth is grad_derivatives is None):
            return (None, *nothing)
        positions, triangles, triangle_id = ctx.saved_tensors
        grad = apply(
            _FragmentsAtBackward, positions, triangles, triangle_id, grad_barycentrics, grad_depth, grad_derivatives,
            ctx.height, ctx.first_row, ctx.least_width,
        )  # fmt: skip
        return (grad, *nothing)

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        from ._fragment_tangents import fragment_tangents

        positions, triangles, triangle_id, height, first_row, has_derivatives, least_width = inputs
        moved = fragment_tangents(
            positions, triangles, triangle_id, outputs[0], tangents[0], height, first_row, has_derivatives, least_width
        )
        return *moved[:2], moved[2] if has_derivatives else torch.zeros_like(outputs[2])


class _FragmentsAtBackward(_RasterizeBackward):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        no_second_derivative("fragments_at")


@register_fake("fragments_at")
def _(positions, triangles, triangle_id, height, first_row, derivatives):
    batch, rows, width = triangle_id.shape
    return (
        positions.new_empty((batch, rows, width, 2)),
        positions.new_empty((batch, rows, width)),
        positions.new_empty((batch if derivatives else 0, rows, width, 4)),
    )


register_vmap("fragments_at")
