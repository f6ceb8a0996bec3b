"""Interpolation of vertex attributes at the surface point that each pixel shows.

A custom Function because the forward leaves the framework (compiled kernels). The op is bilinear in attributes and
barycentrics, so every derivative is another call of the same two kernels, and derivatives of any order are exact.
Screen-space derivatives of the values are the same sum with the derivatives of the barycentrics as weights, which add
to 0 instead of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch

from .. import _checks
from .._autograd import added, apply, register_fake, register_vmap, scatter_algorithm
from .coverage import Coverage, packed_attributes
from .rasterize import Fragments


@overload
def interpolate(
    attributes: torch.Tensor, triangles: torch.Tensor, fragments: Fragments | Coverage, *, derivatives: None = None
) -> torch.Tensor: ...
@overload
def interpolate(
    attributes: torch.Tensor,
    triangles: torch.Tensor,
    fragments: Fragments | Coverage,
    *,
    derivatives: str | Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def interpolate(
    attributes: torch.Tensor,
    triangles: torch.Tensor,
    fragments: Fragments | Coverage,
    *,
    derivatives: str | Sequence[int] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Perspective-correct vertex attributes at every pixel.

    Args:
        attributes: (B, V, C) or (V, C); without batch axis shared by all items.
        triangles: (T, 3) int32 or int64 rows of `attributes`. May be another index array than the one rasterized (for
            texcoords or normals with seams) if its rows stand for the same triangles.
        fragments: result of `rasterize`, made with derivatives=True where `derivatives` is asked for; or of `coverage`,
            whose N fragments count as a picture of one row: the values have shape (1, 1, N, C), also where attributes
            differ from item to item.
        derivatives: "all" or a list of channels: also return their change per pixel step.

    Returns:
        values (B, H, W, C), 0 on background; with `derivatives` the pair (values, value_derivatives), the latter of
        shape (B, H, W, 2 * len) with (d/dx, d/dy) of each listed channel in turn, x right and y down.
        Values stay within those of the corners but for what `rasterize` says of triangles narrower than 1/256 pixel,
        where barycentrics, and values with them, may lie far outside.

    Gradients: exact to attributes, barycentrics and derivatives, at any order.
    Memory: saves attributes, triangles, triangle_id and barycentrics.

    Raises:
        TypeError, ValueError: a wrong type, shape or device, or (on the CPU) an index outside of the attributes.

    Example:
        >>> corners = torch.tensor([[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]])
        >>> triangles = torch.tensor([[0, 1, 2]])
        >>> fragments = dr.rasterize(corners, triangles, (64, 64))
        >>> dr.interpolate(torch.eye(3), triangles, fragments).shape
        torch.Size([1, 64, 64, 3])
    """
    values = _checks.check_floating("interpolate", "attributes", attributes)
    if values.dim() not in (2, 3):
        expected = "have shape (B, V, C) or (V, C)"
        _checks.fail(ValueError, "interpolate", "attributes", expected, _checks.shape_text(values))
    if values.dim() == 2:
        values = values.unsqueeze(0)
    if isinstance(fragments, Coverage):
        indices = _checks.check_triangles("interpolate", triangles, values)
        _checks.check_vertex_range("interpolate", indices, values.shape[1], "attributes")
        _checks.check_rows("interpolate", indices, fragments.triangle_id)
        values, triangles, fragments = packed_attributes(values, indices, fragments)
    if not isinstance(fragments, Fragments):
        _checks.fail(TypeError, "interpolate", "fragments", "be the result of rasterize", type(fragments).__name__)
    triangle_id, barycentrics = fragments.triangle_id, fragments.barycentrics
    _checks.check_triangle_id("interpolate", "fragments.triangle_id", triangle_id)
    _checks.check_pixels("interpolate", "fragments.barycentrics", barycentrics, triangle_id, 2)
    _checks.check_same_type("interpolate", "attributes", values, "fragments", barycentrics)
    indices = _checks.check_triangles("interpolate", triangles, values)
    _checks.check_vertex_range("interpolate", indices, values.shape[1], "attributes")
    if values.shape[0] not in (1, triangle_id.shape[0]):
        expected = f"have the batch size of fragments ({triangle_id.shape[0]}) or 1"
        _checks.fail(ValueError, "interpolate", "attributes", expected, str(values.shape[0]))
    _checks.check_rows("interpolate", indices, triangle_id)
    indices = indices.to(torch.int32)
    result = apply(_Interpolate, values, indices, triangle_id, barycentrics, 1.0)
    if derivatives is None:
        return result
    channels = _derivative_channels(derivatives, values.shape[2])
    if fragments.derivatives is None:
        expected = "come from rasterize(..., derivatives=True) if derivatives are asked for"
        _checks.fail(ValueError, "interpolate", "fragments", expected, "fragments without derivatives")
    _checks.check_pixels("interpolate", "fragments.derivatives", fragments.derivatives, triangle_id, 4)
    picked = values if channels is None else values[..., channels]
    slopes = [
        apply(_Interpolate, picked, indices, triangle_id, fragments.derivatives[..., axis::2], 0.0) for axis in (0, 1)
    ]
    return result, torch.stack(slopes, dim=-1).flatten(-2)


