"""Row of the contract table: perturb_normals."""

import torch

import diffrender as dr
from tests.ops.rows.base import F64, BadCall, Contract, EmptyCall, Example
from tests.ops.rows.shade import SIZE, checked_mask, surface
from tests.reference.perturb_normals import perturb_normals as reference
from tests.support.device import DEVICE
from tests.support.vocabulary import rnd, uniform


def contract() -> Contract:
    return Contract(
        name="perturb_normals",
        examples=[
            example("no view"),
            example("grazing view", view=True),
            example("two items, green down, masked", batch=2, view=True, convention="directx", mask=checked_mask(2)),
            example("geometric normals of their own", view=True, geometric=True, grazing=0.6),
            example("constant normal and tangent of each item", batch=2, constant=True, view=True),
            example("one pixel", size=(1, 1), view=True, grazing=1.0),
            example("shared map", batch=2, shared=True),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=[
            EmptyCall("no items", empty((0, 3, 4)), [(0, 3, 4, 3)]),
            EmptyCall("no pixels", empty((2, 3, 0)), [(2, 3, 0, 3)]),
        ],
        large=example("large", batch=2, size=(90, 131), view=True),
        saves=("normals", "tangents", "normal_map", "scale"),
    )


def tangent_map(batch: int = 1, size=SIZE, seed: int = 31) -> torch.Tensor:
    """Neither unit nor orthogonal to the normals; half of them of mirrored uv."""
    tangents = rnd(batch, *size, 4, seed=seed, dtype=F64) * 0.4
    tangents[..., 0] += 1.0
    tangents[..., 3] = torch.where(rnd(batch, *size, seed=seed + 1) < 0, -1.0, 1.0)
    return tangents


def texels(batch: int = 1, size=SIZE, seed: int = 33) -> torch.Tensor:
    """Strong slopes; z above the clamp by more than a finite difference steps."""
    return uniform(batch, *size, 3, low=0.15, high=0.85, seed=seed, dtype=F64) * torch.tensor(
        [1, 1, 0.4], dtype=F64
    ) + torch.tensor([0, 0, 0.5], dtype=F64)


def views(batch: int = 1, size=SIZE, seed: int = 35) -> torch.Tensor:
    """About half of the directions lie near the plane of the surface, on either side of it."""
    directions = rnd(batch, *size, 3, seed=seed, dtype=F64)
    directions[..., ::2, 2] *= 0.15
    return directions


def example(
    label, *, batch=1, size=SIZE, view=False, geometric=False, constant=False, shared=False, **options
) -> Example:
    arguments = {
        "normals": surface(batch, size)[1],
        "tangents": tangent_map(batch, size),
        "normal_map": texels(1 if shared else batch, size),
        "scale": uniform(batch, 1, low=0.4, high=1.6, seed=37, dtype=F64),
    }
    if shared:
        arguments["normal_map"] = arguments["normal_map"][0]
        arguments["scale"] = arguments["scale"][0]
    if constant:
        arguments["normals"] = arguments["normals"][:, 0, 0]
        arguments["tangents"] = arguments["tangents"][:, 0, 0]
    if view:
        arguments["view_directions"] = views(batch, size)
    if geometric:
        arguments["geometric_normals"] = surface(batch, size, seed=39)[1]
    names = list(arguments)

    def with_op(op):
        return lambda *values: (op(*values[:3], **dict(zip(names[3:], values[3:], strict=True)), **options),)

    return Example(label, arguments, with_op(dr.perturb_normals), with_op(reference))


def dispatcher_calls(dtype):
    op, backward = torch.ops.diffrender.perturb_normals.default, torch.ops.diffrender.perturb_normals_backward.default
    normals, tangents, texel = surface(2)[1].to(dtype), tangent_map(2).to(dtype), texels(2).to(dtype)
    scale, grad = torch.ones(1, 1, 1, 1, dtype=dtype), rnd(2, *SIZE, 3, dtype=dtype)
    full = (normals, tangents, texel, scale, normals.flip(0), views(2).to(dtype), checked_mask(2).int() - 1)
    yield op, (*full, True, 0.1, 0)
    for which in (-1, 2, 5):
        yield backward, (*full, grad, True, 0.1, *[which in (-1, k) for k in range(6)], 0, 0)
    few = (normals[:1, :1, :1], tangents[:, :1, :1], texel, scale, None, None, None)
    yield op, (*few, False, 0.1, 0)
    yield backward, (*few, grad, False, 0.1, *[True] * 6, 0, 0)


def bad_calls() -> list[BadCall]:
    def bad(label, error, message, **changes):
        given = {"normals": surface()[1], "tangents": tangent_map(), "normal_map": texels()} | changes
        first = [given.pop(name) for name in ("normals", "tangents", "normal_map")]
        return BadCall(label, lambda: dr.perturb_normals(*first, **given), error, f"perturb_normals: {message}")

    return [
        bad("tangents of three channels", ValueError, r"tangents must have shape \(B, H, W, 4\)",
            tangents=tangent_map()[..., :3]),
        bad("byte map", TypeError, "normal_map must be float32 or float64", normal_map=texels().byte()),
        bad("map of another type", TypeError, "normal_map is torch.float32 but normals is",
            normal_map=texels().float()),
        bad("map of another size", ValueError, r"normal_map must have the width of normals \(11\), got 5",
            normal_map=texels(1, (3, 5))),
        bad("map of another batch", ValueError, r"normal_map must have the batch size of normals \(2\) or 1, got 3",
            normals=surface(2)[1], tangents=tangent_map(2), normal_map=texels(3)),
        bad("another device", ValueError, f"tangents is on meta but normals is on {DEVICE.type}",
            tangents=tangent_map().to("meta")),
        bad("scale as text", TypeError, "scale must be a tensor or numbers, got str", scale="one"),
        bad("unknown convention", ValueError, "convention must be one of 'opengl', 'directx'", convention="vulkan"),
        bad("geometric normals without a view", ValueError, "view_directions must come with geometric_normals",
            geometric_normals=surface()[1]),
        bad("negative grazing", ValueError, r"grazing must lie in \[0, 1\], got -0.1", grazing=-0.1),
        bad("mask of another size", ValueError, r"mask must have shape \(1, 3, 11\)",
            mask=torch.ones(1, 3, 12, dtype=torch.bool)),
    ]  # fmt: skip


def empty(size):
    def run():
        maps = [torch.zeros(*size, c, dtype=F64, requires_grad=True) for c in (3, 4, 3)]
        return maps, [dr.perturb_normals(*maps, view_directions=(0.0, 0.0, 1.0))]

    return run
