"""coverage and composite: invariances, hostile input, merged pixels, and the derivative of whole pictures.

Closed forms are in test_coverage_oracles.py. Names with an o and a number are oracles of the same list.
"""

import math

import pytest
import torch

import diffrender as dr
from diffrender.ops.coverage import _coverage_with_driver
from tests.ops.rows.coverage import crossing, picture, t_junction, through_the_near_plane
from tests.support.scenes import icosphere, perspective, random_scene, rigid, to_clip
from tests.support.vocabulary import P, rnd, uniform

F64 = torch.float64
SIZE = (24, 24)


def clip_of(points, size=SIZE, depth=0.0):
    """Pixel coordinates (V, 2) at w = 1 to clip positions (V, 4)."""
    points = torch.as_tensor(points, dtype=F64)
    height, width = size
    depth = torch.as_tensor(depth, dtype=F64).expand(len(points))
    return torch.stack([2 * points[:, 0] / width - 1, 1 - 2 * points[:, 1] / height, depth, torch.ones_like(depth)], -1)


ONE = torch.tensor([[0, 1, 2]])


# --- partition of unity, invariances --------------------------------------------------------------


def weight_sums(coverage):
    pixels = math.prod(coverage.size)
    return torch.zeros(pixels, dtype=coverage.weight.dtype).index_add(0, coverage.pixel, coverage.weight)


def soup(seed, count=40, dtype=F64):
    """Triangles of all sizes that cross and hide each other, some reaching behind the camera."""
    positions = uniform(3 * count, 4, low=-1.2, high=1.2, seed=seed, dtype=F64)
    positions[:, 2] *= 0.7
    positions[:, 3] = 1 + 0.4 * positions[:, 3]
    positions[::17, 3] -= 1.2
    return positions.to(dtype), torch.arange(3 * count).reshape(-1, 3)


@pytest.mark.parametrize("seed", range(4))
def test_weights_add_up_to_at_most_one(seed):
    positions, faces = soup(seed)
    coverage = dr.coverage(positions, faces, (16, 18))
    assert (coverage.weight > 0).all()
    assert weight_sums(coverage).max() < 1 + 1e-12
    in_order = coverage.offsets[1:] - coverage.offsets[:-1] >= 0
    assert in_order.all()
    in_pixel = zip(coverage.offsets[:-1].tolist(), coverage.offsets[1:].tolist(), strict=True)
    assert coverage.pixel.tolist() == [p for p, (first, end) in enumerate(in_pixel) for _ in range(first, end)]


