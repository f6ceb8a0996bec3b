"""Meshes on disk, and packages that are missing. Cases I."""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
import trimesh

import diffrender as dr
from diffrender import geometry

F64 = torch.float64


def obj(folder, text: str):
    path = folder / "mesh.obj"
    path.write_text(text)
    return path


def area(mesh: dr.Mesh) -> float:
    return float(geometry.triangle_area_vectors(mesh.vertices, mesh.triangles).norm(dim=-1).sum() / 2)


# OBJ ------------------------------------------------------------------------------------------------------------------


def test_i01_negative_indices_count_from_their_own_line(tmp_path):
    path = obj(
        tmp_path,
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nvt 0 0\nvn 0 0 1\nf -3/-1/-1 -2/-1/-1 -1/-1/-1\n"
        "v 5 0 0\nv 6 0 0\nv 5 1 0\nvt 1 1\nvn 1 0 0\nf -3/-1/-1 -2/-1/-1 -1/-1/-1\n",
    )
    mesh = dr.load_mesh(path)
    assert mesh.triangles.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert mesh.texcoord_triangles.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert mesh.normal_triangles.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert (mesh.vertices[:, 0].min(), mesh.vertices[:, 0].max()) == (0, 6)


def test_i02_a_face_without_texcoords_does_not_cost_the_others_theirs(tmp_path):
    path = obj(
        tmp_path,
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 1 1 0\nvt 0.1 0.2\nvt 0.3 0.4\nvt 0.5 0.6\nvn 0 0 1\n"
        "f 1//1 2//1 4//1\nf 1/1/1 2/2/1 3/3/1\n",
    )
    with pytest.warns(UserWarning, match=r"mesh.obj: 1 triangles have no texcoords; they get \(0, 0\)"):
        mesh = dr.load_mesh(path)
    expected = torch.tensor([[0.1, 0.8], [0.3, 0.6], [0.5, 0.4]])
    torch.testing.assert_close(mesh.texcoords[mesh.texcoord_triangles[1].long()], expected)
    assert (mesh.texcoords[mesh.texcoord_triangles[0].long()] == 0).all()


def test_faces_without_normals_drop_the_stored_ones_with_a_warning(tmp_path):
    path = obj(tmp_path, "v 0 0 0\nv 1 0 0\nv 0 1 0\nvn 0 0 1\nf 1//1 2//1 3//1\nf 1 3 2\n")
    with pytest.warns(UserWarning, match="1 triangles have no normals; the stored ones are dropped"):
        assert dr.load_mesh(path).normals is None


def test_i04_concave_polygons_keep_their_area_and_outline(tmp_path):
    outline = [(0, 0), (4, 0), (4, 4), (2, 1), (0, 4)]
    for shift in range(5):
        for reverse in (False, True):
            corners = [1 + (k + shift) % 5 for k in range(5)]
            corners = corners[::-1] if reverse else corners
            text = "".join(f"v {x} {y} 0.5\n" for x, y in outline) + "f " + " ".join(map(str, corners)) + "\n"
            mesh = dr.load_mesh(obj(tmp_path, text))
            assert mesh.triangle_count == 3
            assert area(mesh) == pytest.approx(10)
            # Same winding in every triangle: the signed areas add up to the polygon's.
            signed = geometry.triangle_area_vectors(mesh.vertices, mesh.triangles)[:, 2] / 2
            assert float(signed.sum()) == pytest.approx(-10 if reverse else 10)


@pytest.mark.parametrize("normal", [[0.0, 0.0, 1.0], [1.0, 2.0, -3.0], [-1.0, 0.0, 0.0]])
def test_star_polygons_in_any_plane_keep_their_area(tmp_path, normal):
    rng = np.random.default_rng(3)
    angles = np.linspace(0, 2 * np.pi, 17, endpoint=False)
    radii = rng.uniform(0.2, 1.0, 17)
    flat = np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1)
    expected = 0.5 * abs(np.sum(flat[:, 0] * np.roll(flat[:, 1], -1) - flat[:, 1] * np.roll(flat[:, 0], -1)))
    n = np.array(normal) / np.linalg.norm(normal)
    u = np.cross(n, [0.3, 1.0, 0.2])
    u /= np.linalg.norm(u)
    points = flat[:, :1] * u + flat[:, 1:] * np.cross(n, u) + [5, 6, 7]
    text = "".join("v {} {} {}\n".format(*p) for p in points) + "f " + " ".join(str(k + 1) for k in range(17)) + "\n"
    mesh = dr.load_mesh(obj(tmp_path, text), dtype=F64)
    assert area(mesh) == pytest.approx(expected)
    vectors = geometry.triangle_area_vectors(mesh.vertices, mesh.triangles)
    assert (vectors @ torch.from_numpy(n) > 0).all()


