"""Row of the contract table: antialias(method="segments")."""

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
    seen,
    sub_pixel_triangle,
    turned_cube,
    two_layers,
)
from tests.reference.antialias_segments import antialias as reference_antialias
from tests.reference.antialias_segments import find_pieces
from tests.support.device import to_numpy
from tests.support.vocabulary import P, uniform


def contract() -> Contract:
    pair, pair_triangles = turned_cube(batch=2)
    positions, triangles, size = many_triangles()
    ranges = torch.tensor([[0, 12], [3, 7]])
    return Contract(
        name="antialias",
        examples=[
            example("one triangle", *one_triangle()),
            example("one channel of two layers", *two_layers(), channels=1),
            example("cube", *turned_cube()),
            example("two cubes", pair, pair_triangles, channels=5),
            example("tenth of a pixel", *sub_pixel_triangle()),
            example("crossing triangles", *crossing_triangles()),
            example("identity", *crossing_triangles(), forward="identity"),
            example("all triangles asked", *crossing_triangles(), visibility="exact"),
            example("all triangles of two cubes", pair, pair_triangles, visibility="exact"),
            example(
                "all triangles of two ranges", pair, pair_triangles, visibility="exact", ranges=ranges, cull="back"
            ),
            example("seams of a cube", *turned_cube(), seams=torch.arange(36).reshape(12, 3)),
            example("two ranges of one cube", turned_cube()[0], pair_triangles, ranges=ranges),
            example("back faces left out", pair, pair_triangles, cull="back"),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", positions, triangles, size),
        beyond_forward=("clip_positions",),
        reverse_mode_only=("clip_positions",),
        saves=("image", "clip_positions"),
    )


def crossing_triangles() -> tuple[Tensor, Tensor]:
    """Two triangles that cut through each other along an oblique line, with different w at every corner."""
    p = P(*SIZE)
    corners = [p(0.41, 0.33, 1.0, -0.5), p(6.63, 1.21, 1.4, 0.6), p(2.17, 5.87, 1.2, 0.1)]
    corners += [p(0.83, 4.91, 1.3, 0.3), p(6.31, 5.23, 1.1, -0.4), p(3.87, 0.27, 0.9, 0.05)]
    return torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)


def example(label: str, positions: Tensor, triangles: Tensor, size=SIZE, *, channels=3, **options) -> Example:
    drawing = {key: options[key] for key in ("ranges", "cull") if key in options}
    triangle_id = seen(positions, triangles, size, **drawing)
    arguments = {
        "image": uniform(*triangle_id.shape, channels, seed=21, dtype=F64),
        "clip_positions": positions,
    }

    def call(image, clip_positions):
        inputs = fragments_of(triangle_id, torch.zeros(*triangle_id.shape, 2, dtype=image.dtype))
        return (dr.antialias(image, inputs, clip_positions, triangles, **options),)

    frozen = {key: value for key, value in options.items() if key != "forward"}
    found = {}  # what the reference takes longest for, by positions

    def reference(image, clip_positions):
        key = to_numpy(clip_positions).tobytes()
        if key not in found:
            found[key] = find_pieces(triangle_id, clip_positions, triangles, **frozen)
        return (reference_antialias(image, triangle_id, clip_positions, triangles, **options, found=found[key]),)

    return Example(label, arguments, call, reference)


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    positions, triangles = turned_cube(batch=2)
    triangle_id = seen(positions, triangles, SIZE)
    positions = positions.to(dtype)
    topology = dr.edge_topology(triangles)
    image, grad = (uniform(2, *SIZE, 3, seed=k, dtype=dtype) for k in (22, 23))
    ranges = torch.tensor([[0, 12], [2, 6]], dtype=torch.int32)
    seams = torch.arange(36, dtype=torch.int32).reshape(12, 3)
    for shared, limits, indices, cull in ((positions, None, seams, 0), (positions[:1], ranges, None, 1)):
        mesh = (triangle_id, shared, triangles, topology, limits, indices, cull)
        yield op.segments_marked.default, mesh
        marks = op.segments_marked(*mesh)
        yield op.antialias_segments.default, (image, *mesh, False, *marks, 1)
        yield op.antialias_segments.default, (image, *mesh, True, *marks)
        kept = op.antialias_segments(image, *mesh, True, *marks)[1]
        for blended, needs in ((True, (True, True)), (True, (True, False)), (False, (True, True))):
            arguments = (image, *mesh, blended, *marks, kept if blended else kept[:0], grad, blended, *needs, 0)
            yield op.antialias_segments_backward.default, arguments


def bad_calls() -> list[BadCall]:
    positions, triangles = turned_cube(batch=2)
    fragments = dr.rasterize(positions, triangles, SIZE)
    picture = torch.zeros(2, *SIZE, 3, dtype=F64)

    def bad(label, error, message, *, image=picture, clip=positions, faces=triangles, **options):
        return BadCall(label, lambda: dr.antialias(image, fragments, clip, faces, **options), error, message)

    return [
        bad("unknown forward", ValueError, "antialias: forward must be", forward="mean"),
        bad("unknown visibility", ValueError, "antialias: visibility must be", visibility="all"),
        bad("unknown cull", ValueError, "antialias: cull must be", cull="both"),
        bad("seams of another mesh", ValueError, "antialias: seams must have", seams=triangles[:5]),
        bad("float seams", TypeError, "antialias: seams must be int32 or int64", seams=triangles.double()),
        bad("float ranges", TypeError, "antialias: ranges must be int32", ranges=torch.zeros(2, 2)),
        bad("ranges of another batch", ValueError, "antialias: ranges must have", ranges=torch.tensor([[0, 12]] * 3)),
        bad("ranges of a larger batch", ValueError, "antialias: ranges must have one row per item of fragments",
            clip=positions[0], ranges=torch.tensor([[0, 12]] * 3)),
        bad("ranges beyond the triangles", ValueError, "antialias: ranges must lie within 12 triangles",
            ranges=torch.tensor([[0, 12], [9, 4]])),
    ]  # fmt: skip


def empty_calls() -> list[EmptyCall]:
    def call(batch, vertices, count, channels):
        def run():
            image = torch.ones(batch, 3, 4, channels, dtype=F64, requires_grad=True)
            clip = torch.zeros(batch, vertices, 4, dtype=F64, requires_grad=True)
            faces = torch.zeros(count, 3, dtype=torch.int32)
            fragments = dr.rasterize(clip.detach(), faces, (3, 4))
            blended = dr.antialias(image, fragments, clip, faces)
            assert torch.equal(blended, image)
            return [image, clip], [(blended - image.detach()) ** 2 + 0 * clip.sum()]

        return run

    return [
        EmptyCall("no triangles", call(2, 5, 0, 3), [(2, 3, 4, 3)]),
        EmptyCall("no vertices", call(2, 0, 0, 3), [(2, 3, 4, 3)]),
        EmptyCall("no items", call(0, 5, 4, 3), [(0, 3, 4, 3)]),
        EmptyCall("no channels", call(2, 5, 4, 0), [(2, 3, 4, 0)]),
    ]
