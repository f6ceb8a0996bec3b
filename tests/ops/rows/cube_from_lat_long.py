"""Row of the contract table: cube_from_lat_long."""

import torch

import diffrender as dr
from tests.ops.rows.base import F64, BadCall, Contract, EmptyCall, Example
from tests.reference.cube_from_lat_long import cube_from_lat_long as reference
from tests.support.vocabulary import rnd


def contract() -> Contract:
    return Contract(
        name="cube_from_lat_long",
        examples=[
            example("batch", (2, 3, 6, 2), 2),
            example("odd width", (4, 7, 3), 3),
            example("coarse panorama", (2, 3, 1), 4),
            example("fine panorama", (9, 20, 1), 1),
            example("one texel", (1, 1, 2), 2),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=[
            EmptyCall("no items", empty((0, 2, 4, 3)), [(0, 6, 2, 2, 3)]),
            EmptyCall("no channels", empty((1, 2, 4, 0)), [(1, 6, 2, 2, 0)]),
        ],
        large=example("large", (16, 30, 3), 60),
        second_derivative=True,
    )


def example(label, shape, size) -> Example:
    panorama = rnd(*shape, dtype=F64)
    return Example(
        label, {"panorama": panorama}, lambda p: (dr.cube_from_lat_long(p, size),), lambda p: (reference(p, size),)
    )


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    for shape, size in (((2, 3, 6, 2), 2), ((1, 4, 5, 3), 3)):
        panorama = rnd(*shape, dtype=dtype)
        yield op.cube_from_lat_long.default, (panorama, size)
        grad = rnd(shape[0], 6, size, size, shape[3], dtype=dtype)
        yield op.cube_from_lat_long_backward.default, (grad, *shape[1:3], 0)


def bad_calls() -> list[BadCall]:
    picture = torch.zeros(4, 8, 3)

    def bad(label, error, message, panorama=picture, size=2):
        return BadCall(label, lambda: dr.cube_from_lat_long(panorama, size), error, message)

    return [
        bad("two axes", ValueError, r"cube_from_lat_long: panorama must have shape \(B, H, W, C\)", picture[0]),
        bad("integers", TypeError, "cube_from_lat_long: panorama must be float32 or float64", picture.long()),
        bad("no texels", ValueError, "cube_from_lat_long: panorama must have at least one texel", picture[:0]),
        bad("no size", ValueError, r"cube_from_lat_long: size must lie in \[1, 8192\], got 0", size=0),
        bad("size of a wrong type", TypeError, "cube_from_lat_long: size must be an int or None", size=2.0),
    ]


def empty(shape):
    def run():
        panorama = torch.zeros(shape, dtype=F64, requires_grad=True)
        return [panorama], [dr.cube_from_lat_long(panorama, 2)]

    return run
