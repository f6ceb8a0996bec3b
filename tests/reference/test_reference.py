"""The references against closed forms: they decide what is right elsewhere, so they are checked on their own first."""

import numpy as np
import pytest
import torch

from tests.reference import rasterize as reference
from tests.reference.antialias import antialias
from tests.reference.interpolate import interpolate
from tests.reference.topology import edge_topology

F64 = torch.float64


def pixels_to_clip(points, height, width, w=None):
    points = torch.tensor(points, dtype=F64)
    w = torch.ones(len(points), dtype=F64) if w is None else torch.tensor(w, dtype=F64)
    depth = 0.1 * torch.arange(len(points))
    ndc = torch.stack([2 * points[:, 0] / width - 1, 1 - 2 * points[:, 1] / height, depth], -1)
    return torch.cat([ndc * w[:, None], w[:, None]], -1)


TRIANGLE = torch.tensor([[0, 1, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reference_coverage_counts_the_known_triangle(dtype):
    corners = torch.tensor([[-0.8, -0.8, 0, 1], [0.8, -0.8, 0, 1], [-0.8, 0.8, 0, 1]], dtype=dtype)
    fragments = reference.rasterize(corners, TRIANGLE, (256, 256))
    assert (fragments.triangle_id >= 0).sum() == 20706


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (0, 2, 1)])
@pytest.mark.parametrize(
    ("points", "expected"),
    [
        # The top and the left edge count, the hypotenuse does not.
        ([(0.5, 0.5), (2.5, 0.5), (0.5, 2.5)], {(0, 0), (0, 1), (1, 0)}),
        # The hypotenuse is a left edge and counts, except for its ends, which also lie on right and bottom edges.
        ([(2.5, 0.5), (2.5, 2.5), (0.5, 2.5)], {(1, 1)}),
    ],
)
def test_reference_top_left_rule(points, expected, order):
    corners = pixels_to_clip([points[k] for k in order], 4, 4)
    triangle_id = reference.rasterize(corners, TRIANGLE, (4, 4)).triangle_id[0]
    assert {(int(r), int(c)) for r, c in torch.nonzero(triangle_id >= 0)} == expected


def test_reference_barycentrics_weights_give_the_ray_hit():
    """sum b_i p_i lies on the ray of the pixel: x = fx w and y = fy w, and z / w of it is the depth."""
    corners = pixels_to_clip([(1.3, 0.7), (14.1, 3.2), (5.0, 10.4)], 11, 15, w=[1, 2, 3.5])
    fragments = reference.rasterize(corners, TRIANGLE, (11, 15))
    b = fragments.barycentrics[0]
    weights = torch.cat([b, 1 - b.sum(-1, keepdim=True)], -1)
    hit = fragments.triangle_id[0] >= 0
    point = (weights @ corners)[hit]
    fx, fy = reference.pixel_centres(11, 15)
    fy, fx = (torch.from_numpy(n)[hit] for n in np.meshgrid(fy, fx, indexing="ij"))
    assert hit.sum() > 40
    assert (weights[hit] > 0).all()
    torch.testing.assert_close(point[:, 0], fx * point[:, 3], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(point[:, 1], fy * point[:, 3], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(point[:, 2] / point[:, 3], fragments.depth[0][hit], rtol=1e-12, atol=1e-12)
    assert (fragments.depth[0][~hit] == 1).all()
    assert (fragments.barycentrics[0][~hit] == 0).all()


def test_reference_derivatives_are_differences_between_neighbours():
    """With equal w barycentrics are affine on screen, so the derivative is the exact difference of two pixels."""
    corners = pixels_to_clip([(-3, -2), (30, 1), (4, 28)], 10, 12)
    fragments = reference.rasterize(corners, TRIANGLE, (10, 12), derivatives=True)
    assert (fragments.triangle_id == 0)[:, 2:, 2:8].all()
    b, d = fragments.barycentrics[0, 2:, 2:8], fragments.derivatives[0, 2:, 2:8]
    torch.testing.assert_close(b[:, 1:] - b[:, :-1], d[:, :-1, [0, 2]], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(b[1:] - b[:-1], d[:-1, :, [1, 3]], rtol=1e-10, atol=1e-12)


def test_reference_clips_at_near_without_cracks():
    """Two triangles of a quad that runs through the camera: no pixel of the visible part is missed or hit twice."""
    quad = torch.tensor([[-9, -1, -4.2, -4], [9, -1, -4.2, -4], [9, -1, 7.8, 8], [-9, -1, 7.8, 8]], dtype=F64)
    both = reference.rasterize(quad, torch.tensor([[0, 1, 2], [0, 2, 3]]), (20, 24)).triangle_id
    single = [reference.rasterize(quad, torch.tensor([f]), (20, 24)).triangle_id for f in ([0, 1, 2], [0, 2, 3])]
    hits = sum((s >= 0).int() for s in single)
    assert hits.max() == 1
    assert torch.equal(hits > 0, both >= 0)
    assert 0 < hits.sum() < 20 * 24


def test_reference_peels_layers_in_depth_order_then_by_index():
    corners = pixels_to_clip([(0, 0), (40, 0), (0, 40)], 6, 6)
    layers = torch.cat([corners + torch.tensor([0, 0, z, 0], dtype=F64) for z in (0.2, 0.0, 0.2)])
    triangles = torch.arange(9).reshape(3, 3)
    order, beneath = [], None
    for _ in range(4):
        beneath = reference.rasterize(layers, triangles, (6, 6), beneath=beneath)
        order.append(beneath.triangle_id.unique().tolist())
    assert order == [[1], [0], [2], [-1]]


def test_reference_interpolates_an_affine_function_exactly():
    corners = pixels_to_clip([(-3, -2), (30, 1), (4, 28)], 10, 12)
    fragments = reference.rasterize(corners, TRIANGLE, (10, 12), derivatives=True)
    points = torch.tensor([(-3, -2), (30, 1), (4, 28)], dtype=F64)
    attributes = (points @ torch.tensor([[2.0], [-3.0]], dtype=F64)) + 1
    values, steps = interpolate(attributes, TRIANGLE, fragments, derivatives="all")
    hit = fragments.triangle_id >= 0
    row, column = (n.double() + 0.5 for n in torch.nonzero(hit[0], as_tuple=True))
    torch.testing.assert_close(values[hit][:, 0], 2 * column - 3 * row + 1, rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(steps[hit], torch.tensor([[2.0, -3.0]], dtype=F64).expand(len(row), 2))
    assert (values[~hit] == 0).all()


def test_reference_antialias_blends_a_vertical_edge_by_its_distance():
    """A vertical edge at column c + 1/2 + d: n_x = 1, so alpha = 1/2 - d goes to one of the two pixels of each row."""
    for d, receiving, expected in ((0.3, 0, 0.2), (0.8, 1, 0.3)):
        corners = pixels_to_clip([(4.5 + d, -40), (4.5 + d, 50), (-60, 5)], 8, 10)
        fragments = reference.rasterize(corners, TRIANGLE, (8, 10))
        image = (fragments.triangle_id >= 0).double()[..., None]
        topology = edge_topology(TRIANGLE)
        blended = antialias(image, fragments, corners, TRIANGLE, topology)
        change = (blended - image)[0, :, :, 0]
        truth = torch.zeros(8, 10, dtype=F64)
        truth[:, 4 + receiving] = expected if receiving else -expected
        torch.testing.assert_close(change, truth, rtol=0, atol=1e-12)


def test_reference_antialias_position_gradient_is_the_edge_length():
    """Sum of the mask of a square: moving the right side by one pixel adds its rows, moving everything adds nothing."""
    corners = pixels_to_clip([(8.3, 9.2), (20.6, 9.2), (20.6, 22.9), (8.3, 22.9)], 32, 32)
    corners[:, 2] = 0
    triangles = torch.tensor([[0, 1, 2], [0, 2, 3]])
    fragments = reference.rasterize(corners, triangles, (32, 32))
    leaf = corners.clone().requires_grad_()
    image = (fragments.triangle_id >= 0).double()[..., None]
    antialias(image, fragments, leaf, triangles, edge_topology(triangles)).sum().backward()
    grad_x = leaf.grad[:, 0]
    torch.testing.assert_close(grad_x[[1, 2]].sum(), torch.tensor(14 * 16.0, dtype=F64), rtol=1e-12, atol=0)
    torch.testing.assert_close(grad_x.sum(), torch.tensor(0.0, dtype=F64), rtol=0, atol=1e-10)


def test_reference_antialias_keeps_a_constant_image_and_the_range():
    generator = torch.Generator().manual_seed(3)
    corners = torch.rand(30, 4, generator=generator, dtype=F64) * 2 - 1
    corners[:, 3] = 1
    triangles = torch.arange(30).reshape(10, 3)
    fragments = reference.rasterize(corners, triangles, (16, 16))
    topology = edge_topology(triangles)
    constant = torch.full((1, 16, 16, 2), 0.7, dtype=F64)
    torch.testing.assert_close(antialias(constant, fragments, corners, triangles, topology), constant)
    noise = torch.rand(1, 16, 16, 2, generator=generator, dtype=F64)
    blended = antialias(noise, fragments, corners, triangles, topology)
    assert (blended != noise).any(-1).sum() > 50
    assert blended.min() >= noise.min() - 1e-12
    assert blended.max() <= noise.max() + 1e-12


def test_reference_topology_of_a_strip_and_a_book():
    """Entry [t, k] is 3 t' + k' of the corner across the edge that lies opposite to corner k of t."""
    strip = torch.tensor([[0, 1, 2], [2, 1, 3], [4, 4, 3]])
    assert edge_topology(strip).tolist() == [[5, -1, -1], [-1, -1, 0], [-1, -1, -1]]
    book = torch.tensor([[0, 1, 2], [0, 1, 3], [0, 1, 4]])  # three pages on one spine: a ring, coded as -2 - twin
    assert edge_topology(book).tolist() == [[-1, -1, -2 - 5], [-1, -1, -2 - 8], [-1, -1, -2 - 2]]
    split = torch.tensor([[0, 1, 2], [3, 4, 5]])
    positions = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]], dtype=F64)
    assert edge_topology(split).tolist() == [[-1] * 3] * 2
    assert edge_topology(split, positions).tolist() == [[5, -1, -1], [-1, -1, 0]]


def test_reference_walk_finds_the_silhouette_behind_inner_edges():
    """A square cut in 40 upright strips of 0.3 pixels: most strips own no pixel centre, and the right side of the
    square is an edge of the last one. The gradient is that of the uncut square: 16 pixels per unit times its rows.
    """
    height, width, strips = 12, 32, 40
    x = [4.2 + 0.3 * k for k in range(strips + 1)]
    corners = pixels_to_clip([(c, 2.3) for c in x] + [(c, 9.4) for c in x], height, width)
    corners[:, 2] = 0
    n = strips + 1
    triangles = torch.tensor([t for k in range(strips) for t in ([k, k + 1, n + k], [k + 1, n + k + 1, n + k])])
    fragments = reference.rasterize(corners, triangles, (height, width))
    leaf = corners.clone().requires_grad_()
    image = (fragments.triangle_id >= 0).double()[..., None]
    antialias(image, fragments, leaf, triangles, edge_topology(triangles)).sum().backward()
    grad_x = leaf.grad[:, 0]
    torch.testing.assert_close(grad_x[[n - 1, 2 * n - 1]].sum(), torch.tensor(7 * 16.0, dtype=F64), rtol=1e-9, atol=0)
    torch.testing.assert_close(grad_x[[0, n]].sum(), torch.tensor(-7 * 16.0, dtype=F64), rtol=1e-9, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_reference_gradients_agree_with_finite_differences(seed):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(18, 4, generator=generator, dtype=F64) * 2 - 1
    corners[:, 3] = 1 + 0.4 * corners[:, 3]
    corners.requires_grad_()
    triangles = torch.arange(18).reshape(6, 3)
    fragments = reference.rasterize(corners.detach(), triangles, (7, 8))
    topology = edge_topology(triangles)
    image = torch.rand(1, 7, 8, 2, generator=generator, dtype=F64, requires_grad=True)

    def values(p):
        return reference.fragment_values(p, triangles, fragments.triangle_id, True)[1:]

    assert torch.autograd.gradcheck(values, corners, fast_mode=seed > 0)
    assert torch.autograd.gradcheck(
        lambda i, p: antialias(i, fragments, p, triangles, topology), (image, corners), fast_mode=True
    )
