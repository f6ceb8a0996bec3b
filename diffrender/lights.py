"""Lights: plain containers of tensors, and the packed table of all lights that the shading ops take.

    lights = dr.pack_lights([dr.DirectionalLight((0, -1, 0), math.pi), dr.AmbientLight(0.1)])

Units: radiance is what a picture holds, so a white diffuse surface that faces a directional light of irradiance pi has
the value 1; an ambient light of radiance 1 gives it the value 1 too. A point or spot light of intensity I has the
irradiance I / distance^2. There is no hidden factor of pi and no clamp to [0, 1].

Every value of a light may be shared by the batch, given per item, or given for several lights at once:

    (n,)        one light, shared               (B, n)      one light, each item its own
    (B, L, n)   L lights; B may be 1            a number    the same for all

Packing is plain torch, so that gradients reach whatever tensors the lights were made of. Directions are made unit
length there; a zero direction stays zero and lights nothing.

Not handled: lights with an area, shadows, glTF's `range`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from diffrender import _checks
from diffrender._constants import constant, joined
from diffrender.geometry.normals import safe_normalize

# Type numbers and columns of the kernels (csrc/shade_light.h).
AMBIENT, DIRECTIONAL, POINT, SPOT = 0, 1, 2, 3
VALUES_PER_LIGHT = 12
_FLOATING = (torch.float32, torch.float64)

Value = Tensor | float | Sequence[float]


class PackedLights(NamedTuple):
    """All lights of a scene as two tensors.

    Attributes:
        types: (L,) int32, 0 ambient, 1 directional, 2 point, 3 spot.
        values: (B, L, 12), or (1, L, 12) for lights that the batch shares. The columns, of which a light reads those of
            its type: 0-2 color; 3-5 position; 6-8 unit direction in which the light travels; 9 radius; 10 and 11 the
            cosines of the inner and the outer cone angle.
    """

    types: Tensor
    values: Tensor

    def to(self, *args: Any, **kwargs: Any) -> PackedLights:
        """Like `Tensor.to` for device and floating dtype; types stay int32."""
        values = self.values.to(*args, **kwargs)
        return PackedLights(self.types.to(values.device), values)


class Light:
    """What the lights share; not a light by itself.

    The values are attributes (tensors) that may be replaced, optimised (`light.color.requires_grad_()`) or be results
    of other operations.
    """

    _type: ClassVar[int]
    # Attribute -> (first column, number of columns), in the order of the constructor.
    _columns: ClassVar[dict[str, tuple[int, int]]]

    def __init__(self, **values: Value):
        values = {name: joined(value) for name, value in values.items()}
        like = next((v for v in values.values() if isinstance(v, Tensor) and v.dtype in _FLOATING), None)
        for name, value in values.items():
            setattr(self, name, self._as_tensor(name, value, like))

    def _as_tensor(self, name: str, value: Value, like: Tensor | None) -> Tensor:
        function, width = type(self).__name__, self._columns[name][1]
        if isinstance(value, Tensor):
            tensor = _checks.check_floating(function, name, value)
        else:
            tensor = torch.as_tensor(value, dtype=torch.float32) if like is None else constant(value, like)
        if tensor.dim() > 3 or (tensor.dim() > 0 and tensor.shape[-1] not in (1, width)):
            expected = f"be a number or have shape ({width},), (B, {width}) or (B, L, {width})"
            _checks.fail(ValueError, function, name, expected, _checks.shape_text(tensor))
        if tensor.dim() == 0 and name in ("position", "direction"):
            _checks.fail(ValueError, function, name, "have 3 components", "one number")
        return tensor

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, value) of every value."""
        for name in self._columns:
            yield name, getattr(self, name)

    def parameters(self) -> list[Tensor]:
        """The values that require a gradient and are leaves: what an optimiser may step."""
        return [value for _, value in self.tensors() if value.requires_grad and value.is_leaf]

    def to(self, *args: Any, **kwargs: Any) -> Light:
        """A copy on another device or of another floating dtype, as `Tensor.to`. The gradient passes through."""
        return type(self)(**{name: value.to(*args, **kwargs) for name, value in self.tensors()})

    def state_dict(self) -> dict[str, Tensor]:
        """Detached values by name, for `torch.save`."""
        return {name: value.detach() for name, value in self.tensors()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copies values in place, so that an optimiser that holds them keeps working.

        Raises:
            ValueError: where the names or a shape differ.
        """
        if set(state) != set(self._columns):
            expected, actual = (", ".join(sorted(names)) for names in (self._columns, state))
            _checks.fail(ValueError, "load_state_dict", "state", f"hold {expected}", actual)
        for name, value in self.tensors():
            if value.shape != state[name].shape:
                expected = f"have shape {_checks.shape_text(value)}"
                _checks.fail(ValueError, "load_state_dict", name, expected, _checks.shape_text(state[name]))
        with torch.no_grad():
            for name, value in self.tensors():
                value.copy_(state[name])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={_checks.shape_text(v)}' for k, v in self.tensors())})"

    def _packed_column(self, name: str, value: Tensor) -> Tensor:
        """The value as the table holds it."""
        return value

    def pack(self) -> PackedLights:
        """The light (or its L lights) as a table."""
        columns = []
        for name, value in self.tensors():
            column = self._packed_column(name, value)
            if column.dim() == 2:
                column = column.unsqueeze(1)
            columns.append((self._columns[name], column))
        try:
            batch, count, _ = _checks.broadcast_shapes((1, 1, 1), *(c.shape[:-1] + (1,) for _, c in columns))
        except RuntimeError:
            shapes = ", ".join(f"{k} {_checks.shape_text(v)}" for k, v in self.tensors())
            expected = "have values of one batch size and one number of lights"
            _checks.fail(ValueError, "pack_lights", type(self).__name__, expected, shapes)
        like = columns[0][1]
        parts, at = [], 0
        for (first, width), column in sorted(columns, key=lambda pair: pair[0][0]):
            if first > at:
                parts.append(like.new_zeros(batch, count, first - at))
            parts.append(column.expand(batch, count, width))
            at = first + width
        if at < VALUES_PER_LIGHT:
            parts.append(like.new_zeros(batch, count, VALUES_PER_LIGHT - at))
        types = torch.full((count,), self._type, dtype=torch.int32, device=like.device)
        return PackedLights(types, torch.cat(parts, -1))


class EnclosingLight:
    """Light from all around (`EnvironmentLight`): it has no row in the packed table, shading ops ask it for its share.

    `arguments` are the checked arguments of the op (diffrender/ops/_shade.py); results are radiance (B, H, W, 3).
    """

    def reflect_lambert(self, arguments: Any) -> Tensor:
        raise NotImplementedError

    def reflect_metallic_roughness(self, arguments: Any, diffuse_fresnel: bool, multi_scatter: bool) -> Tensor:
        raise NotImplementedError

    def radiance(self, directions: Tensor) -> Tensor:
        """What is seen in world directions (B, H, W, 3), of any length: the background of a picture."""
        raise NotImplementedError

    def prepared(self) -> EnclosingLight:
        """The same light with all done that several calls can share; the gradient of the calls is summed there."""
        return self


class AmbientLight(Light):
    """Radiance that arrives equally from everywhere: every model reflects albedo * color, whatever the normal.

    That is exact for a diffuse surface and for any surface of albedo 1 (white furnace); for others it leaves out that
    reflection depends on the view. Use an environment light for more.

    Args:
        color: radiance, number or (..., 3).

    Example:
        >>> dr.AmbientLight(0.25).pack().values[0, 0, :3].tolist()
        [0.25, 0.25, 0.25]
    """

    _type = AMBIENT
    _columns: ClassVar = {"color": (0, 3)}
    color: Tensor

    def __init__(self, color: Value = 1.0):
        super().__init__(color=color)


class DirectionalLight(Light):
    """Parallel light from far away.

    Args:
        direction: (..., 3) in which the light travels, from the light to the scene; any length but zero.
        color: irradiance of a surface that faces the light, number or (..., 3); pi makes a white one white.

    Example:
        >>> dr.DirectionalLight((0.0, -2.0, 0.0), 3.0).pack().values[0, 0, 6:9].tolist()
        [0.0, -1.0, 0.0]
    """

    _type = DIRECTIONAL
    _columns: ClassVar = {"direction": (6, 3), "color": (0, 3)}
    direction: Tensor
    color: Tensor

    def __init__(self, direction: Value, color: Value = math.pi):
        super().__init__(direction=direction, color=color)

    def _packed_column(self, name: str, value: Tensor) -> Tensor:
        return safe_normalize(value) if name == "direction" else value


class PointLight(Light):
    """Light from a point to all sides, by the inverse square of the distance.

    Args:
        position: (..., 3).
        color: radiant intensity, number or (..., 3): the irradiance of a surface that faces it from distance 1.
        radius: the distance is never taken to be smaller, which bounds value and gradient next to the light.

    Example:
        >>> dr.PointLight((0.0, 2.0, 0.0), (1.0, 0.5, 0.2)).pack().types.tolist()
        [2]
    """

    _type = POINT
    _columns: ClassVar = {"position": (3, 3), "color": (0, 3), "radius": (9, 1)}
    position: Tensor
    color: Tensor
    radius: Tensor

    def __init__(self, position: Value, color: Value = math.pi, radius: Value = 1e-3):
        super().__init__(position=position, color=color, radius=radius)


class SpotLight(Light):
    """A point light within a cone.

    With c the cosine of the angle from the axis and x = (c - cos(outer)) / (cos(inner) - cos(outer)) clamped to [0, 1],
    the intensity is color * x^2 (3 - 2 x): full inside the inner angle, none outside the outer one, and smooth at both.

    Args:
        position: (..., 3).
        direction: (..., 3) axis of the cone, in which the light travels; any length but zero.
        color: radiant intensity on the axis, number or (..., 3).
        inner_deg: half angle of full intensity in degrees, number or (..., 1).
        outer_deg: half angle of the cone in degrees. With both equal the border is a step without a gradient.
        radius: as of a point light.

    Example:
        >>> light = dr.SpotLight((0.0, 3.0, 0.0), (0.0, -1.0, 0.0), inner_deg=20.0, outer_deg=60.0)
        >>> round(float(light.pack().values[0, 0, 11]), 3)
        0.5
    """

    _type = SPOT
    _columns: ClassVar = {
        "position": (3, 3), "direction": (6, 3), "color": (0, 3), "inner_deg": (10, 1), "outer_deg": (11, 1),
        "radius": (9, 1),
    }  # fmt: skip
    position: Tensor
    direction: Tensor
    color: Tensor
    inner_deg: Tensor
    outer_deg: Tensor
    radius: Tensor

    def __init__(
        self,
        position: Value,
        direction: Value,
        color: Value = math.pi,
        inner_deg: Value = 20.0,
        outer_deg: Value = 30.0,
        radius: Value = 1e-3,
    ):
        super().__init__(
            position=position, direction=direction, color=color, inner_deg=inner_deg, outer_deg=outer_deg, radius=radius
        )

    def _packed_column(self, name: str, value: Tensor) -> Tensor:
        if name == "direction":
            return safe_normalize(value)
        return torch.deg2rad(value).cos() if name in ("inner_deg", "outer_deg") else value


def pack_lights(lights: Light | PackedLights | Sequence[Light | PackedLights]) -> PackedLights:
    """One table of all lights, in their order.

    Args:
        lights: a light, a sequence of lights of any mix of types, or tables made before. Each may have its own batch or
            be shared. An empty sequence is darkness.

    Returns:
        PackedLights whose batch is that of the lights, 1 if all are shared; float64 if one of them is. (Lights made of
        Python numbers are float32; the shading ops widen a float32 table where their maps are float64.)

    Gradients: to all tensors of the lights.

    Raises:
        TypeError: for anything that is no light. ValueError: where batch sizes, devices or types differ.

    Example:
        >>> sun = dr.DirectionalLight(torch.tensor([[0.0, -1.0, 0.0], [1.0, -1.0, 0.0]]))  # one per item of the batch
        >>> table = dr.pack_lights([sun, dr.AmbientLight(0.1)])
        >>> table.values.shape, table.types.tolist()
        (torch.Size([2, 2, 12]), [1, 0])
    """
    if isinstance(lights, PackedLights):
        return lights
    if isinstance(lights, Light):
        return lights.pack()
    if not isinstance(lights, Sequence):
        _checks.fail(TypeError, "pack_lights", "lights", "be lights or a sequence of them", type(lights).__name__)
    tables = []
    for light in lights:
        if not isinstance(light, (Light, PackedLights)):
            hint = "It has no row in the table." if isinstance(light, EnclosingLight) else ""
            _checks.fail(TypeError, "pack_lights", "lights", "hold lights only", type(light).__name__, hint)
        tables.append(light if isinstance(light, PackedLights) else light.pack())
    if not tables:
        return PackedLights(torch.zeros(0, dtype=torch.int32), torch.zeros(1, 0, VALUES_PER_LIGHT))
    if len(tables) == 1:
        return tables[0]
    first = tables[0].values
    for k, table in enumerate(tables):
        if table.values.device != first.device:
            message = f"light {k} is on {table.values.device} but light 0 is on {first.device}. Move one of them."
            raise ValueError(f"pack_lights: {message}")
    batch = {table.values.shape[0] for table in tables} - {1}
    if len(batch) > 1:
        sizes = ", ".join(str(table.values.shape[0]) for table in tables)
        _checks.fail(ValueError, "pack_lights", "lights", "have one batch size, or 1 where shared", sizes)
    size = batch.pop() if batch else 1
    dtype = torch.float64 if any(table.values.dtype == torch.float64 for table in tables) else first.dtype
    values = torch.cat([table.values.to(dtype).expand(size, -1, -1) for table in tables], 1)
    return PackedLights(torch.cat([table.types for table in tables]), values)
