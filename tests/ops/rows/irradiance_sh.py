"""Row of the contract table: irradiance_sh."""

import torch

import diffrender as dr
from tests.ops.rows.base import F64, BadCall, Contract, EmptyCall, Example
from tests.ops.rows.shade import SIZE, checked_mask, surface
from tests.reference.irradiance_sh import irradiance_sh as reference
from tests.support.vocabulary import rnd


def contract() -> Contract:
    return Contract(
        name="irradiance_sh",
        examples=[
            example("one environment"),
            example("one per item", batch=2, batched=True, convention="condon_shortley"),
            example("shared by two items, masked", batch=2, mask=checked_mask(2)),
            example("environments shown on one picture", batch=3, batched=True, shared_normals=True),
            example("one normal per item", batch=2, constant=True, channels=1),
            example("five channels", channels=5),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=[
            EmptyCall("no items", empty((0, 3, 4), (9, 3)), [(0, 3, 4, 3)]),
            EmptyCall("no pixels", empty((2, 0, 4), (2, 9, 3)), [(2, 0, 4, 3)]),
            EmptyCall("no channels", empty((2, 3, 4), (9, 0)), [(2, 3, 4, 0)]),
        ],
        large=example("large", batch=2, size=(90, 131)),
        saves=("normals",),
    )


def example(
    label, *, batch=1, size=SIZE, batched=False, shared_normals=False, constant=False, channels=3, **options
) -> Example:
    normals = surface(1 if shared_normals else batch, size)[1]
    if shared_normals:
        normals = normals[0]
    if constant:
        normals = normals[:, 0, 0]
    shape = (batch, 9, channels) if batched else (9, channels)
    arguments = {"coefficients": rnd(*shape, seed=51, dtype=F64), "normals": normals}

    def with_op(op):
        return lambda coefficients, normals: (op(coefficients, normals, **options),)

    return Example(label, arguments, with_op(dr.irradiance_sh), with_op(reference))


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    normals = surface(2)[1].to(dtype)
    for batch, triangle_id, vectors in ((2, checked_mask(2).int() - 1, normals), (1, None, normals[:, :1, :1])):
        inputs = (rnd(batch, 9, 3, dtype=dtype), vectors, triangle_id)
        yield op.irradiance_sh.default, (*inputs, 0)
        grad = rnd(*op.irradiance_sh(*inputs, 0).shape, dtype=dtype)
        for needs in ((True, True), (True, False), (False, True)):
            yield op.irradiance_sh_backward.default, (*inputs, grad, *needs, 0, 0)


def bad_calls() -> list[BadCall]:
    normals, table = surface(2)[1], rnd(9, 3, dtype=F64)

    def bad(label, error, message, *, coefficients=table, vectors=normals, **options):
        return BadCall(label, lambda: dr.irradiance_sh(coefficients, vectors, **options), error, message)

    return [
        bad("transposed coefficients", ValueError, r"irradiance_sh: coefficients must have shape \(B, 9, C\) or "
            r"\(9, C\), got \(3, 9\). Transpose it\?", coefficients=table.T),
        bad("integer coefficients", TypeError, "irradiance_sh: coefficients must be float32",
            coefficients=table.long()),
        bad("normals of another type", TypeError, "irradiance_sh: normals is torch.float32", vectors=normals.float()),
        bad("normals of two channels", ValueError, "irradiance_sh: normals must have shape", vectors=normals[..., :2]),
        bad("another batch", ValueError, r"irradiance_sh: normals must have the batch size of coefficients \(3\) or 1",
            coefficients=table.expand(3, 9, 3)),
        bad("unknown convention", ValueError, "irradiance_sh: convention must be one of", convention="kaolin"),
        bad("mask of another size", ValueError, r"irradiance_sh: mask must have shape \(2, 3, 11\)",
            mask=torch.ones(2, 3, 12, dtype=torch.bool)),
    ]  # fmt: skip


def empty(size, shape):
    def run():
        inputs = [torch.zeros(s, dtype=F64, requires_grad=True) for s in (shape, (*size, 3))]
        return inputs, [dr.irradiance_sh(*inputs)]

    return run