def test_polygons_mix_with_triangles_in_the_order_of_the_file(tmp_path):
    path = obj(tmp_path, "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nv 2 0 0\nf 2 5 3\nf 1 2 3 4\nf 1 2 5\n")
    assert dr.load_mesh(path).triangles.tolist() == [[1, 4, 2], [0, 1, 2], [0, 2, 3], [0, 1, 4]]


@pytest.mark.parametrize("with_texcoords", [False, True])
def test_i07_order_and_number_of_vertices_and_faces_stay(tmp_path, with_texcoords):
    vertices = [(9, 9, 9), (0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 0, 0), (2, 2, 2)]  # the first is unused, one repeats
    text = "".join("v {} {} {}\n".format(*v) for v in vertices)
    if with_texcoords:
        text += "vt 0 0\nvt 1 0\nvt 0 1\nvt 1 1\nvt .5 .5\nf 2/1 3/2 4/3\nf 5/4 6/5 4/1\nf 2/1 2/2 3/3\n"
    else:
        text += "f 2 3 4\nf 5 6 4\nf 2 2 3\n"
    mesh = dr.load_mesh(obj(tmp_path, text))
    assert mesh.vertices.tolist() == [list(map(float, v)) for v in vertices]
    assert mesh.triangles.tolist() == [[1, 2, 3], [4, 5, 3], [1, 1, 2]]
    if with_texcoords:
        assert mesh.texcoords.shape == (5, 2)
        assert mesh.texcoord_triangles.tolist() == [[0, 1, 2], [3, 4, 0], [0, 1, 2]]


def test_comments_continued_lines_and_vertex_colors(tmp_path):
    path = obj(
        tmp_path,
        "# head\no thing\ng part\nusemtl red\nv 0 0 0 0.25 0.5 1 # first\nv 1 0 \\\n0 0 0 0\nv 0 1 0 1 1 1\n\n"
        "s off\nl 1 2\nf 1 2 \\\n 3\n",
    )
    mesh = dr.load_mesh(path)
    assert mesh.vertices.tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert mesh.colors.tolist() == [[0.25, 0.5, 1], [0, 0, 0], [1, 1, 1]]


def test_a_weight_after_the_position_is_no_color(tmp_path):
    mesh = dr.load_mesh(obj(tmp_path, "v 0 0 0 1\nv 1 0 0 1\nv 0 1 0 1\nf 1 2 3\n"))
    assert mesh.colors is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must hold OBJ vertices \(`v x y z`\), got none. Is it an OBJ file\?"),
        ("hello\nworld\n", "Is it an OBJ file"),
        ("v 0 0 0\nv 1 0 0\nv 0 1 0\n", "must hold at least one face, got 3 vertices only"),
        ("v 0 0 0\nv 1 zero 0\n", "line 2: numbers must follow 'v', got 'v 1 zero 0'"),
        ("v 0 0\n", "line 1: 'v' must have at least 3 numbers, got 'v 0 0'"),
        ("v 0 0 0\nf 1 1\n", "line 2: a face must have at least 3 corners, got 'f 1 1'"),
        ("v 0 0 0\nf 1 1 2\n", r"line 2: indices must be at most 1 \('v' lines in the file\), got '2'"),
        ("v 0 0 0\nf 1 1 0\n", "line 2: indices must name an existing 'v' line, got '0'"),
        ("v 0 0 0\nf 1 1 -2\n", "line 2: indices must name an existing 'v' line, got '-2'"),
        ("v 0 0 0\nf 1 1 x\n", "line 2: face corners must be v, v/vt, v//vn or v/vt/vn, got 'x'"),
        ("v 0 0 0\nf 1 1 /1\n", "line 2: indices must name an existing|line 2: a face corner must name a vertex"),
        ("v 0 0 0\nvt 0 0\nf 1/1 1/2 1/1\n", r"line 3: indices must be at most 1 \('vt' lines in the file\), got '2'"),
    ],
)
def test_malformed_obj_names_file_line_and_what_was_expected(tmp_path, text, message):
    path = obj(tmp_path, text)
    with pytest.raises(ValueError, match=message) as raised:
        dr.load_mesh(path)
    assert str(raised.value).startswith(f"load_mesh: {path}")


