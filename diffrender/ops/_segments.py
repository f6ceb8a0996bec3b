"""Autograd of antialias(method="segments"): kernels of csrc/segments*.h.

The list of visible edge pieces is made again in the backward pass instead of being kept: it is short, and nothing but
the arguments is saved.
"""

from __future__ import annotations

from typing import Any

import torch

from .._autograd import apply, no_forward_mode, no_second_derivative, register_fake, register_vmap, scatter_algorithm


class AntialiasSegments(torch.autograd.Function):
    """image, triangle_id, positions (B or 1, V, 4), triangles, topology, ranges, seams, cull, blended -> image."""

    generate_vmap_rule = True

    @staticmethod
    def forward(image, triangle_id, positions, triangles, topology, ranges, seams, cull, blended):
        if not blended:
            return image.clone()
        return torch.ops.diffrender.antialias_segments(
            image, triangle_id, positions, triangles, topology, ranges, seams, cull
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*inputs[:7])
        ctx.cull, ctx.blended = inputs[7:]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        need_image, need_positions = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        none = (None,) * 9
        if not (need_image or need_positions):
            return none
        grad_image, grad_positions = apply(
            _AntialiasSegmentsBackward, *ctx.saved_tensors, ctx.cull, grads[0], ctx.blended, need_image, need_positions
        )
        return (
            grad_image if need_image else None,
            None,
            grad_positions if need_positions else None,
            *none[3:],
        )

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        """Linear in the image."""
        if tangents[2] is not None:
            no_forward_mode("antialias (to clip_positions)")
        return apply(AntialiasSegments, tangents[0], *inputs[1:])


class _AntialiasSegmentsBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        image,
        triangle_id,
        positions,
        triangles,
        topology,
        ranges,
        seams,
        cull,
        grad_result,
        blended,
        need_image,
        need_positions,
    ):
        return torch.ops.diffrender.antialias_segments_backward(
            image,
            triangle_id,
            positions,
            triangles,
            topology,
            ranges,
            seams,
            cull,
            grad_result,
            blended,
            need_image,
            need_positions,
            scatter_algorithm(image),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        no_second_derivative("antialias")


@register_fake("antialias_segments")
def _(image, triangle_id, positions, triangles, topology, ranges, seams, cull):
    return image.new_empty(image.shape)


@register_fake("antialias_segments_backward")
def _(
    image,
    triangle_id,
    positions,
    triangles,
    topology,
    ranges,
    seams,
    cull,
    grad_result,
    blended,
    need_image,
    need_positions,
    scatter,
):
    batch, vertices = positions.shape[:2]
    return (
        image.new_empty((image.shape[0] if need_image else 0, *image.shape[1:])),
        positions.new_empty((batch if need_positions else 0, vertices, 4)),
    )


register_vmap("antialias_segments")
register_vmap("antialias_segments_backward")
