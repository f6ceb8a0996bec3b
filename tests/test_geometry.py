"""Unit vectors, normals, transforms and topology of meshes."""

import math

import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender import geometry
from tests.support.vocabulary import rnd

F64 = torch.float64


# Unit vectors ---------------------------------------------------------------------------------------------------------


def test_safe_normalize_of_zero_is_zero_with_zero_gradient():
    vectors = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]], requires_grad=True)
    unit = dr.geometry.safe_normalize(vectors)
    (unit * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert unit[0].tolist() == [0, 0, 0]
    assert vectors.grad is not None
    assert vectors.grad[0].tolist() == [0, 0, 0]
    torch.testing.assert_close(unit[1].detach(), torch.tensor([0.6, 0.0, 0.8]))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_safe_normalize_keeps_digits_whatever_the_length(scale):
    unit = geometry.safe_normalize(torch.tensor([1.0, -2.0, 2.0]) * scale)
    torch.testing.assert_close(unit, torch.tensor([1.0, -2.0, 2.0]) / 3)


def test_safe_normalize_gradient_is_exact():
    vectors = torch.randn(5, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(geometry.safe_normalize, vectors)
    assert torch.autograd.gradgradcheck(geometry.safe_normalize, vectors)


def test_safe_normalize_of_non_finite_vectors_is_zero():
    vectors = torch.tensor([[math.inf, 0.0, 0.0], [math.nan, 1.0, 0.0], [0.0, 2.0, 0.0]], requires_grad=True)
    unit = geometry.safe_normalize(vectors)
    unit.sum().backward()
    assert unit.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


# Vertex normals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["area", "angle"])
def test_vertex_normals_of_a_sphere_are_its_radii(weighting):
    sphere = geometry.icosphere(3).to(F64)
    cosines = (sphere.vertex_normals(weighting=weighting) * sphere.vertices).sum(-1)
    assert cosines.min() > 0.9995


def test_area_weighted_normals_match_numpy():
    sphere = geometry.icosphere(1).to(F64)
    vertices = sphere.vertices + 0.2 * torch.randn(sphere.vertices.shape, dtype=F64)
    v, t = vertices.numpy(), sphere.triangles.numpy()
    expected = np.zeros_like(v)
    cross = np.cross(v[t[:, 1]] - v[t[:, 0]], v[t[:, 2]] - v[t[:, 0]])
    for k in range(3):
        np.add.at(expected, t[:, k], cross)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    torch.testing.assert_close(geometry.vertex_normals(vertices, sphere.triangles), torch.from_numpy(expected))


def test_s08_angle_weighted_normals_do_not_depend_on_the_diagonals():
    cube = geometry.cube().to(F64)
    quads = [[4, 5, 7, 6], [1, 0, 2, 3], [5, 1, 3, 7], [0, 4, 6, 2], [6, 7, 3, 2], [0, 1, 5, 4]]
    for choice in range(64):
        triangles = []
        for side, (a, b, c, d) in enumerate(quads):
            triangles += [[a, b, c], [a, c, d]] if choice >> side & 1 else [[b, c, d], [b, d, a]]
        normals = geometry.vertex_normals(cube.vertices, torch.tensor(triangles), weighting="angle")
        torch.testing.assert_close(normals, cube.vertices / math.sqrt(3))


@pytest.mark.parametrize("weighting", ["area", "angle"])
def test_vertex_normals_gradient_is_exact(weighting):
    sphere = geometry.icosphere(0).to(F64)
    vertices = (sphere.vertices + 0.1 * torch.randn(12, 3, dtype=F64)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: geometry.vertex_normals(v, sphere.triangles, weighting=weighting), vertices
    )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("weighting", ["area", "angle"])
def test_d07_bad_elements_leave_good_normals_and_gradients_alone(weighting, dtype):
    """An isolated vertex, a repeated index, and three corners on a line (to within rounding) in a skew direction."""
    direction = torch.tensor([0.1, 0.2, 0.3], dtype=dtype)
    line = torch.stack([direction, 2 * direction, 3 * direction])
    good = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.2, 1.0, 0.3]], dtype=dtype)
    weights = torch.randn(7, 3, dtype=dtype)

    vertices = torch.cat([good, line, torch.ones(1, 3, dtype=dtype)]).requires_grad_()
    normals = geometry.vertex_normals(vertices, torch.tensor([[0, 1, 2], [3, 4, 5], [0, 0, 1]]), weighting=weighting)
    (normals * weights).sum().backward()
    alone = good.clone().requires_grad_()
    normals_alone = geometry.vertex_normals(alone, torch.tensor([[0, 1, 2]]), weighting=weighting)
    (normals_alone * weights[:3]).sum().backward()

    assert vertices.grad is not None
    assert (normals[3:] == 0).all()
    assert (vertices.grad[3:] == 0).all()
    assert torch.equal(normals[:3], normals_alone)
    assert torch.equal(vertices.grad[:3], alone.grad)


