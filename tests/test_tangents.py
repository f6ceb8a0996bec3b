"""Tangents: direction and side on known surfaces, seams and mirrors, degenerate input, gradients."""

import copy
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender import geometry
from diffrender.geometry import tangents as tangents_module
from diffrender.geometry import vertex_tangents
from tests.support.vocabulary import rnd

F64 = torch.float64
ROOT = Path(__file__).resolve().parents[1]
AVOCADO = Path(os.environ.get("DIFFRENDER_TEST_DATA", ROOT.parent / "shared" / "data")) / "gltf" / "avocado"


def bent_grid(size=4):
    """A curved sheet with texcoords that are sheared and stretched, in float64."""
    v, u = torch.meshgrid(torch.linspace(0, 1, size, dtype=F64), torch.linspace(0, 1, size, dtype=F64), indexing="ij")
    vertices = torch.stack([2 * u - 1, 1 - 2 * v, 0.4 * (u * 3).sin() * (v * 2).cos()], -1).reshape(-1, 3)
    texcoords = torch.stack([u + 0.3 * v, 0.7 * v + 0.1 * u], -1).reshape(-1, 2)
    i, j = (x.reshape(-1) for x in torch.meshgrid(torch.arange(size - 1), torch.arange(size - 1), indexing="ij"))
    a, b = i * size + j, (i + 1) * size + j
    triangles = torch.cat([torch.stack([a, b, b + 1], -1), torch.stack([a, b + 1, a + 1], -1)])
    return vertices, triangles, texcoords


def at_corners(tangents, rows):
    return tangents[rows.long()]


def test_tangent_of_a_torus_runs_around_the_ring():
    """u grows once around the axis, v falls along the tube: closed forms at every vertex."""
    mesh = geometry.torus(segments=96, tube_segments=48)
    tangents, rows = mesh.vertex_tangents()
    corners = at_corners(tangents, rows)
    positions = mesh.vertices[mesh.triangles.long()]
    angle = torch.atan2(positions[..., 0], positions[..., 2])
    around = torch.stack([angle.cos(), torch.zeros_like(angle), -angle.sin()], -1)
    # At the seam a corner sees triangles on one side only, whose direction is that of half a segment away.
    assert (corners[..., :3] - around).abs().max() < 1.01 * math.pi / 96
    inner = (mesh.texcoords[mesh.texcoord_triangles.long()][..., 0] % 1) != 0
    assert (corners[..., :3] - around)[inner].abs().max() < 1e-3
    assert (corners[..., 3] == 1).all()
    # One row for each pair of vertex and texcoord.
    assert tangents.shape == (97 * 49, 4)


def test_tangents_are_unit_and_orthogonal_to_the_normals():
    vertices, triangles, texcoords = bent_grid()
    normals = geometry.vertex_normals(vertices, triangles)
    tangents, rows = vertex_tangents(vertices, triangles, texcoords)
    corners = at_corners(tangents, rows)[..., :3]
    assert (corners.norm(dim=-1) - 1).abs().max() < 1e-14
    assert (corners * normals[triangles]).sum(-1).abs().max() < 1e-14


