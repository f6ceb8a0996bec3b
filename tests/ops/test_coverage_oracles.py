"""Closed forms of coverage and composite: oracles O1 ... O22, exact values of the box-filtered picture.

Pixels are unit squares, row 0 on top, corners are given in pixels.
"""

import math

import numpy as np
import pytest
import torch

import diffrender as dr
from tests.support.scenes import icosphere, perspective, rigid, to_clip
from tests.support.vocabulary import uniform

F64 = torch.float64
SIZE = (24, 24)
# Exact up to the rounding of double precision in sums of a few hundred terms.
EXACT = 1e-9


def clip_of(points, size=SIZE, depth=0.0):
    """Pixel coordinates (V, 2) at w = 1 to clip positions (V, 4)."""
    points = torch.as_tensor(points, dtype=F64)
    height, width = size
    depth = torch.as_tensor(depth, dtype=F64).expand(len(points))
    return torch.stack([2 * points[:, 0] / width - 1, 1 - 2 * points[:, 1] / height, depth, torch.ones_like(depth)], -1)


def rect(x0, y0, x1, y1):
    """Corners and two triangles of an axis-aligned rectangle in pixels."""
    return torch.tensor([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], dtype=F64), torch.tensor([[0, 1, 2], [0, 2, 3]])


def two_rects(near, far, near_depth=-0.5, far_depth=0.5):
    (a, faces), (b, _) = rect(*near), rect(*far)
    depth = torch.tensor([near_depth] * 4 + [far_depth] * 4, dtype=F64)
    return torch.cat([a, b]), torch.cat([faces, faces + 4]), depth


def loss_of(points, faces, face_colors, *, size=SIZE, depth=0.0, weights=None):
    """Sum of w_p I_p of flat-coloured faces on black."""
    coverage = dr.coverage(clip_of(points, size, depth), faces, size)
    image = dr.composite(face_colors[coverage.triangle_id.long()].unsqueeze(-1), coverage)
    return (image[0, ..., 0] * (1 if weights is None else weights)).sum()


def value_and_grad(points, *args, **options):
    points = torch.as_tensor(points, dtype=F64).requires_grad_()
    value = loss_of(points, *args, **options)
    return value.item(), torch.autograd.grad(value, points)[0]


def ones(faces):
    return torch.ones(len(faces), dtype=F64)


ONE = torch.tensor([[0, 1, 2]])


# --- closed forms ---------------------------------------------------------------------------------


def test_o01_o02_triangle_area_and_its_invariances():
    points = [[4.0, 3.0], [20.0, 6.0], [9.0, 17.0]]
    value, grad = value_and_grad(points, ONE, ones(ONE))
    assert value == pytest.approx(104.5, abs=EXACT)
    torch.testing.assert_close(grad, torch.tensor([[-5.5, -5.5], [7.0, -2.5], [-1.5, 8.0]], dtype=F64))
    points = torch.tensor(points, dtype=F64)
    turned = torch.stack([-points[:, 1], points[:, 0]], 1)
    assert grad.sum(0).abs().max() < EXACT
    assert abs((turned * grad).sum()) < EXACT * 100
    assert (points * grad).sum().item() == pytest.approx(209, abs=EXACT)


@pytest.mark.parametrize("s", [0.3, 0.9, 1.0 + 1e-3, 1.4, 1.95])
def test_o03_half_plane_in_one_pixel(s):
    faces = ONE
    area, slope = (s * s / 2, s) if s <= 1 else (1 - (2 - s) ** 2 / 2, 2 - s)
    # x + y < s in the pixel (0, 0): a large triangle whose long edge is that line. Moving it along x moves s.
    points = torch.tensor([[s - 40.0, 40.0], [s + 40.0, -40.0], [-60.0, -60.0]], dtype=F64)
    coverage = dr.coverage(clip_of(points, (1, 1)), faces, (1, 1))
    assert coverage.weight.item() == pytest.approx(area, abs=1e-12)
    _, grad = value_and_grad(points, faces, ones(faces), size=(1, 1))
    assert grad[:2, 0].sum().item() == pytest.approx(slope, abs=1e-10)


