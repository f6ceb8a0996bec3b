"""What is special to rasterize: which triangle each pixel shows, whatever draws it."""

import numpy as np
import pytest
import torch

import diffrender as dr
from tests.reference import rasterize as reference
from tests.support.drivers import DRIVERS, DTYPES, same
from tests.support.scenes import (
    cube,
    icosphere,
    jittered_grid,
    lattice_to_clip,
    perspective,
    random_scene,
    random_subdivision,
    rigid,
    to_clip,
)
from tests.support.vocabulary import P, g, ras, relative_error, rnd, uniform

F64 = torch.float64

KNOWN = torch.tensor([[-0.8, -0.8, 0, 1], [0.8, -0.8, 0, 1], [-0.8, 0.8, 0, 1]])


# --- coverage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rasterize", DRIVERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_known_triangle_covers_exactly_20706_pixels(rasterize, dtype):
    for order in ([0, 1, 2], [1, 2, 0], [0, 2, 1]):
        fragments = rasterize(KNOWN.to(dtype), torch.tensor([order]), (256, 256))
        assert (fragments.triangle_id >= 0).sum() == 20706


def partition_scene(kind, seed, size=256):
    points, triangles = (
        jittered_grid(200, size, seed) if kind == "grid" else random_subdivision(20000, size, seed, margin=1)
    )
    return lattice_to_clip(points, size).float(), torch.from_numpy(triangles)


@pytest.mark.parametrize(("kind", "seeds"), [("grid", range(11)), ("slivers", range(100, 106))])
def test_random_triangulations_cover_every_pixel_exactly_once(kind, seeds):
    """11 x 80 000 + 6 x 20 000 = 10^6 triangles: the union is everything, and there is no second layer anywhere."""
    total = 0
    for seed in seeds:
        positions, triangles = partition_scene(kind, seed)
        total += len(triangles)
        fragments = dr.rasterize(positions, triangles, (256, 256))
        assert (fragments.triangle_id >= 0).all()
        second = dr.rasterize(positions, triangles, (256, 256), beneath=fragments)
        assert (second.triangle_id == -1).all()
    assert total >= (880_000 if kind == "grid" else 120_000)


@pytest.mark.parametrize("rasterize", DRIVERS)
@pytest.mark.parametrize("kind", ["grid", "slivers"])
def test_parts_of_a_triangulation_do_not_overlap(rasterize, kind):
    """The same without peeling: seven random parts of a triangulation, drawn on their own, add up to one everywhere."""
    positions, triangles = partition_scene(kind, 50)
    bounds = torch.linspace(0, len(triangles), 8).int()
    ranges = torch.stack([bounds[:-1], bounds[1:] - bounds[:-1]], -1)
    parts = rasterize(positions, triangles, (256, 256), ranges=ranges)
    assert ((parts.triangle_id >= 0).sum(0) == 1).all()