def test_bitangent_points_up_in_the_picture_also_where_it_is_mirrored():
    """A strip whose right half repeats the left one mirrored, with shared texcoord rows: no corner may mix both."""
    x = torch.tensor([-1.0, 0.0, 1.0], dtype=F64)
    vertices = torch.stack([torch.stack([x, torch.full_like(x, y), torch.zeros_like(x)], -1) for y in (1.0, -1.0)])
    vertices = vertices.reshape(-1, 3)
    triangles = torch.tensor([[0, 3, 4], [0, 4, 1], [1, 4, 5], [1, 5, 2]])
    texcoords = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=F64)
    # u runs 0, 1, 0 from left to right: the outer columns share their rows.
    texcoord_triangles = torch.tensor([[0, 2, 3], [0, 3, 1], [1, 3, 2], [1, 2, 0]])
    tangents, rows = vertex_tangents(vertices, triangles, texcoords, texcoord_triangles)
    corners = at_corners(tangents, rows)
    right = torch.tensor([1.0, 0.0, 0.0], dtype=F64)
    assert torch.equal(corners[:2, :, :3], right.expand(2, 3, 3))
    assert torch.equal(corners[2:, :, :3], -right.expand(2, 3, 3))
    assert corners[:, :, 3].tolist() == [[1, 1, 1]] * 2 + [[-1, -1, -1]] * 2
    normal = torch.tensor([0.0, 0.0, 1.0], dtype=F64).expand(4, 3, 3)
    bitangents = corners[..., 3:] * torch.linalg.cross(normal, corners[..., :3])
    assert torch.equal(bitangents, torch.tensor([0.0, 1.0, 0.0], dtype=F64).expand(4, 3, 3))
    assert tangents.shape[0] == 8  # the two vertices in the middle have one row for each side


def test_own_normals_and_their_rows_are_used():
    vertices, triangles, texcoords = bent_grid()
    flat = geometry.triangle_normals(vertices, triangles)
    flat_rows = torch.arange(len(triangles))[:, None].expand(-1, 3)
    tangents, rows = vertex_tangents(vertices, triangles, texcoords, normals=flat, normal_triangles=flat_rows)
    corners = at_corners(tangents, rows)[..., :3]
    assert (corners * flat[:, None]).sum(-1).abs().max() < 1e-14
    # Each triangle is alone with its normals, so the tangent is that of the triangle.
    assert (corners - corners[:, :1]).abs().max() < 1e-14


def test_gradients_to_everything():
    vertices, triangles, texcoords = bent_grid(3)
    normals = geometry.vertex_normals(vertices, triangles) + 0.1 * rnd(9, 3, seed=1, dtype=F64)
    leaves = [x.clone().requires_grad_() for x in (vertices, texcoords, normals)]
    assert torch.autograd.gradcheck(
        lambda v, t, n: vertex_tangents(v, triangles, t, normals=n)[0][..., :3] * 1.0, leaves
    )
    assert torch.autograd.gradcheck(lambda v, t: vertex_tangents(v, triangles, t)[0], leaves[:2])


def test_batches_equal_single_meshes():
    vertices, triangles, texcoords = bent_grid()
    shapes = torch.stack([vertices, vertices + 0.05 * rnd(*vertices.shape, seed=2, dtype=F64)])
    maps = torch.stack([texcoords, texcoords * 1.1])
    tangents, rows = vertex_tangents(shapes, triangles, maps)
    assert tangents.shape == (2, 16, 4)
    for b in range(2):
        alone, own_rows = vertex_tangents(shapes[b], triangles, maps[b])
        assert torch.equal(rows, own_rows)
        torch.testing.assert_close(tangents[b], alone)
    shared, _ = vertex_tangents(shapes, triangles, texcoords)
    torch.testing.assert_close(shared[1], vertex_tangents(shapes[1], triangles, texcoords)[0])


def spoiled(kind):
    vertices, triangles, texcoords = bent_grid()
    normals = geometry.vertex_normals(vertices, triangles)
    if kind == "one texcoord for all":
        texcoords = torch.full_like(texcoords, 0.3)
    elif kind == "texcoords on a line":
        texcoords = texcoords[:, :1] * torch.tensor([1.0, 0.7], dtype=F64)
    elif kind == "a collapsed triangle":
        vertices = vertices.clone()
        vertices[1] = vertices[0]
    elif kind == "zero normals":
        normals = torch.zeros_like(normals)
    elif kind == "tangent along the normal":
        normals = torch.tensor([1.0, 0.0, 0.0], dtype=F64).expand_as(normals)
        texcoords = (vertices * torch.tensor([0.5, -0.5, 0.0], dtype=F64))[:, :2] + 0.5
        vertices = vertices * torch.tensor([1.0, 1.0, 0.0], dtype=F64)
    return vertices, triangles, texcoords, normals


