"""Row of the contract table: build_mips."""

import torch

import diffrender as dr
from tests.ops.rows.base import F64, BadCall, Contract, EmptyCall, Example
from tests.reference import build_mips as reference_build_mips
from tests.support.vocabulary import rnd


def contract() -> Contract:
    return Contract(
        name="build_mips",
        examples=[
            example("odd sides", 2, 5, 7, 3),
            example("powers of two", 8, 4, 2),
            example("thin", 1, 13, 1),
            example("cube", 2, 6, 3, 3, 2),
            example("two levels", 1, 9, 12, 2, max_level=2),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", 2, 300, 210, 3),
        second_derivative=True,
    )


def example(label, *shape, max_level=None) -> Example:
    texture = rnd(*shape, dtype=F64)

    def reference(texels):
        return tuple(reference_build_mips.build_mips(texels)[:max_level])

    return Example(label, {"texture": texture}, lambda texels: dr.build_mips(texels, max_level=max_level), reference)


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    for shape, last in (((2, 1, 5, 7, 3), 2), ((1, 6, 4, 4, 2), 1), ((2, 1, 3, 3, 1), 0)):
        texture = rnd(*shape, dtype=dtype)
        yield op.build_mips.default, (texture, last)
        grad = rnd(*op.build_mips(texture, last).shape, dtype=dtype)
        yield op.build_mips_backward.default, (grad, *shape[1:4], last)


def bad_calls() -> list[BadCall]:
    texels = torch.zeros(2, 4, 5, 3)

    def bad(label, error, message, value=texels, **options):
        return BadCall(label, lambda: dr.build_mips(value, **options), error, message)

    return [
        bad("two axes", ValueError, r"build_mips: texture must have shape \(B, H, W, C\)", texels[0, 0]),
        bad("integers", TypeError, "build_mips: texture must be float32 or float64", texels.long()),
        bad("no texels", ValueError, "build_mips: texture must have at least one texel", texels[:, :, :0]),
        bad("negative level", ValueError, "build_mips: max_level must be at least 0, got -2", max_level=-2),
        bad("no tensor", TypeError, "build_mips: texture must be a tensor", [1.0]),
    ]


def empty_calls() -> list[EmptyCall]:
    def call(*shape):
        def run():
            texture = torch.zeros(shape, dtype=F64, requires_grad=True)
            return [texture], list(dr.build_mips(texture))

        return run

    return [
        EmptyCall("no items", call(0, 4, 2, 3), [(0, 2, 1, 3), (0, 1, 1, 3)]),
        EmptyCall("no channels", call(1, 2, 3, 0), [(1, 1, 1, 0)]),
    ]
