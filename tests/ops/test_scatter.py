"""How gradients of many pixels are summed into few vertices: the CPU's fast path, the portable body and the order-free
integer sum give the same gradient, and the last one bit for bit whatever the order.

The raw ops take the algorithm as their last argument: 0 = what the device does by default, 1 = fixed point, which runs
the portable per-pixel body also on the CPU.
"""

import itertools

import pytest
import torch

import diffrender as dr
from diffrender import _checks
from tests.support.scenes import icosphere, perspective, random_scene, rigid, to_clip
from tests.support.vocabulary import P, relative_error, rnd, uniform

F64 = torch.float64
DTYPES = [torch.float32, F64]
# The order-free sum keeps 62 bits of the largest contribution; float32 differs by what plain sums lose.
TOLERANCE = {torch.float32: 2e-5, F64: 1e-10}


def spheres(levels, dtype, size=(37, 45), batch=3):
    """One mesh in `batch` poses as (B, V, 4), its triangles, and the frame: runs of pixels get shorter with levels."""
    vertices, triangles = icosphere(levels, dtype=F64)
    poses = 0.4 * rnd(batch, 6, seed=levels, dtype=F64) + torch.tensor([0, 0, -3.0, 0, 0, 0], dtype=F64)
    camera = perspective(50, *size)
    return torch.stack([to_clip(vertices, camera @ rigid(pose)) for pose in poses]).to(dtype), triangles, size


def stripes(widths, dtype, size=(5, 64)):
    """Upright stripes of given pixel widths, each two triangles of its own: runs of exactly these lengths in a row."""
    p = P(*size)
    corners, left = [], 0.0
    for k, width in enumerate(widths):
        z = 0.01 * (k % 7)
        corners += [
            p(left, -1, w=1.3, z=z),
            p(left + width, -1, w=1.1, z=-z),
            p(left + width, 9, z=0.2),
            p(left, 9, z=z),
        ]
        left += width
    quads = 4 * torch.arange(len(widths), dtype=torch.int32)[:, None]
    triangles = torch.cat([quads + torch.tensor([0, 1, 2]), quads + torch.tensor([0, 2, 3])]).int()
    return torch.tensor(corners, dtype=dtype)[None], triangles, size


SCENES = {
    "runs of one pixel": lambda dtype: spheres(3, dtype),
    "short runs": lambda dtype: spheres(2, dtype),
    "long runs": lambda dtype: spheres(0, dtype, size=(70, 90)),
    "stripes": lambda dtype: stripes([1, 2, 3, 4, 5, 1, 6, 7, 8, 9, 2, 13], dtype),
    "one run per row": lambda dtype: stripes([64], dtype),
    "nuisances": lambda dtype: (random_scene(12, dtype)[0][None], *random_scene(12, dtype)[1:]),
}


@pytest.mark.parametrize("least_width", [0.0, 2.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scene", SCENES)
def test_rasterize_backward_algorithms_agree(scene, dtype, least_width):
    positions, triangles, size = SCENES[scene](dtype)
    fragments = dr.rasterize(positions, triangles, size, derivatives=True)
    grads = [rnd(*x.shape, seed=k, dtype=dtype) for k, x in enumerate(fragments[1:])]
    for given in itertools.product([False, True], repeat=3):
        some = [x if use else None for x, use in zip(grads, given, strict=True)]
        native, portable = (
            torch.ops.diffrender.rasterize_backward(
                positions, triangles, fragments.triangle_id, *some, algorithm, -1, 0, least_width
            )
            for algorithm in (0, 1)
        )
        assert native.any() == any(given)
        assert relative_error(native, portable) < TOLERANCE[dtype], given


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 3, 6])
@pytest.mark.parametrize("scene", SCENES)
def test_interpolate_backward_algorithms_agree(scene, channels, dtype):
    positions, triangles, size = SCENES[scene](dtype)
    fragments = dr.rasterize(positions, triangles, size)
    batch, count = positions.shape[:2]
    grad = rnd(batch, *size, channels, dtype=dtype)
    for attributes in (rnd(batch, count, channels, seed=1, dtype=dtype), rnd(1, count, channels, seed=1, dtype=dtype)):
        inputs = (attributes, triangles, fragments.triangle_id, fragments.barycentrics, grad, 1.0)
        for needs in ((True, True), (True, False), (False, True)):
            native, portable = (
                torch.ops.diffrender.interpolate_backward(*inputs, *needs, algorithm) for algorithm in (0, 1)
            )
            for value, truth, need in zip(native, portable, needs, strict=True):
                assert value.any() == need
                assert relative_error(value, truth) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scene", SCENES)