KINDS = ["one texcoord for all", "texcoords on a line", "a collapsed triangle", "zero normals",
         "tangent along the normal"]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("kind", KINDS)
def test_d07_degenerate_input_gives_finite_values_and_no_gradient(kind, dtype):
    vertices, triangles, texcoords, normals = spoiled(kind)
    leaves = [x.to(dtype, copy=True).requires_grad_() for x in (vertices, texcoords, normals)]
    tangents, rows = vertex_tangents(leaves[0], triangles, leaves[1], normals=leaves[2])
    assert torch.isfinite(tangents).all()
    assert (tangents[..., 3].abs() == 1).all()
    grads = torch.autograd.grad(tangents, leaves, rnd(*tangents.shape, seed=3, dtype=dtype))
    assert all(torch.isfinite(grad).all() for grad in grads)
    if kind in ("one texcoord for all", "texcoords on a line", "tangent along the normal"):
        assert not tangents[..., :3].any()
        assert not any(grad.any() for grad in grads)
    assert max(grad.abs().max() for grad in grads) < 100
    assert rows.shape == triangles.shape


def test_small_and_large_meshes_have_the_same_tangents():
    vertices, triangles, texcoords = (x.float() if x.is_floating_point() else x for x in bent_grid())
    truth = vertex_tangents(vertices, triangles, texcoords)[0]
    for scale in (1e-12, 1e12):
        torch.testing.assert_close(vertex_tangents(vertices * scale, triangles, texcoords)[0], truth)


def test_empty_mesh_is_legal():
    tangents, rows = vertex_tangents(torch.rand(4, 3), torch.zeros(0, 3, dtype=torch.int32), torch.rand(4, 2))
    assert tangents.shape == (0, 4)
    assert rows.shape == (0, 3)


def test_tangents_of_the_mesh_follow_its_index_tables_into_a_picture():
    mesh = geometry.torus()
    camera = dr.Camera.perspective(fov_y_deg=40, width=32, height=24).look_at([0.0, 2.0, 2.0])
    fragments = dr.rasterize(camera.clip_positions(mesh.vertices), mesh.triangles, (24, 32))
    tangents, rows = mesh.vertex_tangents()
    picture = dr.interpolate(tangents, rows, fragments)
    normals = dr.interpolate(mesh.vertex_normals(), mesh.triangles, fragments)
    seen = fragments.triangle_id >= 0
    assert (picture * torch.nn.functional.pad(normals, (0, 1))).sum(-1).abs().max() < 0.01
    assert (picture[seen][:, 3] - 1).abs().max() < 1e-6