def _derivative_channels(derivatives: str | Sequence[int], count: int) -> list[int] | None:
    """Listed channels, None for all."""
    if isinstance(derivatives, str):
        _checks.check_choice("interpolate", "derivatives", derivatives, ("all",))
        return None
    if not isinstance(derivatives, (list, tuple)):
        _checks.fail(TypeError, "interpolate", "derivatives", 'be "all" or a list of channels', repr(derivatives))
    channels = list(derivatives)
    for channel in channels:
        if isinstance(channel, bool) or not isinstance(channel, int):
            _checks.fail(TypeError, "interpolate", "derivatives", "list channels as ints", repr(channel))
        if not -count <= channel < count:
            _checks.fail(ValueError, "interpolate", "derivatives", f"list channels below {count}", str(channel))
    return channels


class _Interpolate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(attributes, triangles, triangle_id, weights, total):
        return torch.ops.diffrender.interpolate(attributes, triangles, triangle_id, weights, total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        attributes, triangles, triangle_id, weights, total = inputs
        ctx.save_for_backward(attributes, triangles, triangle_id, weights)
        ctx.total = total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        attributes, triangles, triangle_id, weights = ctx.saved_tensors
        need_attributes, need_weights = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
        if not (need_attributes or need_weights):
            return None, None, None, None, None
        grad_attributes, grad_weights = apply(
            _InterpolateBackward,
            attributes,
            triangles,
            triangle_id,
            weights,
            grads[0],
            ctx.total,
            need_attributes,
            need_weights,
        )
        return (
            grad_attributes if need_attributes else None,
            None,
            None,
            grad_weights if need_weights else None,
            None,
        )

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        """Bilinear: the tangent of sum_k w_k A_k is sum_k w_k A'_k + sum_k w'_k A_k, where the w'_k add to 0."""
        attributes, triangles, triangle_id, weights, total = inputs
        parts = []
        if tangents[0] is not None:
            parts.append(apply(_Interpolate, tangents[0], triangles, triangle_id, weights, total))
        if tangents[3] is not None:
            parts.append(apply(_Interpolate, attributes, triangles, triangle_id, tangents[3], 0.0))
        return added(*parts)


class _InterpolateBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(attributes, triangles, triangle_id, weights, grad_values, total, need_attributes, need_weights):
        return torch.ops.diffrender.interpolate_backward(
            attributes,
            triangles,
            triangle_id,
            weights,
            grad_values,
            total,
            need_attributes,
            need_weights,
            scatter_algorithm(attributes),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        attributes, triangles, triangle_id, weights, grad_values, total, need_attributes, need_weights = inputs
        ctx.save_for_backward(attributes, triangles, triangle_id, weights, grad_values)
        ctx.total, ctx.need_attributes, ctx.need_weights = total, need_attributes, need_weights

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        """With y = sum_k w_k A_k the first backward is grad_A = w g (scattered) and grad_w = <g, A_k - A_2>. Given
        cotangents a of grad_A and u of grad_w (u_2 = -u_0 - u_1):

            to g:  sum_k w_k a_k + sum_k u_k A_k      two forward calls, the second with weights that add to 0
            to w:  <g, a_k - a_2>                      a backward call with attributes a
            to A:  u g, scattered                      a backward call with weights u
        """
        attributes, triangles, triangle_id, weights, grad_values = ctx.saved_tensors
        cotangent_attributes = grads[0] if ctx.need_attributes else None
        cotangent_weights = grads[1] if ctx.need_weights else None
        to_attributes = to_weights = to_grad = None
        if cotangent_attributes is not None:
            to_grad = apply(_Interpolate, cotangent_attributes, triangles, triangle_id, weights, ctx.total)
            if ctx.needs_input_grad[3]:
                to_weights = apply(
                    _InterpolateBackward,
                    cotangent_attributes,
                    triangles,
                    triangle_id,
                    weights,
                    grad_values,
                    ctx.total,
                    False,
                    True,
                )[1]
        if cotangent_weights is not None:
            term = apply(_Interpolate, attributes, triangles, triangle_id, cotangent_weights, 0.0)
            to_grad = term if to_grad is None else to_grad + term
            if ctx.needs_input_grad[0]:
                to_attributes = apply(
                    _InterpolateBackward,
                    attributes,
                    triangles,
                    triangle_id,
                    cotangent_weights,
                    grad_values,
                    0.0,
                    True,
                    False,
                )[0]
        return to_attributes, None, None, to_weights, to_grad, None, None, None


@register_fake("interpolate")
def _(attributes, triangles, triangle_id, weights, total):
    return attributes.new_empty((*triangle_id.shape, attributes.shape[2]))


@register_fake("interpolate_backward")
def _(attributes, triangles, triangle_id, weights, grad_values, total, need_attributes, need_weights, scatter):
    batch, vertices, channels = attributes.shape
    return (
        attributes.new_empty((batch if need_attributes else 0, vertices, channels)),
        attributes.new_empty((triangle_id.shape[0] if need_weights else 0, *triangle_id.shape[1:], 2)),
    )


register_vmap("interpolate")
register_vmap("interpolate_backward")