def test_small_meshes_are_not_degenerate():
    sphere = geometry.icosphere(2)
    tiny = sphere.vertices * 1e-15
    torch.testing.assert_close(
        geometry.vertex_normals(tiny, sphere.triangles), sphere.vertex_normals(), rtol=1e-4, atol=1e-5
    )


def test_normals_of_a_batch_are_those_of_its_items():
    sphere = geometry.icosphere(1)
    batch = sphere.vertices * torch.tensor([1.0, 2.0, 0.5])[:, None, None] + 0.1 * torch.randn(3, 42, 3)
    together = geometry.vertex_normals(batch, sphere.triangles)
    for item, normals in zip(batch, together, strict=True):
        torch.testing.assert_close(geometry.vertex_normals(item, sphere.triangles), normals)


def test_normals_without_triangles_are_zero():
    assert geometry.vertex_normals(torch.rand(4, 3), torch.zeros(0, 3, dtype=torch.int32)).abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("weighting", ["area", "angle"])
def test_d07_normals_that_cancel_are_zero_with_zero_gradient(weighting, dtype):
    """Three sheets back to back with three others: what is left of the sum is rounding, whose direction is noise."""
    corners = rnd(7, 3, seed=4, dtype=F64).to(dtype)
    front = torch.tensor([[0, 1, 2], [0, 3, 4], [0, 5, 6]])
    vertices = corners.requires_grad_()
    normals = geometry.vertex_normals(vertices, torch.cat([front, front.flip(-1).roll(1, -1)]), weighting=weighting)
    assert not normals.any()
    (grad,) = torch.autograd.grad(normals.sum(), vertices)
    assert not grad.any()


def test_angle_weighted_normals_of_a_tiny_mesh_do_not_vanish():
    sphere = geometry.icosphere(1)
    tiny = sphere.vertices * 1e-12
    torch.testing.assert_close(
        geometry.vertex_normals(tiny, sphere.triangles, weighting="angle"),
        sphere.vertex_normals(weighting="angle"),
        rtol=1e-4,
        atol=1e-5,
    )


def test_unknown_weighting_is_named():
    with pytest.raises(ValueError, match='vertex_normals: weighting must be "area" or "angle", got \'volume\''):
        geometry.vertex_normals(torch.rand(3, 3), torch.tensor([[0, 1, 2]]), weighting="volume")


# Transforms -----------------------------------------------------------------------------------------------------------


def test_rotation_is_right_handed():
    quarter = geometry.rotation([0.0, 0.0, 2.0], math.pi / 2)
    turned = geometry.transform_points(quarter, torch.tensor([[1.0, 0.0, 0.0]]))
    torch.testing.assert_close(turned, torch.tensor([[0.0, 1.0, 0.0]]), atol=1e-6, rtol=0)


def test_transforms_compose_from_the_right():
    moved = geometry.compose(geometry.translation([1.0, 0.0, 0.0]), geometry.scaling(2.0))
    assert geometry.transform_points(moved, torch.tensor([[1.0, 1.0, 1.0]])).tolist() == [[3.0, 2.0, 2.0]]
    assert geometry.transform_directions(moved, torch.tensor([[1.0, 1.0, 1.0]])).tolist() == [[2.0, 2.0, 2.0]]


