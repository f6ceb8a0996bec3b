"""Rows of the contract table: texture without mips (second derivatives are right) and with them (they are refused)."""

import torch

import diffrender as dr
from tests.ops.rows.base import F64, BadCall, Contract, EmptyCall, Example
from tests.reference import texture as reference_texture
from tests.support.device import DEVICE
from tests.support.vocabulary import rnd, uniform

GRID = (4, 5)
FORWARD_MODES = (1, 0, 3, 0, 1)  # linear, repeat, zero, level 0, one tap


def without_mips() -> Contract:
    return Contract(
        name="texture",
        examples=[
            example("linear, repeat", wrap="repeat"),
            example("linear, clamp", wrap="clamp", size=(3, 8), channels=1),
            example("linear, mirror", wrap="mirror", size=(7, 2), channels=4),
            example("linear, zero", wrap="zero", size=(1, 5), channels=2),
            example("linear, a mode per axis, shared", wrap=("mirror", "zero"), shared=True, channels=5),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", wrap="repeat", size=(70, 90), channels=3, batch=2, grid=(150, 140)),
        second_derivative=True,
        saves=("texture", "texcoords"),
    )


def with_mips() -> Contract:
    return Contract(
        name="texture",
        examples=[
            # First: with levels of their own there is no gradient that passes through the levels to the texture.
            example("own levels", names=("derivatives",), wrap="zero", size=(8, 11), own_mips=True, max_anisotropy=2),
            example("trilinear", names=("derivatives",), size=(6, 9), filter="mip_linear"),
            example("bias", names=("derivatives", "bias"), wrap="clamp", size=(16, 4), channels=1),
            example("level alone", names=("level",), wrap="mirror", size=(9, 8), channels=4, shared=True),
            example("anisotropic", names=("derivatives", "bias"), size=(12, 13), channels=2, max_anisotropy=3),
        ],
        dispatcher_calls=mip_dispatcher_calls,
        bad_calls=bad_mip_calls(),
        empty_calls=[],
        large=example("large", names=("derivatives", "bias"), size=(70, 90), batch=2, grid=(150, 140)),
        saves=("texture", "texcoords", "derivatives"),
    )


def example(
    label, *, names=(), size=(5, 6), channels=3, batch=2, grid=GRID, shared=False, own_mips=False, **options
) -> Example:
    """Texture, texcoords from -0.8 to 1.9, and the per-lookup arguments that are named."""
    texture = rnd(*(() if shared else (batch,)), *size, channels, seed=1, dtype=F64)
    arguments = {
        "texture": texture,
        "texcoords": uniform(batch, *grid, 2, low=-0.8, high=1.9, seed=2, dtype=F64),
    }
    # Footprints of about 0.5 to 4 texels, so that most levels lie inside of the chain.
    per_texel = torch.tensor([1 / size[1], 1 / size[1], 1 / size[0], 1 / size[0]], dtype=F64)
    if "derivatives" in names:
        arguments["derivatives"] = 2 * rnd(batch, *grid, 4, seed=3, dtype=F64) * per_texel
    if "bias" in names:
        arguments["bias"] = 0.3 * rnd(batch, *grid, seed=4, dtype=F64)
    if "level" in names:
        arguments["level"] = uniform(batch, *grid, low=-0.5, high=3.5, seed=5, dtype=F64)
    if own_mips:
        mips = reference_texture.build_mips(texture)[:1]
        arguments |= {f"mip {k + 1}": mip + rnd(*mip.shape, seed=6 + k, dtype=F64) for k, mip in enumerate(mips)}
    keywords = {"derivatives": "texcoord_derivatives", "bias": "level_bias", "level": "level"}

    def with_op(op):
        def call(texture, texcoords, *rest):
            named = dict(zip(list(arguments)[2:], rest, strict=True))
            lookups = {keywords[name]: value for name, value in named.items() if name in keywords}
            own = [value for name, value in named.items() if name not in keywords] or None
            return (op(texture, texcoords, mips=own, **lookups, **options),)

        return call

    return Example(label, arguments, with_op(dr.texture), with_op(reference_texture.texture))


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    for channels, batch in ((3, 2), (6, 1), (0, 2)):
        texture = rnd(batch, 5, 4, channels, dtype=dtype)
        texcoords, grad = uniform(2, *GRID, 2, dtype=dtype), rnd(2, *GRID, channels, dtype=dtype)
        yield op.texture.default, (texture, None, texcoords, None, None, *FORWARD_MODES)
        for needs in ((True, False, True), (True, False, False), (False, False, True)):
            inputs = (texture, None, texcoords, None, None, grad)
            yield op.texture_backward.default, (*inputs, *FORWARD_MODES, *needs, False, False, 0)
        cotangent = rnd(2, *GRID, 2, dtype=dtype)
        yield op.texture_backward_twice.default, (texture, texcoords, grad, cotangent, 0, 3, 0)


def mip_dispatcher_calls(dtype):
    op = torch.ops.diffrender
    modes = (3, 0, 1, 2, 3)  # mip_linear, repeat, clamp, last level 2, three taps
    for channels, batch in ((3, 2), (6, 1)):
        texture = rnd(batch, 5, 4, channels, dtype=dtype)
        mips = op.build_mips(texture[:, None], 2)
        texcoords, grad = uniform(2, *GRID, 2, dtype=dtype), rnd(2, *GRID, channels, dtype=dtype)
        inputs = (texture, mips, texcoords, rnd(2, *GRID, 4, dtype=dtype), rnd(2, *GRID, dtype=dtype))
        yield op.texture.default, (*inputs, *modes)
        for needs in ((True,) * 5, (False, True, False, True, False), (True, False, False, False, True)):
            yield op.texture_backward.default, (*inputs, grad, *modes, *needs, 0)


def bad_calls() -> list[BadCall]:
    texels, texcoords = torch.zeros(2, 4, 5, 3, dtype=F64), torch.zeros(2, *GRID, 2, dtype=F64)

    def bad(label, error, message, *, texture=texels, uv=texcoords, **options):
        return BadCall(label, lambda: dr.texture(texture, uv, **options), error, message)

    return [
        bad("texture of two axes", ValueError, r"texture: texture must have shape \(B, Ht, Wt, C\) or \(Ht, Wt, C\)",
            texture=texels[0, 0]),
        bad("integer texture", TypeError, "texture: texture must be float32 or float64", texture=texels.long()),
        bad("texture without texels", ValueError, "texture: texture must have at least one texel",
            texture=texels[:, :0]),
        bad("another batch", ValueError, r"texture: texture must have the batch size of texcoords \(2\) or 1, got 3",
            texture=torch.zeros(3, 4, 5, 3, dtype=F64)),
        bad("texcoords of three numbers", ValueError, r"texture: texcoords must have shape \(B, H, W, 2\)",
            uv=torch.zeros(2, *GRID, 3, dtype=F64)),
        bad("other float type", TypeError, "texture: texcoords is torch.float32 but texture is torch.float64",
            uv=texcoords.float()),
        bad("another device", ValueError, f"texture: texcoords is on {DEVICE.type}.* but texture is on meta",
            texture=texels.to("meta")),
        bad("unknown filter", ValueError, "texture: filter must be one of 'auto', 'nearest'", filter="cubic"),
        bad("unknown wrap", ValueError, "texture: wrap must be one of 'repeat', 'clamp'", wrap="border"),
        bad("three wraps", ValueError, r"texture: wrap must be one mode or \(u, v\)", wrap=("zero",) * 3),
        bad("nothing to choose a level by", ValueError, "texture: filter must come with derivatives",
            filter="mip_linear"),
    ]  # fmt: skip


def bad_mip_calls() -> list[BadCall]:
    texels, texcoords = torch.zeros(2, 4, 6, 3, dtype=F64), torch.zeros(2, *GRID, 2, dtype=F64)
    derivatives, bias = torch.zeros(2, *GRID, 4, dtype=F64), torch.zeros(2, *GRID, dtype=F64)
    first = torch.zeros(2, 2, 3, 3, dtype=F64)

    def bad(label, error, message, **options):
        return BadCall(label, lambda: dr.texture(texels, texcoords, **options), error, message)

    return [
        bad("derivatives of two numbers", ValueError, r"texture: texcoord_derivatives must have shape \(2, 4, 5, 4\)",
            texcoord_derivatives=derivatives[..., :2]),
        bad("bias with a channel", ValueError, r"texture: level_bias must have shape \(2, 4, 5\)",
            level_bias=bias[..., None]),
        bad("level and derivatives", ValueError, "texture: level must be None where derivatives are given",
            level=bias, texcoord_derivatives=derivatives),
        bad("level of another type", TypeError, "texture: level is torch.float32", level=bias.float()),
        bad("negative last level", ValueError, "texture: max_level must be at least 0", level=bias, max_level=-1),
        bad("fractional last level", TypeError, "texture: max_level must be an int or None", level=bias, max_level=1.5),
        bad("mips that nobody reads", ValueError, "texture: mips must be None unless", mips=[first]),
        bad("one tensor as mips", TypeError, "texture: mips must be a sequence of tensors", mips=first, level=bias),
        bad("mips of another size", ValueError, r"texture: mips\[0\] must have shape \(2, 2, 3, 3\)",
            mips=[first[:, :1]], level=bias),
        bad("too many mips", ValueError, "texture: mips must have at most 2 levels", mips=[first] * 3, level=bias),
        bad("no taps", ValueError, r"texture: max_anisotropy must lie in \[1, 64\], got 0", max_anisotropy=0),
        bad("half a tap", TypeError, "texture: max_anisotropy must be an int", max_anisotropy=1.5),
        bad("taps without an axis", ValueError, "texture: max_anisotropy must be 1 without", max_anisotropy=2,
            level=bias),
    ]  # fmt: skip


def empty_calls() -> list[EmptyCall]:
    def call(texture_shape, texcoords_shape, **options):
        def run():
            texture = torch.zeros(texture_shape, dtype=F64, requires_grad=True)
            texcoords = torch.zeros(texcoords_shape, dtype=F64, requires_grad=True)
            level = torch.zeros(texcoords_shape[:-1], dtype=F64) if options else None
            return [texture, texcoords], [dr.texture(texture, texcoords, level=level, **options)]

        return run

    return [
        EmptyCall("no pixels", call((2, 4, 5, 3), (2, 0, 5, 2)), [(2, 0, 5, 3)]),
        EmptyCall("no items", call((0, 4, 5, 3), (0, 3, 5, 2)), [(0, 3, 5, 3)]),
        EmptyCall("no channels", call((1, 4, 5, 0), (2, 3, 5, 2)), [(2, 3, 5, 0)]),
        EmptyCall("no pixels, mips", call((2, 4, 5, 3), (2, 0, 5, 2), filter="mip_linear"), [(2, 0, 5, 3)]),
        EmptyCall("no channels, mips", call((1, 4, 5, 0), (2, 3, 5, 2), filter="mip_linear"), [(2, 3, 5, 0)]),
    ]
