"""Row of the contract table: texture_cube."""

import torch

import diffrender as dr
from tests.ops.rows.base import F64, BadCall, Contract, EmptyCall, Example
from tests.reference import texture_cube as reference_texture_cube
from tests.reference.build_mips import build_mips
from tests.support.vocabulary import rnd, uniform

GRID = (5, 6)


def contract() -> Contract:
    return Contract(
        name="texture_cube",
        examples=[
            example("linear"),
            example("one texel a face", size=1, channels=2),
            example("trilinear", names=("derivatives",), size=7, channels=2),
            example("bias", names=("derivatives", "bias"), size=8, channels=1, shared=True),
            example("level alone", names=("level",), size=4, channels=4),
            example("own levels", names=("derivatives",), size=6, own_mips=True),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", names=("derivatives", "bias"), size=40, grid=(150, 140)),
        saves=("texture", "directions"),
    )


def example(
    label, *, names=(), size=3, channels=3, batch=2, grid=GRID, shared=False, own_mips=False, **options
) -> Example:
    """Directions all around, many of them near seams and corners, and the per-lookup arguments that are named."""
    texture = rnd(*(() if shared else (batch,)), 6, size, size, channels, seed=1, dtype=F64)
    directions = rnd(batch, *grid, 3, seed=2, dtype=F64)
    # Cube roots pull the components together: towards the corners.
    directions[:, ::2] = directions[:, ::2].sign() * directions[:, ::2].abs() ** 0.2
    arguments = {"texture": texture, "directions": directions}
    if "derivatives" in names:
        arguments["derivatives"] = 2 / size * rnd(batch, *grid, 6, seed=3, dtype=F64)
    if "bias" in names:
        arguments["bias"] = 0.3 * rnd(batch, *grid, seed=4, dtype=F64)
    if "level" in names:
        arguments["level"] = uniform(batch, *grid, low=-0.5, high=2.5, seed=5, dtype=F64)
    if own_mips:
        mips = build_mips(texture)[:1]
        arguments |= {f"mip {k + 1}": mip + rnd(*mip.shape, seed=6 + k, dtype=F64) for k, mip in enumerate(mips)}
    keywords = {"derivatives": "direction_derivatives", "bias": "level_bias", "level": "level"}

    def with_op(op):
        def call(texture, directions, *rest):
            named = dict(zip(list(arguments)[2:], rest, strict=True))
            lookups = {keywords[name]: value for name, value in named.items() if name in keywords}
            own = [value for name, value in named.items() if name not in keywords] or None
            return (op(texture, directions, mips=own, **lookups, **options),)

        return call

    return Example(label, arguments, with_op(dr.texture_cube), with_op(reference_texture_cube.texture_cube))


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    for channels, batch in ((3, 2), (2, 1), (0, 2)):
        texture = rnd(batch, 6, 5, 5, channels, dtype=dtype)
        mips = op.build_mips(texture, 2)
        directions, grad = rnd(2, *GRID, 3, dtype=dtype), rnd(2, *GRID, channels, dtype=dtype)
        inputs = (texture, mips, directions, rnd(2, *GRID, 6, dtype=dtype), rnd(2, *GRID, dtype=dtype))
        yield op.texture_cube.default, (*inputs, 3, 2)
        for needs in ((True,) * 5, (False, True, False, True, False), (True, False, False, False, True)):
            yield op.texture_cube_backward.default, (*inputs, grad, 3, 2, *needs, 0)


def bad_calls() -> list[BadCall]:
    texels, directions = torch.zeros(2, 6, 4, 4, 3, dtype=F64), torch.ones(2, *GRID, 3, dtype=F64)
    level = torch.zeros(2, *GRID, dtype=F64)

    def bad(label, error, message, *, texture=texels, at=directions, **options):
        return BadCall(label, lambda: dr.texture_cube(texture, at, **options), error, message)

    return [
        bad("three axes", ValueError, r"texture_cube: texture must have shape \(B, 6, S, S, C\) or \(6, S, S, C\)",
            texture=texels[0, 0]),
        bad("five faces", ValueError, r"texture_cube: texture must have six square faces, got \(2, 5, 4, 4, 3\)",
            texture=texels[:, :5]),
        bad("oblong faces", ValueError, "texture_cube: texture must have six square faces", texture=texels[:, :, :3]),
        bad("directions of two numbers", ValueError, r"texture_cube: directions must have shape \(B, H, W, 3\)",
            at=directions[..., :2]),
        bad("other float type", TypeError, "texture_cube: directions is torch.float32", at=directions.float()),
        bad("derivatives of three numbers", ValueError,
            r"texture_cube: direction_derivatives must have shape \(2, 5, 6, 6\)", direction_derivatives=directions),
        bad("unknown filter", ValueError, "texture_cube: filter must be one of", filter="seamless"),
        bad("nothing to choose a level by", ValueError, "texture_cube: filter must come with", filter="mip_nearest"),
        bad("another batch", ValueError, r"texture_cube: texture must have the batch size of directions \(2\) or 1",
            texture=torch.zeros(3, 6, 4, 4, 3, dtype=F64)),
        bad("mips of another size", ValueError, r"texture_cube: mips\[0\] must have shape \(2, 6, 2, 2, 3\)",
            mips=[texels], level=level),
    ]  # fmt: skip


def empty_calls() -> list[EmptyCall]:
    def call(texture_shape, directions_shape):
        def run():
            texture = torch.zeros(texture_shape, dtype=F64, requires_grad=True)
            directions = torch.ones(directions_shape, dtype=F64, requires_grad=True)
            level = torch.zeros(directions_shape[:-1], dtype=F64)
            return [texture, directions], [dr.texture_cube(texture, directions, level=level)]

        return run

    return [
        EmptyCall("no pixels", call((2, 6, 4, 4, 3), (2, 0, 5, 3)), [(2, 0, 5, 3)]),
        EmptyCall("no items", call((0, 6, 4, 4, 3), (0, 3, 5, 3)), [(0, 3, 5, 3)]),
        EmptyCall("no channels", call((1, 6, 4, 4, 0), (2, 3, 5, 3)), [(2, 3, 5, 0)]),
    ]