def test_o04_nothing_from_outside_of_the_image():
    points = torch.tensor([[10.0, -8.0], [10.0, 40.0], [-300.0, 40.0], [-300.0, -8.0]], dtype=F64)
    faces = torch.tensor([[0, 1, 2], [0, 2, 3]])
    value, grad = value_and_grad(points, faces, ones(faces))
    assert value == pytest.approx(240, abs=EXACT)
    torch.testing.assert_close(grad[:2], torch.tensor([[14.0, 0.0], [10.0, 0.0]], dtype=F64), rtol=0, atol=1e-8)


def flat_mesh(seed=0):
    """Non-overlapping faces: a jittered grid with a random colour for each."""
    y, x = torch.meshgrid(
        torch.linspace(3.3, 20.1, 5, dtype=F64), torch.linspace(2.7, 21.2, 5, dtype=F64), indexing="ij"
    )
    points = torch.stack([x, y], -1).reshape(-1, 2) + uniform(25, 2, low=-0.9, high=0.9, seed=seed, dtype=F64)
    n = torch.arange(25).reshape(5, 5)
    a, b, c, d = (m.reshape(-1) for m in (n[:-1, :-1], n[:-1, 1:], n[1:, 1:], n[1:, :-1]))
    return points, torch.cat([torch.stack([a, b, c], -1), torch.stack([a, c, d], -1)])


def shoelace(points, faces, colors):
    p = points[faces]
    u, v = p[:, 1] - p[:, 0], p[:, 2] - p[:, 0]
    return (colors * (u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]).abs() / 2).sum()


def test_o05_piecewise_constant_mesh_equals_areas_of_faces():
    points, faces = flat_mesh()
    colors = uniform(len(faces), seed=3, dtype=F64)
    value, grad = value_and_grad(points, faces, colors)
    leaf = points.clone().requires_grad_()
    truth = shoelace(leaf, faces, colors)
    assert value == pytest.approx(truth.item(), abs=EXACT)
    torch.testing.assert_close(grad, torch.autograd.grad(truth, leaf)[0], rtol=0, atol=EXACT)


def test_o06_equal_colours_leave_inner_vertices_without_gradient():
    points, faces = flat_mesh()
    _, grad = value_and_grad(points, faces, ones(faces))
    inner = torch.arange(25).reshape(5, 5)[1:-1, 1:-1].reshape(-1)
    assert grad[inner].abs().max() < EXACT
    assert grad.abs().max() > 1


def test_o07_flipped_diagonal_changes_nothing():
    corners = torch.tensor([[4.2, 3.1], [18.7, 5.3], [20.1, 19.2], [3.3, 16.8]], dtype=F64)
    weights = uniform(24, 24, seed=1, dtype=F64)
    first = torch.tensor([[0, 1, 2], [0, 2, 3]])
    second = torch.tensor([[0, 1, 3], [1, 2, 3]])
    a, grad_a = value_and_grad(corners, first, ones(first), weights=weights)
    b, grad_b = value_and_grad(corners, second, ones(second), weights=weights)
    assert a == pytest.approx(b, abs=EXACT)
    torch.testing.assert_close(grad_a, grad_b, rtol=0, atol=EXACT)


def test_o08_occlusion_of_rectangles():
    points, faces, depth = two_rects((4, 4, 10, 12), (8, 6, 18, 14))
    colors = torch.tensor([1.0, 1.0, 0.5, 0.5], dtype=F64)
    # Edges on pixel boundaries are kinks of nothing here: the weights are one.
    value, grad = value_and_grad(points, faces, colors, depth=depth)
    assert value == pytest.approx(82, abs=EXACT)
    near, far = grad[:4], grad[4:]
    assert near[[1, 2], 0].sum().item() == pytest.approx(5, abs=EXACT)
    assert far[[0, 3], 0].sum().item() == pytest.approx(-1, abs=EXACT)
    assert far[[0, 1], 1].sum().item() == pytest.approx(-4, abs=EXACT)
    assert far[[2, 3], 1].sum().item() == pytest.approx(5, abs=EXACT)


