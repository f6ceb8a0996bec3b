"""What the shading ops share: checks of their arguments, and the autograd Functions around their kernels.

Custom Functions because the forward leaves the framework (compiled kernels), and because recomputation saves memory:
the same formulas in plain torch keep dozens of pictures per light for the backward pass, these keep their inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
from ..lights import VALUES_PER_LIGHT, EnclosingLight, Light, PackedLights, pack_lights

Lights = Light | PackedLights | EnclosingLight | Sequence[Light | PackedLights | EnclosingLight]

# Which body of a kernel runs (csrc/shade_host.h): the choice is made for tests only.
_DRIVER_AUTOMATIC = 0
# Pixels with a copy of the lights each, at a time.
_SLICE = 4096
# Most maps that the material of a model has.
_MAPS = 4


class ShadeArguments(NamedTuple):
    """Checked arguments: maps (B or 1, H, W, C) or (B or 1, 1, 1, C), None where absent."""

    positions: Tensor
    normals: Tensor
    view: Tensor | None
    geometric_normals: Tensor | None
    triangle_id: Tensor | None
    lights: Tensor
    light_types: Tensor
    material: list[Tensor]
    view_is_direction: bool
    two_sided: bool


def check_arguments(
    function: str,
    positions: Tensor,
    normals: Tensor,
    material: dict[str, tuple[Tensor | float, int]],
    lights: Light | PackedLights | Sequence[Light | PackedLights],
    *,
    camera_position: Tensor | Sequence[float] | None,
    view_directions: Tensor | None,
    geometric_normals: Tensor | None,
    mask: Tensor | None,
    two_sided: bool,
    needs_view: bool,
) -> ShadeArguments:
    """Brings every argument to the form of the kernels. `material` gives value and number of channels by name."""
    positions = as_map(function, "positions", positions, 3, None)
    normals = as_map(function, "normals", normals, 3, positions)
    maps = {"positions": positions, "normals": normals}
    if camera_position is not None and view_directions is not None:
        _checks.fail(ValueError, function, "view_directions", "be left out if camera_position is given", "both")
    view = None
    for name, value in (("camera_position", camera_position), ("view_directions", view_directions)):
        if value is not None:
            maps[name] = view = as_map(function, name, value, 3, positions)
    if view is None and (needs_view or two_sided):
        hint = "" if needs_view else "It decides which side of a two-sided surface is seen; or pass two_sided=False."
        _checks.fail(ValueError, function, "camera_position", "be given, or view_directions", "neither", hint)
    if geometric_normals is not None:
        # Only the sign of their cosine with the view is used, a constant.
        geometric_normals = as_map(function, "geometric_normals", geometric_normals, 3, positions).detach()
        maps["geometric_normals"] = geometric_normals
    for name, (value, channels) in material.items():
        maps[name] = as_map(function, name, value, channels, positions)

    table = pack_lights(lights)
    if len(table.types) == 0:
        table = PackedLights(table.types.to(positions.device), table.values.to(positions))
    values = _checks.check_floating(function, "lights", table.values)
    if values.dim() != 3 or values.shape[2] != VALUES_PER_LIGHT or values.shape[1] != table.types.numel():
        expected = f"be a table of values (B, L, {VALUES_PER_LIGHT}) and types (L,)"
        _checks.fail(ValueError, function, "lights", expected, _checks.shape_text(values))
    if values.dtype == torch.float32:
        values = values.to(positions.dtype)
    _checks.check_same_type(function, "lights", values, "positions", positions)
    check_sizes(function, maps, values)
    triangle_id = (
        None if mask is None else as_triangle_id(function, mask, _result_shape(list(maps.values()), values), positions)
    )
    return ShadeArguments(
        positions, normals, view, geometric_normals, triangle_id, values, table.types.to(torch.int32),
        [maps[name] for name in material], view_directions is not None, two_sided,
    )  # fmt: skip


def split_lights(lights: Lights) -> tuple[Light | PackedLights | Sequence[Light | PackedLights], list[EnclosingLight]]:
    """Lights of the packed table, and those that enclose the scene."""
    if isinstance(lights, EnclosingLight):
        return [], [lights]
    # A table is a sequence too, but not of lights.
    if isinstance(lights, (Light, PackedLights)) or not isinstance(lights, Sequence):
        return lights, []
    rest = [light for light in lights if not isinstance(light, EnclosingLight)]
    return rest, [light for light in lights if isinstance(light, EnclosingLight)]


def as_map(function: str, name: str, value: Any, channels: int, like: Tensor | None) -> Tensor:
    """A number, (C,), (B, C), (H, W, C) or (B, H, W, C) as a map of four axes."""
    if like is not None and not isinstance(value, Tensor):
        try:
            value = constant(value, like)
        except (TypeError, ValueError):
            _checks.fail(TypeError, function, name, "be a tensor or numbers", type(value).__name__)
    tensor = _checks.check_floating(function, name, value)
    if tensor.dim() == 0 and like is not None and name not in ("normals", "camera_position"):
        tensor = tensor.expand(channels)
    if not 1 <= tensor.dim() <= 4 or tensor.shape[-1] != channels:
        expected = f"have shape (B, H, W, {channels}), (H, W, {channels}), (B, {channels}) or ({channels},)"
        hint = "Add an axis of length 1 at the end." if channels == 1 else ""
        _checks.fail(ValueError, function, name, expected, _checks.shape_text(tensor), hint)
    if like is not None:
        _checks.check_same_type(function, name, tensor, "positions", like)
    if tensor.dim() == 1:
        return tensor[None, None, None]
    if tensor.dim() == 2:
        return tensor[:, None, None]
    return tensor if tensor.dim() == 4 else tensor[None]


def check_sizes(function: str, maps: dict[str, Tensor], lights: Tensor | None = None) -> None:
    """One batch size and one picture size, or 1 where shared."""
    sizes: list[tuple[str, int] | None] = [None, None, None]
    shapes = {name: tuple(tensor.shape[:3]) for name, tensor in maps.items()}
    if lights is not None:
        shapes["lights"] = (lights.shape[0], 1, 1)
    for name, shape in shapes.items():
        for axis, (size, word) in enumerate(zip(shape, ("batch size", "height", "width"), strict=True)):
            if size == 1:
                continue
            known = sizes[axis]
            if known is None:
                sizes[axis] = (name, size)
            elif known[1] != size:
                expected = f"have the {word} of {known[0]} ({known[1]})" + (" or 1" if axis == 0 else "")
                _checks.fail(ValueError, function, name, expected, str(int(size)))
    full = [1 if known is None else known[1] for known in sizes]
    for name, tensor in maps.items():
        height, width = tensor.shape[1:3]
        if (height, width) != (1, 1) and (height, width) != (full[1], full[2]):
            expected = f"cover the whole picture ({full[1]}, {full[2]})"
            _checks.fail(ValueError, function, name, expected, f"({height}, {width})")


def as_triangle_id(function: str, mask: Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """(B, H, W) int32, negative where nothing is to be shaded; `shape` is that of the maps."""
    _checks.check_tensor(function, "mask", mask)
    if mask.is_floating_point() or mask.is_complex():
        expected = "be bool, or the triangle_id of fragments"
        _checks.fail(TypeError, function, "mask", expected, str(mask.dtype), "Write mask > 0.")
    if mask.dim() == 4 and mask.shape[3] == 1:
        mask = mask[..., 0]
    if mask.dim() == 2:
        mask = mask[None]
    if mask.dim() != 3 or any(m not in (1, s) for m, s in zip(mask.shape, shape, strict=True) if s != 1):
        expected = f"have shape ({', '.join(str(int(size)) for size in shape)})"
        _checks.fail(ValueError, function, "mask", expected, _checks.shape_text(mask))
    _checks.check_same_type(function, "mask", mask, "positions", like)
    triangle_id = mask.to(torch.int32)
    if mask.dtype == torch.bool:
        triangle_id = triangle_id - 1
    return triangle_id.expand(_checks.broadcast_shapes(shape, mask.shape))


def _result_shape(maps: Sequence[Tensor | None], lights: Tensor, triangle_id: Tensor | None = None) -> tuple[int, ...]:
    """(B, H, W) of the result."""
    shapes = [tuple(m.shape[:3]) for m in maps if m is not None] + [(lights.shape[0], 1, 1)]
    if triangle_id is not None:
        shapes.append(tuple(triangle_id.shape))
    return _checks.broadcast_shapes(*shapes)


def shade(op: str, arguments: ShadeArguments, options: tuple = ()) -> Tensor:
    """Runs a shading op under autograd; `options` are those of its model."""
    a = arguments
    # Every argument has its own place, and absent maps are None: torch.compile does not trace *args of a Function.
    material: list[Tensor | None] = [*a.material, *[None] * (_MAPS - len(a.material))]
    flags = (a.view_is_direction, a.two_sided, *options)
    return apply(
        _Shade, a.positions, a.normals, a.view, a.geometric_normals, a.triangle_id, a.lights, a.light_types, *material,
        op, len(a.material), flags,
    )  # fmt: skip


class _Shade(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        positions, normals, view, geometric_normals, triangle_id, lights, light_types, map0, map1, map2, map3, op,
        count, options,
    ):  # fmt: skip
        material = (map0, map1, map2, map3)[:count]
        tensors = (positions, normals, view, geometric_normals, triangle_id, lights, light_types)
        return getattr(torch.ops.diffrender, op)(*tensors, *material, *options, _DRIVER_AUTOMATIC)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[: 7 + _MAPS])
        ctx.op, ctx.count, ctx.options = inputs[7 + _MAPS :]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        needs = ctx.needs_input_grad
        # positions, normals, view, lights, material
        asked = (needs[0], needs[1], needs[2], needs[5], *needs[7 : 7 + ctx.count])
        nothing = (None,) * (7 + _MAPS + 3)
        if not any(asked):
            return nothing
        results = apply(_ShadeBackward, grads[0], *ctx.saved_tensors, ctx.op, ctx.count, ctx.options, asked)
        positions, normals, view, lights, *material = (
            grad if needed else None for grad, needed in zip(results, asked, strict=True)
        )
        return positions, normals, view, None, None, lights, None, *material, *nothing[7 + ctx.count :]

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        return shade_tangents(inputs, outputs[0], tangents)


def shade_tangents(inputs: Sequence[Any], radiance: Tensor, tangents: Sequence[Any]) -> Tensor:
    """Forward mode: with maps that no two pixels share, a backward pass per channel gives every pixel's Jacobian.

    The pixels share their lights. Where those have a tangent, the pixels become a batch in which each has its own,
    slice by slice, so that the copies take little room.
    """
    op, count, options = inputs[7 + _MAPS :]
    places = (0, 1, 2, *range(7, 7 + count))
    lights, light_types, to_lights = inputs[5], inputs[6], tangents[5]
    shape = tuple(radiance.shape[:3])
    is_sliced = to_lights is not None
    pixels = (shape[0] * shape[1] * shape[2], 1, 1) if is_sliced else shape

    def own(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.expand(*shape, -1).reshape(*pixels, value.shape[-1])

    maps, moving = [own(inputs[k]) for k in places], [own(tangents[k]) for k in places]
    geometric_normals, ids = own(inputs[3]), own(None if inputs[4] is None else inputs[4].unsqueeze(-1))
    if not is_sliced:
        return _product(maps, moving, geometric_normals, ids, lights, None, light_types, op, options)
    items = torch.arange(pixels[0], device=radiance.device) // (shape[1] * shape[2]) % lights.shape[0]
    parts = []
    for first in range(0, pixels[0], _SLICE):
        rows = slice(first, first + _SLICE)
        own_maps, own_moving = (
            [None if value is None else value[rows] for value in values] for values in (maps, moving)
        )
        geometric, own_ids = (None if value is None else value[rows] for value in (geometric_normals, ids))
        values, to_values = lights[items[rows]], to_lights[items[rows]]
        parts.append(_product(own_maps, own_moving, geometric, own_ids, values, to_values, light_types, op, options))
    return torch.cat(parts).reshape(radiance.shape) if parts else torch.zeros_like(radiance)


def _product(
    maps: list[Any], moving: list[Any], geometric_normals: Any, ids: Any, lights: Any, to_lights: Any, light_types: Any,
    op: str, options: tuple,
) -> Tensor:  # fmt: skip
    """Jacobian times tangents `moving` of full maps, and `to_lights` of lights that each item has its own of."""
    positions, count = maps[0], len(maps) - 3
    material = [*maps[3:], *[None] * (_MAPS - count)]
    tangents = [*moving[:3], None if to_lights is None else to_lights.flatten(1)[:, None, None], *moving[3:]]
    asked = tuple(tangent is not None for tangent in tangents)
    triangle_id = None if ids is None else ids[..., 0]

    def rows(channel: int) -> list[Any]:
        one = torch.zeros_like(positions)
        one[..., channel] = 1
        results = apply(
            _ShadeBackward, one, *maps[:3], geometric_normals, triangle_id, lights, light_types, *material, op, count,
            options, asked,
        )  # fmt: skip
        return [*results[:3], None if to_lights is None else results[3].flatten(1)[:, None, None], *results[4:]]

    return product_of_channels(rows, 3, tangents)


class _ShadeBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        grad_radiance, positions, normals, view, geometric_normals, triangle_id, lights, light_types, map0, map1, map2,
        map3, op, count, options, asked,
    ):  # fmt: skip
        material = (map0, map1, map2, map3)[:count]
        tensors = (positions, normals, view, geometric_normals, triangle_id, lights, light_types)
        algorithm = scatter_algorithm(grad_radiance)
        kernel = getattr(torch.ops.diffrender, op + "_backward")
        return kernel(*tensors, *material, grad_radiance, *options, *asked, algorithm, _DRIVER_AUTOMATIC)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.op = inputs[8 + _MAPS]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        no_second_derivative(ctx.op)


def register(op: str, material: int, options: int) -> None:
    """Fake kernels and vmap rules of an op with so many maps of its material, and options of its model."""

    @register_fake(op)
    def _(positions, normals, view, geometric_normals, triangle_id, lights, light_types, *rest):
        maps = [positions, normals, view, geometric_normals, *rest[:material]]
        return positions.new_empty((*_result_shape(maps, lights, triangle_id), 3))

    @register_fake(f"{op}_backward")
    def _(positions, normals, view, geometric_normals, triangle_id, lights, light_types, *rest):
        asked = rest[material + 1 + 2 + options : -2]
        like = [positions, normals, positions if view is None else view, lights, *rest[:material]]
        asked = [need and not (k == 2 and view is None) for k, need in enumerate(asked)]
        return tuple(
            x.new_empty((x.shape[0] if need else 0, *x.shape[1:])) for x, need in zip(like, asked, strict=True)
        )

    register_vmap(op)
    register_vmap(f"{op}_backward")