def test_bumps_of_a_map_equal_bumps_of_the_mesh():
    """A torus with waves on it, and a plain one with the normal map of those waves, derived by hand: signs of both
    axes, of the side and of the picture's rows have to agree."""
    segments, tube, height = 256, 128, 0.004
    plain = geometry.torus(segments=segments, tube_segments=tube).to(F64)

    def waves(u, v):
        a, b = 2 * math.pi * 9 * u, 2 * math.pi * 5 * v
        return (
            height * a.sin() * b.cos(),
            height * 18 * math.pi * a.cos() * b.cos(),
            -height * 10 * math.pi * a.sin() * b.sin(),
        )

    # Texcoords of the vertices: u around the ring, v against the sense of the tube.
    index = torch.arange(segments * tube)
    u, v = (index // tube) / segments, 1 - (index % tube) / tube
    normals = plain.vertex_normals()
    waved = plain.with_vertices(plain.vertices + waves(u.to(F64), v.to(F64))[0].unsqueeze(-1) * normals)

    camera = dr.Camera.perspective(fov_y_deg=40, width=96, height=96).look_at([0.3, 2.2, 1.4]).to(F64)
    fragments = dr.rasterize(camera.clip_positions(plain.vertices), plain.triangles, (96, 96))
    seen = fragments.triangle_id >= 0
    smooth = dr.interpolate(normals, plain.triangles, fragments)
    truth = geometry.safe_normalize(dr.interpolate(waved.vertex_normals(), plain.triangles, fragments))
    at = dr.interpolate(plain.texcoords, plain.texcoord_triangles, fragments)
    _, along_u, along_v = waves(*at.unbind(-1))
    # Lengths of the derivatives of the surface by u and v.
    positions = dr.interpolate(plain.vertices, plain.triangles, fragments)
    ring = 2 * math.pi * positions[..., [0, 2]].norm(dim=-1).clamp(min=0.1)
    up = -along_v / (2 * math.pi * 0.25)  # the picture's up is against v
    slope = torch.stack([-along_u / ring, -up, torch.ones_like(up)], -1)
    texel = geometry.safe_normalize(slope) / 2 + 0.5
    bent = dr.perturb_normals(smooth, dr.interpolate(*plain.vertex_tangents(), fragments), texel)

    def angle(normals):
        return (normals * truth).sum(-1).clamp(max=1).acos()[seen].mean().item()

    assert angle(geometry.safe_normalize(smooth)) > 0.04
    assert angle(bent) < 0.005  # first order in the height, and triangles of finite size
    flipped = dr.perturb_normals(
        smooth, dr.interpolate(*plain.vertex_tangents(), fragments), texel, convention="directx"
    )
    assert angle(flipped) > 0.04


@pytest.mark.skipif(not AVOCADO.is_dir(), reason=f"needs {AVOCADO} (set DIFFRENDER_TEST_DATA)")
def test_tangents_of_a_gltf_file_are_found_again():
    """Made by another program, by the standard's rules: direction and side, up to how corners were weighted."""
    tree, buffer = json.loads((AVOCADO / "avocado.gltf").read_text()), (AVOCADO / "avocado.bin").read_bytes()
    primitive = tree["meshes"][0]["primitives"][0]

    def array(index, dtype, width):
        accessor = tree["accessors"][index]
        start = tree["bufferViews"][accessor["bufferView"]].get("byteOffset", 0)
        values = np.frombuffer(buffer, dtype, accessor["count"] * width, start).reshape(-1, width)
        return torch.from_numpy(values.astype(np.float32 if dtype == "<f4" else np.int32))

    names = primitive["attributes"]
    vertices, normals = (array(names[name], "<f4", 3) for name in ("POSITION", "NORMAL"))
    texcoords, stored = array(names["TEXCOORD_0"], "<f4", 2), array(names["TANGENT"], "<f4", 4)
    triangles = array(primitive["indices"], "<u2", 1).view(-1, 3)
    tangents, rows = vertex_tangents(vertices, triangles, texcoords, normals=normals)
    ours, theirs = at_corners(tangents, rows), stored[triangles.long()]
    cosine = (ours[..., :3] * theirs[..., :3]).sum(-1)
    assert cosine.min() > 0.9
    assert cosine.mean() > 0.999
    assert (ours[..., 3] == theirs[..., 3]).float().mean() > 0.995  # one sliver is mirrored by its rounding


def stored_tangents(normals):
    """Unit vectors orthogonal to the normals that no texcoords lead to, and both sides."""
    axis = torch.tensor([0.3, -0.5, 0.8], dtype=normals.dtype).expand_as(normals)
    directions = geometry.safe_normalize(torch.linalg.cross(normals, axis))
    side = torch.where(torch.arange(len(normals)) % 2 == 0, 1.0, -1.0).to(normals.dtype)
    return torch.cat([directions, side[:, None]], -1)


def test_a_mesh_keeps_tangents_of_its_own():
    vertices, triangles, texcoords = bent_grid()
    mesh = dr.Mesh(vertices, triangles, texcoords=texcoords)
    mesh = mesh.replace(normals=mesh.vertex_normals(), tangents=stored_tangents(mesh.vertex_normals()))
    tangents, rows = mesh.vertex_tangents()
    assert torch.equal(tangents, mesh.tangents)
    assert torch.equal(rows, mesh.triangles)
    assert mesh.to(torch.float32).tangents.dtype == torch.float32
    assert "tangents" in repr(mesh)
    moved = mesh.with_vertices(vertices * 2)
    assert moved.tangents is None
    torch.testing.assert_close(
        moved.vertex_tangents()[0][:, 3].abs(), torch.ones(len(moved.vertex_tangents()[0])).to(F64)
    )
    # Beside a mesh without, and one without texcoords.
    plain = dr.Mesh(vertices, triangles, texcoords=texcoords)
    packed = geometry.pack_meshes([plain, mesh, dr.Mesh(vertices, triangles)]).mesh
    corners = at_corners(*packed.vertex_tangents())
    count = len(triangles)
    torch.testing.assert_close(corners[:count], at_corners(*plain.vertex_tangents()))
    torch.testing.assert_close(corners[count : 2 * count], mesh.tangents[triangles.long()])
    assert (corners[2 * count :] == 0).all()
    with pytest.raises(ValueError, match=r"Mesh: tangents must have shape \(N, 4\)"):
        mesh.replace(tangents=mesh.normals)


@pytest.mark.parametrize("scale", [2.0, -2.0])
def test_tangents_of_files_move_with_their_nodes(tmp_path, scale):
    """Normal, tangent and bitangent of a loaded mesh are those of the stored one, carried along as vectors."""
    vertices, triangles, texcoords = (x.float() if x.is_floating_point() else x for x in bent_grid())
    mesh = dr.Mesh(vertices, triangles, texcoords=texcoords)
    mesh = mesh.replace(normals=mesh.vertex_normals(), tangents=stored_tangents(mesh.vertex_normals()))
    path = tmp_path / "sheet.glb"
    dr.save_mesh(path, mesh)
    torch.testing.assert_close(at_corners(*dr.load_mesh(path).vertex_tangents()), mesh.tangents[triangles.long()])

    data = path.read_bytes()
    size = int.from_bytes(data[12:16], "little")
    tree, binary = json.loads(data[20 : 20 + size]), data[28 + size :]
    turn = [0.5, 0.5, -0.5, 0.5]
    tree["nodes"][0] |= {"scale": [scale, 2.0, 2.0], "rotation": turn}
    tree["buffers"][0]["uri"] = "sheet.bin"
    (tmp_path / "sheet.bin").write_bytes(binary)
    (tmp_path / "sheet.gltf").write_text(json.dumps(tree))
    loaded = dr.load_mesh(tmp_path / "sheet.gltf")
    rotation = geometry.rotation_from_quaternion(torch.tensor([turn[3], *turn[:3]]))
    linear = rotation @ torch.diag(torch.tensor([scale / 2, 1.0, 1.0]))

    def frames(mesh):
        n, t = mesh.normals, mesh.tangents
        return torch.stack([n, t[:, :3], t[:, 3:] * torch.linalg.cross(n, t[:, :3])], -1)

    torch.testing.assert_close(frames(loaded), linear @ frames(mesh), rtol=1e-5, atol=1e-5)


def test_normal_maps_are_lit_along_the_tangents_of_the_mesh():
    """Tangents of its own that equal those of other texcoords: the same picture, another one than without."""
    camera = dr.Camera.perspective(fov_y_deg=40, width=12, height=10).look_at([0.0, 0.0, 3.0])
    quad, tilt = geometry.quad(), torch.tensor([0.9, 0.6, 0.8]).expand(2, 2, 3)
    u, v = quad.texcoords.unbind(-1)
    turned = dr.Mesh(
        quad.vertices, quad.triangles, texcoords=torch.stack([1 - v, u], -1), material=dr.Material(normal=tilt)
    )
    plain = turned.replace(texcoords=quad.texcoords)
    up = torch.tensor([0.0, 1.0, 0.0, 1.0]).expand(4, 4)
    lamp = dr.DirectionalLight((0.4, -0.3, -1.0))

    def color(mesh):
        return dr.Renderer((10, 12), edges=None)(mesh, camera, lamp).color

    torch.testing.assert_close(color(plain.replace(tangents=up)), color(turned))
    assert (color(plain) - color(turned)).abs().max() > 0.05


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda v, f, t: vertex_tangents(v[:, :2], f, t), ValueError, r"vertex_tangents: vertices must have shape"),
        (lambda v, f, t: vertex_tangents(v, f, t.float()), TypeError, "vertex_tangents: texcoords is torch.float32"),
        (lambda v, f, t: vertex_tangents(v, f, t[:3]), ValueError, "vertex_tangents: triangles refers to vertex"),
        (lambda v, f, t: vertex_tangents(v, f, t, f[:2]), ValueError,
         r"vertex_tangents: texcoord_triangles must have one row per triangle \(18\), got 2"),
        (lambda v, f, t: vertex_tangents(v, f, torch.stack([t, t * torch.tensor([-1.0, 1.0])])), ValueError,
         "vertex_tangents: texcoords must be mirrored in the same triangles in all items"),
        (lambda v, f, t: dr.Mesh(v, f).vertex_tangents(), ValueError, "Mesh.vertex_tangents: the mesh must have"),
    ],
)  # fmt: skip
def test_bad_call_says_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call(*bent_grid())


