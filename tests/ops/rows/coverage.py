"""Row of the contract table: coverage, seen through pictures, whose shape does not depend on what is visible."""

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
    one_triangle,
    sub_pixel_triangle,
    turned_cube,
    two_layers,
)
from tests.reference import coverage as reference_coverage
from tests.support.vocabulary import P, rnd, uniform


def contract() -> Contract:
    pair, pair_triangles = turned_cube(batch=2)
    ranges = torch.tensor([[0, 12], [3, 5]], dtype=torch.int32)
    return Contract(
        name="coverage",
        examples=[
            example("one triangle", *one_triangle()),
            example("two layers, one behind the camera", *two_layers()),
            example("cube", *turned_cube()),
            example("two cubes", pair, pair_triangles),
            example("cube shared by ranges", *turned_cube(), ranges=ranges),
            example("back faces of a cube", *turned_cube(), cull="front"),
            example("two triangles that cross", *crossing()),
            example("edges that meet behind an edge", *t_junction()),
            example("through the near plane", *through_the_near_plane()),
            example("tenth of a pixel", *sub_pixel_triangle()),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", *many_pixels(), size=(22, 28)),
        reverse_mode_only=("clip_positions",),
        saves=("clip_positions",),
        ragged=True,
    )


def crossing() -> tuple[Tensor, Tensor]:
    """Two triangles that pass through each other along a slanted line."""
    p = P(*SIZE)
    corners = [p(0.6, 0.9, 1.0, 0.5), p(6.4, 1.3, 1.6, -0.4), p(2.9, 5.6, 1.2, 0.1)]
    corners += [p(0.8, 4.7, 1.4, -0.3), p(3.3, 0.4, 0.9, 0.2), p(6.6, 4.9, 1.1, 0.45)]
    return torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)


def t_junction() -> tuple[Tensor, Tensor]:
    """Two far triangles whose common edge ends, within a pixel, behind the edge of a near one."""
    p = P(*SIZE)
    corners = [p(3.4, 0.3, 1.0, 0.5), p(0.2, 5.4, 1.2, 0.6), p(6.7, 5.2, 1.1, 0.55), p(3.7, 5.9, 1.0, 0.5)]
    corners += [p(-0.4, 2.2, 1.0, -0.2), p(7.3, 3.1, 1.3, -0.1), p(3.1, 6.4, 1.2, 0.0)]
    faces = [[0, 1, 3], [0, 3, 2], [4, 5, 6]]
    return torch.tensor(corners, dtype=F64), torch.tensor(faces, dtype=torch.int32)


def through_the_near_plane() -> tuple[Tensor, Tensor]:
    """A floor of which the near plane leaves a part, and a triangle that the far plane cuts."""
    p = P(*SIZE)
    corners = [[-1.2, -0.7, -0.8, 0.3], [1.5, -0.8, -0.9, 0.35], [0.2, 0.9, 1.4, 1.9]]
    corners += [p(1.1, 0.7, 1.0, 0.6), p(6.2, 1.2, 1.0, 0.7), p(5.1, 5.5, 1.0, 1.3)]
    return torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)


def many_pixels() -> tuple[Tensor, Tensor]:
    """2 items of 8 triangles: several tasks for the threads, and a reference that takes seconds."""
    positions = uniform(2, 24, 4, low=-1.1, high=1.1, seed=5, dtype=F64)
    positions[..., :3] *= 0.8
    positions[..., 3] = 1 + 0.3 * positions[..., 3]
    return positions, torch.arange(24, dtype=torch.int32).reshape(8, 3)


def picture(coverage: dr.Coverage) -> Tensor:
    """(B, H, W, 5): area, barycentrics, depth and a colour of the triangle, each weighted by area. Plain torch, so that
    no other kernel than those of coverage runs."""
    color = torch.sin(3.0 * coverage.triangle_id + 1).to(coverage.weight)
    columns = [torch.ones_like(color), *coverage.barycentrics.unbind(-1), coverage.depth, color]
    rows = torch.stack(columns, -1) * coverage.weight.unsqueeze(-1)
    batch, height, width = coverage.size
    image = rows.new_zeros(max(batch * height * width, 1), 5).index_add(0, coverage.pixel, rows)
    return image[: batch * height * width].view(batch, height, width, 5)


def example(label: str, positions: Tensor, triangles: Tensor, size=SIZE, **options) -> Example:
    def with_op(coverage):
        return lambda clip_positions: (picture(coverage(clip_positions, triangles, size, **options)),)

    return Example(label, {"clip_positions": positions}, with_op(dr.coverage), with_op(reference_coverage.coverage))


