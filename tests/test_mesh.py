"""The Mesh container."""

import copy
import pickle

import pytest
import torch

import diffrender as dr
from diffrender import geometry

F64 = torch.float64
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
