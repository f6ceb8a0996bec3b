"""What the rows of the shading ops share: small surfaces under all kinds of lights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import diffrender as dr
from tests.ops.rows.base import F64, BadCall, EmptyCall, Example
from tests.support.device import DEVICE
from tests.support.vocabulary import rnd, uniform

SIZE = (3, 11)  # one packet of 8 pixels and a rest in every row of packets
EYE = torch.tensor([0.3, -0.2, 4.0], dtype=F64)


def lights(kinds: str, batch: int = 1, seed: int = 0) -> dr.PackedLights:
    """A table of lights above the surfaces, one letter each: ambient, directional, point, spot."""
    found = []
    for k, kind in enumerate(kinds):
        place = uniform(batch, 3, low=-1.5, high=1.5, seed=seed + 10 * k, dtype=F64)
        place[:, 2] += 3.1
        color = uniform(batch, 3, low=0.5, high=3.0, seed=seed + 10 * k + 1, dtype=F64)
        if kind == "a":
            found.append(dr.AmbientLight(color))
        elif kind == "d":
            found.append(dr.DirectionalLight(-place, color))
        elif kind == "p":
            found.append(dr.PointLight(place, 4 * color))
        else:
            found.append(dr.SpotLight(place, -place, 6 * color, 11.0, 48.0))
    return dr.pack_lights(found)


def surface(batch: int = 1, size: tuple[int, int] = SIZE, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Positions near the plane z = 0 and normals about +z, of any length; some of them look away from the viewer."""
    positions = uniform(batch, *size, 3, low=-1.0, high=1.0, seed=seed, dtype=F64)
    positions[..., 2] *= 0.2
    normals = rnd(batch, *size, 3, seed=seed + 1, dtype=F64) * 0.45
    normals[..., 2] += 1.0
    normals[:, -1] *= -1.0
    return positions, normals


def color_map(batch: int = 1, size: tuple[int, int] = SIZE, seed: int = 7, channels: int = 3) -> Tensor:
    return uniform(batch, *size, channels, low=0.15, high=0.9, seed=seed, dtype=F64)


def checked_mask(batch: int = 1, size: tuple[int, int] = SIZE) -> Tensor:
    """About two thirds of the pixels; the first packet of the picture is all background."""
    mask = uniform(batch, *size, seed=9) > 0.35
    mask[:, 0, :9] = False
    return mask


def shading_example(
    label: str,
    op: Callable,
    reference: Callable,
    arguments: dict[str, Tensor],
    *,
    kinds: str = "dpsa",
    light_batch: int = 1,
    mask: Tensor | None = None,
    **options,
) -> Example:
    """`arguments`: positions, normals, the material in order, and maybe camera_position, view_directions. The table of
    lights is one more argument. Pixels outside of the mask hold NaN."""
    table = lights(kinds, light_batch)
    arguments = {**arguments, "lights": table.values}
    constants = {}
    if mask is not None:
        constants["mask"] = mask

    def names():
        return [name for name in arguments if name not in ("lights", "camera_position", "view_directions")]

    def call(*values):
        given = dict(zip(arguments, values, strict=True))
        maps = [given.pop(name) for name in names()]
        packed = dr.PackedLights(table.types, given.pop("lights"))
        fixed = {k: v.to(maps[0].dtype) if v.is_floating_point() else v for k, v in tensors.items()}
        return (op(*maps, packed, **given, **fixed, **constants, **plain),)

    def by_reference(*values):
        given = dict(zip(arguments, values, strict=True))
        maps = [given.pop(name) for name in names()]
        return (reference(*maps, table.types, given.pop("lights"), **given, **tensors, **constants, **plain),)

    tensors = {k: v for k, v in options.items() if isinstance(v, Tensor)}
    plain = {k: v for k, v in options.items() if not isinstance(v, Tensor)}
    return Example(label, arguments, call, by_reference)


def dispatcher_calls(op, backward, material: list[Tensor], dtype, options: tuple, constants: list[Tensor]):
    """Raw calls: everything given, with each gradient alone and all together; and as little as possible."""
    positions, normals = (x.to(dtype) for x in surface(2))
    triangle_id = checked_mask(2).int() - 1
    table = lights("dpsa", 2)
    count = 4 + len(material)
    first, values = (positions, normals, EYE[None, None, None].to(dtype)), table.values.to(dtype)
    grad = rnd(2, *SIZE, 3, dtype=dtype)
    full = (*first, normals, triangle_id, values, table.types, *(x.to(dtype) for x in material))
    yield op, (*full, False, True, *options, 0)
    for which in range(-1, count):
        needs = [which in (-1, k) for k in range(count)]
        yield backward, (*full, grad, False, True, *options, *needs, 0, 0)
    few = (*first, None, None, values[:1], table.types, *(x.to(dtype) for x in constants))
    yield op, (*few, True, False, *options, 0)
    yield backward, (*few, grad, True, False, *options, *[True] * count, 0, 0)