@pytest.mark.parametrize("rasterize", DRIVERS)
def test_clipping_leaves_no_crack_between_neighbours(rasterize):
    """A fan of triangles around the camera, cut by near, far and guard planes: each pixel belongs to one of them."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
        # Apex in front of the camera, ring far to the sides and behind the near plane: covers the frame once.
        ring = np.stack([np.cos(angles), np.sin(angles)], -1) * 10 ** rng.uniform(2, 7, (9, 1))
        w = rng.uniform(-2, 4, 9)
        vertices = np.concatenate([ring, (0.9 * w - 0.1)[:, None], w[:, None]], -1)
        apex = np.array([[0.02, -0.03, 0.1, 1.0]])
        positions = torch.from_numpy(np.concatenate([apex, vertices])).float()
        faces = [(0, 1 + k, 1 + (k + 1) % 9) for k in range(9)]
        single = [rasterize(positions, torch.tensor([f]), (37, 29)).triangle_id >= 0 for f in faces]
        union = rasterize(positions, torch.tensor(faces), (37, 29)).triangle_id >= 0
        expected = [
            torch.from_numpy(reference.triangle_coverage(positions[list(f)].numpy(), 37, 29, np.float32)) for f in faces
        ]
        for one, truth in zip(single, expected, strict=True):
            assert not (one[0] & ~truth).any()
        assert torch.equal(union, torch.stack(single).any(0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 16384), (16384, 3), (5, 2**21)])
def test_frames_with_very_long_sides(size, dtype):
    """Snapped coordinates of long frames do not overflow: one triangle over everything, and one over the left half."""
    height, width = size
    p = P(height, width)
    everything = torch.tensor([p(-width, -height), p(4 * width, -height), p(-width, 4 * height)], dtype=dtype)
    assert (dr.rasterize(everything, torch.tensor([[0, 1, 2]]), size).triangle_id == 0).all()
    half = torch.tensor([[-1e9, -1e9, 0, 1], [0, -1e9, 0, 1], [0, 1e9, 0, 1], [-1e9, 1e9, 0, 1]], dtype=dtype)
    triangle_id = dr.rasterize(half, torch.tensor([[0, 1, 2], [0, 2, 3]]), size).triangle_id
    column = torch.arange(width) + 0.5
    assert torch.equal(triangle_id[0] >= 0, (column < width / 2).expand(height, -1))


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_background_holds_the_documented_values(dtype):
    fragments = dr.rasterize(KNOWN.to(dtype), torch.tensor([[0, 1, 2]]), (16, 16), derivatives=True)
    background = fragments.triangle_id < 0
    assert fragments.triangle_id.dtype == torch.int32
    assert all(x.dtype == dtype for x in fragments[1:])
    assert background.any()
    assert (fragments.barycentrics[background] == 0).all()
    assert (fragments.depth[background] == 1).all()
    assert (fragments.derivatives[background] == 0).all()
    assert dr.rasterize(KNOWN, torch.tensor([[0, 1, 2]]), (16, 16)).derivatives is None


@pytest.mark.parametrize("cull", ["back", "front"])
def test_cull_keeps_one_winding(cull):
    """Counter-clockwise on screen, y up, is front."""
    counter_clockwise = dr.rasterize(KNOWN, torch.tensor([[0, 1, 2]]), (16, 16), cull=cull).triangle_id
    clockwise = dr.rasterize(KNOWN, torch.tensor([[0, 2, 1]]), (16, 16), cull=cull).triangle_id
    kept, dropped = (counter_clockwise, clockwise) if cull == "back" else (clockwise, counter_clockwise)
    assert (kept >= 0).any()
    assert (dropped == -1).all()


def test_culling_a_closed_mesh_changes_nothing_visible_from_outside():
    vertices, triangles = icosphere(1, dtype=F64)
    camera = perspective(45, 40, 40) @ rigid(torch.tensor([0, 0, -3.0, 0.3, 0.1, 0], dtype=F64))
    clip = to_clip(vertices, camera)
    everything = dr.rasterize(clip, triangles, (40, 40))
    front = dr.rasterize(clip, triangles, (40, 40), cull="back")
    back = dr.rasterize(clip, triangles, (40, 40), cull="front")
    assert same(everything, front)
    hit = front.triangle_id >= 0
    assert torch.equal(hit, back.triangle_id >= 0)
    assert (back.depth[hit] > front.depth[hit]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_triangles_outside_the_depth_range_are_cut(dtype):
    """|z| <= w: a ramp from z/w = -2 to 2 with constant w shows its middle half only."""
    p = P(4, 64)
    ramp = torch.tensor([p(0, -9, z=-2), p(64, -9, z=2), p(64, 13, z=2), p(0, 13, z=-2)], dtype=dtype)
    fragments = dr.rasterize(ramp, torch.tensor([[0, 1, 2], [0, 2, 3]]), (4, 64))
    column = torch.arange(64) + 0.5
    assert torch.equal(fragments.triangle_id[0] >= 0, ((column > 16) & (column < 48)).expand(4, -1))
    depth = fragments.depth[0][:, 16:48].double()
    torch.testing.assert_close(depth, (column[16:48].double() / 16 - 2).expand(4, -1), rtol=0, atol=1e-5)


def test_slivers_do_not_punch_through_what_is_in_front():
    """An almost edge-on sliver extrapolates to any depth at a pixel; its key stays between those of its corners."""
    p = P(32, 32)
    front = [p(-1, -1, z=-0.5), p(70, -1, z=-0.5), p(-1, 70, z=-0.5)]
    rng = np.random.default_rng(8)
    slivers = []
    for _ in range(300):
        a, d = rng.uniform(0, 32, 2), rng.uniform(-20, 20, 2)
        width = 10 ** rng.uniform(-4, -1)
        slivers += [p(*a, z=0.9), p(*(a + d), z=-0.3), p(*(a + d / 2 + width), z=0.1)]
    positions = torch.tensor(front + slivers)
    triangles = torch.arange(len(positions)).reshape(-1, 3)
    assert (dr.rasterize(positions, triangles, (32, 32)).triangle_id == 0).all()


def test_int64_and_int32_triangles_give_the_same():
    positions, triangles, size = random_scene(3)
    fragments = dr.rasterize(positions, triangles, size, derivatives=True)
    assert same(fragments, dr.rasterize(positions, triangles.long(), size, derivatives=True))


def test_gradient_of_a_tenth_of_a_pixel_is_not_lost_in_an_epsilon():
    """Scaling the whole scene's w scales every a_i: barycentrics must not change, down to tiny and up to huge w."""
    p = P(64, 64)
    corners = torch.tensor([p(20.44, 30.46), p(20.57, 30.47), p(20.49, 30.58)], dtype=F64)
    triangles = torch.tensor([[0, 1, 2]])
    weight = rnd(1, 64, 64, 2, dtype=F64)
    truth = None
    for scale in (1.0, 1e-60, 1e60):
        positions = corners * scale
        fragments = dr.rasterize(positions, triangles, (64, 64))
        assert (fragments.triangle_id >= 0).sum() == 1
        grad = g(lambda x: (weight * dr.rasterize(x, triangles, (64, 64)).barycentrics).sum(), positions) * scale
        truth = grad if truth is None else truth
        assert grad.abs().max() > 1
        assert relative_error(grad, truth) < 1e-9


