"""Contract table: one row per op, checked by test_contract.py. A new op adds a row here and nothing there.

A row gives small examples of the op as functions of its float arguments, the raw dispatcher calls behind it, calls that
have to fail with a given message, and calls on empty input. Examples are functions of float tensors only; what is frozen
(triangle ids, topology) is closed over, and floats that are closed over follow the dtype of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import diffrender as dr
from tests.reference import antialias as reference_antialias
from tests.reference import interpolate as reference_interpolate
from tests.reference import rasterize as reference_rasterize
from tests.support.scenes import cube, perspective, rigid, to_clip
from tests.support.vocabulary import P, rnd, uniform

F64 = torch.float64


@dataclass(frozen=True)
class Example:
    """One small input of an op.

    arguments    float64 tensors by name, in the order that `call` and `reference` take them
    call         arguments -> tuple of all differentiable outputs of the op
    reference    the same in plain torch, float64; autograd of it is the truth
    """

    label: str
    arguments: dict[str, Tensor]
    call: Callable[..., tuple[Tensor, ...]]
    reference: Callable[..., tuple[Tensor, ...]]

    def tensors(self, dtype: torch.dtype = F64) -> list[Tensor]:
        return [value.to(dtype, copy=True) for value in self.arguments.values()]


@dataclass(frozen=True)
class BadCall:
    """A call that has to raise `error` with a message that matches `message` from its start."""

    label: str
    call: Callable[[], object]
    error: type[Exception]
    message: str


@dataclass(frozen=True)
class EmptyCall:
    """A legal call on empty input: `call` -> (inputs that need a gradient, outputs); shapes of the outputs."""

    label: str
    call: Callable[[], tuple[list[Tensor], list[Tensor]]]
    shapes: list[tuple[int, ...]]


@dataclass(frozen=True)
class Contract:
    """One row of the table."""

    name: str
    examples: list[Example]
    dispatcher_calls: Callable[[torch.dtype], Iterable[tuple[object, tuple]]]
    bad_calls: list[BadCall]
    empty_calls: list[EmptyCall]
    large: Example  # enough pixels that several threads get work
    second_derivative: bool = False  # False: has to raise NotImplementedError that names the op
    saves: tuple[str, ...] = field(default=())  # arguments whose in-place change between forward and backward must raise


# --- scenes ----------------------------------------------------------------------------------------------------------

SIZE = (6, 7)


def one_triangle() -> tuple[Tensor, Tensor]:
    """(3, 4) positions with three different w, corners off the frame and off every pixel centre."""
    p = P(*SIZE)
    corners = [p(0.71, -0.63, 1.0, 0.3), p(6.83, 2.21, 2.0, -0.2), p(1.37, 5.77, 1.5, 0.6)]
    return torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2]], dtype=torch.int32)


def two_layers() -> tuple[Tensor, Tensor]:
    """Two triangles, the second in front and of the other winding, the first with one vertex behind the camera."""
    p = P(*SIZE)
    corners = [p(-0.9, 5.6, 1.2, 0.8), p(7.4, 5.1, 1.7, 0.7), [0.4, -3.1, -0.6, -0.5]]
    corners += [p(2.2, 0.9, 1.0, -0.5), p(1.3, 4.4, 1.4, 0.1), p(5.6, 3.3, 0.8, -0.1)]
    return torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)


def turned_cube(batch: int = 0) -> tuple[Tensor, Tensor]:
    """12 triangles that share 8 vertices, seen in perspective; (B, 8, 4) of different poses where batch > 0."""
    vertices, triangles = cube(0.8, dtype=F64)
    poses = [[0.05, -0.1, -3.0, 0.5, 0.7, -0.3], [-0.2, 0.15, -2.6, -0.4, 0.3, 0.9]]
    camera = perspective(55, *SIZE)
    clip = [to_clip(vertices, camera @ rigid(torch.tensor(pose, dtype=F64))) for pose in poses]
    return torch.stack(clip[:batch]) if batch else clip[0], triangles


def sub_pixel_triangle() -> tuple[Tensor, Tensor]:
    """A triangle of a tenth of a pixel around one pixel centre: an absolute epsilon would eat its gradient."""
    p = P(*SIZE)
    corners = [p(2.43, 3.46, 1.0, 0.1), p(2.56, 3.47, 1.3, 0.2), p(2.49, 3.58, 0.9, -0.1)]
    return torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2]], dtype=torch.int32)


def many_triangles() -> tuple[Tensor, Tensor, tuple[int, int]]:
    """400 overlapping triangles in 2 items of 120 x 150 pixels: work for several threads, all of it shared vertices."""
    positions = uniform(2, 300, 4, low=-1.1, high=1.1, seed=5, dtype=F64)
    positions[..., 3] = 1 + 0.3 * positions[..., 3]
    near = torch.randint(0, 300, (400, 1), generator=torch.Generator().manual_seed(6))
    offsets = torch.randint(1, 40, (400, 2), generator=torch.Generator().manual_seed(7))
    triangles = torch.cat([near, near + offsets], 1) % 300
    return positions, triangles.int(), (120, 150)


def seen(positions: Tensor, triangles: Tensor, size: tuple[int, int], **options) -> Tensor:
    return reference_rasterize.visible_triangles(positions, triangles, size, **options)[0]


def fragments_of(triangle_id: Tensor, barycentrics: Tensor, derivatives: Tensor | None = None) -> dr.Fragments:
    """Fragments for an op that does not read their depth."""
    depth = torch.ones(triangle_id.shape, dtype=barycentrics.dtype)
    return dr.Fragments(triangle_id, barycentrics, depth, derivatives)


# --- rasterize -------------------------------------------------------------------------------------------------------


def rasterize_example(label: str, positions: Tensor, triangles: Tensor, size=SIZE, **options) -> Example:
    triangle_id = seen(positions, triangles, size, **options)
    assert (triangle_id >= 0).any()

    def call(clip_positions):
        fragments = dr.rasterize(clip_positions, triangles, size, derivatives=True, **options)
        return fragments.barycentrics, fragments.depth, fragments.derivatives

    def reference(clip_positions):
        fragments = reference_rasterize.fragment_values(clip_positions, triangles, triangle_id, derivatives=True)
        return fragments.barycentrics, fragments.depth, fragments.derivatives

    return Example(label, {"clip_positions": positions}, call, reference)


def rasterize_dispatcher_calls(dtype):
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


def rasterize_bad_calls() -> list[BadCall]:
    positions, triangles = turned_cube(batch=2)
    other = dr.rasterize(positions, triangles, (3, 3))

    def bad(label, error, message, *, clip=positions, faces=triangles, size=SIZE, **options):
        return BadCall(label, lambda: dr.rasterize(clip, faces, size, **options), error, message)

    shape_of = r"rasterize: clip_positions must have shape \(B, V, 4\)"
    return [
        bad("positions of three numbers", ValueError, shape_of, clip=positions[..., :3]),
        bad("positions of one axis", ValueError, shape_of, clip=positions[0, 0]),
        bad("positions of four axes", ValueError, shape_of, clip=positions[None]),
        bad("integer positions", TypeError, "rasterize: clip_positions must be float32 or float64", clip=positions.int()),
        bad("half positions", TypeError, "rasterize: clip_positions must be float32 or float64", clip=positions.half()),
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
        bad("height zero", ValueError, "rasterize: resolution must be", size=(0, 4)),
        bad("negative width", ValueError, "rasterize: resolution must be", size=(4, -1)),
        bad("one number as resolution", (TypeError, ValueError), "rasterize: resolution must be", size=4),
        bad("three numbers as resolution", ValueError, "rasterize: resolution must be", size=(4, 4, 4)),
        bad("fractional resolution", (TypeError, ValueError), "rasterize: resolution must be", size=(4.5, 4)),
        bad("unknown cull", ValueError, "rasterize: cull must be", cull="both"),
        bad("ranges of three columns", ValueError, r"rasterize: ranges must have shape \(B, 2\)",
            ranges=torch.zeros(2, 3, dtype=torch.int32)),
        bad("float ranges", TypeError, "rasterize: ranges must be", ranges=torch.zeros(2, 2)),
        bad("range past the end", ValueError, "rasterize: ranges", ranges=torch.tensor([[0, 3], [10, 5]])),
        bad("negative range", ValueError, "rasterize: ranges", ranges=torch.tensor([[0, 3], [-1, 5]])),
        bad("ranges of another batch", ValueError, "rasterize: ranges", ranges=torch.tensor([[0, 3]] * 3)),
        bad("beneath of another size", ValueError, "rasterize: beneath", beneath=other),
        bad("beneath that is no fragments", TypeError, "rasterize: beneath must be", beneath=other.triangle_id),
        bad("positions on another device", ValueError, "rasterize: .* is on .* but .* is on", clip=positions.to("meta")),
    ]  # fmt: skip


def rasterize_empty_calls() -> list[EmptyCall]:
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


def rasterize_contract() -> Contract:
    cube_pair, cube_triangles = turned_cube(batch=2)
    ranges = torch.tensor([[0, 12], [3, 5]], dtype=torch.int32)
    positions, triangles, size = many_triangles()
    return Contract(
        name="rasterize",
        examples=[
            rasterize_example("one triangle", *one_triangle()),
            rasterize_example("two layers, one behind the camera", *two_layers()),
            rasterize_example("cube", *turned_cube()),
            rasterize_example("two cubes", cube_pair, cube_triangles),
            rasterize_example("cube shared by ranges", *turned_cube(), ranges=ranges),
            rasterize_example("back faces of a cube", *turned_cube(), cull="front"),
            rasterize_example("tenth of a pixel", *sub_pixel_triangle()),
        ],
        dispatcher_calls=rasterize_dispatcher_calls,
        bad_calls=rasterize_bad_calls(),
        empty_calls=rasterize_empty_calls(),
        large=rasterize_example("large", positions, triangles, size),
        saves=("clip_positions",),
    )


# --- interpolate -----------------------------------------------------------------------------------------------------


def interpolate_example(
    label: str, positions: Tensor, triangles: Tensor, size=SIZE, *, channels=3, derivatives=None, batched=True, rows=None
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


def interpolate_bad_calls() -> list[BadCall]:
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
        bad("other float type", (TypeError, ValueError), "interpolate: ", values=attributes.float()),
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
        bad("derivatives of another name", (TypeError, ValueError), "interpolate: derivatives", derivatives="some",
            fragments=dr.rasterize(positions, triangles, SIZE, derivatives=True)),
        bad("attributes on another device", ValueError, "interpolate: .* is on .* but .* is on",
            values=attributes.to("meta")),
    ]  # fmt: skip


def interpolate_empty_calls() -> list[EmptyCall]:
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


def interpolate_contract() -> Contract:
    pair, pair_triangles = turned_cube(batch=2)
    own_rows = torch.arange(36, dtype=torch.int32).reshape(12, 3)
    positions, triangles, size = many_triangles()
    return Contract(
        name="interpolate",
        examples=[
            interpolate_example("one triangle", *one_triangle()),
            interpolate_example("one channel of two layers", *two_layers(), channels=1),
            interpolate_example("cube, all derivatives", *turned_cube(), derivatives="all"),
            interpolate_example("some derivatives", pair, pair_triangles, channels=5, derivatives=[3, 0]),
            interpolate_example("attributes shared by two cubes", pair, pair_triangles, batched=False),
            interpolate_example("shared, all derivatives", pair, pair_triangles, derivatives="all", batched=False),
            interpolate_example("rows of their own", pair, pair_triangles, channels=17, rows=own_rows),
        ],
        dispatcher_calls=interpolate_dispatcher_calls,
        bad_calls=interpolate_bad_calls(),
        empty_calls=interpolate_empty_calls(),
        large=interpolate_example("large", positions, triangles, size, channels=4, derivatives="all"),
        second_derivative=True,
        saves=("attributes", "barycentrics"),
    )


CONTRACTS = [rasterize_contract()]