def test_o09_hidden_object_has_no_gradient():
    points, faces, depth = two_rects((4.3, 4.1, 16.2, 15.6), (6.4, 6.2, 14.3, 13.1))
    weights = uniform(24, 24, seed=2, dtype=F64)
    colors = torch.tensor([1.0, 1.0, 0.5, 0.5], dtype=F64, requires_grad=True)
    leaf = clip_of(points, depth=depth).requires_grad_()
    coverage = dr.coverage(leaf, faces, SIZE)
    image = dr.composite(colors[coverage.triangle_id.long()].unsqueeze(-1), coverage)[0, ..., 0]
    grad, grad_colors = torch.autograd.grad((image * weights).sum(), (leaf, colors))
    assert not grad[4:].any()
    assert not grad_colors[2:].any()
    assert (coverage.triangle_id < 2).all()


def test_o09_occluder_leaves_the_outline_of_what_it_covers():
    points, faces, depth = two_rects((6.4, 6.2, 14.3, 13.1), (4.3, 4.1, 16.2, 15.6))
    colors = torch.tensor([1.0, 1.0, 0.5, 0.5], dtype=F64)
    _, grad = value_and_grad(points, faces, colors, depth=depth)
    _, alone = value_and_grad(points[4:], faces[:2], colors[2:])
    torch.testing.assert_close(grad[4:], alone, rtol=0, atol=EXACT)


@pytest.mark.parametrize("angle", [0.0, 15.0, 37.0, 45.0, 90.0])
def test_o10_interpenetration_in_any_direction(angle):
    size = (48, 48)
    turn = math.radians(angle)
    corners = torch.tensor([[4.0, 6.0], [28.0, 6.0], [28.0, 14.0], [4.0, 14.0]], dtype=F64) - torch.tensor([16.0, 10.0])
    rotation = torch.tensor([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]], dtype=F64)
    corners = corners @ rotation.T + 24.0
    nearness = torch.tensor([0.08, 0.32, 0.32, 0.08], dtype=F64)  # affine on the screen: depth is 1 - nearness here
    shift = torch.zeros(8, dtype=F64, requires_grad=True)
    depth = 1 - (torch.cat([nearness, nearness[[1, 0, 3, 2]]]) + shift)
    faces = torch.tensor([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]])
    coverage = dr.coverage(clip_of(torch.cat([corners, corners]), size, depth), faces, size)
    colors = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=F64)
    value = dr.composite(colors[coverage.triangle_id.long()].unsqueeze(-1), coverage).sum()
    assert value.item() == pytest.approx(96, abs=EXACT)
    (grad,) = torch.autograd.grad(value, shift)
    assert grad[:4].sum().item() == pytest.approx(400, abs=1e-7)
    assert grad[4:].sum().item() == pytest.approx(-400, abs=1e-7)


def test_o11_pinhole_scaling():
    size, f = (32, 32), 32.0
    side, z, shift = (torch.tensor(v, dtype=F64, requires_grad=True) for v in (1.0, 2.0, 0.0))
    focal = torch.tensor(f, dtype=F64, requires_grad=True)
    x = torch.tensor([-0.5, 0.5, 0.5, -0.5], dtype=F64) * side + shift
    y = torch.tensor([-0.5, -0.5, 0.5, 0.5], dtype=F64) * side
    clip = torch.stack([x * focal * 2 / 32, y * focal * 2 / 32, 0.0 * x + z * 0.5, z + 0.0 * x], -1)
    area = dr.coverage(clip, torch.tensor([[0, 1, 2], [0, 2, 3]]), size).weight.sum()
    assert area.item() == pytest.approx(256, abs=EXACT)
    grads = torch.autograd.grad(area, (z, side, focal, shift))
    for grad, truth in zip(grads, (-256, 512, 16, 0), strict=True):
        assert grad.item() == pytest.approx(truth, abs=1e-8)