def test_underflow_gives_zero_value_and_zero_gradient():
    """Cross products below the smallest normal number: no barycentrics, no gradient, no NaN."""
    positions = (KNOWN * 1e-25).requires_grad_()
    fragments = dr.rasterize(positions, torch.tensor([[0, 1, 2]]), (8, 8), derivatives=True)
    assert (fragments.triangle_id >= 0).any()
    assert all(torch.isfinite(x).all() for x in fragments[1:])
    (fragments.barycentrics.sum() + fragments.depth.sum() + fragments.derivatives.sum()).backward()
    assert torch.isfinite(positions.grad).all()


# --- batches, ranges, bad vertices (cases R14, R16, R11, R19) -------------------------------------


def test_r14_packed_meshes_equal_separate_ones():
    """Fault: ids local in one op and global in the next. Here they index the packed array everywhere."""
    meshes = [
        (rnd(4, 3, seed=1, dtype=F64), torch.tensor([[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]])),
        cube(dtype=F64),
        (rnd(6, 3, seed=2, dtype=F64), torch.tensor([[0, 1, 2], [3, 4, 5], [0, 3, 5], [1, 2, 4]])),
    ]
    camera = perspective(60, 20, 24) @ rigid(torch.tensor([0, 0, -4.0, 0.4, 0.2, 0], dtype=F64))
    offsets = [0, 4, 12]
    positions = to_clip(torch.cat([v for v, _ in meshes]), camera)
    packed = torch.cat([t + o for (_, t), o in zip(meshes, offsets, strict=True)]).int()
    ranges = torch.tensor([[0, 4], [4, 12], [16, 4], [7, 0], [2, 9]], dtype=torch.int32)
    fragments = dr.rasterize(positions, packed, (20, 24), ranges=ranges, derivatives=True)
    attributes = uniform(len(positions), 3, dtype=F64)
    values = dr.interpolate(attributes, packed, fragments)
    image = dr.antialias(values, fragments, positions, packed, method="pairs")
    firsts = [0, 4, 16]
    for k, (vertices, triangles) in enumerate(meshes):
        own = slice(offsets[k], offsets[k] + len(vertices))
        single = dr.rasterize(to_clip(vertices, camera), triangles, (20, 24), derivatives=True)
        assert torch.equal(
            fragments.triangle_id[k], torch.where(single.triangle_id >= 0, single.triangle_id + firsts[k], -1)[0]
        )
        assert all(torch.equal(fragments[f][k], single[f][0]) for f in (1, 2, 3))
        single_values = dr.interpolate(attributes[own], triangles, single)
        assert torch.equal(values[k], single_values[0])
        single_image = dr.antialias(single_values, single, to_clip(vertices, camera), triangles, method="pairs")
        assert torch.equal(image[k], single_image[0])
    assert (fragments.triangle_id[3] == -1).all()
    overlapping = fragments.triangle_id[4]
    assert overlapping[overlapping >= 0].min() >= 2
    assert overlapping.max() < 11


