"""Row of the contract table: antialias(method="pairs"), and edge_topology."""

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
from tests.reference import antialias as reference_antialias
from tests.reference.topology import edge_topology
from tests.support.vocabulary import uniform


def contract() -> Contract:
    pair, pair_triangles = turned_cube(batch=2)
    positions, triangles, size = many_triangles()
    return Contract(
        name="antialias",
        examples=[
            example("one triangle", *one_triangle()),
            example("one channel of two layers", *two_layers(), channels=1),
            example("cube", *turned_cube()),
            example("two cubes", pair, pair_triangles, channels=5),
            example("topology made in the call", pair, pair_triangles, default=True),
            example("tenth of a pixel", *sub_pixel_triangle()),
        ],
        dispatcher_calls=dispatcher_calls,
        bad_calls=bad_calls(),
        empty_calls=empty_calls(),
        large=example("large", positions, triangles, size),
        reverse_mode_only=("clip_positions",),
        saves=("image", "clip_positions"),
    )


def example(label: str, positions: Tensor, triangles: Tensor, size=SIZE, *, channels=3, default=False) -> Example:
    """`default` leaves the topology to the op."""
    triangle_id = seen(positions, triangles, size)
    topology = edge_topology(triangles, positions[0] if positions.dim() == 3 else positions)
    arguments = {
        "image": uniform(*triangle_id.shape, channels, seed=21, dtype=F64),
        "clip_positions": positions,
    }

    def call(image, clip_positions):
        inputs = fragments_of(triangle_id, torch.zeros(*triangle_id.shape, 2, dtype=image.dtype))
        edges = None if default else topology
        return (dr.antialias(image, inputs, clip_positions, triangles, method="pairs", topology=edges),)

    def reference(image, clip_positions):
        inputs = fragments_of(triangle_id, torch.zeros(0))
        return (reference_antialias.antialias(image, inputs, clip_positions, triangles, topology),)

    return Example(label, arguments, call, reference)


def dispatcher_calls(dtype):
    op = torch.ops.diffrender
    positions, triangles = turned_cube(batch=2)
    triangle_id = seen(positions, triangles, SIZE)
    positions = positions.to(dtype)
    topology = edge_topology(triangles)
    image, grad = (uniform(2, *SIZE, 3, seed=k, dtype=dtype) for k in (22, 23))
    yield op.edge_topology.default, (triangles, None)
    yield op.edge_topology.default, (triangles, positions)
    for shared in (positions, positions[:1]):
        inputs = (image, triangle_id, shared, triangles)
        yield op.antialias_pairs.default, (*inputs, topology)
        outline = op.antialias_pairs(*inputs, topology)[1]
        for needs in ((True, True), (True, False), (False, True)):
            yield op.antialias_pairs_backward.default, (*inputs, topology, outline, grad, *needs, 0)


def bad_calls() -> list[BadCall]:
    positions, triangles = turned_cube(batch=2)
    fragments = dr.rasterize(positions, triangles, SIZE)
    picture = torch.zeros(2, *SIZE, 3, dtype=F64)

    def bad(label, error, message, *, image=picture, clip=positions, faces=triangles, inputs=fragments, **options):
        options = {"method": "pairs", **options}
        return BadCall(label, lambda: dr.antialias(image, inputs, clip, faces, **options), error, message)

    return [
        bad("option of another method", ValueError, "antialias: visibility and seams are", visibility="exact"),
        bad("unknown forward", ValueError, "antialias: forward must be one of", forward="none"),
        bad("unknown method", ValueError, "antialias: method must be", method="fxaa"),
        bad("image without channels", ValueError, r"antialias: image must have shape \(2, 6, 7, C\)",
            image=picture[..., 0]),
        bad("image of another size", ValueError, r"antialias: image must have shape \(2, 6, 7, C\), got \(2, 6, 6, 3\)",
            image=picture[:, :, :6]),
        bad("image of another batch", ValueError, "antialias: image must have shape", image=picture[:1]),
        bad("integer image", TypeError, "antialias: image must be float32 or float64", image=picture.byte()),
        bad("image of another float type", TypeError, "antialias: image is torch.float32 but", image=picture.float()),
        bad("positions of three numbers", ValueError, r"antialias: clip_positions must have shape \(B, V, 4\)",
            clip=positions[..., :3]),
        bad("positions of another batch", ValueError, "antialias: clip_positions", clip=positions[[0, 1, 0]]),
        bad("transposed triangles", ValueError, r"antialias: triangles must have shape \(T, 3\), got \(3, 12\)",
            faces=triangles.T),
        bad("float triangles", TypeError, "antialias: triangles must be int32 or int64", faces=triangles.double()),
        bad("index too large", ValueError, "antialias: triangles refers to vertex 7 but clip_positions has 7 vertices",
            clip=positions[:, :7]),
        bad("ids as fragments", TypeError, "antialias: fragments must be", inputs=fragments.triangle_id),
        bad("topology of another mesh", ValueError, "antialias: topology must have", topology=triangles[:5]),
        bad("float topology", TypeError, "antialias: topology must be int32 or int64", topology=triangles.double()),
        bad("topology as a list", TypeError, "antialias: topology must be", topology=triangles.tolist()),
        bad("image on another device", ValueError, "antialias: .* is on .* but .* is on", image=picture.to("meta")),
        BadCall("topology of transposed triangles", lambda: dr.edge_topology(triangles.T), ValueError,
                r"edge_topology: triangles must have shape \(T, 3\), got \(3, 12\)"),
        BadCall("topology with too few positions", lambda: dr.edge_topology(triangles, positions[:, :7]), ValueError,
                "edge_topology: triangles refers to vertex 7 but positions has 7 vertices"),
        BadCall("topology of positions of one axis", lambda: dr.edge_topology(triangles, positions[0, 0]), ValueError,
                "edge_topology: positions must have shape"),
    ]  # fmt: skip


def empty_calls() -> list[EmptyCall]:
    def call(batch, vertices, count, channels, topology=None):
        def run():
            image = torch.ones(batch, 3, 4, channels, dtype=F64, requires_grad=True)
            clip = torch.zeros(batch, vertices, 4, dtype=F64, requires_grad=True)
            faces = torch.zeros(count, 3, dtype=torch.int32)
            fragments = dr.rasterize(clip.detach(), faces, (3, 4))
            blended = dr.antialias(image, fragments, clip, faces, method="pairs", topology=topology)
            assert torch.equal(blended, image)
            # A sum of squares minus the image: its gradient by the image is 0 where nothing is blended.
            return [image, clip], [(blended - image.detach()) ** 2 + 0 * clip.sum()]

        return run

    empty_topology = torch.zeros(0, 3, dtype=torch.int32)
    return [
        EmptyCall("no triangles", call(2, 5, 0, 3), [(2, 3, 4, 3)]),
        EmptyCall("no triangles but a topology", call(2, 5, 0, 3, empty_topology), [(2, 3, 4, 3)]),
        EmptyCall("no vertices", call(2, 0, 0, 3), [(2, 3, 4, 3)]),
        EmptyCall("no items", call(0, 5, 4, 3), [(0, 3, 4, 3)]),
        EmptyCall("no channels", call(2, 5, 4, 0), [(2, 3, 4, 0)]),
    ]