def test_o12_regular_polygon():
    n = 64
    radius, turn = (torch.tensor(v, dtype=F64, requires_grad=True) for v in (9.0, 0.3))
    angle = 2 * math.pi * torch.arange(n, dtype=F64) / n + turn
    ring = torch.stack([angle.cos(), angle.sin()], -1) * radius + 12.0
    points = torch.cat([torch.full((1, 2), 12.0, dtype=F64), ring])
    k = torch.arange(n)
    faces = torch.stack([torch.zeros(n, dtype=torch.int64), 1 + k, 1 + (k + 1) % n], -1)
    grads = torch.autograd.grad(loss_of(points, faces, ones(faces)), (radius, turn))
    assert grads[0].item() == pytest.approx(56.45787282982691, abs=EXACT)
    assert abs(grads[1].item()) < EXACT


def test_o13_one_pixel_ramp():
    """With w = column index, a step of one pixel adds the sum of the picture, and so does the mean derivative."""
    points, faces = flat_mesh()
    points = points * 0.8 + 1
    colors = uniform(len(faces), seed=3, dtype=F64)
    ramp = torch.arange(24, dtype=F64).expand(24, 24)
    total = loss_of(points, faces, colors).item()
    step = torch.tensor([1.0, 0.0], dtype=F64)
    before, after = (loss_of(points + k * step, faces, colors, weights=ramp).item() for k in (0, 1))
    assert after - before == pytest.approx(total, abs=1e-8)
    # The derivative is piecewise polynomial in the shift; a fine midpoint rule averages it to its kinks' error.
    slopes = [
        value_and_grad(points + (k + 0.5) / 64 * step, faces, colors, weights=ramp)[1][:, 0].sum().item()
        for k in range(64)
    ]
    assert np.mean(slopes) == pytest.approx(total, rel=1e-3)


def test_o14_integral_of_the_derivative_is_the_difference():
    points, faces, depth = two_rects((4.3, 4.1, 16.2, 15.6), (8.4, 6.2, 20.3, 13.1))
    direction = uniform(8, 2, low=-1.5, high=1.5, seed=4, dtype=F64)
    colors = torch.tensor([1.0, 1.0, 0.4, 0.7], dtype=F64)
    weights = uniform(24, 24, seed=5, dtype=F64)
    options = {"depth": depth, "weights": weights}
    a, b = (loss_of(points + t * direction, faces, colors, **options).item() for t in (0.0, 1.0))
    nodes, w = np.polynomial.legendre.leggauss(4)
    total = 0.0
    for k in range(40):  # pieces much shorter than the distance between kinks
        for node, weight in zip(nodes, w, strict=True):
            t = (k + 0.5 + 0.5 * node) / 40
            grad = value_and_grad(points + t * direction, faces, colors, **options)[1]
            total += weight / 80 * (grad * direction).sum().item()
    assert total == pytest.approx(b - a, abs=2e-3 * abs(direction).max().item())


def test_o16_colour_gradient_is_the_weight():
    points, faces, depth = two_rects((4.3, 4.1, 16.2, 15.6), (8.4, 6.2, 20.3, 13.1))
    coverage = dr.coverage(clip_of(points, depth=depth), faces, SIZE)
    colors = uniform(4, seed=1, dtype=F64).requires_grad_()
    background = torch.tensor([0.3], dtype=F64, requires_grad=True)
    weights = uniform(24, 24, seed=2, dtype=F64)
    image = dr.composite(colors[coverage.triangle_id.long()].unsqueeze(-1), coverage, background=background)
    grad_colors, grad_background = torch.autograd.grad((image[0, ..., 0] * weights).sum(), (colors, background))
    truth = torch.zeros(4, dtype=F64).index_add(
        0, coverage.triangle_id.long(), coverage.weight * weights.reshape(-1)[coverage.pixel]
    )
    torch.testing.assert_close(grad_colors, truth)
    assert (grad_colors.sum() + grad_background).item() == pytest.approx(weights.sum().item(), abs=EXACT)