def test_i19_large_coordinates_keep_their_digits_in_float64(tmp_path):
    path = obj(tmp_path, "v 4500000.25 500000.5 100\nv 4500001.25 500000.5 100\nv 4500000.25 500001.5 100\nf 1 2 3\n")
    mesh = dr.load_mesh(path, dtype=F64)
    assert mesh.vertices[0].tolist() == [4500000.25, 500000.5, 100]
    for suffix in (".obj", ".ply"):
        dr.save_mesh(tmp_path / f"again{suffix}", mesh)
        assert torch.equal(dr.load_mesh(tmp_path / f"again{suffix}", dtype=F64).vertices, mesh.vertices)


# Round trips ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".obj", ".ply", ".glb"])
def test_i11_round_trip_keeps_corners_texcoords_and_order_of_triangles(tmp_path, suffix):
    torus = geometry.torus(segments=7, tube_segments=5)
    dr.save_mesh(tmp_path / f"torus{suffix}", torus)
    again = dr.load_mesh(tmp_path / f"torus{suffix}")
    torch.testing.assert_close(
        torch.stack(geometry.triangle_corners(again.vertices, again.triangles)),
        torch.stack(geometry.triangle_corners(torus.vertices, torus.triangles)),
    )
    torch.testing.assert_close(
        torch.stack(geometry.triangle_corners(again.texcoords, again.texcoord_triangles)),
        torch.stack(geometry.triangle_corners(torus.texcoords, torus.texcoord_triangles)),
        atol=1e-6,
        rtol=1e-6,
    )
    if suffix == ".obj":
        assert torch.equal(again.triangles, torus.triangles)
        assert torch.equal(again.vertices, torus.vertices)


def test_i11_v_counts_from_the_bottom_in_files(tmp_path):
    """Upper left corner of a quad: texcoord (0, 0) for us, (0, 1) in an OBJ, (0, 0) in a GLB."""
    dr.save_mesh(tmp_path / "quad.obj", geometry.quad())
    lines = (tmp_path / "quad.obj").read_text().splitlines()
    corner = [line.split()[1:3] for line in lines if line.startswith("v ")].index(["-1.0", "1.0"])
    assert [line.split()[1:] for line in lines if line.startswith("vt ")][corner] == ["0.0", "1.0"]

    dr.save_mesh(tmp_path / "quad.glb", geometry.quad())
    data = (tmp_path / "quad.glb").read_bytes()
    json_length = struct.unpack("<I", data[12:16])[0]
    tree = json.loads(data[20 : 20 + json_length])
    attributes = tree["meshes"][0]["primitives"][0]["attributes"]

    def read(name, width):
        view = tree["bufferViews"][tree["accessors"][attributes[name]]["bufferView"]]
        start = 20 + json_length + 8 + view.get("byteOffset", 0)
        count = tree["accessors"][attributes[name]]["count"]
        return np.frombuffer(data, "<f4", count * width, start).reshape(count, width)

    top_left = int(np.abs(read("POSITION", 3) - [-1, 1, 0]).sum(1).argmin())
    assert read("TEXCOORD_0", 2)[top_left].tolist() == [0, 0]
    assert "NORMAL" in attributes


@pytest.mark.parametrize("suffix", [".obj", ".ply", ".glb"])
@pytest.mark.parametrize("constant", [False, True])
def test_i17_colors_survive_a_round_trip(tmp_path, suffix, constant):
    sphere = geometry.icosphere(1)
    colors = torch.full((42, 3), 0.25) if constant else torch.rand(42, 3)
    dr.save_mesh(tmp_path / f"a{suffix}", sphere.replace(colors=colors))
    again = dr.load_mesh(tmp_path / f"a{suffix}")
    assert again.colors is not None
    torch.testing.assert_close(again.colors, colors, atol=0.5 / 255 + 1e-6, rtol=0)


