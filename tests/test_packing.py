"""Different meshes in one batch (cases R13, R14), separate index tables and materials on a mesh."""

import pytest
import torch

import diffrender as dr
from diffrender import geometry

F64 = torch.float64


PLAIN, RED, METAL = dr.Material(), dr.Material((1.0, 0.2, 0.1)), dr.Material(metallic=1.0, roughness=0.3)


def three_meshes(dtype=torch.float32) -> list[dr.Mesh]:
    """A tetrahedron, a cube and a sphere; one with colors, one with texcoords, all of different sizes."""
    tetrahedron = dr.Mesh(
        torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) * 0.6,
        torch.tensor([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]]),
    )
    sphere = geometry.icosphere(1)
    sphere = sphere.replace(colors=(sphere.vertices + 1) / 2, material=PLAIN)
    cube = geometry.cube(size=1.1).replace(material=[RED, METAL], material_ids=torch.arange(12) % 2)
    return [mesh.to(dtype) for mesh in (tetrahedron, cube, sphere)]


def test_r14_packed_arrays_hold_each_mesh_as_it_was():
    meshes = three_meshes()
    packed, ranges, vertex_counts = geometry.pack_meshes(meshes)
    assert ranges.tolist() == [[0, 4], [4, 12], [16, 80]]
    assert vertex_counts == (4, 8, 42)
    for mesh, (first, count) in zip(meshes, ranges.tolist(), strict=True):
        rows = slice(first, first + count)
        corners = torch.stack(geometry.triangle_corners(packed.vertices, packed.triangles[rows]))
        assert torch.equal(corners, torch.stack(geometry.triangle_corners(mesh.vertices, mesh.triangles)))
        if mesh.texcoords is not None:
            texcoords = torch.stack(geometry.triangle_corners(packed.texcoords, packed.texcoord_triangles[rows]))
            own = torch.stack(geometry.triangle_corners(mesh.texcoords, mesh.texcoord_triangles))
            assert torch.equal(texcoords, own)
    assert packed.materials[0] is None
    for material, expected in zip(packed.materials[1:], (RED, METAL, PLAIN), strict=True):
        assert torch.equal(material.albedo.float(), expected.albedo)
        assert torch.equal(material.metallic.float(), expected.metallic)
    assert packed.material_ids[[0, 4, 5, 16]].tolist() == [0, 1, 2, 3]
    assert (packed.colors[:12] == 1).all()
    assert torch.equal(packed.colors[12:], meshes[2].colors)


@pytest.mark.parametrize("edges", ["segments", "pairs", None])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 1, 1)])
def test_r13_items_of_a_batch_are_their_single_pictures(edges, order):
    """Pictures and gradients; equal meshes at equal places in different items must not be welded to each other."""
    outputs = ("color", "alpha", "depth", "normal", "position", "triangle_id")
    renderer = dr.Renderer((40, 48), edges=edges, outputs=outputs, background=0.3)
    cameras = dr.Camera.perspective(fov_y_deg=40, width=48, height=40, dtype=F64).look_at(
        torch.tensor([[1.0, 0.5, 4.0], [0.0, 2.0, 3.0], [-2.0, 0.2, 2.5]])
    )
    base = [three_meshes(F64)[k] for k in order]
    weights = torch.randn(3, 40, 48, 3, dtype=F64)

    def run(select):
        leaves = [mesh.vertices.clone().requires_grad_() for mesh in base]
        meshes = [mesh.with_vertices(leaf) for mesh, leaf in zip(base, leaves, strict=True)]
        result = select(meshes)
        loss = sum(((r.color + r.normal + r.position + r.depth) * w).sum() for r, w in result)
        return [r for r, _ in result], torch.autograd.grad(loss, leaves)

    (together,), gradients = run(lambda meshes: [(renderer(meshes, cameras), weights)])
    singles, expected = run(
        lambda meshes: [(renderer(m, cameras[k]), weights[k : k + 1]) for k, m in enumerate(meshes)]
    )
    for k in range(3):
        for name in outputs:
            torch.testing.assert_close(getattr(together, name)[k], getattr(singles[k], name)[0], msg=f"{name} of {k}")
        torch.testing.assert_close(gradients[k], expected[k])


def test_one_camera_sees_many_meshes_and_distorting_lenses_work_too():
    meshes = three_meshes()
    camera = dr.Camera.perspective(fov_y_deg=40, width=48, height=40).look_at([1.0, 0.5, 4.0])
    for lens in (camera, camera._replace(distortion=torch.tensor([-0.3, 0.1, 0.0, 0.0]))):
        renderer = dr.Renderer((40, 48), edges="pairs", outputs=("color", "triangle_id"))
        together = renderer(meshes, lens)
        for k, mesh in enumerate(meshes):
            single = renderer(mesh, lens)
            torch.testing.assert_close(together.color[k], single.color[0])
            assert torch.equal(together.triangle_id[k], single.triangle_id[0])
            assert together.triangle_id[k].max() < mesh.triangle_count


