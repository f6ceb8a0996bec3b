"""Row of the contract table: rasterize."""

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
    many_triangles,
    one_triangle,
    seen,
    sub_pixel_triangle,
    turned_cube,
    two_layers,
)
from tests.reference import rasterize as reference_rasterize
from tests.support.device import DEVICE
from tests.support.vocabulary import rnd


def contract() -> Contract:
    cube_pair, cube_triangles = turned_cube(batch=2)
    ranges = torch.tensor([[0, 12], [3, 5]], dtype=torch.int32)
    positions, triangles, size = many_triangles()
    return Contract(
        name="rasterize",
        examples=[
            example("one triangle", *one_triangle()),
            example("two layers, one behind the camera", *two_layers()),
            example("cube", *turned_cube()),
            example("two cubes", cube_pair, cube_triangles),
            example("two cubes without derivatives", cube_pair, cube_triangles, derivatives=False),
            example("cube shared by ranges", *turned_cube(), ranges=ranges, derivatives=False),
            example("back faces of a cube", *turned_cube(), cull="front"),
            example("tenth of a pixel", *sub_pixel_triangle()),
            example("narrow triangles", *turned_cube(), least_width=6.0),
            example("narrow triangles without derivatives", *turned_cube(), derivatives=False, least_width=6.0),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", positions, triangles, size, derivatives=False),
        saves=("clip_positions",),
    )


def example(
    label: str, positions: Tensor, triangles: Tensor, size=SIZE, *, derivatives=True, least_width=0.0, **options
) -> Example:
    """Without derivatives another kernel makes the gradient on the CPU."""
    triangle_id = seen(positions, triangles, size, **options)
    assert (triangle_id >= 0).any()

    def floats(fragments):
        return tuple(x for x in fragments[1:] if x is not None)

    def values(clip_positions):
        return floats(reference_rasterize.fragment_values(clip_positions, triangles, triangle_id, derivatives))

    slowed = reference_rasterize.slowed(values(positions), positions, triangles, triangle_id, least_width)

    def call(clip_positions):
        fragments = dr.rasterize(
            clip_positions, triangles, size, derivatives=derivatives, least_width=least_width, **options
        )
        return slowed(floats(fragments), True) if least_width > 0 else floats(fragments)

    def reference(clip_positions):
        return slowed(values(clip_positions), False) if least_width > 0 else values(clip_positions)

    return Example(label, {"clip_positions": positions}, call, reference)


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    positions, triangles = turned_cube(batch=2)
    positions = positions.to(dtype)
    ranges = torch.tensor([[0, 5], [4, 8]], dtype=torch.int32)
    yield op.rasterize.default, (positions, triangles, None, None, *SIZE, 0, False, 0)
    yield op.rasterize.default, (positions, triangles, ranges, None, *SIZE, 1, True, 0)
    yield op.rasterize.default, (positions[:1], triangles, ranges, None, *SIZE, 2, True, 1)
    triangle_id, barycentrics, depth, derivatives = op.rasterize(positions, triangles, None, None, *SIZE, 0, True, 0)
    yield op.rasterize.default, (positions, triangles, None, triangle_id, *SIZE, 0, False, 0)
    grads = [rnd(*x.shape, dtype=dtype) for x in (barycentrics, depth, derivatives)]
    yield op.rasterize_backward.default, (positions, triangles, triangle_id, *grads, 0)
    yield op.rasterize_backward.default, (positions, triangles, triangle_id, None, grads[1], None, 0)


def bad_calls() -> list[BadCall]:
    positions, triangles = turned_cube(batch=2)
    other = dr.rasterize(positions, triangles, (3, 3))

    def bad(label, error, message, *, clip=positions, faces=triangles, size=SIZE, **options):
        return BadCall(label, lambda: dr.rasterize(clip, faces, size, **options), error, message)

    floats = "rasterize: clip_positions must be float32 or float64"
    shape_of = r"rasterize: clip_positions must have shape \(B, V, 4\)"
    return [
        bad("positions of three numbers", ValueError, shape_of, clip=positions[..., :3]),
        bad("positions of one axis", ValueError, shape_of, clip=positions[0, 0]),
        bad("positions of four axes", ValueError, shape_of, clip=positions[None]),
        bad("integer positions", TypeError, floats, clip=positions.int()),
        bad("half positions", TypeError, floats, clip=positions.half()),
        bad("positions as a list", TypeError, "rasterize: clip_positions must be", clip=positions.tolist()),
        bad("transposed triangles", ValueError, r"rasterize: triangles must have shape \(T, 3\), got \(3, 12\)",
            faces=triangles.T),
        bad("batched triangles", ValueError, r"rasterize: triangles must have shape \(T, 3\)", faces=triangles[None]),
        bad("float triangles", TypeError, "rasterize: triangles must be int32 or int64", faces=triangles.float()),
        bad("index too large", ValueError, "rasterize: triangles refers to vertex 8 but clip_positions has 8 vertices",
            faces=triangles + 1),
        bad("negative index", ValueError, "rasterize: triangles refers to vertex -1", faces=triangles - 1),
        bad("index that wraps in int32", ValueError, "rasterize: triangles refers to vertex 4294967296",
            faces=triangles.long() + 2**32 * (triangles.long() == 0)),
        bad("height zero", ValueError, "rasterize: height must be at least 1, got 0", size=(0, 4)),
        bad("negative width", ValueError, "rasterize: width must be at least 1, got -1", size=(4, -1)),
        bad("one number as resolution", ValueError, "rasterize: resolution must be", size=4),
        bad("three numbers as resolution", ValueError, "rasterize: resolution must be", size=(4, 4, 4)),
        bad("fractional resolution", TypeError, "rasterize: height must be an int, got float", size=(4.5, 4)),
        bad("unknown cull", ValueError, "rasterize: cull must be", cull="both"),
        bad("ranges of three columns", ValueError, r"rasterize: ranges must have shape \(B, 2\)",
            ranges=torch.zeros(2, 3, dtype=torch.int32)),
        bad("float ranges", TypeError, "rasterize: ranges must be", ranges=torch.zeros(2, 2)),
        bad("range past the end", ValueError, "rasterize: ranges", ranges=torch.tensor([[0, 3], [10, 5]])),
        bad("negative range", ValueError, "rasterize: ranges", ranges=torch.tensor([[0, 3], [-1, 5]])),
        bad("ranges of another batch", ValueError, "rasterize: ranges", ranges=torch.tensor([[0, 3]] * 3)),
        bad("beneath of another size", ValueError, "rasterize: beneath", beneath=other),
        bad("beneath that is no fragments", TypeError, "rasterize: beneath must be", beneath=other.triangle_id),
        bad("negative width", ValueError, "rasterize: least_width must be a number of pixels, 0 or more",
            least_width=-1.0),
        bad("positions on another device", ValueError, f"rasterize: .* is on {DEVICE.type}.* but .* is on meta",
            clip=positions.to("meta")),
    ]  # fmt: skip


def empty_calls() -> list[EmptyCall]:
    def call(batch, vertices, count, size=(3, 4), **options):
        def run():
            clip = torch.zeros(batch, vertices, 4, dtype=F64, requires_grad=True)
            faces = torch.zeros(count, 3, dtype=torch.int32)
            fragments = dr.rasterize(clip, faces, size, derivatives=True, **options)
            assert (fragments.triangle_id == -1).all()
            assert (fragments.depth == 1).all()
            return [clip], list(fragments)[1:]

        return run

    def shapes(batch):
        return [(batch, 3, 4, 2), (batch, 3, 4), (batch, 3, 4, 4)]

    ranges = torch.zeros(2, 2, dtype=torch.int32)
    return [
        EmptyCall("no triangles", call(2, 5, 0), shapes(2)),
        EmptyCall("no vertices and no triangles", call(2, 0, 0), shapes(2)),
        EmptyCall("no items", call(0, 5, 4), shapes(0)),
        EmptyCall("empty ranges", call(2, 5, 4, ranges=ranges), shapes(2)),
        EmptyCall("no ranges for no items", call(0, 5, 4, ranges=ranges[:0]), shapes(0)),
    ]
