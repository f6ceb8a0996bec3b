"""Normals, transforms, topology, primitives and the Mesh container."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender import geometry
from tests.support.vocabulary import rnd

F64 = torch.float64


def euler_characteristic(mesh: dr.Mesh) -> int:
    return len(mesh.triangles.unique()) - len(mesh.edges().vertices) + mesh.triangle_count


def signed_volume(mesh: dr.Mesh) -> float:
    a, b, c = geometry.triangle_corners(mesh.vertices.double(), mesh.triangles)
    return float((a * torch.linalg.cross(b, c)).sum() / 6)


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


# Primitives -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "characteristic", "volume"),
    [
        (geometry.icosphere(4, radius=2.0), 2, 4 / 3 * math.pi * 8),
        (geometry.torus(2.0, 0.5, segments=96, tube_segments=48), 0, 2 * math.pi**2 * 2 * 0.25),
        (geometry.cube(3.0), 2, 27.0),
    ],
    ids=["icosphere", "torus", "cube"],
)
def test_primitives_are_closed_and_face_outwards(mesh, characteristic, volume):
    assert mesh.edges().triangle_count.unique().tolist() == [2]
    assert euler_characteristic(mesh) == characteristic
    assert signed_volume(mesh) == pytest.approx(volume, rel=6e-3)


def test_quad_faces_the_viewer_with_the_texture_upright():
    quad = geometry.quad(4.0, 2.0)
    assert quad.triangle_normals().tolist() == [[0, 0, 1], [0, 0, 1]]
    top_left = int((quad.vertices - torch.tensor([-2.0, 1.0, 0.0])).norm(dim=-1).argmin())
    assert quad.texcoords is not None
    assert quad.texcoords[top_left].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("mesh", [geometry.cube(), geometry.torus()], ids=["cube", "torus"])
def test_textures_are_not_mirrored(mesh):
    """(u, -v, outside) is right-handed: seen from outside, u runs to the right of up."""
    a, b, c = geometry.triangle_corners(mesh.texcoords, mesh.texcoord_triangles)
    first, second = b - a, c - a
    turn = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    assert (turn < 0).all()  # counter-clockwise with v up is clockwise with v down


def test_primitives_refuse_impossible_sizes():
    with pytest.raises(ValueError, match="icosphere: subdivisions must be at least 0, got -1"):
        geometry.icosphere(-1)
    with pytest.raises(ValueError, match="torus: segments must be at least 3, got 2 and 24"):
        geometry.torus(segments=2)


def test_subdivision_keeps_surface_and_attributes():
    torus = geometry.torus(segments=8, tube_segments=6)
    torus = torus.replace(colors=torus.vertices * 0.5 + 0.5)
    fine = geometry.subdivide(torus)
    assert fine.triangle_count == 4 * torus.triangle_count
    assert euler_characteristic(fine) == 0
    # Midpoints lie in the old triangles: same volume, and attributes stay linear on each of them.
    assert signed_volume(fine) == pytest.approx(signed_volume(torus), rel=1e-6)
    assert fine.colors is not None
    torch.testing.assert_close(fine.colors, fine.vertices * 0.5 + 0.5)
    coarse_uv = torch.stack(geometry.triangle_corners(torus.texcoords, torus.texcoord_triangles), 1).mean(1)
    fine_uv = torch.stack(geometry.triangle_corners(fine.texcoords, fine.texcoord_triangles), 1).mean(1)
    torch.testing.assert_close(fine_uv.unflatten(0, (-1, 4)).mean(1), coarse_uv)


# Remeshing ------------------------------------------------------------------------------------------------------------


def edge_lengths(mesh: dr.Mesh) -> torch.Tensor:
    ends = mesh.vertices[mesh.edges().vertices]
    return (ends[:, 0] - ends[:, 1]).norm(dim=-1)


@pytest.mark.parametrize("edge_length", [0.08, 0.3])
@pytest.mark.parametrize("name", ["icosphere", "torus"])
def test_remesh_keeps_topology_and_shape_and_evens_edges(name, edge_length):
    mesh = geometry.icosphere(3) if name == "icosphere" else geometry.torus(0.8, 0.4)
    stretched = mesh.with_vertices(mesh.vertices * torch.tensor([1.0, 2.5, 1.0]))
    even = geometry.remesh(stretched, edge_length)
    assert even.edges().triangle_count.unique().tolist() == [2]
    assert euler_characteristic(even) == euler_characteristic(stretched)
    assert signed_volume(even) == pytest.approx(signed_volume(stretched), rel=0.1 if edge_length > 0.1 else 0.01)
    lengths = edge_lengths(even)
    assert lengths.mean() == pytest.approx(edge_length, rel=0.12)
    assert ((lengths > 0.6 * edge_length) & (lengths < 1.5 * edge_length)).float().mean() > 0.97
    valence = torch.bincount(even.edges().vertices.reshape(-1))
    assert (valence == 6).float().mean() > 0.6
    assert valence.min() >= 4
    # No triangle was turned over: all normals look away from the axis as far as the shape does.
    assert torch.isfinite(even.vertices).all()
    assert (even.triangle_normals().norm(dim=-1) > 0.99).all()


def test_remesh_keeps_borders():
    quad = geometry.remesh(geometry.quad(2.0, 1.0), 0.1)
    border = quad.edges().vertices[quad.edges().triangle_count == 1].unique()
    on_outline = (quad.vertices[:, 0].abs() - 1).abs().minimum((quad.vertices[:, 1].abs() - 0.5).abs()) < 1e-6
    assert on_outline[border].all()
    corners = torch.tensor([[-1.0, -0.5, 0], [1, -0.5, 0], [1, 0.5, 0], [-1, 0.5, 0]])
    assert torch.cdist(corners, quad.vertices).amin(1).max() < 1e-6
    area = quad.triangle_normals()[:, 2].sign() * 0.5
    area = area * geometry.triangle_area_vectors(quad.vertices, quad.triangles).norm(dim=-1)
    assert float(area.sum()) == pytest.approx(2.0, rel=1e-5)


def test_remesh_is_repeatable():
    sphere = geometry.icosphere(2)
    first, second = geometry.remesh(sphere, 0.2), geometry.remesh(sphere, 0.2)
    assert torch.equal(first.vertices, second.vertices)
    assert torch.equal(first.triangles, second.triangles)


def test_remesh_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="remesh: edge_length must be positive, got 0"):
        geometry.remesh(geometry.cube(), 0)
    batch = geometry.cube().with_vertices(geometry.cube().vertices.expand(2, 8, 3))
    with pytest.raises(ValueError, match=r"remesh: mesh must hold one shape \(V, 3\), got \(2, 8, 3\)"):
        geometry.remesh(batch, 0.1)


# Mesh -----------------------------------------------------------------------------------------------------------------

VERTICES = torch.eye(3)
TRIANGLES = torch.tensor([[0, 1, 2]])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"vertices": VERTICES.long()}, TypeError, "Mesh: vertices must be float32 or float64, got torch.int64"),
        ({"vertices": VERTICES.numpy()}, TypeError, "Mesh: vertices must be a tensor, got ndarray"),
        ({"vertices": torch.zeros(3, 4)}, ValueError, r"Mesh: vertices must have shape \(N, 3\) or .*, got \(3, 4\)"),
        ({"triangles": TRIANGLES.float()}, TypeError, "Mesh: triangles must be int32 or int64, got torch.float32"),
        ({"triangles": torch.zeros(3, 8).int()}, ValueError, r"have shape \(T, 3\), got \(3, 8\). Transpose it\?"),
        ({"triangles": TRIANGLES + 1}, ValueError, "Mesh: triangles refers to row 3 but vertices has 3 rows"),
        ({"triangles": TRIANGLES - 1}, ValueError, "Mesh: triangles refers to row -1 but vertices has 3 rows"),
        ({"colors": torch.zeros(2, 3)}, ValueError, r"Mesh: colors must have one row per vertex \(3\), got 2"),
        ({"colors": torch.zeros(3, 3).double()}, TypeError, "Mesh: colors must be torch.float32 as vertices are"),
        (
            {"texcoords": torch.zeros(2, 2)},
            ValueError,
            "texcoord_triangles refers to row 2 .* Pass texcoord_triangles?",
        ),
        ({"texcoord_triangles": TRIANGLES}, ValueError, "Mesh: texcoord_triangles must come with texcoords, got none"),
        (
            {"normals": VERTICES, "normal_triangles": TRIANGLES.repeat(2, 1)},
            ValueError,
            r"Mesh: normal_triangles must have one row per triangle \(1\), got 2",
        ),
    ],
)
def test_mesh_says_what_is_wrong(arguments, error, message):
    with pytest.raises(error, match=message):
        dr.Mesh(**{"vertices": VERTICES, "triangles": TRIANGLES, **arguments})


def test_mesh_converts_floats_and_keeps_indices():
    mesh = geometry.torus().replace(colors=torch.rand(1152, 3))
    double = mesh.to(F64)
    assert mesh.triangles.dtype == torch.int32
    assert (double.dtype, double.colors.dtype, double.texcoords.dtype) == (F64, F64, F64)
    assert torch.equal(double.texcoord_triangles, mesh.texcoord_triangles)
    assert double.vertex_normals().dtype == F64


def test_with_vertices_shares_caches_and_drops_stored_normals():
    mesh = geometry.icosphere(1)
    apart = mesh.replace(normals=torch.eye(3), normal_triangles=torch.zeros_like(mesh.triangles))
    assert apart.replace(normals=None).normal_triangles is None  # the index table goes with what it points into
    mesh = mesh.replace(normals=mesh.vertex_normals())
    topology, edges = mesh.edge_topology(), mesh.edges()
    moved = mesh.with_vertices(mesh.vertices * 2)
    assert moved.edge_topology() is topology
    assert moved.edges() is edges
    assert moved.normals is None
    assert mesh.replace(triangles=mesh.triangles[:5]).edges() is not edges


def test_edge_topology_welds_equal_positions():
    sphere = geometry.icosphere(1)
    corners = sphere.triangles.long().reshape(-1)
    split = dr.Mesh(sphere.vertices[corners], torch.arange(len(corners)).reshape(-1, 3))
    assert torch.equal(split.edge_topology(), sphere.edge_topology())
    assert (split.edge_topology() >= 0).all()
    moved = split.with_vertices(split.vertices + torch.rand(len(corners), 3))
    assert torch.equal(moved.edge_topology(), sphere.edge_topology())  # the welds of the first call stay


def test_r19_caches_made_in_inference_mode_serve_training():
    mesh = geometry.icosphere(1)
    with torch.inference_mode():
        topology = mesh.edge_topology()
        mesh.adjacent_triangles()
    assert not topology.is_inference()
    vertices = mesh.vertices.clone().requires_grad_()
    dr.losses.normal_consistency(mesh.with_vertices(vertices)).backward()
    assert vertices.grad is not None


def test_r08_meshes_pickle_and_copy():
    mesh = geometry.torus()
    for twin in (pickle.loads(pickle.dumps(mesh)), copy.deepcopy(mesh)):
        assert torch.equal(twin.vertices, mesh.vertices)
        assert torch.equal(twin.texcoord_triangles, mesh.texcoord_triangles)


def test_detach_cuts_the_graph_and_keeps_the_caches():
    mesh = geometry.icosphere(1)
    edges = mesh.edges()
    moving = mesh.with_vertices(mesh.vertices.clone().requires_grad_())
    assert moving.vertices.requires_grad
    assert not moving.detach().vertices.requires_grad
    assert moving.detach().edges() is edges
