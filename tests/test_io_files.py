"""Materials in files: round trips that render the same, and malformed files that name what is wrong."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch

import diffrender as dr
from diffrender import geometry
from tests.cases.test_cases_i import gltf_quad, material_colors

DATA = Path(os.environ.get("DIFFRENDER_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def eight_bits(*shape: int, srgb: bool) -> torch.Tensor:
    """Random values that 8 bits hold exactly."""
    stored = torch.randint(0, 256, shape) / 255
    return dr.srgb_to_linear(stored) if srgb else stored


def full_material(alpha: bool) -> dr.Material:
    albedo = eight_bits(4, 6, 3, srgb=True)
    return dr.Material(
        torch.cat([albedo, eight_bits(4, 6, 1, srgb=False)], -1) if alpha else albedo,
        eight_bits(3, 5, 1, srgb=False),
        eight_bits(3, 5, 1, srgb=False),
        normal=eight_bits(2, 2, 3, srgb=False),
        emissive=eight_bits(4, 4, 3, srgb=True),
        occlusion=eight_bits(4, 4, 1, srgb=False),
        albedo_factor=(0.5, 0.75, 1.0, 0.9) if alpha else (0.5, 0.75, 1.0),
        metallic_factor=0.3,
        roughness_factor=0.6,
        emissive_factor=(2.0, 1.0, 0.5),
        normal_scale=0.7,
        occlusion_strength=0.4,
        alpha_mode="MASK" if alpha else "OPAQUE",
        alpha_cutoff=0.25,
        double_sided=alpha,
        wrap=("clamp", "mirror"),
    )


def assert_same_material(one: dr.Material, two: dr.Material, names: set[str] | None = None) -> None:
    """Equal in what they evaluate to, at places all over the texture."""
    uv = torch.rand(1, 20, 20, 2) * 1.6 - 0.3
    for name, a, b in zip(one.evaluate(uv)._fields, one.evaluate(uv), two.evaluate(uv), strict=True):
        if (names is None or name in names) and a is not None:
            a, b = (x.expand(1, 20, 20, x.shape[-1]) for x in (a, b))
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5, msg=f"{name} differs")


@pytest.mark.parametrize("alpha", [False, True])
def test_glb_keeps_every_map_factor_and_mode(tmp_path, alpha):
    material = full_material(alpha)
    plain = dr.Material(albedo=(0.2, 0.4, 0.6), metallic=0.5, roughness=0.25)
    mesh = geometry.cube().replace(material=[plain, material], material_ids=torch.arange(12) // 6)
    dr.save_mesh(tmp_path / "a.glb", mesh)
    again = dr.load_mesh(tmp_path / "a.glb")
    assert_same_material(again.materials[0], plain)
    assert_same_material(again.materials[1], material)
    for name in ("alpha_mode", "double_sided", "wrap"):
        assert getattr(again.materials[1], name) == getattr(material, name)
    assert float(again.materials[1].normal_scale) == pytest.approx(0.7)
    assert again.materials[1].alpha_cutoff == (0.25 if alpha else 0.5)
    assert again.material_ids.tolist() == mesh.material_ids.tolist()
    corners = [torch.stack(geometry.triangle_corners(m.vertices, m.triangles)) for m in (mesh, again)]
    torch.testing.assert_close(*corners)


def test_obj_keeps_its_materials(tmp_path):
    material = dr.Material(
        eight_bits(4, 6, 3, srgb=True), metallic=0.25, roughness=eight_bits(2, 3, 1, srgb=False),
        normal=eight_bits(2, 2, 3, srgb=False), emissive=(0.1, 0.2, 0.3), albedo_factor=(0.5, 0.75, 1.0),
    )  # fmt: skip
    half = dr.Material(albedo=(0.2, 0.4, 0.6, 0.5), alpha_mode="BLEND")
    mesh = geometry.cube().replace(material=[half, material], material_ids=torch.arange(12) % 2)
    dr.save_mesh(tmp_path / "a.obj", mesh)
    again = dr.load_mesh(tmp_path / "a.obj")
    assert again.material_ids.tolist() == mesh.material_ids.tolist()
    assert torch.equal(again.triangles, mesh.triangles)
    assert_same_material(again.materials[0], half)
    assert_same_material(again.materials[1], material)
    assert again.materials[0].alpha_mode == "BLEND"


def test_highlights_of_old_materials_become_roughness(tmp_path):
    (tmp_path / "m.mtl").write_text(
        "newmtl a\nKs 1 1 1\nNs 30\nnewmtl b\nKs 0 0 0\nNs 30\nTr 1\nnewmtl c\nKd .5\nd .25\n"
    )
    face = "v 0 0 0\nv 1 0 0\nv 0 1 0\nmtllib m.mtl\nusemtl a\nf 1 2 3\nusemtl b\nf 1 2 3\nusemtl c\nf 1 2 3\n"
    (tmp_path / "m.obj").write_text(face)
    a, b, c = (m.evaluate() for m in dr.load_mesh(tmp_path / "m.obj").materials)
    assert float(a.roughness) == pytest.approx((2 / 32) ** 0.25)
    assert (float(b.roughness), float(b.alpha)) == (1, 1)
    assert c.albedo.tolist() == [0.5] * 3
    assert float(c.alpha) == 0.25


def texel_centers(height: int, width: int) -> torch.Tensor:
    v, u = (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width
    return torch.stack(torch.meshgrid(u, v, indexing="xy"), -1)[None]


@pytest.mark.parametrize("wrap", ["repeat", "clamp", ("mirror", "clamp")])
@pytest.mark.parametrize("sizes", [((2, 3), (4, 9)), ((8, 8), (4, 2)), ((3, 8), (6, 2))])
def test_metallic_and_roughness_of_two_sizes_share_the_larger_in_glb(tmp_path, wrap, sizes):
    metallic, roughness = (torch.rand(*size, 1) for size in sizes)
    material = dr.Material(metallic=metallic, roughness=roughness, wrap=wrap)
    dr.save_mesh(tmp_path / "a.glb", geometry.cube().replace(material=material))
    again = dr.load_mesh(tmp_path / "a.glb").materials[0]
    size = tuple(max(pair) for pair in zip(*sizes, strict=True))
    assert again.metallic.shape == again.roughness.shape == (*size, 1)
    at = texel_centers(*size)
    for name in ("metallic", "roughness"):
        expected, found = (getattr(m.evaluate(at), name) for m in (material, again))
        torch.testing.assert_close(found, expected, atol=0.51 / 255, rtol=0)  # stored as bytes


def test_metallic_and_roughness_of_two_sizes_are_two_files_in_obj(tmp_path):
    material = dr.Material(metallic=eight_bits(2, 3, 1, srgb=False), roughness=eight_bits(4, 5, 1, srgb=False))
    dr.save_mesh(tmp_path / "a.obj", geometry.cube().replace(material=material))
    again = dr.load_mesh(tmp_path / "a.obj").materials[0]
    torch.testing.assert_close(again.metallic, material.metallic)
    torch.testing.assert_close(again.roughness, material.roughness)
    assert_same_material(again, material)


def test_a_mask_of_another_size_keeps_the_color_and_itself(tmp_path):
    """map_Kd and map_d, as exporters write them: the color in full, a small mask."""
    albedo, alpha = eight_bits(8, 4, 3, srgb=True), eight_bits(2, 4, 1, srgb=False)
    dr.save_image(tmp_path / "color.png", albedo)
    dr.save_image(tmp_path / "mask.png", alpha.expand(-1, -1, 3), encode="none")
    (tmp_path / "m.mtl").write_text("newmtl a\nmap_Kd color.png\nmap_d mask.png\nnewmtl b\nmap_d mask.png\n")
    lines = "mtllib m.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl a\nf 1 2 3\nusemtl b\nf 1 2 3\n"
    (tmp_path / "m.obj").write_text(lines)
    both, only = dr.load_mesh(tmp_path / "m.obj").materials
    assert both.alpha_mode == only.alpha_mode == "BLEND"
    torch.testing.assert_close(both.albedo[..., :3], albedo, atol=1e-5, rtol=1e-5)
    expected = dr.texture(alpha, texel_centers(8, 4))[0]
    torch.testing.assert_close(both.albedo[..., 3:], expected, atol=1e-5, rtol=0)
    assert torch.equal(only.albedo[..., :3], torch.ones(2, 4, 3))
    torch.testing.assert_close(only.albedo[..., 3:], alpha, atol=1e-5, rtol=0)


def painted(**options) -> dr.Mesh:
    return geometry.cube().replace(material=[None, dr.Material(torch.rand(2, 2, 4), **options)])


NORMALS = torch.full((2, 2, 3), 0.5)
LOSSES = {
    "mask": (".obj", painted(alpha_mode="MASK"), 'mode "MASK" of material 1 .it is read as "BLEND".. A .glb'),
    "occlusion": (".obj", painted(occlusion=0.5), "the occlusion of material 1. A .glb"),
    "occlusion map": (".obj", painted(occlusion=torch.rand(2, 2, 1)), "the occlusion of material 1"),
    "normal scale": (".obj", painted(normal=NORMALS, normal_scale=0.5), "the normal_scale of material 1 .it is"),
    "mirror": (".obj", painted(wrap="mirror"), 'the wrap of material 1 .it is read as "repeat".'),
    "two wraps": (".obj", painted(wrap=("clamp", "repeat")), "the wrap of material 1"),
    "tangents": (".obj", painted(normal=NORMALS).replace(tangents=torch.ones(8, 4)), "tangents .those of the "),
    "alpha": (".obj", geometry.cube().replace(colors=torch.rand(8, 4)), "the alpha of vertex colors"),
    "ply alpha": (".ply", geometry.cube().replace(colors=torch.rand(8, 4)), "the alpha of vertex colors. A .glb"),
    "ply": (".ply", painted(), "materials. A .glb file does"),
    "zero": (".glb", painted(wrap=("repeat", "zero")), 'the wrap "zero" of material 1 .it is read as "clamp".'),
    "several": (".obj", painted(occlusion=0.5, alpha_mode="MASK"), "MASK.*; the occlusion of material 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(LOSSES))
def test_what_a_format_cannot_hold_is_a_warning(tmp_path, case):
    suffix, mesh, message = LOSSES[case]
    with pytest.warns(UserWarning, match=f"save_mesh: .*a{suffix} cannot hold .*{message}") as warned:
        dr.save_mesh(tmp_path / f"a{suffix}", mesh)
    assert len(warned) == 1
    assert warned[0].filename == __file__  # of the line that saves


@pytest.mark.parametrize("suffix", [".obj", ".glb", ".ply"])
def test_what_a_format_holds_is_no_warning(tmp_path, suffix):
    """Warnings are errors here."""
    mesh = geometry.cube().replace(colors=torch.rand(8, 3))
    if suffix != ".ply":
        mesh = mesh.replace(material=dr.Material(torch.rand(2, 2, 3), normal=NORMALS, wrap=("clamp", "clamp")))
    dr.save_mesh(tmp_path / f"a{suffix}", mesh)
    again = dr.load_mesh(tmp_path / f"a{suffix}")
    if suffix != ".ply":
        assert again.materials[0].wrap in ("clamp", ("clamp", "clamp"))


def test_opaque_alpha_stays_opaque_in_obj(tmp_path):
    """Exporters fill the fourth channel with whatever they like where it does not count."""
    for albedo in (torch.rand(2, 2, 4), torch.tensor([0.5, 0.5, 0.5, 0.3])):
        material = dr.Material(albedo, albedo_factor=(1.0, 1.0, 1.0, 0.9))
        dr.save_mesh(tmp_path / "a.obj", geometry.cube().replace(material=material))
        again = dr.load_mesh(tmp_path / "a.obj").materials[0]
        assert again.alpha_mode == "OPAQUE"
        assert (again.evaluate(torch.rand(1, 3, 3, 2)).alpha == 1).all()


def test_colors_of_one_channel_are_grey_in_every_format(tmp_path):
    grey = torch.randint(0, 256, (8, 1)) / 255
    for suffix in (".obj", ".ply", ".glb"):
        dr.save_mesh(tmp_path / f"a{suffix}", geometry.cube().replace(colors=grey, texcoords=None))
        again = dr.load_mesh(tmp_path / f"a{suffix}")
        torch.testing.assert_close(again.colors[again.triangles.long()],
                                   grey.expand(-1, 3)[geometry.cube().triangles.long()])  # fmt: skip
    with pytest.raises(ValueError, match="save_mesh: mesh must have colors of 1, 3 or 4 channels, got 16"):
        dr.save_mesh(tmp_path / "a.ply", geometry.cube().replace(colors=torch.rand(8, 16)))


@pytest.mark.parametrize(
    "model",
    [
        "spot/spot.obj",
        pytest.param("gltf/cow.glb", marks=pytest.mark.slow),
        "gltf/Duck.glb",
        "fuze/fuze.obj",
        pytest.param("gltf/avocado/avocado.gltf", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:save_mesh.*cannot hold tangents")
def test_real_models_look_the_same_after_a_round_trip(tmp_path, model):
    if not (DATA / model).is_file():
        pytest.skip(f"{DATA / model} is not there")
    mesh = dr.load_mesh(DATA / model)
    middle = (mesh.vertices.amin(0) + mesh.vertices.amax(0)) / 2
    size = float((mesh.vertices.amax(0) - mesh.vertices.amin(0)).max())
    centred = mesh.replace(vertices=(mesh.vertices - middle) / size)
    image, mask = material_colors(centred, 96, 96)
    assert mask.float().mean() > 0.05
    assert image[mask].std() > 0.05
    for suffix in (".obj", ".glb"):
        dr.save_mesh(tmp_path / f"again{suffix}", centred)
        again, again_mask = material_colors(dr.load_mesh(tmp_path / f"again{suffix}"), 96, 96)
        assert torch.equal(again_mask, mask)
        assert (again - image).abs().max() < 1e-4


# Malformed files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["asset"].update(version="1.0"), r"asset.version must be 2.x, got 1.0"),
        (
            lambda t: t.update(extensionsRequired=["KHR_draco_mesh_compression"]),
            r"extensionsRequired must be among .*draco",
        ),
        (lambda t: t["nodes"][0].update(mesh=7), r"meshes\[7\] must be one of 1 meshes, got a reference to none"),
        (lambda t: t["nodes"][0].update(children=[0]), r"nodes\[0\] must not be its own descendant, got a cycle"),
        (lambda t: t["nodes"][0].update(matrix=[1, 0]), r"nodes\[0\].matrix must have 16 numbers, got \[1, 0\]"),
        (lambda t: t["accessors"][0].update(type="VEC2"), r"accessors\[0\].type must be VEC3, got VEC2"),
        (
            lambda t: t["accessors"][0].update(count=99),
            r"accessors\[0\] must fit into bufferViews\[0\] of 48 bytes, got 1188",
        ),
        (lambda t: t["accessors"][1].update(count=3), r"TEXCOORD_0 must have one row per position \(4\), got 3"),
        (lambda t: t["accessors"][2].update(componentType=9), r"accessors\[2\].componentType must be one of .*, got 9"),
        (
            lambda t: t["bufferViews"][1].update(byteOffset=4096),
            r"bufferViews\[1\] must fit into buffers\[0\] of 92 bytes",
        ),
        (
            lambda t: t["buffers"][0].update(uri="no.bin"),
            r"buffers\[0\] must name a file beside it, got 'no.bin', which",
        ),
        (lambda t: t["buffers"][0].update(uri="data:;base64,%"), r"buffers\[0\] must have base64 data in its uri"),
        (
            lambda t: t["meshes"][0]["primitives"][0].update(attributes={}),
            r"primitives\[0\].attributes must have POSITION",
        ),
        (
            lambda t: t["meshes"][0]["primitives"][0].update(mode=1),
            r"the scene must hold at least one triangle, got none",
        ),
        (
            lambda t: t["materials"][0].update(alphaMode="GLASS"),
            r"materials\[0\].alphaMode must be OPAQUE, MASK or BLEND",
        ),
        (lambda t: t["textures"][0].pop("source"), r"textures\[0\] must have a PNG or JPEG source, got none"),
        (
            lambda t: t["images"][0].update(uri="quad.bin"),
            r"images\[0\] must be a picture, got one that Pillow cannot read",
        ),
    ],
)
def test_malformed_gltf_names_the_element(tmp_path, change, message):
    material = {"pbrMetallicRoughness": {"baseColorTexture": {"index": 0}}}
    path = gltf_quad(tmp_path, material=material, picture=[[[255, 0, 0]]])
    dr.load_mesh(path)  # the file is good before the change
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(ValueError, match=message) as raised:
        dr.load_mesh(path)
    assert str(raised.value).startswith("load_")
    assert str(path.parent) in str(raised.value)


def test_malformed_glb_containers(tmp_path):
    dr.save_mesh(tmp_path / "a.glb", geometry.cube())
    data = (tmp_path / "a.glb").read_bytes()
    changed = {
        "cut": (data[:100], "the GLB header must name version 2 and the length of the file"),
        "version": (data[:4] + struct.pack("<I", 1) + data[8:], "the GLB header must name version 2 .*got version 1"),
        "short": (data[:10], "the file must hold a GLB header and a JSON chunk, got 10 bytes"),
        "json": (data[:20] + b"}" + data[21:], "the file must be glTF: JSON, or a GLB container around it"),
    }
    for name, (content, message) in changed.items():
        (tmp_path / f"{name}.glb").write_bytes(content)
        with pytest.raises(ValueError, match=f"load_mesh: .*{name}.glb: {message}"):
            dr.load_mesh(tmp_path / f"{name}.glb")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("newmtl a\nKd 1 x 1\n", "m.mtl, line 2: 3 numbers must follow 'Kd', got '1 x 1'"),
        ("newmtl a\n\nPr\n", "m.mtl, line 3: 1 numbers must follow 'Pr', got ''"),
        ("newmtl a\nmap_Kd -clamp on\n", "m.mtl, line 2: a map must name a file, got '-clamp on'"),
    ],
)
def test_malformed_mtl_names_the_line(tmp_path, text, message):
    (tmp_path / "m.mtl").write_text(text)
    (tmp_path / "m.obj").write_text("mtllib m.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl a\nf 1 2 3\n")
    with pytest.raises(ValueError, match=message):
        dr.load_mesh(tmp_path / "m.obj")


def test_missing_materials_are_warnings(tmp_path):
    (tmp_path / "m.obj").write_text("mtllib none.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl a\nf 1 2 3\n")
    with pytest.warns(UserWarning, match="m.obj, line 1: mtllib names 'none.mtl', which does not exist"):
        assert dr.load_mesh(tmp_path / "m.obj").material is None
    (tmp_path / "none.mtl").write_text("newmtl b\nmap_Kd -s 1 1 1 no such.png\n")
    with pytest.warns(UserWarning, match="load_mesh: ") as warned:
        dr.load_mesh(tmp_path / "m.obj")
    assert sorted(str(w.message).split(": ")[-1] for w in warned) == [
        "map_kd names 'no such.png', which does not exist.",
        "no file defines the material 'a'.",
    ]


@pytest.mark.parametrize(
    ("material", "message"),
    [
        (
            dr.Material(albedo=torch.rand(2, 4, 4, 3)),
            r"albedo of a material must be one texture \(H, W, C\), got \(2, 4",
        ),
        (dr.Material(roughness=torch.rand(2, 1)), "roughness of a material must be shared by all items"),
    ],
)
def test_materials_that_no_file_holds(tmp_path, material, message):
    with pytest.raises(ValueError, match="save_mesh: .*" + message):
        dr.save_mesh(tmp_path / "a.glb", geometry.cube().replace(material=material))


def test_strips_fans_sparse_strided_and_quantised_accessors(tmp_path):
    """One quad in other forms of the same data: the corners come out equal."""
    path = gltf_quad(tmp_path, material={})
    base = dr.load_mesh(path)
    tree = json.loads(path.read_text())
    primitive = tree["meshes"][0]["primitives"][0]
    strip = json.loads(json.dumps(tree))
    # A strip of 4 vertices needs no indices in the order 1, 2, 0, 3; a fan takes 0, 1, 2, 3 as they are.
    fan = json.loads(json.dumps(tree))
    fan_primitive = fan["meshes"][0]["primitives"][0]
    del fan_primitive["indices"]
    fan_primitive["mode"] = 6
    (tmp_path / "fan.gltf").write_text(json.dumps(fan))
    fan_mesh = dr.load_mesh(tmp_path / "fan.gltf")
    assert fan_mesh.triangles.tolist() == [[1, 2, 0], [2, 3, 0]]
    torch.testing.assert_close(fan_mesh.triangle_normals(), base.triangle_normals())

    data = (tmp_path / "quad.bin").read_bytes() + struct.pack("<4H", 1, 2, 0, 3)
    (tmp_path / "strip.bin").write_bytes(data)
    strip["buffers"][0] = {"uri": "strip.bin", "byteLength": len(data)}
    strip["bufferViews"].append({"buffer": 0, "byteOffset": len(data) - 8, "byteLength": 8})
    strip["accessors"].append({"bufferView": 3, "componentType": 5123, "count": 4, "type": "SCALAR"})
    strip["meshes"][0]["primitives"][0] |= {"indices": 3, "mode": 5}
    # Sparse: corner 3 moved out to (2, 2, 0).
    extra = struct.pack("<H2x3f", 3, 2.0, 2.0, 0.0)
    (tmp_path / "strip.bin").write_bytes(data + extra)
    strip["buffers"][0]["byteLength"] += len(extra)
    strip["bufferViews"] += [
        {"buffer": 0, "byteOffset": len(data), "byteLength": 2},
        {"buffer": 0, "byteOffset": len(data) + 4, "byteLength": 12},
    ]
    strip["accessors"][0]["sparse"] = {
        "count": 1, "indices": {"bufferView": 4, "componentType": 5123}, "values": {"bufferView": 5},
    }  # fmt: skip
    (tmp_path / "strip.gltf").write_text(json.dumps(strip))
    mesh = dr.load_mesh(tmp_path / "strip.gltf")
    assert mesh.triangles.tolist() == [[1, 2, 0], [2, 3, 0]]
    assert mesh.vertices[3].tolist() == [2, 2, 0]
    assert torch.equal(mesh.vertices[:3], base.vertices[:3])

    # Quantised and interleaved: 3 positions and 2 texcoords as bytes, 8 bytes a vertex, scaled back by the node.
    rows = b"".join(struct.pack("<3bx2B2x", *xyz, *uv) for xyz, uv in zip(
        [(-127, 127, 0), (-127, -127, 0), (127, -127, 0), (127, 127, 0)], [(0, 0), (0, 255), (255, 255), (255, 0)],
        strict=True))  # fmt: skip
    (tmp_path / "bytes.bin").write_bytes(rows + struct.pack("<6H", 0, 1, 2, 0, 2, 3))
    view = {"buffer": 0, "byteOffset": 0, "byteLength": 32, "byteStride": 8}
    tree["extensionsRequired"] = ["KHR_mesh_quantization"]
    tree["buffers"] = [{"uri": "bytes.bin", "byteLength": 44}]
    tree["bufferViews"] = [view, {"buffer": 0, "byteOffset": 32, "byteLength": 12}]
    tree["accessors"] = [
        {"bufferView": 0, "componentType": 5120, "normalized": True, "count": 4, "type": "VEC3"},
        {"bufferView": 0, "byteOffset": 4, "componentType": 5121, "normalized": True, "count": 4, "type": "VEC2"},
        {"bufferView": 1, "componentType": 5123, "count": 6, "type": "SCALAR"},
    ]
    tree["nodes"] = [{"mesh": 0, "scale": [0.5, 0.5, 0.5]}]
    assert primitive["indices"] == 2
    (tmp_path / "bytes.gltf").write_text(json.dumps(tree))
    mesh = dr.load_mesh(tmp_path / "bytes.gltf")
    torch.testing.assert_close(mesh.vertices, base.vertices)
    torch.testing.assert_close(mesh.texcoords, base.texcoords)


def test_texture_transforms_are_applied_to_the_texcoords(tmp_path):
    transform = {"offset": [0.25, 0.5], "scale": [0.5, 2.0], "rotation": 0.0}
    material = {"pbrMetallicRoughness": {"baseColorTexture": {
        "index": 0, "extensions": {"KHR_texture_transform": transform}}}}  # fmt: skip
    mesh = dr.load_mesh(gltf_quad(tmp_path, material=material, picture=[[[255, 0, 0]]]))
    base = torch.tensor([[0.0, 0], [0, 1], [1, 1], [1, 0]])
    torch.testing.assert_close(mesh.texcoords, base * torch.tensor([0.5, 2.0]) + torch.tensor([0.25, 0.5]))
