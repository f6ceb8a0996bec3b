"""Autograd of antialias(method="segments"): kernels of csrc/segments*.h.

On the CPU the forward pass keeps the visible edge pieces for the backward pass, if they are not many: there is room for
768, and one more per 128 pixels and per 64 triangles, which takes half a byte per pixel and one per triangle. Of more
pieces the same memory says where they are, and the backward pass finds them again there. Besides the arguments two
bytes per triangle and one per pixel are saved: which edges and pixels are worth a look.
"""

from __future__ import annotations

from typing import Any

import torch

from .._autograd import (
    SCATTER_NATIVE,
    apply,
    no_forward_mode,
    no_second_derivative,
    register_fake,
    register_vmap,
    scatter_algorithm,
)

_PIECE_WORDS = 9  # EdgePiece of csrc/segments_window.h, in units of eight bytes


class AntialiasSegments(torch.autograd.Function):
    """image, triangle_id, positions (B or 1, V, 4), triangles, topology, ranges, seams, cull, exact, blended -> image,
    the marks of the edges and pixels worth a look: facing (B or 1, T), edges (B, T), crossings (B, H, W), and the
    visible pieces, where they are kept."""

    generate_vmap_rule = True
    takes_missing_cotangents = True

    @staticmethod
    def forward(image, triangle_id, positions, triangles, topology, ranges, seams, cull, exact, blended):
        mesh = (triangle_id, positions, triangles, topology, ranges, seams, cull)
        marks = torch.ops.diffrender.segments_marked(*mesh)
        if not blended:
            return image.clone(), *marks, triangle_id.new_zeros((0,), dtype=torch.int64)
        scatter = scatter_algorithm(image)
        result, pieces = torch.ops.diffrender.antialias_segments(image, *mesh, exact, *marks, scatter)
        return result, *marks, pieces

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*inputs[:7], *output[1:])
        ctx.cull, ctx.exact, ctx.blended = inputs[7:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple:
        need_image, need_positions = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        none = (None,) * 10
        if grads[0] is None or not (need_image or need_positions):
            return none
        saved = ctx.saved_tensors  # once: checkpointing unpacks it anew
        grad_image, grad_positions = apply(
            _AntialiasSegmentsBackward,
            *saved[:7],
            ctx.cull,
            ctx.exact,
            *saved[7:],
            grads[0],
            ctx.blended,
            need_image,
            need_positions,
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
        return apply(AntialiasSegments, tangents[0], *inputs[1:])[0], None, None, None, None


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
        exact,
        facing,
        edges,
        crossings,
        pieces,
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
            exact,
            facing,
            edges,
            crossings,
            pieces,
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


@register_fake("segments_marked")
def _(triangle_id, positions, triangles, topology, ranges, seams, cull):
    count = triangles.shape[0]
    return (
        triangles.new_empty((positions.shape[0], count), dtype=torch.int8),
        triangles.new_empty((triangle_id.shape[0], count), dtype=torch.uint8),
        triangle_id.new_empty(triangle_id.shape, dtype=torch.uint8),
    )


@register_fake("antialias_segments")
def _(
    image,
    triangle_id,
    positions,
    triangles,
    topology,
    ranges,
    seams,
    cull,
    exact,
    facing,
    edges,
    crossings,
    scatter=SCATTER_NATIVE,
):
    # As keep_pieces of csrc/segments_walks.h has it.
    room = 768 + triangle_id.numel() // 128 + triangle_id.shape[0] * triangles.shape[0] // 64
    words = 0 if triangle_id.device.type == "cuda" else 2 + _PIECE_WORDS * room
    return image.new_empty(image.shape), triangle_id.new_empty((words,), dtype=torch.int64)


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
    exact,
    facing,
    edges,
    crossings,
    pieces,
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


register_vmap("segments_marked")
register_vmap("antialias_segments")
register_vmap("antialias_segments_backward")