def test_combinations_are_found_once_for_a_mesh_that_moves(monkeypatch):
    calls = []
    found = tangents_module._unique_corners
    monkeypatch.setattr(tangents_module, "_unique_corners", lambda *args: calls.append(1) or found(*args))
    mesh = geometry.torus(segments=12, tube_segments=8).to(F64)
    assert mesh.texcoords is not None
    for scale in (1.0, 1.1, 1.2):
        moved = mesh.with_vertices(mesh.vertices * torch.tensor([scale, 1.0, 1.0], dtype=F64))
        tangents, rows = moved.vertex_tangents()
        truth, true_rows = vertex_tangents(moved.vertices, moved.triangles, mesh.texcoords, mesh.texcoord_triangles)
        assert torch.equal(tangents, truth)
        assert torch.equal(rows, true_rows)
    assert len(calls) == 4  # three of the function itself
    # Mirrored in place, or other texcoords: found anew.
    with torch.no_grad():
        mesh.texcoords[:, 0].neg_()
    assert (at_corners(*mesh.vertex_tangents())[..., 3] == -1).all()
    assert len(calls) == 5
    other = mesh.replace(texcoords=-mesh.texcoords)
    assert (at_corners(*other.vertex_tangents())[..., 3] == -1).all()
    with torch.inference_mode():
        torch.testing.assert_close(mesh.vertex_tangents()[0].clone(), mesh.vertex_tangents()[0])
    vertices = mesh.vertices.clone().requires_grad_()
    (grad,) = torch.autograd.grad(mesh.with_vertices(vertices).vertex_tangents()[0][:, 0].sum(), vertices)
    assert grad.any()


def test_nothing_is_kept_of_texcoords_that_a_graph_made():
    """A mesh shares what it keeps with its copies, and could not be copied deeply with a graph in it."""
    mesh = geometry.torus(segments=6, tube_segments=5).to(F64)
    assert mesh.texcoords is not None
    scale = torch.ones(2, dtype=F64, requires_grad=True)
    trained = mesh.replace(texcoords=scale * mesh.texcoords)
    assert trained.vertex_tangents()[0].requires_grad
    assert torch.equal(copy.deepcopy(mesh).vertex_tangents()[0], trained.vertex_tangents()[0])