def test_o17_affine_colours_are_exact():
    """Constant w, so that colours are affine on the screen: the value at the centroid is the mean."""
    points = torch.tensor([[4.2, 3.1], [19.7, 6.3], [9.1, 17.2]], dtype=F64, requires_grad=True)
    colors = torch.tensor([[0.2], [0.9], [0.5]], dtype=F64, requires_grad=True)
    coverage = dr.coverage(clip_of(points), ONE, SIZE)
    value = dr.composite(dr.interpolate(colors, ONE, coverage), coverage).sum()
    area = shoelace(points, ONE, ones(ONE))
    truth = area * colors.mean()
    assert value.item() == pytest.approx(truth.item(), abs=EXACT)
    for grad, true_grad in zip(
        torch.autograd.grad(value, (points, colors)), torch.autograd.grad(truth, (points, colors)), strict=True
    ):
        torch.testing.assert_close(grad, true_grad, rtol=0, atol=EXACT)


def test_o21_scaling_of_the_picture():
    points = torch.tensor([[4.2, 3.1], [19.7, 6.3], [9.1, 17.2]], dtype=F64)
    a, grad_a = value_and_grad(points, ONE, ones(ONE))
    b, grad_b = value_and_grad(points * 3, ONE, ones(ONE), size=(72, 72))
    assert b == pytest.approx(9 * a, rel=1e-12)
    torch.testing.assert_close(grad_b, 3 * grad_a)


def test_o22_supersampled_rasterizer_converges_to_it():
    vertices, faces = icosphere(1, dtype=F64)
    clip = to_clip(vertices, perspective(50, 8, 8) @ rigid(torch.tensor([0.1, -0.2, -3.0, 0.4, 0.3, 0.2], dtype=F64)))
    colors = uniform(len(vertices), 3, seed=6, dtype=F64)
    coverage = dr.coverage(clip, faces, (8, 8))
    image = dr.composite(dr.interpolate(colors, faces, coverage), coverage)[0]
    errors = []
    for n in (8, 32):
        fragments = dr.rasterize(clip, faces, (8 * n, 8 * n))
        fine = dr.interpolate(colors, faces, fragments)[0]
        errors.append((fine.reshape(8, n, 8, n, 3).mean((1, 3)) - image).abs().max().item())
    assert errors[1] < 0.02  # the sum of regular samples misses the area of an edge by about 1 / n
    assert errors[1] < errors[0]


# --- cases of the catalogue -----------------------------------------------------------------------


def moved_square(values, behind=None):
    """Gradient of the sum of a 32 x 32 picture to clip-space x of a square's corners, and of a square behind it."""
    front, faces = rect(8.3, 9.2, 20.6, 22.9)
    back, _ = rect(-1.0, -1.0, 33.0, 33.0)
    leaf = torch.cat([clip_of(front, (32, 32), -0.5), clip_of(back, (32, 32), 0.5)]).requires_grad_()
    triangles = torch.cat([faces, faces + 4]) if behind is not None else faces
    coverage = dr.coverage(leaf, triangles, (32, 32))
    colors = torch.tensor([values, values, behind or 0.0, behind or 0.0], dtype=F64)
    image = dr.composite(colors[coverage.triangle_id.long()].unsqueeze(-1), coverage)
    return torch.autograd.grad(image.sum(), leaf)[0][:, 0]


def test_d01_silhouette_gradient_has_the_right_size():
    grad = moved_square(1.0)
    assert grad[[1, 2]].sum().item() == pytest.approx(13.7 * 16, abs=1e-8)
    assert grad[[0, 3]].sum().item() == pytest.approx(-13.7 * 16, abs=1e-8)


def test_d02_inner_occlusion_edge_belongs_to_the_front():
    grad = moved_square(0.9, behind=0.2)
    assert grad[[1, 2]].sum().item() == pytest.approx(0.7 * 13.7 * 16, abs=1e-8)
    assert grad[4:].abs().max() < EXACT


