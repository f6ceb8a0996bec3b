"""Pictures from the fragments of `coverage`: the sum of what each pixel shows, weighted by visible area.

A custom Function because the forward leaves the framework (a compiled kernel): of torch's own operations only a scatter
would do, which writes the weighted values down first, adds them one after the other on the CPU, and in any order on
CUDA. Here each pixel adds up its own fragments, in their order. The op is bilinear in values and weights, so every
derivative is another call of the same kernels, and derivatives of any order are exact.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _checks
from .._autograd import added, apply, register_fake, register_vmap
from .._constants import constant
from .coverage import Coverage


def composite(
    values: torch.Tensor,
    coverage: Coverage,
    *,
    background: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Pictures from the values of fragments: the sum of each pixel's values, weighted by visible area.

    Args:
        values: (1, 1, N, C) or (N, C), one row per fragment, as `interpolate` and shading make them.
        coverage: result of `coverage`.
        background: None (nothing: values are then premultiplied by coverage), a number, or a tensor (C,), (H, W, C) or
            (B, H, W, C); it gets what area the fragments leave.

    Returns:
        (B, H, W, C). Values beyond the last fragment of a list with a capacity do not matter.

    Gradients: to values, background, and (through the weights) to the positions, all exact, at any order.
    Memory: saves values and weights; with a background also the background, one number per pixel and one per fragment.

    Raises:
        TypeError, ValueError: a wrong type or shape.

    Example:
        >>> corners = torch.tensor([[-1.0, -1.0, 0.0, 1.0], [3.0, -1.0, 0.0, 1.0], [-1.0, 3.0, 0.0, 1.0]])
        >>> coverage = dr.coverage(corners, torch.tensor([[0, 1, 2]]), (4, 4))
        >>> alpha = dr.composite(torch.ones_like(coverage.weight).unsqueeze(-1), coverage)
        >>> alpha.shape, float(alpha.min())
        (torch.Size([1, 4, 4, 1]), 1.0)
    """
    if not isinstance(coverage, Coverage):
        _checks.fail(TypeError, "composite", "coverage", "be the result of coverage", type(coverage).__name__)
    rows = _checks.check_floating("composite", "values", values)
    weight, offsets = coverage.weight, coverage.offsets
    count, (batch, height, width) = weight.shape[0], coverage.size
    if rows.dim() not in (2, 4) or rows.shape[:-1] not in ((count,), (1, 1, count)):
        expected = f"have shape (1, 1, {count}, C) or ({count}, C)"
        _checks.fail(ValueError, "composite", "values", expected, _checks.shape_text(rows))
    _checks.check_same_type("composite", "values", rows, "coverage", weight)
    channels = rows.shape[-1]
    rows = rows.reshape(count, channels)
    image = apply(_Composite, rows, weight, offsets).view(batch, height, width, channels)
    if background is None:
        return image
    behind = constant(background, rows)
    shapes = ((), (channels,), (height, width, channels), (batch, height, width, channels))
    if tuple(behind.shape) not in shapes:
        expected = f"be a number or have shape ({channels},), {shapes[2]} or {shapes[3]}"
        _checks.fail(ValueError, "composite", "background", expected, _checks.shape_text(behind))
    covered = apply(_Composite, rows.new_ones(count, 1), weight, offsets).view(batch, height, width, 1)
    return torch.addcmul(image, 1 - covered, behind)


class _Composite(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(values, weight, offsets):
        return torch.ops.diffrender.composite(values, weight, offsets)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        needs = ctx.needs_input_grad[:2]
        if not any(needs):
            return None, None, None
        results = apply(_CompositeBackward, *ctx.saved_tensors, grads[0], *needs)
        return *(grad if need else None for grad, need in zip(results, needs, strict=True)), None

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        """Bilinear: the tangent of sum_k w_k v_k is sum_k w_k v'_k + sum_k w'_k v_k."""
        values, weight, offsets = inputs
        of_values, of_weight = tangents[:2]
        return added(
            None if of_values is None else apply(_Composite, of_values, weight, offsets),
            None if of_weight is None else apply(_Composite, values, of_weight, offsets),
        )


class _CompositeBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(values, weight, offsets, grad_image, need_values, need_weight):
        return torch.ops.diffrender.composite_backward(values, weight, offsets, grad_image, need_values, need_weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        *tensors, ctx.need_values, ctx.need_weight = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        """The first backward is grad_v = w g and grad_w = <v, g>. Given cotangents a of grad_v and u of grad_w:

        to g:  sum_k w_k a_k + sum_k u_k v_k      two forward calls
        to w:  <a_k, g>                            a backward call with values a
        to v:  u_k g                               a backward call with weights u
        """
        values, weight, offsets, grad_image = ctx.saved_tensors
        of_values = grads[0] if ctx.need_values else None
        of_weight = grads[1] if ctx.need_weight else None
        need_values, need_weight, _, need_grad = ctx.needs_input_grad[:4]
        to_values = to_weight = to_grad = None
        if of_values is not None and need_weight:
            to_weight = apply(_CompositeBackward, of_values, weight, offsets, grad_image, False, True)[1]
        if of_weight is not None and need_values:
            to_values = apply(_CompositeBackward, values, of_weight, offsets, grad_image, True, False)[0]
        if need_grad:
            to_grad = added(
                None if of_values is None else apply(_Composite, of_values, weight, offsets),
                None if of_weight is None else apply(_Composite, values, of_weight, offsets),
            )
        return to_values, to_weight, None, to_grad, None, None

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        """grad_v = w g and grad_w = <v, g>: each of the two factors changes in turn."""
        values, weight, offsets, grad_image, *needs = inputs
        of_values, of_weight, _, of_grad = tangents[:4]
        of_both = (
            (None, None) if of_grad is None else apply(_CompositeBackward, values, weight, offsets, of_grad, *needs)
        )
        by_weight = by_values = None
        if of_weight is not None:
            by_weight = apply(_CompositeBackward, values, of_weight, offsets, grad_image, *needs)[0]
        if of_values is not None:
            by_values = apply(_CompositeBackward, of_values, weight, offsets, grad_image, *needs)[1]
        return added(by_weight, of_both[0]), added(by_values, of_both[1])


@register_fake("composite")
def _(values, weight, offsets):
    return values.new_empty((offsets.shape[0] - 1, values.shape[1]))


@register_fake("composite_backward")
def _(values, weight, offsets, grad_image, need_values, need_weight):
    count, channels = values.shape
    return (
        values.new_empty((count if need_values else 0, channels)),
        values.new_empty((count if need_weight else 0,)),
    )


register_vmap("composite")
register_vmap("composite_backward")
