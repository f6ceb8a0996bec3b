"""Row of the contract table: interpolate."""

import torch
from torch import Tensor

import diffrender as dr
from tests.ops.rows.base import (
    F64,
    SIZE,
    BadCall,
    Contract,
    EmptyCall,
    Example,
    fragments_of,
    many_triangles,
    one_triangle,
    turned_cube,
    two_layers,
)
from tests.reference import interpolate as reference_interpolate
from tests.reference import rasterize as reference_rasterize
from tests.support.vocabulary import rnd


def contract() -> Contract:
    pair, pair_triangles = turned_cube(batch=2)
    own_rows = torch.arange(36, dtype=torch.int32).reshape(12, 3)
    positions, triangles, size = many_triangles()
    return Contract(
        name="interpolate",
        examples=[
            example("one triangle", *one_triangle()),
            example("one channel of two layers", *two_layers(), channels=1),
            example("cube, all derivatives", *turned_cube(), derivatives="all"),
            example("some derivatives", *turned_cube(), channels=5, derivatives=[3, 0]),
            example("attributes shared by two cubes", pair, pair_triangles, batched=False),
            example("shared, all derivatives", pair, pair_triangles, derivatives="all", batched=False),
            example("rows of their own", pair, pair_triangles, channels=6, rows=own_rows),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", positions, triangles, size, channels=4, derivatives="all"),
        second_derivative=True,
        saves=("attributes", "barycentrics"),
    )


def example(
    label: str,
    positions: Tensor,
    triangles: Tensor,
    size=SIZE,
    *,
    channels=3,
    derivatives=None,
    batched=True,
    rows=None,
) -> Example:
    """`rows` are other indices of the same triangles, as of a separate uv table."""
    fragments = reference_rasterize.rasterize(positions, triangles, size, derivatives=True)
    rows = triangles if rows is None else rows
    count = int(rows.max()) + 1
    batch = fragments.triangle_id.shape[:1] if batched else ()
    arguments = {
        "attributes": rnd(*batch, count, channels, seed=11, dtype=F64),
        "barycentrics": fragments.barycentrics,
    }
    if derivatives is not None:
        arguments["derivatives"] = fragments.derivatives

    def with_op(interpolate):
        def call(attributes, barycentrics, steps=None):
            inputs = fragments_of(fragments.triangle_id, barycentrics, steps)
            result = interpolate(attributes, rows, inputs, derivatives=derivatives)
            return result if isinstance(result, tuple) else (result,)

        return call

    return Example(label, arguments, with_op(dr.interpolate), with_op(reference_interpolate.interpolate))


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    positions, triangles = turned_cube(batch=2)
    fragments = reference_rasterize.rasterize(positions, triangles, SIZE)
    weights = fragments.barycentrics.to(dtype)
    for channels, batch in ((3, 2), (7, 1), (0, 2)):
        inputs = (rnd(batch, 8, channels, dtype=dtype), triangles, fragments.triangle_id, weights)
        yield op.interpolate.default, (*inputs, 1.0)
        grad = rnd(2, *SIZE, channels, dtype=dtype)
        for needs in ((True, True), (True, False), (False, True)):
            yield op.interpolate_backward.default, (*inputs, grad, 0.0, *needs, 0)


def bad_calls() -> list[BadCall]:
    positions, triangles = turned_cube(batch=2)
    fragments = dr.rasterize(positions, triangles, SIZE)
    attributes = torch.zeros(2, 8, 3, dtype=F64)

    def bad(label, error, message, *, values=attributes, faces=triangles, **options):
        inputs = options.pop("fragments", fragments)
        return BadCall(label, lambda: dr.interpolate(values, faces, inputs, **options), error, message)

    return [
        bad("attributes of one axis", ValueError, r"interpolate: attributes must have shape \(B, V, C\)",
            values=attributes[0, 0]),
        bad("attributes of four axes", ValueError, r"interpolate: attributes must have shape \(B, V, C\)",
            values=attributes[None]),
        bad("integer attributes", TypeError, "interpolate: attributes must be float32 or float64",
            values=attributes.long()),
        bad("other float type", TypeError, "interpolate: attributes is torch.float32 but", values=attributes.float()),
        bad("another batch", ValueError, "interpolate: attributes", values=torch.zeros(3, 8, 3, dtype=F64)),
        bad("transposed triangles", ValueError, r"interpolate: triangles must have shape \(T, 3\), got \(3, 12\)",
            faces=triangles.T),
        bad("float triangles", TypeError, "interpolate: triangles must be int32 or int64", faces=triangles.double()),
        bad("index too large", ValueError, "interpolate: triangles refers to vertex 7 but attributes has 7 vertices",
            values=attributes[:, :7]),
        bad("negative index", ValueError, "interpolate: triangles refers to vertex -1", faces=triangles - 1),
        bad("fewer rows than fragments need", ValueError, "interpolate: ", faces=triangles[:2]),
        bad("ids as fragments", TypeError, "interpolate: fragments must be", fragments=fragments.triangle_id),
        bad("derivatives that were not made", ValueError, "interpolate: ", derivatives="all"),
        bad("channel that does not exist", ValueError, "interpolate: derivatives", derivatives=[0, 3],
            fragments=dr.rasterize(positions, triangles, SIZE, derivatives=True)),
        bad("derivatives of another name", ValueError, "interpolate: derivatives", derivatives="some",
            fragments=dr.rasterize(positions, triangles, SIZE, derivatives=True)),
        bad("attributes on another device", ValueError, "interpolate: .* is on .* but .* is on",
            values=attributes.to("meta")),
    ]  # fmt: skip


def empty_calls() -> list[EmptyCall]:
    def call(batch, vertices, count, channels, with_derivatives=False):
        def run():
            attributes = torch.zeros(batch, vertices, channels, dtype=F64, requires_grad=True)
            faces = torch.zeros(count, 3, dtype=torch.int32)
            fragments = dr.rasterize(torch.zeros(batch, 5, 4, dtype=F64), faces, (3, 4), derivatives=True)
            if with_derivatives:
                return [attributes], list(dr.interpolate(attributes, faces, fragments, derivatives="all"))
            return [attributes], [dr.interpolate(attributes, faces, fragments)]

        return run

    return [
        EmptyCall("no triangles", call(2, 5, 0, 3), [(2, 3, 4, 3)]),
        EmptyCall("no vertices", call(2, 0, 0, 3), [(2, 3, 4, 3)]),
        EmptyCall("no items", call(0, 5, 4, 3), [(0, 3, 4, 3)]),
        EmptyCall("no channels", call(2, 5, 4, 0), [(2, 3, 4, 0)]),
        EmptyCall("no channels with derivatives", call(2, 5, 4, 0, True), [(2, 3, 4, 0), (2, 3, 4, 0)]),
    ]