def test_ranges_of_other_types_and_layouts():
    positions, triangles, size = random_scene(11)
    count = len(triangles)
    ranges = torch.tensor([[0, count], [1, count - 1]], dtype=torch.int32)
    truth = dr.rasterize(positions, triangles, size, ranges=ranges)
    for same_ranges in (ranges.long(), ranges.T.contiguous().T, torch.cat([ranges, ranges], 1)[:, 2:]):
        assert same(truth, dr.rasterize(positions, triangles, size, ranges=same_ranges))


@pytest.mark.parametrize("bad_value", [float("nan"), float("inf"), -float("inf"), 1e38])
@pytest.mark.parametrize("rasterize", DRIVERS)
def test_r16_bad_vertices_stay_alone(rasterize, bad_value):
    """Fault: an endless loop or a wild tile from NaN bounds. Good faces keep their pixels and gradients, bit for bit.

    A face with a corner at 1e38 is legal and may be seen; where it is, it splits the runs of pixels that the gradient
    of others is summed in, so those agree to rounding only.
    """
    p = P(40, 40)
    rng = np.random.default_rng(0)
    good = [p(*rng.uniform(-5, 45, 2), w=rng.uniform(0.5, 2), z=rng.uniform(-0.9, 0.9)) for _ in range(30)]
    weight = rnd(1, 40, 40, 2)

    def run(positions, count, pixels=None):
        fragments = rasterize(positions, torch.arange(3 * count).reshape(-1, 3), (40, 40))
        return fragments if pixels is None else (fragments.barycentrics * weight * pixels).sum()

    for column in range(4):
        bad = torch.tensor([p(5, 5, z=-0.95), p(35, 8, z=-0.95), p(12, 33, z=-0.95)])
        bad[1, column] = bad_value
        positions = torch.cat([torch.tensor(good, dtype=torch.float32), bad])
        fragments, clean = run(positions, 11), run(positions[:30], 10)
        others = fragments.triangle_id != 10
        assert others.all() or abs(bad_value) == 1e38
        assert torch.equal(fragments.triangle_id[others], clean.triangle_id[others])
        assert torch.isfinite(fragments.barycentrics).all()
        grad = g(lambda x, pixels=others[..., None]: run(x, 11, pixels), positions)
        clean_grad = g(lambda x, pixels=others[..., None]: run(x, 10, pixels), positions[:30])
        if abs(bad_value) == 1e38:
            torch.testing.assert_close(grad[:30], clean_grad, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(grad[:30], clean_grad)
            assert (grad[30:] == 0).all()


def test_nan_cotangents_on_background_are_not_read():
    positions = KNOWN.double().requires_grad_()
    fragments = dr.rasterize(positions, torch.tensor([[0, 1, 2]]), (9, 9), derivatives=True)
    hit = fragments.triangle_id >= 0
    outputs = fragments[1:]
    weights = [rnd(*x.shape, seed=k, dtype=F64) for k, x in enumerate(outputs)]
    clean = torch.autograd.grad(outputs, positions, weights, retain_graph=True)[0]
    poisoned = [torch.where(hit[..., None] if w.dim() == 4 else hit, w, torch.nan) for w in weights]
    assert torch.equal(torch.autograd.grad(outputs, positions, poisoned)[0], clean)


def test_r19_results_made_under_inference_mode_do_not_break_training():
    positions, triangles, size = random_scene(12)
    with torch.inference_mode():
        first = dr.rasterize(positions, triangles, size)
    leaf = positions.clone().requires_grad_()
    fragments = dr.rasterize(leaf, triangles, size)
    assert torch.equal(fragments.triangle_id, first.triangle_id)
    fragments.barycentrics.sum().backward()
    assert leaf.grad.any()


def test_one_item_of_a_batch_equals_a_single_call():
    positions = torch.stack([random_scene(20)[0][:30], random_scene(21)[0][:30], random_scene(22)[0][:30]])
    triangles = torch.arange(30).reshape(-1, 3)
    batch = dr.rasterize(positions, triangles, (33, 21), derivatives=True)
    for k in range(3):
        single = dr.rasterize(positions[k], triangles, (33, 21), derivatives=True)
        assert all(torch.equal(x[k], y[0]) for x, y in zip(batch, single, strict=True))


def test_known_triangle_through_the_vocabulary():
    assert (ras(KNOWN, [(0, 1, 2)], 256, 256).id >= 0).sum() == 20706