def test_r13_meshes_without_triangles_show_background():
    empty = dr.Mesh(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.int32))
    camera = dr.Camera.perspective(fov_y_deg=40, width=16, height=12).look_at([0.0, 0.0, 4.0])
    result = dr.Renderer((12, 16), edges="pairs", background=0.25)([empty, geometry.cube(), empty], camera)
    assert (result.color[[0, 2]] == 0.25).all()
    assert (result.color[1] > 0.9).any()


@pytest.mark.parametrize(
    ("meshes", "message"),
    [
        ([], "meshes must hold at least one mesh, got none"),
        (
            [geometry.cube(), geometry.cube().with_vertices(torch.zeros(2, 8, 3))],
            r"mesh 1 must hold one shape \(V, 3\)",
        ),
        ([geometry.cube(), geometry.cube().to(F64)], "mesh 1 is torch.float64 on cpu but mesh 0 is torch.float32"),
        (
            [geometry.quad().replace(colors=torch.ones(4, c)) for c in (3, 4)],
            r"colors must have the same channels in all meshes, got \[3, 4\]",
        ),
    ],
)
def test_pack_meshes_says_what_is_wrong(meshes, message):
    with pytest.raises(ValueError, match="pack_meshes: " + message):
        geometry.pack_meshes(meshes)


def test_renderer_wants_one_camera_for_each_mesh():
    cameras = dr.Camera.perspective(fov_y_deg=40, width=8, height=8).look_at(geometry.orbit_eyes(2, 3.0))
    with pytest.raises(ValueError, match="camera must hold one camera, or one for each of the 3 meshes, got 2"):
        dr.Renderer((8, 8), edges=None)(three_meshes(), cameras)


# Materials and index tables -------------------------------------------------------------------------------------------


def test_materials_travel_with_the_mesh():
    materials = [dr.Material(albedo=torch.rand(4, 2, 3)), dr.Material(albedo=torch.rand(3, 5, 3))]
    mesh = geometry.cube().replace(material=materials, material_ids=torch.arange(12) % 2)
    assert mesh.material_ids.dtype == torch.int32
    assert mesh.with_vertices(mesh.vertices * 2).material is materials
    moved = mesh.to(F64)
    assert moved.materials[1].albedo.dtype == F64
    assert torch.equal(moved.material_ids, mesh.material_ids)
    assert mesh.detach().materials == materials
    assert geometry.cube().materials == []


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"material_ids": torch.zeros(12, dtype=torch.int32)}, ValueError, "material_ids must come with material"),
        ({"material": "a", "material_ids": torch.zeros(12)}, TypeError, "material_ids must be int32 or int64, got"),
        (
            {"material": "a", "material_ids": torch.zeros(3).int()},
            ValueError,
            r"material_ids must have one number per triangle \(12,\), got",
        ),
        (
            {"material": ["a", "b"], "material_ids": torch.full((12,), 2)},
            ValueError,
            "material_ids refers to material 2 but there are 2",
        ),
    ],
)
def test_material_ids_are_checked(fields, error, message):
    with pytest.raises(error, match="Mesh: " + message):
        geometry.cube().replace(**fields)


def test_normals_and_tangents_follow_the_positions():
    """Recomputed from moving positions, with gradients: a bump tilts the normal by its slope."""
    quad = geometry.subdivide(geometry.subdivide(geometry.quad(2.0, 2.0))).to(F64)
    slope = torch.tensor(0.3, dtype=F64, requires_grad=True)
    x, y, _ = quad.vertices.unbind(-1)
    mesh = quad.with_vertices(torch.stack([x, y, slope * x], -1))
    length = float(1 / (1 + 0.09) ** 0.5)
    normals = mesh.vertex_normals()
    expected = torch.tensor([-0.3 * length, 0, length], dtype=F64).expand_as(normals)
    torch.testing.assert_close(normals.detach(), expected)
    tangents, rows = mesh.vertex_tangents()
    assert rows.shape == mesh.triangles.shape
    expected = torch.tensor([length, 0, 0.3 * length, 1], dtype=F64).expand_as(tangents)
    torch.testing.assert_close(tangents.detach(), expected)
    # d(normal x)/d(slope) = -1 / (1 + s^2)^(3/2).
    (gradient,) = torch.autograd.grad(normals[:, 0].mean(), slope, retain_graph=True)
    assert float(gradient) == pytest.approx(-(length**3))
    (gradient,) = torch.autograd.grad(tangents[:, 2].mean(), slope)
    assert float(gradient) == pytest.approx(length**3)


def test_one_mesh_through_many_cameras_is_not_copied():
    """The positions saved for backward are those of the cameras; the mesh's own tensors appear once, unexpanded."""
    sphere = geometry.icosphere(4)
    sphere = sphere.replace(colors=torch.rand(sphere.vertex_count, 3).requires_grad_())
    cameras = dr.Camera.perspective(fov_y_deg=40, width=8, height=8).look_at(geometry.orbit_eyes(50, 3.0))
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        dr.Renderer((8, 8), edges=None)(sphere, cameras)
    rows_per_camera = 50 * sphere.vertex_count * 3 * 4
    assert sum(saved.values()) < rows_per_camera + sphere.triangles.numel() * 8