@pytest.mark.parametrize("size", [(16, 18), (3, 4096)])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_closed_surface_around_the_camera_covers_every_pixel(dtype, size):
    vertices, faces = icosphere(2, dtype=F64)
    pose = torch.tensor([0.1, 0.05, 0.2, 0.3, 0.5, -0.2], dtype=F64)
    clip = to_clip(vertices, perspective(70, *size) @ rigid(pose)).to(dtype)
    sums = weight_sums(dr.coverage(clip, faces, size))
    assert (sums - 1).abs().max() < (1e-12 if dtype == F64 else 1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_o20_order_of_triangles_and_vertices_does_not_matter(seed):
    positions, faces = soup(seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(faces), generator=generator)
    names = torch.randperm(len(positions), generator=generator)
    turns = torch.randint(0, 4, (len(faces),), generator=generator).tolist()
    turned = torch.stack([f.roll(k) if k < 3 else f.flip(0) for f, k in zip(faces, turns, strict=True)])
    place = torch.empty_like(names)
    place[names] = torch.arange(len(names))
    colors = uniform(len(positions), 3, seed=7, dtype=F64)
    weights = rnd(1, 16, 18, 3, seed=8, dtype=F64)

    def run(clip, triangles, values):
        leaf = clip.clone().requires_grad_()
        coverage = dr.coverage(leaf, triangles, (16, 18))
        image = dr.composite(dr.interpolate(values, triangles, coverage), coverage)
        return image, torch.autograd.grad((image * weights).sum(), leaf)[0]

    image, grad = run(positions, faces, colors)
    other, other_grad = run(positions[names], place[turned[order]], colors[names])
    torch.testing.assert_close(other, image, rtol=0, atol=1e-11)
    torch.testing.assert_close(other_grad, grad[names], rtol=0, atol=1e-9 * grad.abs().max().item())


def test_o20_copies_behind_and_degenerate_faces_change_nothing():
    positions, faces = soup(0)
    plain = dr.coverage(positions, faces, (16, 18))
    extra = torch.cat([faces, faces, faces[:5, [0, 1, 1]], faces[:5, [2, 2, 2]]])
    doubled = dr.coverage(positions, extra, (16, 18))
    assert torch.equal(doubled.triangle_id, plain.triangle_id)
    assert torch.equal(doubled.weight, plain.weight)


@pytest.mark.parametrize("move", ["mirror x", "mirror y", "transpose", "shift"])
def test_o19_mirrored_and_shifted_pictures(move):
    positions, faces = soup(1)
    positions[:, 3] = positions[:, 3].abs() + 0.3
    size = (16, 16)
    weights = rnd(16, 16, seed=8, dtype=F64)

    def run(clip, w):
        leaf = clip.clone().requires_grad_()
        coverage = dr.coverage(leaf, faces, size)
        image = dr.composite(torch.sin(3.0 * coverage.triangle_id + 1).double().unsqueeze(-1), coverage)[0, ..., 0]
        return image, torch.autograd.grad((image * w).sum(), leaf)[0]

    def mirrored(x, axis):
        factor = torch.ones(4, dtype=F64)
        factor[axis] = -1
        return x * factor

    if move == "shift":  # two pixels right, one down, of a scene inside of the frame
        positions[:, :2] *= 0.35
        image, grad = run(positions, weights)
        offset = torch.tensor([2 * 2 / 16, -1 * 2 / 16], dtype=F64)
        moved = positions.clone()
        moved[:, :2] += offset * positions[:, 3:]
        other, other_grad = run(moved, weights.roll((1, 2), (0, 1)))
        expected, expected_grad = image.roll((1, 2), (0, 1)), grad[:, :3]
        other_grad = other_grad[:, :3]
    else:
        image, grad = run(positions, weights)
        if move == "transpose":
            swapped = positions.clone()
            swapped[:, 0], swapped[:, 1] = -positions[:, 1], -positions[:, 0]
            other, other_grad = run(swapped, weights.T)
            expected, expected_grad = image.T, torch.stack([-grad[:, 1], -grad[:, 0], grad[:, 2], grad[:, 3]], -1)
        else:
            axis = 0 if move == "mirror x" else 1
            other, other_grad = run(mirrored(positions, axis), weights.flip(1 - axis))
            expected, expected_grad = image.flip(1 - axis), mirrored(grad, axis)
    # The lines between pixels lie 1e-11 off, to one side.
    torch.testing.assert_close(other, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(other_grad, expected_grad, rtol=0, atol=1e-8 * grad.abs().max().item())


def test_items_of_a_batch_equal_single_calls():
    positions = torch.stack([soup(k)[0] for k in range(3)])
    faces = soup(0)[1]
    colors = uniform(3, positions.shape[1], 2, seed=9, dtype=F64)

    def run(clip, values):
        coverage = dr.coverage(clip, faces, (9, 11))
        return dr.composite(dr.interpolate(values, faces, coverage), coverage)

    leaf, values = positions.clone().requires_grad_(), colors.clone().requires_grad_()
    coverage = dr.coverage(positions, faces, (9, 11))
    assert torch.equal(coverage.item, coverage.pixel // (9 * 11))
    image = run(leaf, values)
    weights = rnd(*image.shape, seed=1, dtype=F64)
    grads = torch.autograd.grad((image * weights).sum(), (leaf, values))
    for k in range(3):
        one, value = positions[k].clone().requires_grad_(), colors[k].clone().requires_grad_()
        single = run(one, value)
        torch.testing.assert_close(image[k : k + 1], single, rtol=0, atol=1e-13)
        for grad, truth in zip(
            grads, torch.autograd.grad((single * weights[k : k + 1]).sum(), (one, value)), strict=True
        ):
            torch.testing.assert_close(grad[k], truth, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("seed", range(3))
def test_lists_made_the_way_of_the_gpu_are_the_same(dtype, seed):
    positions, faces = soup(seed, count=60, dtype=dtype)
    positions[:3, :2] *= 40  # covers all: many blocks
    for size in ((7, 5), (40, 53)):
        native = dr.coverage(positions, faces, size)
        other = _coverage_with_driver(positions, faces, size)
        assert all(torch.equal(a, b) for a, b in zip(native[:5], other[:5], strict=True))


@pytest.mark.parametrize("merge", [False, True])
def test_fragments_of_a_smooth_surface_are_the_same_by_the_way_of_the_gpu(merge):
    """The CPU takes most pixels of such a surface for what they are before it clips anything."""
    for clip, faces in (sphere_scene(), bumpy_scene(3)):
        for size in ((24, 24), (37, 150)):
            native = dr.coverage(clip, faces, size, merge_adjacent=merge)
            other = _coverage_with_driver(clip, faces, size, merge_adjacent=merge)
            assert all(torch.equal(a, b) for a, b in zip(native[:5], other[:5], strict=True))


def test_order_free_sums_equal_native_ones(monkeypatch):
    positions, faces = soup(2)
    weights = rnd(1, 16, 18, 5, seed=1, dtype=F64)
    grads = []
    for algorithm in (0, 1):
        monkeypatch.setattr("diffrender.ops.coverage.scatter_algorithm", lambda _, a=algorithm: a)
        leaf = positions.clone().requires_grad_()
        (picture(dr.coverage(leaf, faces, (16, 18))) * weights).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-9, atol=1e-9 * grads[0].abs().max().item())


# --- the whole renderer ---------------------------------------------------------------------------


@pytest.mark.parametrize("scene", [crossing, t_junction, through_the_near_plane])
def test_gradcheck_of_the_whole_picture(scene):
    positions, faces = scene()
    colors = uniform(len(positions), 3, seed=2, dtype=F64)
    background = uniform(3, seed=3, dtype=F64)

    def render(clip, values, behind):
        coverage = dr.coverage(clip, faces, (6, 7))
        return dr.composite(dr.interpolate(values, faces, coverage), coverage, background=behind)

    leaves = [x.requires_grad_() for x in (positions, colors, background)]
    assert torch.autograd.gradcheck(render, leaves)


def test_gradcheck_from_camera_and_vertices_to_a_picture():
    """Two spheres, one in front of the other and through it, seen by a camera whose pose moves too."""
    vertices, faces = icosphere(0, dtype=F64)
    both = torch.cat([vertices, 0.7 * vertices + torch.tensor([0.8, 0.35, 0.6], dtype=F64)])
    triangles = torch.cat([faces, faces + len(vertices)])
    colors = uniform(len(both), 3, seed=4, dtype=F64)
    pose = torch.tensor([0.05, -0.1, -3.4, 0.5, 0.7, -0.3], dtype=F64)
    projection = perspective(50, 7, 8)

    def render(vertices, pose, colors):
        clip = to_clip(vertices, projection @ rigid(pose))
        coverage = dr.coverage(clip, triangles, (7, 8))
        return dr.composite(dr.interpolate(colors, triangles, coverage), coverage, background=0.2)

    leaves = [x.requires_grad_() for x in (both, pose, colors)]
    assert torch.autograd.gradcheck(render, leaves, fast_mode=False, rtol=1e-4, atol=1e-6)


def test_gradcheck_through_textures_and_shading_of_the_list():
    """Any stage takes the fragments as a picture of one row; also none at all."""
    vertices, faces = icosphere(0, dtype=F64)
    texels = uniform(5, 6, 3, seed=5, dtype=F64)
    projection = perspective(50, 7, 8) @ rigid(torch.tensor([0.05, -0.1, -3.4, 0.5, 0.7, -0.3], dtype=F64))
    light = dr.DirectionalLight(direction=torch.tensor([0.3, -0.5, -1.0], dtype=F64))

    def render(vertices, texels, faces=faces):
        coverage = dr.coverage(to_clip(vertices, projection), faces, (7, 8))
        position = dr.interpolate(vertices, faces, coverage)
        normal = position / position.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        albedo = dr.texture(texels, 0.5 + 0.3 * position[..., :2], filter="linear")
        color = dr.shade_lambert(position, normal, albedo, light, two_sided=False)
        return dr.composite(color, coverage, background=0.1)

    assert torch.autograd.gradcheck(render, [vertices.requires_grad_(), texels.requires_grad_()], fast_mode=True)
    nothing = render(vertices, texels, faces[:0])
    assert torch.equal(nothing, torch.full_like(nothing, 0.1))


def test_directional_derivative_of_a_soup():
    """Many layers, crossings and pieces: the gradient along a random direction against central differences."""
    positions, faces = soup(3)
    direction = rnd(*positions.shape, seed=1, dtype=F64)
    weights = rnd(1, 16, 18, 5, seed=2, dtype=F64)

    def loss(clip):
        return (picture(dr.coverage(clip, faces, (16, 18))) * weights).sum()

    leaf = positions.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(leaf), leaf)
    slope = (grad * direction).sum().item()
    eps = 1e-7
    difference = (loss(positions + eps * direction) - loss(positions - eps * direction)).item() / (2 * eps)
    assert slope == pytest.approx(difference, rel=1e-5)


# --- merge_adjacent -------------------------------------------------------------------------------


def sphere_scene(size=(24, 24), levels=3):
    vertices, faces = icosphere(levels, dtype=F64)
    clip = to_clip(vertices, perspective(50, *size) @ rigid(torch.tensor([0.1, -0.2, -3.0, 0.4, 0.3, 0.2], dtype=F64)))
    return clip, faces


def test_merging_keeps_areas_and_takes_fewer_fragments():
    clip, faces = sphere_scene()
    plain, merged = (dr.coverage(clip, faces, (24, 24), merge_adjacent=m) for m in (False, True))
    torch.testing.assert_close(weight_sums(merged), weight_sums(plain), rtol=0, atol=1e-12)
    assert len(merged.weight) < 0.6 * len(plain.weight)
    # Inside there is one fragment per pixel, that of the rasterizer.
    fragments = dr.rasterize(clip, faces, (24, 24))
    whole = merged.weight == 1
    shown = fragments.triangle_id.reshape(-1)[merged.pixel[whole]]
    same = merged.triangle_id[whole] == shown  # the rasterizer rounds corners to 1/256 pixel
    assert same.double().mean() > 0.98
    torch.testing.assert_close(
        merged.barycentrics[whole][same], fragments.barycentrics.reshape(-1, 2)[merged.pixel[whole]][same]
    )


def test_merged_picture_passes_gradcheck():
    clip, faces = sphere_scene((5, 6), levels=1)
    colors = uniform(len(clip), 2, seed=1, dtype=F64)

    def render(clip, values):
        coverage = dr.coverage(clip, faces, (5, 6), merge_adjacent=True)
        return dr.composite(dr.interpolate(values, faces, coverage), coverage)

    assert (dr.coverage(clip, faces, (5, 6), merge_adjacent=True).weight == 1).any()
    assert torch.autograd.gradcheck(render, [clip.requires_grad_(), colors.requires_grad_()], fast_mode=True)


def test_merging_does_not_hide_a_small_face_in_front():
    clip, faces = sphere_scene()
    p = P(24, 24)
    patch = torch.tensor([p(11.2, 11.3, 1.0, 0.1), p(11.7, 11.4, 1.0, 0.1), p(11.4, 11.8, 1.0, 0.1)], dtype=F64)
    both = torch.cat([clip, patch])
    triangles = torch.cat([faces, torch.tensor([[0, 1, 2]], dtype=torch.int32) + len(clip)])
    coverage = dr.coverage(both, triangles, (24, 24), merge_adjacent=True)
    shown = coverage.weight[coverage.triangle_id == len(faces)]
    assert shown.sum().item() == pytest.approx(0.5 * abs(0.5 * 0.5 - 0.2 * 0.1), abs=1e-12)


# --- hostile input --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("seed", range(30))
def test_hostile_scenes_give_finite_pictures_and_gradients(seed, dtype):
    """Degenerate, coincident, huge, NaN, infinite triangles, and such that reach through the plane of the eye."""
    positions, faces, size = random_scene(seed, dtype)
    leaf = positions.requires_grad_()
    coverage = dr.coverage(leaf, faces, size)
    assert all(torch.isfinite(x).all() for x in coverage[1:4])
    assert weight_sums(coverage).max() < 1 + (1e-11 if dtype == F64 else 1e-5) or len(coverage.weight) == 0
    # Weighted as composite does it: a sliver's own barycentrics may move without bound.
    loss = (coverage.weight.unsqueeze(-1) * (1 + coverage.barycentrics)).sum()
    (grad,) = torch.autograd.grad(loss, leaf)
    bad = ~torch.isfinite(positions.detach()).all(-1)
    assert torch.isfinite(grad[~bad]).all()
    assert not grad[bad].any()


def test_bad_faces_do_not_touch_the_others():
    positions, faces = soup(5)
    clean = dr.coverage(positions, faces, (16, 18))
    bad = torch.tensor([[math.nan, 0, 0, 1], [0, math.inf, 0, 1], [1e38, 0, 0, 1], [0, 0, 0, 0]], dtype=F64)
    first = len(positions)
    more = torch.tensor([[0, 1, first], [2, 3, first + 1], [first + 3] * 3])
    leaf = torch.cat([positions, bad]).requires_grad_()
    coverage = dr.coverage(leaf, torch.cat([faces, more]), (16, 18))
    assert torch.equal(coverage.triangle_id, clean.triangle_id)
    assert torch.equal(coverage.weight, clean.weight)
    coverage.weight.square().sum().backward()
    assert torch.isfinite(leaf.grad).all()


def test_coincident_triangles_show_the_lowest_index():
    corners = torch.tensor([P(8, 8)(1.2, 1.1), P(8, 8)(6.9, 2.3), P(8, 8)(3.1, 7.2)], dtype=F64)
    for faces in ([[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [1, 2, 0], [2, 1, 0]]):
        coverage = dr.coverage(corners, torch.tensor(faces), (8, 8))
        assert (coverage.triangle_id == 0).all()
    # Separate copies of the corners: as coincident as shared ones.
    coverage = dr.coverage(torch.cat([corners, corners]), torch.tensor([[4, 5, 3], [0, 1, 2]]), (8, 8))
    assert (coverage.triangle_id == 0).all()


def bumpy_scene(levels):
    """Closed, with ridges in front of the slopes behind them."""
    vertices, faces = icosphere(levels, dtype=F64)
    vertices = vertices * (1 + 0.25 * (7 * vertices[:, :1]).sin() * (5 * vertices[:, 1:2] + 1).sin())
    return to_clip(
        vertices, perspective(50, 24, 24) @ rigid(torch.tensor([0.1, -0.2, -3.4, 0.4, 0.3, 0.2]).double())
    ), faces


def crossing_spheres(levels):
    """One through the other: what is in front changes within the layers."""
    clip, faces = sphere_scene(levels=levels)
    moved = clip + torch.tensor([0.9, 0.2, 0.1, 0.1], dtype=F64)
    return torch.cat([clip, moved]), torch.cat([faces, faces + len(clip)])


@pytest.mark.parametrize(
    "scene",
    [lambda: sphere_scene(levels=1), *(lambda k=k: bumpy_scene(k) for k in (2, 3)), lambda: crossing_spheres(2)],
)
def test_split_vertices_give_the_same_picture(scene):
    """d05: faces with corners of their own are a smooth surface all the same, also at its silhouette."""
    clip, faces = scene()
    colors = uniform(len(clip), 3, seed=1, dtype=F64)
    weights = rnd(1, 24, 24, 3, seed=2, dtype=F64)
    flat = faces.long().reshape(-1)

    def run(clip, triangles, values):
        leaf = clip.clone().requires_grad_()
        coverage = dr.coverage(leaf, triangles, (24, 24))
        image = dr.composite(dr.interpolate(values, triangles, coverage), coverage)
        return image, torch.autograd.grad((image * weights).sum(), leaf)[0]

    image, grad = run(clip, faces, colors)
    other, split = run(clip[flat], torch.arange(len(flat)).reshape(-1, 3), colors[flat])
    torch.testing.assert_close(other, image, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.zeros_like(grad).index_add(0, flat, split), grad, rtol=0, atol=1e-9)


def test_upright_edges_around_a_corner_of_a_pixel_have_a_gradient():
    """A fan around a point between two pixels; edges run straight up and down from it, with a 0 of either sign."""
    ring = [[0.0, -3], [2, 0], [0, 3], [-2, 0], [-2, -3], [2, 3]]
    order = torch.tensor([4, 0, 1, 5, 2, 3])
    weights = rnd(2, 2, seed=3, dtype=F64)
    for middle in ([1.0, 1.0], [1.0, 0.5], [0.5, 1.0], [1.25, 0.5]):
        points = torch.tensor([[0.0, 0.0], *ring], dtype=F64) + torch.tensor(middle, dtype=F64)
        rim = order + 1
        faces = torch.stack([torch.zeros_like(rim), rim, rim.roll(-1)], -1)
        grads = []
        for triangles in (faces, faces[:, [0, 2, 1]]):
            leaf = clip_of(points, (2, 2)).requires_grad_()
            coverage = dr.coverage(leaf, triangles, (2, 2))
            image = dr.composite(dr.interpolate(points @ weights, triangles, coverage), coverage)
            grads.append(torch.autograd.grad((image * rnd(1, 2, 2, 2, seed=5, dtype=F64)).sum(), leaf)[0])
            assert torch.isfinite(grads[-1]).all()
        torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=1e-9)


def test_many_triangles_in_one_pixel():
    """A fan of 400 slivers in front of a fan of 400: pieces by the hundred."""
    n = 400
    angle = 2 * math.pi * torch.arange(n, dtype=F64) / n
    ring = torch.stack([angle.cos(), angle.sin()], -1) * 0.4 + 0.5
    points = torch.cat([torch.full((1, 2), 0.5, dtype=F64), ring])
    k = torch.arange(n)
    fan = torch.stack([torch.zeros(n, dtype=torch.int64), 1 + k, 1 + (k + 1) % n], -1)
    moved = torch.cat([points, points * 0.9 + 0.07])
    depth = torch.cat([torch.zeros(n + 1, dtype=F64), 0.5 * torch.ones(n + 1, dtype=F64)])
    leaf = clip_of(moved, (1, 1), depth).requires_grad_()
    coverage = dr.coverage(leaf, torch.cat([fan, fan + n + 1]), (1, 1))
    area = n / 2 * math.sin(2 * math.pi / n) * 0.16
    front = coverage.weight[coverage.triangle_id < n].sum()
    assert front.item() == pytest.approx(area, abs=1e-11)
    assert area < coverage.weight.sum() < 0.9
    coverage.weight.sum().backward()
    assert torch.isfinite(leaf.grad).all()


def test_huge_triangles_at_w_near_zero():
    clip = torch.tensor([[-1e6, -1e6, 0.0, 1.0], [1e6, -1e6, 0.0, 1.0], [0.0, 1e6, 1e-7, 1e-6]], dtype=F64)
    coverage = dr.coverage(clip, ONE, (8, 8))
    assert weight_sums(coverage).sum().item() == pytest.approx(64, abs=1e-6)


def test_memory_of_a_graph_is_positions_and_ids():
    clip, faces = sphere_scene()
    saved = []

    def pack(x):
        saved.append(x.numel() * x.element_size())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        coverage = dr.coverage(clip.requires_grad_(), faces, (24, 24))
    own = clip.numel() * 8 + faces.numel() * 4 + coverage.offsets.numel() * 8 + len(coverage.weight) * 5
    assert sum(saved) <= own