def test_d04_mask_of_slivers_and_a_star_stays_within_zero_and_one():
    start = uniform(200, 1, 2, high=64.0, seed=1, dtype=F64)
    along = uniform(200, 2, 2, low=-20.0, high=20.0, seed=2, dtype=F64)
    slivers = torch.cat([start, start + along[:, :1], start + along[:, :1] * 0.9 + along[:, 1:] * 0.06], 1)
    angle = 2 * math.pi * torch.arange(10, dtype=F64) / 10
    radius = torch.tensor([9.0, 3.5] * 5, dtype=F64)
    star = torch.stack([angle.cos(), angle.sin()], -1) * radius[:, None] + 32.2
    points = torch.cat([slivers.reshape(-1, 2), star, torch.full((1, 2), 32.2, dtype=F64)])
    k = torch.arange(10)
    fan = torch.stack([600 + k, 600 + (k + 1) % 10, torch.full_like(k, 610)], -1)
    coverage = dr.coverage(clip_of(points, (64, 64)), torch.cat([torch.arange(600).reshape(-1, 3), fan]), (64, 64))
    mask = dr.composite(torch.ones_like(coverage.weight).unsqueeze(-1), coverage)
    assert mask.min() >= 0
    assert mask.max() < 1 + 1e-12
    assert mask.max() > 1 - 1e-12


def half_of_the_pixel(normal, offset):
    """Area and centroid of the part of the square [0, 1]^2 where normal . p >= offset, corner by corner."""
    corners = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    distance = [normal[0] * x + normal[1] * y - offset for x, y in corners]
    kept = []
    for k, (p, d) in enumerate(zip(corners, distance, strict=True)):
        q, e = corners[(k + 1) % 4], distance[(k + 1) % 4]
        if d >= 0:
            kept.append(p)
        if (d >= 0) != (e >= 0):
            t = d / (d - e)
            kept.append((p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])))
    points = torch.tensor(kept, dtype=F64)
    rest = points[1:] - points[0]
    parts = 0.5 * (rest[:-1, 0] * rest[1:, 1] - rest[:-1, 1] * rest[1:, 0])
    return parts.sum(), points[0] + (parts[:, None] * (rest[:-1] + rest[1:])).sum(0) / (3 * parts.sum())


def test_line_between_two_neighbours_halves_a_pixel_exactly():
    """Any direction, parallel to an axis, through a corner's neighbourhood and through the middle."""
    angle = torch.cat([uniform(80, high=2 * math.pi, seed=3, dtype=F64), torch.arange(4, dtype=F64) * math.pi / 2])
    through = uniform(len(angle), 2, high=1.0, seed=4, dtype=F64)
    through[:20] = 1e-4 * through[:20] + torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]], dtype=F64).repeat(5, 1)
    n = torch.stack([angle.cos(), angle.sin()], -1)
    n[-4:] = n[-4:].round()
    d = torch.stack([-n[:, 1], n[:, 0]], -1)
    corners = torch.stack([through - 60 * d, through + 60 * d, through + 60 * n, through - 60 * n], 1)
    clip = torch.stack([clip_of(quad, (1, 1)) for quad in corners])
    coverage = dr.coverage(clip, torch.tensor([[0, 1, 2], [1, 0, 3]]), (1, 1))
    checked = 0
    for k in range(len(coverage.weight)):
        item, triangle = int(coverage.pixel[k]), int(coverage.triangle_id[k])
        inward = n[item] if triangle == 0 else -n[item]
        area, centroid = half_of_the_pixel(inward.tolist(), float(inward @ through[item]))
        assert coverage.weight[k].item() == pytest.approx(area.item(), rel=1e-9, abs=1e-14)
        b = torch.cat([coverage.barycentrics[k], 1 - coverage.barycentrics[k].sum(0, keepdim=True)])
        index = [0, 1, 2] if triangle == 0 else [1, 0, 3]
        torch.testing.assert_close(b @ corners[item, index], centroid, rtol=0, atol=1e-9)
        checked += 1
    assert checked > 150