def test_antialias_backward_algorithms_agree(scene, dtype):
    positions, triangles, size = SCENES[scene](dtype)
    fragments = dr.rasterize(positions, triangles, size)
    batch = len(positions)
    image, grad = uniform(batch, *size, 3, dtype=dtype), rnd(batch, *size, 3, seed=1, dtype=dtype)
    topology = dr.edge_topology(triangles)
    inputs = (image, fragments.triangle_id, positions, triangles)
    outline = torch.ops.diffrender.antialias_pairs(*inputs, topology)[1]
    for needs in ((True, True), (True, False), (False, True)):
        native, portable = (
            torch.ops.diffrender.antialias_pairs_backward(*inputs, topology, outline, grad, *needs, algorithm)
            for algorithm in (0, 1)
        )
        for value, truth in zip(native, portable, strict=True):
            assert relative_error(value, truth) < TOLERANCE[dtype]


def crossing_triangles(dtype, size=(33, 41)):
    """Forty triangles, three pixels to thirty wide, many of which cut through each other."""
    centres = uniform(40, 1, 3, seed=3, dtype=F64) * 1.6 - 0.8
    corners = centres + 0.9 * uniform(40, 1, 1, seed=4, dtype=F64) * rnd(40, 3, 3, seed=5, dtype=F64)
    w = 0.8 + uniform(40, 3, 1, seed=6, dtype=F64)
    clip = torch.cat([corners.clamp(-0.99, 0.99) * w, w], -1).reshape(1, 120, 4)
    return clip.to(dtype), torch.arange(120, dtype=torch.int32).view(-1, 3), size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", ["plain", "seams", "ranges", "cull", "exact", "exact ranges"])
