"""Row of the contract table: composite."""

import torch
from torch import Tensor

import diffrender as dr
from tests.ops.rows.base import F64, BadCall, Contract, EmptyCall, Example, turned_cube
from tests.reference import composite as reference_composite
from tests.support.vocabulary import rnd, uniform

SIZE = (3, 4)
COUNTS = [0, 2, 1, 0, 5, 1, 1, 3, 0, 0, 2, 0]  # fragments of each pixel


def contract() -> Contract:
    generator = torch.Generator("cpu").manual_seed(3)
    many = torch.randint(0, 4, (2 * 90 * 100,), generator=generator, device="cpu").tolist()
    colors = [rnd(*shape, seed=4, dtype=F64) for shape in ((*SIZE, 3), (2, *SIZE, 3))]
    return Contract(
        name="composite",
        examples=[
            example("three channels", COUNTS),
            example("one channel of two items", COUNTS * 2, channels=1),
            example("nineteen channels", COUNTS, channels=19),
            example("capacity", COUNTS, unused=4, channels=4),
            example("background of an image, with a capacity", COUNTS * 2, background=colors[0], unused=2),
            example("background of each item", COUNTS * 2, background=colors[1]),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", many, size=(90, 100), channels=4, background=rnd(90, 100, 4, seed=4, dtype=F64)),
        second_derivative=True,
        saves=("values", "weight"),
    )


def offsets_of(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0)


def list_of(weight: Tensor, offsets: Tensor, size=SIZE) -> dr.Coverage:
    """Coverage of which composite reads weights and offsets; the rest is nothing."""
    count = len(weight)
    batch = len(offsets) // (size[0] * size[1])
    nothing = [torch.zeros(count, dtype=torch.int32), weight, weight.new_zeros(count, 2), weight.new_ones(count)]
    return dr.Coverage(*nothing, offsets, (batch, *size))


def example(label: str, counts: list[int], *, size=SIZE, channels=3, unused=0, background=None) -> Example:
    """`unused`: places beyond the last fragment."""
    total = sum(counts) + unused
    arguments = {
        "values": rnd(total, channels, seed=1, dtype=F64),
        "weight": uniform(total, low=0.1, high=0.5, seed=2, dtype=F64),
    }
    if background is not None:
        arguments["background"] = background
    offsets = offsets_of(counts)

    def with_op(composite):
        return lambda values, weight, behind=None: (
            composite(values, list_of(weight, offsets, size), background=behind),
        )

    return Example(label, arguments, with_op(dr.composite), with_op(reference_composite.composite))


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    offsets = offsets_of(COUNTS)
    for channels, unused in ((1, 0), (2, 3), (3, 0), (4, 2), (17, 1), (0, 1)):
        total = sum(COUNTS) + unused
        inputs = (rnd(total, channels, dtype=dtype), rnd(total, seed=1, dtype=dtype), offsets)
        yield op.composite.default, inputs
        grad = rnd(len(COUNTS), channels, seed=2, dtype=dtype)
        for needs in ((True, True), (True, False), (False, True)):
            yield op.composite_backward.default, (*inputs, grad, *needs)


def bad_calls() -> list[BadCall]:
    good = dr.coverage(*turned_cube(batch=2), SIZE)
    values = torch.zeros(len(good.weight), 3, dtype=F64)

    def bad(label, error, message, *, rows=values, coverage=good, **options):
        return BadCall(label, lambda: dr.composite(rows, coverage, **options), error, message)

    return [
        bad("values of another count", ValueError, "composite: values must have shape", rows=values[1:]),
        bad("values of three axes", ValueError, "composite: values must have shape", rows=values[None]),
        bad("integer values", TypeError, "composite: values must be float32 or float64", rows=values.int()),
        bad("values of another type", TypeError, "composite: values is torch.float32 but", rows=values.float()),
        bad("values on another device", ValueError, "composite: .* is on .* but .* is on", rows=values.to("meta")),
        bad("fragments as coverage", TypeError, "composite: coverage must be", coverage=good.fragments),
        bad("background of another size", ValueError, "composite: background must be", background=torch.zeros(2)),
    ]


def empty_calls() -> list[EmptyCall]:
    def call(counts, channels, unused=0, background=None, size=SIZE):
        def run():
            total = sum(counts) + unused
            values = torch.zeros(total, channels, dtype=F64, requires_grad=True)
            weight = torch.zeros(total, dtype=F64, requires_grad=True)
            coverage = list_of(weight, offsets_of(counts), size)
            return [values, weight], [dr.composite(values, coverage, background=background)]

        return run

    nothing = [0] * len(COUNTS)
    return [
        EmptyCall("no fragments", call(nothing, 3), [(1, *SIZE, 3)]),
        EmptyCall("no fragments before a background", call(nothing, 3, background=0.3), [(1, *SIZE, 3)]),
        EmptyCall("no fragments but places", call(nothing, 3, unused=5), [(1, *SIZE, 3)]),
        EmptyCall("no items", call([], 3), [(0, *SIZE, 3)]),
        EmptyCall("no items but places", call([], 3, unused=5), [(0, *SIZE, 3)]),
        EmptyCall("no channels", call(COUNTS, 0), [(1, *SIZE, 0)]),
        EmptyCall("no channels before a background", call(COUNTS, 0, background=0.3), [(1, *SIZE, 0)]),
    ]