def dispatcher_calls(dtype):
    """The kernels know float64 only."""
    op = torch.ops.diffrender
    positions, triangles = turned_cube(batch=2)
    ranges = torch.tensor([[0, 5], [4, 8]], dtype=torch.int32)
    yield op.coverage_setup.default, (positions, triangles, ranges, *SIZE, 1)
    yield op.coverage_setup.default, (positions, triangles, None, *SIZE, 0)
    boxes, records, blocks = op.coverage_setup(positions, triangles, None, *SIZE, 0)
    block_offsets = torch.cat([blocks.new_zeros(1), blocks.reshape(-1).cumsum(0)])
    yield op.coverage_count.default, (boxes, records, block_offsets, *SIZE)
    counts = op.coverage_count(boxes, records, block_offsets, *SIZE)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    fill = (boxes, records, block_offsets, offsets, int(offsets[-1]), *SIZE)
    yield op.coverage_fill.default, fill
    candidates, longest = op.coverage_fill(*fill), int(counts.max())
    for merge in (False, True):
        if not positions.is_cuda:  # there it is done step by step
            yield op.coverage_fragments.default, (positions, triangles, ranges, *SIZE, 1, merge, merge, -1, -1, -1)
            limited = (positions, triangles, None, *SIZE, 0, merge, merge, 150, 300, 20)
            yield op.coverage_fragments.default, limited
        clip = (positions, triangles, records, offsets, candidates, longest, *SIZE, merge)
        yield op.coverage_clip.default, clip
        counts, *parts = op.coverage_clip(*clip)
        seen = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        compact = (offsets, candidates, *parts, seen, int(seen[-1]))
        yield op.coverage_compact.default, compact
        yield op.coverage_compact.default, (*compact[:-1], int(seen[-1]) + 7)
        triangle_id, *floats, kinds = op.coverage_compact(*compact)
        grads = [rnd(*x.shape, dtype=F64) for x in floats]
        lists = (positions, triangles, seen, triangle_id, kinds, longest, *SIZE)
        yield op.coverage_backward.default, (*lists, *grads, 0)
        yield op.coverage_backward.default, (*lists, grads[0], None, None, 1)


def bad_calls() -> list[BadCall]:
    positions, triangles = turned_cube(batch=2)
    good = dr.coverage(positions, triangles, SIZE)

    def bad(label, error, message, *, clip=positions, faces=triangles, size=SIZE, **options):
        return BadCall(label, lambda: dr.coverage(clip, faces, size, **options).check(), error, message)

    def bad_values(label, error, message, attributes):
        return BadCall(label, lambda: dr.interpolate(attributes, triangles, good), error, message)

    floats = "coverage: clip_positions must be float32 or float64"
    shape_of = r"coverage: clip_positions must have shape \(B, V, 4\)"
    return [
        bad("positions of three numbers", ValueError, shape_of, clip=positions[..., :3]),
        bad("positions of four axes", ValueError, shape_of, clip=positions[None]),
        bad("integer positions", TypeError, floats, clip=positions.int()),
        bad("half positions", TypeError, floats, clip=positions.half()),
        bad("transposed triangles", ValueError, r"coverage: triangles must have shape \(T, 3\), got \(3, 12\)",
            faces=triangles.T),
        bad("float triangles", TypeError, "coverage: triangles must be int32 or int64", faces=triangles.float()),
        bad("index too large", ValueError, "coverage: triangles refers to vertex 8 but clip_positions has 8 vertices",
            faces=triangles + 1),
        bad("negative index", ValueError, "coverage: triangles refers to vertex -1", faces=triangles - 1),
        bad("height zero", ValueError, "coverage: height must be at least 1, got 0", size=(0, 4)),
        bad("one number as resolution", ValueError, "coverage: resolution must be", size=4),
        bad("unknown cull", ValueError, "coverage: cull must be", cull="both"),
        bad("number as merge_adjacent", TypeError, "coverage: merge_adjacent must be True or False", merge_adjacent=1),
        bad("range past the end", ValueError, "coverage: ranges", ranges=torch.tensor([[0, 3], [10, 5]])),
        bad("ranges of another batch", ValueError, "coverage: ranges", ranges=torch.tensor([[0, 3]] * 3)),
        bad("boolean capacity", ValueError, "coverage: capacity must be None", capacity=True),
        bad("capacity of two numbers", ValueError, "coverage: capacity must be None", capacity=(10, 10)),
        bad("negative capacity", ValueError, "coverage: capacity must be None", capacity=-5),
        bad("capacity that is too small", RuntimeError, "coverage: capacity must be at least .* fragments, got 3",
            capacity=(3, 999, 99)),
        bad_values("attributes of another batch", ValueError, "interpolate: attributes must have the batch size of cov",
                   torch.zeros(3, 8, 3, dtype=F64)),
        bad_values("attributes of fewer vertices", ValueError, "interpolate: triangles refers to vertex 7",
                   torch.zeros(2, 7, 3, dtype=F64)),
    ]  # fmt: skip


def empty_calls() -> list[EmptyCall]:
    def call(batch, vertices, count, size=(3, 4), **options):
        def run():
            clip = torch.zeros(batch, vertices, 4, dtype=F64, requires_grad=True)
            faces = torch.zeros(count, 3, dtype=torch.int32)
            coverage = dr.coverage(clip, faces, size, **options)
            assert len(coverage.weight) == 0
            return [clip], [picture(coverage)]

        return run

    ranges = torch.zeros(2, 2, dtype=torch.int32)
    return [
        EmptyCall("no triangles", call(2, 5, 0), [(2, 3, 4, 5)]),
        EmptyCall("no vertices and no triangles", call(2, 0, 0), [(2, 3, 4, 5)]),
        EmptyCall("no items", call(0, 5, 4), [(0, 3, 4, 5)]),
        EmptyCall("no area", call(2, 5, 4), [(2, 3, 4, 5)]),
        EmptyCall("empty ranges", call(2, 5, 4, ranges=ranges), [(2, 3, 4, 5)]),
    ]
