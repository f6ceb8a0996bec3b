"""Row of the contract table: fragments_at."""

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
    turned_cube,
    two_layers,
)
from tests.reference import rasterize as reference_rasterize
from tests.reference.fragments_at import fragments_at as reference_fragments_at
from tests.support.device import DEVICE
from tests.support.vocabulary import rnd


def contract() -> Contract:
    cube_pair, cube_triangles = turned_cube(batch=2)
    positions, triangles, size = many_triangles()
    return Contract(
        name="fragments_at",
        examples=[
            example("one triangle", *one_triangle()),
            example("two layers, one behind the camera", *two_layers()),
            example("two cubes", cube_pair, cube_triangles),
            example("two cubes without derivatives", cube_pair, cube_triangles, derivatives=False),
            example("rows of a cube", *turned_cube(), rows=(2, 5)),
            example("rows of two cubes without derivatives", cube_pair, cube_triangles, rows=(3, 6), derivatives=False),
            example("rows of narrow triangles", *turned_cube(), rows=(2, 5), least_width=6.0),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", positions, triangles, size, derivatives=False),
        saves=("clip_positions",),
    )


def example(
    label: str, positions: Tensor, triangles: Tensor, size=SIZE, *, derivatives=True, rows=None, least_width=0.0
) -> Example:
    triangle_id = seen(positions, triangles, size)
    first, last = rows or (0, triangle_id.shape[1])
    band = triangle_id[:, first:last].contiguous()
    assert (band >= 0).any()

    def floats(fragments):
        return tuple(x for x in fragments[1:] if x is not None)

    def values(clip_positions):
        return floats(reference_fragments_at(clip_positions, triangles, triangle_id, derivatives=derivatives))

    slowed = reference_rasterize.slowed(values(positions), positions, triangles, triangle_id, least_width)

    def call(clip_positions):
        fragments = dr.fragments_at(
            clip_positions, triangles, band, height=size[0], first_row=first, derivatives=derivatives,
            least_width=least_width,
        )  # fmt: skip
        return slowed(floats(fragments), True, slice(first, last)) if least_width > 0 else floats(fragments)

    def reference(clip_positions):
        whole = values(clip_positions)
        whole = slowed(whole, False) if least_width > 0 else whole
        return tuple(x[:, first:last] for x in whole)

    return Example(label, {"clip_positions": positions}, call, reference)


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    positions, triangles = turned_cube(batch=2)
    positions = positions.to(dtype)
    triangle_id = seen(positions, triangles, SIZE)
    yield op.fragments_at.default, (positions, triangles, triangle_id, SIZE[0], 0, True)
    band = triangle_id[:, 2:4].contiguous()
    yield op.fragments_at.default, (positions, triangles, band, SIZE[0], 2, False)
    barycentrics, depth, derivatives = op.fragments_at(positions, triangles, band, SIZE[0], 2, True)
    grads = [rnd(*x.shape, dtype=dtype) for x in (barycentrics, depth, derivatives)]
    yield op.rasterize_backward.default, (positions, triangles, band, *grads, 0, SIZE[0], 2)
    yield op.rasterize_backward.default, (positions, triangles, band, grads[0], None, None, 1, SIZE[0], 2)


def bad_calls() -> list[BadCall]:
    positions, triangles = turned_cube(batch=2)
    ids = seen(positions, triangles, SIZE)

    def bad(label, error, message, *, clip=positions, faces=triangles, triangle_id=ids, **options):
        return BadCall(label, lambda: dr.fragments_at(clip, faces, triangle_id, **options), error, message)

    return [
        bad("positions of three numbers", ValueError, r"fragments_at: clip_positions must have shape \(B, V, 4\)",
            clip=positions[..., :3]),
        bad("half positions", TypeError, "fragments_at: clip_positions must be float32", clip=positions.half()),
        bad("transposed triangles", ValueError, r"fragments_at: triangles must have shape \(T, 3\), got \(3, 12\)",
            faces=triangles.T),
        bad("index too large", ValueError, "fragments_at: triangles refers to vertex 8", faces=triangles + 1),
        bad("long ids", TypeError, "fragments_at: triangle_id must be int32", triangle_id=ids.long()),
        bad("ids of two axes", ValueError, r"fragments_at: triangle_id must have shape \(B, H, W\)",
            triangle_id=ids[0]),
        bad("another batch", ValueError, "fragments_at: clip_positions must have the batch size", triangle_id=ids[:1]),
        bad("band below the image", ValueError, "fragments_at: first_row must lie in", height=SIZE[0], first_row=1),
        bad("negative row", ValueError, "fragments_at: first_row must lie in", first_row=-1),
        bad("negative width", ValueError, "fragments_at: least_width must be a number of pixels, 0 or more",
            least_width=-1.0),
        bad("another device", ValueError, f"fragments_at: .* is on {DEVICE.type}.* but .* is on meta",
            clip=positions.to("meta")),
    ]  # fmt: skip


def empty_calls() -> list[EmptyCall]:
    def call(batch, vertices, count, rows=3):
        def run():
            clip = torch.zeros(batch, vertices, 4, dtype=F64, requires_grad=True)
            faces = torch.zeros(count, 3, dtype=torch.int32)
            ids = torch.full((batch, rows, 4), -1, dtype=torch.int32)
            fragments = dr.fragments_at(clip, faces, ids, derivatives=True)
            assert (fragments.depth == 1).all()
            return [clip], list(fragments)[1:]

        return run

    def shapes(batch, rows=3):
        return [(batch, rows, 4, 2), (batch, rows, 4), (batch, rows, 4, 4)]

    return [
        EmptyCall("no triangles", call(2, 5, 0), shapes(2)),
        EmptyCall("no vertices and no triangles", call(2, 0, 0), shapes(2)),
        EmptyCall("no items", call(0, 5, 4), shapes(0)),
        EmptyCall("no rows", call(2, 5, 4, rows=0), shapes(2, 0)),
    ]