def bad_calls(name: str, op: Callable, material: list[Tensor], *, needs_view: bool) -> list[BadCall]:
    """What is wrong for every shading op; `material` are pictures of batch 1."""
    positions, normals = surface()
    table = lights("dp")

    def bad(label, error, message, **changes):
        given = {"positions": positions, "normals": normals, "lights": table, "material": material,
                 "camera_position": EYE} | changes  # fmt: skip
        first = [given.pop("positions"), given.pop("normals"), *given.pop("material"), given.pop("lights")]
        return BadCall(label, lambda: op(*first, **given), error, f"{name}: {message}")

    other = uniform(1, 4, 11, 3, dtype=F64)
    calls = [
        bad("positions of two channels", ValueError, r"positions must have shape \(B, H, W, 3\)",
            positions=positions[..., :2]),
        bad("integer normals", TypeError, "normals must be float32 or float64", normals=normals.long()),
        bad("normals of another type", TypeError, "normals is torch.float32 but positions is", normals=normals.float()),
        bad("normals on another device", ValueError, f"normals is on meta but positions is on {DEVICE.type}",
            normals=normals.to("meta")),
        bad("another height", ValueError, r"normals must have the height of positions \(3\), got 4", normals=other),
        bad("a column for a picture", ValueError, r"normals must cover the whole picture \(3, 11\), got \(3, 1\)",
            normals=normals[:, :, :1]),
        bad("another batch", ValueError, r"camera_position must have the batch size of positions \(2\) or 1, got 3",
            positions=positions.expand(2, -1, -1, -1), camera_position=EYE.expand(3, 3)),
        bad("lights of another batch", ValueError, r"lights must have the batch size of positions \(2\) or 1, got 3",
            positions=positions.expand(2, -1, -1, -1), lights=lights("dp", 3)),
        bad("two viewers", ValueError, "view_directions must be left out", view_directions=EYE),
        bad("material as text", TypeError, ".* must be a tensor or numbers, got str", material=["red", *material[1:]]),
        bad("float mask", TypeError, "mask must be bool", mask=torch.ones(1, *SIZE)),
        bad("mask of another size", ValueError, r"mask must have shape \(1, 3, 11\), got \(1, 4, 11\)",
            mask=torch.ones(1, 4, 11, dtype=torch.bool)),
        bad("table with the wrong width", ValueError, r"lights must be a table of values \(B, L, 12\)",
            lights=dr.PackedLights(table.types, table.values[..., :11])),
        bad("table without its types", ValueError, "lights must be a table",
            lights=dr.PackedLights(table.types[:1], table.values)),
        BadCall("lights that are none", lambda: op(positions, normals, *material, 3.0, camera_position=EYE), TypeError,
                "pack_lights: lights must be lights"),
    ]  # fmt: skip
    if needs_view:
        calls.append(bad("no viewer", ValueError, "camera_position must be given", camera_position=None))
    return calls


def empty_calls(op: Callable, channels: list[int]) -> list[EmptyCall]:
    def call(batch, height, width, table):
        def run():
            sizes = [3, 3, *channels]
            maps = [torch.zeros(batch, height, width, c, dtype=F64, requires_grad=True) for c in sizes]
            return maps, [op(*maps, table, camera_position=EYE)]

        return run

    dark = dr.PackedLights(torch.zeros(0, dtype=torch.int32), torch.zeros(1, 0, 12, dtype=F64))
    return [
        EmptyCall("no items", call(0, 3, 4, lights("dpsa")), [(0, 3, 4, 3)]),
        EmptyCall("no pixels", call(2, 3, 0, lights("dpsa")), [(2, 3, 0, 3)]),
        EmptyCall("no lights", call(2, 3, 4, dark), [(2, 3, 4, 3)]),
        EmptyCall("an empty list of lights", call(2, 3, 4, []), [(2, 3, 4, 3)]),
    ]
