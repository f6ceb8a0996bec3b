"""Row of the contract table: geometry.vertex_normals weighted by area, which kernels make."""

import torch

from diffrender import geometry
from tests.ops.rows.base import F64, BadCall, Contract, EmptyCall, Example, many_triangles
from tests.reference import vertex_normals as reference_vertex_normals
from tests.support.scenes import cube
from tests.support.vocabulary import rnd


def contract() -> Contract:
    vertices, triangles = cube(0.8, dtype=F64)
    positions, many, _ = many_triangles()
    used = torch.unique(many.long())
    renumbered = torch.searchsorted(used, many.long()).int()
    return Contract(
        name="vertex_normals",
        examples=[
            example("triangle", rnd(3, 3, dtype=F64), torch.tensor([[0, 1, 2]], dtype=torch.int32)),
            example("cube", vertices + 0.1 * rnd(*vertices.shape, dtype=F64), triangles),
            example("two items", torch.stack([vertices, 1.3 * vertices]) + 0.1 * rnd(2, 8, 3, dtype=F64), triangles),
            example("int64", vertices + 0.2 * rnd(*vertices.shape, dtype=F64), triangles.long()),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", positions[:, used, :3].contiguous(), renumbered),
        second_derivative=True,
        saves=("vertices",),
    )


def example(label, vertices, triangles) -> Example:
    return Example(
        label,
        {"vertices": vertices},
        lambda v: (geometry.vertex_normals(v, triangles),),
        lambda v: (reference_vertex_normals.vertex_normals(v, triangles),),
    )


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    vertices, triangles = cube(0.8, dtype=dtype)
    vertices = torch.stack([vertices, vertices.flip(0)]) + 0.1 * rnd(2, 8, 3, dtype=dtype)
    for scatter in (0, 1):
        yield op.vertex_normals.default, (vertices, triangles, scatter)
        sums = op.vertex_normals(vertices, triangles, scatter)[1]
        yield op.vertex_normals_backward.default, (vertices, triangles, sums, rnd(2, 8, 3, dtype=dtype), scatter)


def bad_calls() -> list[BadCall]:
    vertices = torch.zeros(4, 3)

    def bad(label, message, triangles, **options):
        return BadCall(label, lambda: geometry.vertex_normals(vertices, triangles, **options), ValueError, message)

    triangles = torch.tensor([[0, 1, 2]])
    return [
        bad(
            "corners", r"vertex_normals: triangles must have shape \(T, 3\), got \(1, 4\)", torch.tensor([[0, 1, 2, 3]])
        ),
        BadCall(
            "flat",
            lambda: geometry.vertex_normals(vertices[:, :2], triangles),
            ValueError,
            r"vertex_normals: vertices must have shape \(V, 3\) or \(B, V, 3\), got \(4, 2\)",
        ),
        bad("weighting", 'vertex_normals: weighting must be "area" or "angle"', triangles, weighting="volume"),
        bad("index", "vertex_normals: triangles refers to vertex 4 but the mesh has 4 vertices", triangles + 2),
        bad("negative", "vertex_normals: triangles refers to vertex -1 but the mesh has 4 vertices", triangles - 1),
    ]


def empty_calls() -> list[EmptyCall]:
    def call(shape, count):
        def run():
            vertices = torch.zeros(shape, dtype=F64, requires_grad=True)
            return [vertices], [geometry.vertex_normals(vertices, torch.zeros(count, 3, dtype=torch.int32))]

        return run

    return [
        EmptyCall("no triangles", call((4, 3), 0), [(4, 3)]),
        EmptyCall("no items", call((0, 4, 3), 2), [(0, 4, 3)]),
        EmptyCall("nothing", call((0, 3), 0), [(0, 3)]),
    ]
