"""Primitives, subdivision and remeshing."""

import math

import pytest
import torch

import diffrender as dr
from diffrender import geometry


def euler_characteristic(mesh: dr.Mesh) -> int:
    return len(mesh.triangles.unique()) - len(mesh.edges().vertices) + mesh.triangle_count


def signed_volume(mesh: dr.Mesh) -> float:
    a, b, c = geometry.triangle_corners(mesh.vertices.double(), mesh.triangles)
    return float((a * torch.linalg.cross(b, c)).sum() / 6)


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


@pytest.mark.parametrize("make", [geometry.icosphere, geometry.torus, geometry.cube, geometry.quad])
def test_primitives_are_float32_whatever_the_default_type(make):
    usual = make()
    torch.set_default_dtype(torch.float64)
    try:
        mesh = make()
    finally:
        torch.set_default_dtype(torch.float32)
    assert mesh.dtype == torch.float32
    assert torch.equal(mesh.vertices, usual.vertices)
    if mesh.texcoords is not None:
        assert torch.equal(mesh.texcoords, usual.texcoords)


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