@pytest.mark.parametrize("scene", [*(s for s in SCENES if s != "one run per row"), "crossing triangles"])
def test_segments_with_and_without_lists_agree(scene, options, dtype):
    """The walk of the GPU, whose threads find pieces and use them at once, against the lists of the CPU."""
    positions, triangles, size = SCENES[scene](dtype) if scene in SCENES else crossing_triangles(dtype)
    count, ranges, cull, exact = len(triangles), None, None, "exact" in options
    if "ranges" in options:
        positions = positions[:1]
        ranges = torch.tensor([[0, count], [count // 3, count // 2], [1, 0]], dtype=torch.int32)
    if options == "cull":
        cull = "front"
    fragments = dr.rasterize(positions, triangles, size, ranges=ranges, cull=cull)
    batch = len(fragments.triangle_id)
    image, grad = uniform(batch, *size, 3, dtype=dtype), rnd(batch, *size, 3, seed=1, dtype=dtype)
    seams = (triangles // 2).int() if options == "seams" else None
    mesh = (fragments.triangle_id, positions, triangles.int(), dr.edge_topology(triangles), ranges, seams)
    mesh = (*mesh, 0 if cull is None else _checks.CULL[cull])
    op = torch.ops.diffrender
    marks = op.segments_marked(*mesh)
    (lists, pieces), (threads, nothing_kept) = (
        op.antialias_segments(image, *mesh, exact, *marks, algorithm) for algorithm in (0, 1)
    )
    assert not torch.equal(lists, image)
    assert relative_error(threads, lists) < TOLERANCE[dtype]
    assert torch.equal(op.segments_parted(*mesh, exact, 0), op.segments_parted(*mesh, exact, 1))
    for blended, *needs in ((True, True, True), (True, True, False), (False, True, True), (True, False, True)):
        lists, threads = (
            op.antialias_segments_backward(image, *mesh, exact, *marks, pieces, grad, blended, *needs, algorithm)
            for algorithm in (0, 1)
        )
        for value, truth, need in zip(threads, lists, needs, strict=True):
            assert truth.any() == need
            assert relative_error(value, truth) < TOLERANCE[dtype]
        again = op.antialias_segments_backward(image, *mesh, exact, *marks, nothing_kept, grad, blended, *needs, 0)
        assert all(torch.equal(a, b) for a, b in zip(again, lists, strict=True))


@pytest.mark.parametrize("count", [1, 8, 9, 700])
def test_exact_visibility_by_a_tree_of_boxes_equals_that_by_lists(count):
    """Small triangles over each other, which most pixels around do not show: the tree has one level to five."""
    size = (40, 48)
    centres = uniform(count, 1, 3, seed=3, dtype=F64) * 1.8 - 0.9
    corners = centres + 0.1 * rnd(count, 3, 3, seed=5, dtype=F64)
    positions = torch.cat([corners.clamp(-0.99, 0.99), torch.ones(count, 3, 1, dtype=F64)], -1).reshape(1, -1, 4)
    triangles = torch.arange(3 * count, dtype=torch.int32).view(-1, 3)
    ranges = torch.tensor([[0, count], [count // 2, count - count // 2]], dtype=torch.int32)
    triangle_id = dr.rasterize(positions, triangles, size, ranges=ranges).triangle_id
    image = uniform(2, *size, 3, dtype=F64)
    mesh = (triangle_id, positions, triangles, dr.edge_topology(triangles), ranges, None, 0)
    op = torch.ops.diffrender
    marks = op.segments_marked(*mesh)
    lists, tree = (op.antialias_segments(image, *mesh, True, *marks, algorithm)[0] for algorithm in (0, 1))
    assert relative_error(tree, lists) < TOLERANCE[F64]
    by_window = op.antialias_segments(image, *mesh, False, *marks, 1)[0]
    assert (tree != by_window).any(-1).sum() > (500 if count == 700 else -1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fixed_point_sums_do_not_depend_on_the_order(dtype):
    """Five images of one shared mesh: whichever image comes first, the sum over them is the same, bit for bit."""
    vertices, triangles = icosphere(1, dtype=F64)
    size = (24, 31)
    camera = perspective(50, *size) @ rigid(torch.tensor([0, 0, -3.0, 0.2, 0.4, 0], dtype=F64))
    positions = to_clip(vertices, camera).to(dtype)[None]
    ranges = torch.tensor([[0, 80], [3, 40], [20, 60], [40, 39], [0, 20]], dtype=torch.int32)
    fragments = dr.rasterize(positions, triangles, size, ranges=ranges, derivatives=True)
    topology = dr.edge_topology(triangles)
    image = uniform(5, *size, 3, dtype=dtype)
    attributes = uniform(1, len(vertices), 3, dtype=dtype)
    grads = [rnd(*x.shape, seed=k, dtype=dtype) for k, x in enumerate((*fragments[1:], image))]
    op = torch.ops.diffrender

    def sums(order):
        triangle_id, barycentrics = fragments.triangle_id[order], fragments.barycentrics[order]
        raster, depth, steps, picture = (x[order] for x in grads)
        pixels = image[order]
        outline = op.antialias_pairs(pixels, triangle_id, positions, triangles, topology)[1]
        return [
            op.rasterize_backward(positions, triangles, triangle_id, raster, depth, steps, 1),
            op.interpolate_backward(attributes, triangles, triangle_id, barycentrics, picture, 1.0, True, False, 1)[0],
            op.antialias_pairs_backward(
                pixels, triangle_id, positions, triangles, topology, outline, picture, False, True, 1
            )[1],
        ]

    first = sums(torch.arange(5))
    assert all(x.any() for x in first)
    for seed in range(4):
        order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
        assert all(torch.equal(a, b) for a, b in zip(sums(order), first, strict=True))


@pytest.mark.parametrize("algorithm", [0, 1])
@pytest.mark.parametrize("scene", ["short runs", "stripes"])
def test_what_stands_next_to_a_run_is_not_read(scene, algorithm):
    """Blocks of pixels reach beyond the end of a run: NaN cotangents of the pixels there must not come in."""
    positions, triangles, size = SCENES[scene](F64)
    triangle_id = dr.rasterize(positions, triangles, size).triangle_id
    grads = [rnd(*triangle_id.shape, 2, dtype=F64), rnd(*triangle_id.shape, seed=1, dtype=F64)]
    op = torch.ops.diffrender.rasterize_backward
    # Every third triangle is taken away and leaves NaN.
    hidden = (triangle_id % 3 == 0) | (triangle_id < 0)
    shown = torch.where(hidden, -1, triangle_id)
    clean = op(positions, triangles, shown, *grads, None, algorithm)
    poisoned = [torch.where(hidden if g.dim() == 3 else hidden[..., None], torch.nan, g) for g in grads]
    assert clean.any()
    assert torch.equal(op(positions, triangles, shown, *poisoned, None, algorithm), clean)