@pytest.mark.parametrize("suffix", [".glb", ".ply"])
def test_texcoords_given_per_corner_tear_no_vertices_apart(tmp_path, suffix):
    torus = geometry.torus(segments=12, tube_segments=8)
    per_corner = torus.vertices[:, :2][torus.triangles.long()].reshape(-1, 2) / 4 + 0.5  # continuous: no seam at all
    rows = torch.arange(3 * torus.triangle_count, dtype=torch.int32).reshape(-1, 3)
    dr.save_mesh(tmp_path / f"a{suffix}", torus.replace(texcoords=per_corner, texcoord_triangles=rows))
    back = dr.load_mesh(tmp_path / f"a{suffix}")
    assert back.vertex_count == torus.vertex_count
    assert torch.equal(back.vertices[back.triangles.long()], torus.vertices[torus.triangles.long()])
    seen, wanted = back.texcoords[back.texcoord_triangles.long()], per_corner[rows.long()]
    torch.testing.assert_close(seen, wanted, atol=1e-6, rtol=0)


def test_ply_keeps_colors_beside_texcoords(tmp_path):
    mesh = geometry.quad().replace(colors=torch.rand(4, 3))
    dr.save_mesh(tmp_path / "a.ply", mesh)
    again = dr.load_mesh(tmp_path / "a.ply")
    torch.testing.assert_close(again.colors, mesh.colors, atol=0.5 / 255 + 1e-6, rtol=0)
    torch.testing.assert_close(again.texcoords, mesh.texcoords)


def test_i17_float_colors_and_quads_of_an_ascii_ply(tmp_path):
    header = "ply\nformat ascii 1.0\nelement vertex 4\n"
    header += "".join(f"property float {name}\n" for name in ("x", "y", "z", "red", "green", "blue"))
    header += "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
    body = "0 0 0 .25 .5 1\n1 0 0 .3 .5 1\n1 1 0 .25 .5 1\n0 1 0 .25 .5 1\n4 0 1 2 3\n"
    (tmp_path / "a.ply").write_text(header + body)
    mesh = dr.load_mesh(tmp_path / "a.ply")
    torch.testing.assert_close(mesh.colors[1], torch.tensor([0.3, 0.5, 1.0]))
    assert area(mesh) == pytest.approx(1)


def test_normals_survive_an_obj_round_trip(tmp_path):
    cube = geometry.cube()
    flat = cube.replace(normals=cube.triangle_normals(), normal_triangles=torch.arange(12).unsqueeze(-1).repeat(1, 3))
    dr.save_mesh(tmp_path / "cube.obj", flat)
    again = dr.load_mesh(tmp_path / "cube.obj")
    assert torch.equal(again.normals, flat.normals)
    assert torch.equal(again.normal_triangles, flat.normal_triangles)
    assert torch.equal(again.texcoord_triangles, flat.texcoord_triangles)


# Scenes and other readers ---------------------------------------------------------------------------------------------


def test_i08_instances_of_a_glb_stand_where_their_nodes_put_them(tmp_path):
    triangle = trimesh.Trimesh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]], process=False)
    scene = trimesh.Scene()
    shift = trimesh.transformations.translation_matrix([3, 0, 0])
    turn = trimesh.transformations.rotation_matrix(np.pi / 2, [0, 0, 1]) @ np.diag([2, 2, 2, 1])
    scene.add_geometry(triangle, node_name="a", geom_name="t", transform=shift)
    scene.graph.update(frame_to="b", frame_from="a", matrix=turn, geometry="t")
    (tmp_path / "scene.glb").write_bytes(scene.export(file_type="glb"))
    mesh = dr.load_mesh(tmp_path / "scene.glb")
    corners = {tuple(round(x, 4) + 0.0 for x in row) for row in mesh.vertices.tolist()}
    assert corners == {(3, 0, 0), (4, 0, 0), (3, 1, 0), (3, 2, 0), (1, 0, 0)}
    assert mesh.triangle_count == 2


def test_mirrored_instances_keep_their_outside(tmp_path):
    sphere = geometry.icosphere(1)
    scene = trimesh.Scene()
    part = trimesh.Trimesh(sphere.vertices.numpy(), sphere.triangles.numpy(), process=False)
    scene.add_geometry(part, transform=np.diag([-1.0, 1, 1, 1]))
    (tmp_path / "scene.glb").write_bytes(scene.export(file_type="glb"))
    mesh = dr.load_mesh(tmp_path / "scene.glb")
    assert ((mesh.vertex_normals() * mesh.vertices).sum(-1) > 0.9).all()


