"""The Mesh container."""

import copy
import pickle

import numpy as np
import pytest
import torch
import trimesh

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
        ({"vertices": VERTICES.tolist()}, TypeError, "Mesh: vertices must be a tensor or an array, got list"),
        ({"triangles": [[0, 1, 2]]}, TypeError, "Mesh: triangles must be a tensor or an array, got list"),
        ({"vertices": np.eye(3, dtype=int)}, TypeError, "Mesh: vertices must be an array of floats, got int64"),
        (
            {"colors": np.eye(3, dtype=np.uint8)},
            TypeError,
            "Mesh: colors must be .* floats, got uint8. Divide bytes by",
        ),
        ({"triangles": np.eye(3)}, TypeError, "Mesh: triangles must be an array of integers, got float64"),
        ({"vertices": np.eye(4)}, ValueError, r"Mesh: vertices must have shape \(N, 3\) or .*, got \(4, 4\)"),
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


def test_arrays_stand_for_tensors_everywhere():
    generator = np.random.default_rng(0)
    fields = {
        "vertices": generator.random((5, 3)),
        "triangles": np.array([[0, 1, 2], [2, 3, 4]]),
        "texcoords": generator.random((4, 2)),
        "texcoord_triangles": np.array([[0, 1, 2], [1, 2, 3]]),
        "normals": generator.random((2, 3)),
        "normal_triangles": np.array([[0, 0, 0], [1, 1, 1]]),
        "tangents": generator.random((2, 4)),
        "tangent_triangles": np.array([[1, 1, 1], [0, 0, 0]]),
        "colors": generator.random((5, 4)),
        "material_ids": np.array([1, 0]),
    }
    floats = {name for name, array in fields.items() if array.dtype.kind == "f"}
    materials, offset = [None, dr.Material()], generator.random(3)
    mesh = dr.Mesh(**fields, material=materials, offset=offset)
    tensors = {name: torch.as_tensor(array) for name, array in fields.items()}
    double = dr.Mesh(**tensors, material=materials)
    for name in fields:
        expected = getattr(double, name)
        assert torch.equal(getattr(mesh, name), expected.float() if name in floats else expected), name
    assert torch.equal(mesh.offset, torch.as_tensor(offset))
    # Any memory layout, byte order and width, read-only ones as well.
    strange = {name: array[::-1, ...].astype(array.dtype.newbyteorder())[::-1, ...] for name, array in fields.items()}
    strange["triangles"] = strange["triangles"].astype(np.uint32)
    for array in strange.values():
        array.flags.writeable = False
    again = dr.Mesh(**strange, material=materials)
    for name in fields:
        assert torch.equal(getattr(again, name), getattr(mesh, name)), name
    fields["vertices"][:] = 0  # a copy, not a window
    assert (mesh.vertices != 0).all()


def test_arrays_follow_the_tensors_beside_them():
    vertices = torch.rand(4, 3, dtype=F64, requires_grad=True)
    mesh = dr.Mesh(vertices, np.array([[0, 1, 2]]), colors=np.ones((4, 3), np.float16))
    assert (mesh.dtype, mesh.colors.dtype) == (F64, F64)
    assert mesh.vertices is vertices
    assert mesh.with_vertices(np.zeros((4, 3), np.float32)).dtype == F64  # as the colors are
    on_meta = dr.Mesh(vertices.to("meta"), np.array([[0, 1, 2]]), colors=np.zeros((4, 3)))
    assert (on_meta.triangles.device.type, on_meta.colors.device.type) == ("meta", "meta")


def test_a_mesh_of_trimesh_renders_as_it_is():
    ball = trimesh.creation.icosphere(subdivisions=2)
    mesh = dr.Mesh(ball.vertices, ball.faces)
    camera = dr.Camera.perspective(fov_y_deg=40, width=32, height=32).look_at([0.0, 0.0, 4.0])
    result = dr.Renderer((32, 32), outputs=("color", "mask"))(mesh, camera, [dr.DirectionalLight((0.0, 0.0, -1.0))])
    assert result.color[result.mask[..., 0]].min() > 0


def test_arrays_with_large_coordinates_are_warned_of():
    far = np.eye(3) + 4e6
    with pytest.warns(UserWarning, match="Mesh: coordinates up to 4e.06 lose .* in torch.float32. Center it") as warned:
        dr.Mesh(far, TRIANGLES)
    assert warned[0].filename == __file__
    dr.Mesh(torch.as_tensor(far), TRIANGLES)


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


def test_arrays_that_replace_tensors_take_the_type_of_the_mesh():
    mesh = geometry.cube().to(torch.float64)
    moved = mesh.vertices.numpy() + 1 / 3
    for made in (mesh.replace(vertices=moved), mesh.with_vertices(moved)):
        assert made.dtype == torch.float64
        assert torch.equal(made.vertices, torch.from_numpy(moved))
    assert geometry.cube().replace(vertices=moved).dtype == torch.float32
