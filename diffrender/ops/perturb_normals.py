"""Shading normals from a tangent-space normal map (glTF 2.0), bent back to the surface near grazing view.

    n' = normalize(x t + y b + z n),    b = w (n x t),    (x, y, z) = (2 rgb - 1) * (scale, scale, 1),  z >= 0

with n and t as they were interpolated, not made unit length or orthogonal again: that is the rule that maps are baked
for (MikkTSpace), and any other shows seams. A normal that a map turns away from the viewer would be black; so below a
cosine of `grazing` between normal and view it is mixed with the geometric normal, by a smoothstep, which has no kink.

A custom Function because the forward leaves the framework (compiled kernels), and because it keeps its inputs only,
where plain torch keeps a dozen pictures. Formulas and derivatives are in csrc/perturb_normals.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from .._autograd import (
    apply,
    no_second_derivative,
    product_of_channels,
    register_fake,
    register_vmap,
    scatter_algorithm,
)
from .._constants import constant
from ._shade import as_map, as_triangle_id, check_sizes

# Direction of the green channel: up in the picture (glTF, OpenGL, Blender) or down (DirectX, Unreal).
CONVENTIONS = ("opengl", "directx")
_DRIVER_AUTOMATIC = 0
# A narrower blend is a step, whose slope overflows.
_NARROWEST = 1e-6


def perturb_normals(
    normals: Tensor,
    tangents: Tensor,
    normal_map: Tensor,
    *,
    scale: Tensor | float = 1.0,
    convention: str = "opengl",
    geometric_normals: Tensor | None = None,
    view_directions: Tensor | Sequence[float] | None = None,
    grazing: float = 0.1,
    mask: Tensor | None = None,
) -> Tensor:
    """Unit normals bent by a normal map.

    Maps are pictures (B, H, W, C), or (H, W, C) shared by the batch; or constants, (B, C) one vector per item or (C,)
    one for all. Directions are all in one space (world).

    Args:
        normals: map of 3 channels, vertex normals as `interpolate` gives them, not normalised. Without a normal map
            `dr.geometry.safe_normalize` is all that they need.
        tangents: map of 4 channels as `interpolate` gives them from `dr.geometry.vertex_tangents` or from a file: xyz
            the direction of growing u, w the side of the bitangent (its sign counts, -1 where the uv are mirrored).
        normal_map: map of 3 channels in [0, 1] as stored (0.5 is zero, not sRGB), sampled at the pixels. Blue below 0.5
            counts as 0.5: normals never point into the surface.
        scale: factor of x and y (glTF's normalTexture.scale): a number, (B, 1), (1,) or a map of 1 channel.
        convention: "opengl", green points up in the picture, or "directx", green points down.
        geometric_normals: map of 3 channels of what the surface really is, for grazing view; default `normals`.
        view_directions: map of 3 channels of directions to the viewer, camera_position - positions, of any length; a
            constant for orthographic cameras. Without them nothing is bent back.
        grazing: cosine of normal and view below which the normal is bent back; below 1e-6 never. On a back face
            (geometric normal away from the viewer) the cosine changes its sign, as the normal will when it is shaded.
        mask: (B, H, W) bool, or the `triangle_id` of fragments: pixels that are False or negative give 0 and no
            gradient, whatever their maps hold (NaN included).

    Returns:
        (B, H, W, 3) unit normals on the side of `normals`. A zero normal gives 0. Where the tangent is zero, or tangent
        and normal cancel, the map is ignored. A zero geometric normal or view direction bends nothing back.

    Gradients: exact to normals, tangents (none to w, whose sign is a constant), normal_map, scale, geometric_normals
        and view_directions; what is zero or clamped has the gradient zero. Second derivatives raise
        NotImplementedError.
    Memory: saves its inputs.

    Raises:
        TypeError, ValueError: a wrong type, shape or device; an unknown convention.

    Example:
        >>> normal, tangent = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
        >>> leaning = torch.tensor([0.8, 0.5, 0.9]).expand(1, 2, 2, 3)  # (0.6, 0, 0.8) as stored
        >>> [round(value, 4) for value in dr.perturb_normals(normal, tangent, leaning)[0, 0, 0].tolist()]
        [0.6, 0.0, 0.8]
    """
    name = "perturb_normals"
    first = as_map(name, "normals", normals, 3, None)
    maps = {"normals": first}

    def add(argument: str, value: Any, channels: int) -> Tensor:
        if not isinstance(value, Tensor):
            try:
                value = constant(value, first)
            except (TypeError, ValueError):
                _checks.fail(TypeError, name, argument, "be a tensor or numbers", type(value).__name__)
        if value.dim() == 0 and channels == 1:
            value = value.expand(1)
        maps[argument] = as_map(name, argument, value, channels, None)
        _checks.check_same_type(name, argument, maps[argument], "normals", first)
        return maps[argument]

    _checks.check_choice(name, "convention", convention, CONVENTIONS)
    if not 0 <= grazing <= 1:
        _checks.fail(ValueError, name, "grazing", "lie in [0, 1]", str(grazing))
    tensors = [first, add("tangents", tangents, 4), add("normal_map", normal_map, 3), add("scale", scale, 1)]
    if geometric_normals is not None and view_directions is None:
        _checks.fail(ValueError, name, "view_directions", "come with geometric_normals", "None")
    geometric = view = None
    if view_directions is not None:
        view = add("view_directions", view_directions, 3)
        geometric = first if geometric_normals is None else add("geometric_normals", geometric_normals, 3)
    check_sizes(name, maps)
    if grazing < _NARROWEST:
        geometric = view = None
    triangle_id = None
    if mask is not None:
        shape = _checks.broadcast_shapes(*(tensor.shape[:3] for tensor in maps.values()))
        triangle_id = as_triangle_id(name, mask, tuple(shape), first)
    return apply(_PerturbNormals, *tensors, geometric, view, triangle_id, convention == "opengl", float(grazing))


class _PerturbNormals(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(normals, tangents, normal_map, scale, geometric_normals, view, triangle_id, green_up, grazing):
        return torch.ops.diffrender.perturb_normals(
            normals, tangents, normal_map, scale, geometric_normals, view, triangle_id, green_up, grazing,
            _DRIVER_AUTOMATIC,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        *tensors, ctx.green_up, ctx.grazing = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        needs = ctx.needs_input_grad[:6]
        if not any(needs):
            return (None,) * 9
        results = apply(_PerturbNormalsBackward, grads[0], *ctx.saved_tensors, ctx.green_up, ctx.grazing, needs)
        return *(grad if need else None for grad, need in zip(results, needs, strict=True)), None, None, None

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        *maps, triangle_id, green_up, grazing = inputs
        needs = tuple(tangent is not None for tangent in tangents[:6])
        pixels = outputs[0].shape[:3]
        # Every pixel with its own maps.
        full, moving = ([None if t is None else t.expand(*pixels, -1) for t in ts] for ts in (maps, tangents[:6]))

        def rows(channel: int) -> Any:
            one = torch.zeros_like(outputs[0])
            one[..., channel] = 1
            return apply(_PerturbNormalsBackward, one, *full, triangle_id, green_up, grazing, needs)

        return product_of_channels(rows, 3, moving)


class _PerturbNormalsBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        grad_result,
        normals,
        tangents,
        normal_map,
        scale,
        geometric_normals,
        view,
        triangle_id,
        green_up,
        grazing,
        needs,
    ):
        return torch.ops.diffrender.perturb_normals_backward(
            normals, tangents, normal_map, scale, geometric_normals, view, triangle_id, grad_result, green_up, grazing,
            *needs, scatter_algorithm(grad_result), _DRIVER_AUTOMATIC,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        no_second_derivative("perturb_normals")


@register_fake("perturb_normals")
def _(normals, tangents, normal_map, scale, geometric_normals, view, triangle_id, green_up, grazing, driver):
    tensors = [normals, tangents, normal_map, scale, geometric_normals, view]
    shapes = [tensor.shape[:3] for tensor in tensors if tensor is not None]
    if triangle_id is not None:
        shapes.append(triangle_id.shape)
    return normals.new_empty((*torch.broadcast_shapes(*shapes), 3))


@register_fake("perturb_normals_backward")
def _(
    normals, tangents, normal_map, scale, geometric_normals, view, triangle_id, grad_result, green_up, grazing,
    need_normals, need_tangents, need_normal_map, need_scale, need_geometric_normals, need_view, scatter, driver,
):  # fmt: skip
    has_view = view is not None
    parts = [
        (normals, need_normals), (tangents, need_tangents), (normal_map, need_normal_map), (scale, need_scale),
        (geometric_normals if has_view else normals, need_geometric_normals and has_view),
        (view if has_view else normals, need_view and has_view),
    ]  # fmt: skip
    return tuple(like.new_empty((like.shape[0] if need else 0, *like.shape[1:])) for like, need in parts)


register_vmap("perturb_normals")
register_vmap("perturb_normals_backward")