def test_stl_is_welded_and_shades_flat(tmp_path):
    sphere = geometry.icosphere(2)
    trimesh.Trimesh(sphere.vertices.numpy(), sphere.triangles.numpy(), process=False).export(tmp_path / "a.stl")
    mesh = dr.load_mesh(tmp_path / "a.stl")
    assert (mesh.vertex_count, mesh.triangle_count) == (sphere.vertex_count, sphere.triangle_count)
    assert len(mesh.adjacent_triangles()) == len(sphere.adjacent_triangles())
    corners, expected = mesh.vertices[mesh.triangles.long()], sphere.vertices[sphere.triangles.long()]
    torch.testing.assert_close(corners, expected, rtol=0, atol=0)  # triangles in the order of the file
    torch.testing.assert_close(mesh.normals[mesh.normal_triangles.long()[:, 1]], sphere.triangle_normals())
    moved = mesh.with_vertices(mesh.vertices)
    torch.testing.assert_close(moved.vertex_normals()[moved.triangles.long()],
                               sphere.vertex_normals()[sphere.triangles.long()])  # fmt: skip


def test_stl_without_a_proper_triangle_is_an_error(tmp_path):
    corner = "vertex 0 0 0\n"
    text = f"solid a\nfacet normal 0 0 1\nouter loop\n{corner}{corner}vertex 1 0 0\nendloop\nendfacet\nendsolid a\n"
    (tmp_path / "line.stl").write_text(text)
    with pytest.raises(ValueError, match="line.stl must hold a triangle with three different corners, got none"):
        dr.load_mesh(tmp_path / "line.stl")


@pytest.mark.parametrize("suffix", [".ply", ".glb", ".stl", ".off"])
def test_garbage_is_one_clear_error(tmp_path, suffix):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(b"this is no mesh at all\n" * 3)
    with pytest.raises(ValueError, match="load_mesh: ") as raised:
        dr.load_mesh(path)
    assert str(path) in str(raised.value)


def test_load_and_save_name_what_they_can_do(tmp_path):
    with pytest.raises(ValueError, match=r"load_mesh: path must end in one of .obj, .ply, .*, got .*a.xyz"):
        dr.load_mesh(tmp_path / "a.xyz")
    with pytest.raises(
        FileNotFoundError, match=r"load_mesh: path must name a file, got .*none.obj', which does not exist"
    ):
        dr.load_mesh(tmp_path / "none.obj")
    with pytest.raises(ValueError, match=r"save_mesh: path must end in one of .obj, .ply, .glb, got .*a.stl"):
        dr.save_mesh(tmp_path / "a.stl", geometry.cube())
    batch = geometry.cube().with_vertices(torch.zeros(2, 8, 3))
    with pytest.raises(ValueError, match=r"save_mesh: mesh must hold one shape \(V, 3\), got \(2, 8, 3\)"):
        dr.save_mesh(tmp_path / "a.obj", batch)


def test_importing_diffrender_loads_no_optional_package():
    code = (
        "import sys, diffrender; "
        "print([m for m in ('trimesh', 'imageio', 'PIL', 'scipy', 'rich', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "extra", "action"),
    [
        (
            "trimesh",
            "io",
            lambda folder: (dr.save_mesh(folder / "a.ply", geometry.cube()), dr.load_mesh(folder / "a.ply")),
        ),
        ("OpenEXR", "exr", lambda folder: dr.save_image(folder / "a.exr", torch.zeros(2, 2, 3))),
        ("imageio.v3", "io", lambda folder: dr.save_image(folder / "a.png", torch.zeros(2, 2, 3))),
        (
            "scipy.spatial",
            "fit",
            lambda folder: dr.metrics.surface_distance(geometry.cube(), geometry.cube(), threshold=1),
        ),
        ("scipy.sparse", "fit", lambda folder: dr.optim.LaplacianPreconditioner(geometry.cube().triangles, 8)),
    ],
)
def test_missing_packages_are_named_with_their_extra(tmp_path, monkeypatch, module, extra, action):
    monkeypatch.setitem(sys.modules, module, None)  # what an import then raises
    package = module.split(".")[0]
    with pytest.raises(ImportError, match=rf"package {package} is missing.*pip install diffrender-torch\[{extra}\]"):
        action(tmp_path)