def test_compose_is_the_matrix_product():
    a, b, c = torch.randn(3, 5, 4, 4, dtype=F64)
    torch.testing.assert_close(geometry.compose(a, b, c), a @ b @ c)


def test_s04_normals_take_the_inverse_transpose():
    stretch = geometry.scaling([1.0, 3.0, 1.0])
    normal = torch.tensor([[1.0, 1.0, 0.0]]) / math.sqrt(2)
    torch.testing.assert_close(
        geometry.transform_normals(stretch, normal), torch.tensor([[0.94868, 0.31623, 0.0]]), atol=1e-5, rtol=0
    )


def test_transformed_normals_are_normals_of_the_transformed_mesh():
    sphere = geometry.icosphere(2).to(F64)
    matrix = geometry.affine(torch.randn(3, 3, dtype=F64), torch.randn(3, dtype=F64))
    for mirror in (1.0, -1.0):
        transform = geometry.compose(matrix, geometry.scaling(torch.tensor([mirror, 1, 1], dtype=F64)))
        sign = torch.linalg.det(transform[:3, :3]).sign()
        moved = sphere.with_vertices(geometry.transform_points(transform, sphere.vertices))
        expected = moved.triangle_normals() * sign  # a mirrored mesh is wound the other way
        actual = geometry.transform_normals(transform, sphere.triangle_normals())
        torch.testing.assert_close(actual, expected)


def test_transforms_are_differentiable():
    points = torch.randn(4, 3, dtype=F64, requires_grad=True)
    matrix = torch.randn(2, 4, 4, dtype=F64, requires_grad=True)
    for function in (geometry.transform_points, geometry.transform_directions, geometry.transform_normals):
        assert torch.autograd.gradcheck(function, (matrix, points))
    axis = torch.randn(2, 3, dtype=F64, requires_grad=True)
    angle = torch.tensor([0.3, -2.0], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(geometry.rotation, (axis, angle))


def test_r07_transforms_stay_float32_under_autocast():
    matrix, points = torch.randn(4, 4), torch.randn(100, 3)
    plain = geometry.transform_homogeneous(geometry.compose(matrix, matrix), points)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = geometry.transform_homogeneous(geometry.compose(matrix, matrix), points)
    assert torch.equal(plain, cast)


# Topology -------------------------------------------------------------------------------------------------------------


def test_unique_edges_name_every_edge_once():
    edges = geometry.unique_edges(torch.tensor([[0, 1, 2], [2, 1, 3]]))
    assert edges.vertices.tolist() == [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]
    assert edges.triangle_count.tolist() == [1, 1, 2, 1, 1]
    # Column k is the edge opposite to corner k.
    assert edges.of_triangle.tolist() == [[2, 1, 0], [3, 4, 2]]


def test_adjacent_triangles_leave_out_borders_and_fans():
    fan = torch.tensor([[0, 1, 2], [0, 1, 3], [0, 1, 4], [1, 2, 5]])
    assert geometry.adjacent_triangles(geometry.unique_edges(fan)).tolist() == [[0, 3]]
    sphere = geometry.icosphere(1)
    pairs = sphere.adjacent_triangles()
    assert len(pairs) == len(sphere.edges().vertices)
    shared = [len(set(sphere.triangles[a].tolist()) & set(sphere.triangles[b].tolist())) for a, b in pairs.tolist()]
    assert set(shared) == {2}


def test_laplacian_matrix_is_degree_minus_adjacency():
    edges = geometry.unique_edges(torch.tensor([[0, 1, 2]]))
    dense = geometry.laplacian_matrix(edges, 4).to_dense()
    assert dense.tolist() == [[2, -1, -1, 0], [-1, 2, -1, 0], [-1, -1, 2, 0], [0, 0, 0, 0]]
