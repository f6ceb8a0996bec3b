"""Cases I: files of meshes and pictures. I01, I02, I04, I07, I08, I17 and I19 have more tests in tests/test_io.py."""

import json
import struct
import zlib

import numpy as np
import PIL.Image
import pytest
import torch

import diffrender as dr

F64 = torch.float64
RED, GREEN, BLUE, WHITE = [1.0, 0, 0], [0.0, 1, 0], [0.0, 0, 1], [1.0, 1, 1]


def png(path, pixels) -> None:
    PIL.Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


def material_colors(mesh: dr.Mesh, height: int = 32, width: int = 32, **lens) -> tuple[torch.Tensor, torch.Tensor]:
    """Unlit albedo times vertex colors, (H, W, 3), and coverage: what the materials say at each pixel."""
    lens = {"half_height": 0.5, **lens}
    camera = dr.Camera.orthographic(width=width, height=height, **lens).look_at([0.0, 0.0, 5.0])
    fragments = dr.rasterize(camera.clip_positions(mesh.vertices), mesh.triangles, (height, width))
    mask = fragments.triangle_id[0] >= 0
    texcoords = mesh.texcoords if mesh.texcoords is not None else mesh.vertices.new_zeros(1, 2)
    rows = mesh.texcoord_triangles if mesh.texcoords is not None else torch.zeros_like(mesh.triangles)
    uv = dr.interpolate(texcoords, rows, fragments)
    ids = torch.zeros_like(mesh.triangles[:, 0]) if mesh.material_ids is None else mesh.material_ids
    material_id = ids[fragments.triangle_id[0].clamp(min=0).long()]
    image = torch.zeros(height, width, 3, dtype=mesh.dtype)
    for k, material in enumerate(mesh.materials):
        image = torch.where((material_id == k)[..., None], material.evaluate(uv).albedo, image)
    if mesh.colors is not None:
        colors = dr.interpolate(mesh.colors, mesh.triangles, fragments)
        image = colors[..., :3] * (image if mesh.materials else 1)
    image = image.reshape(height, width, 3)
    return torch.where(mask[..., None], image, 0), mask


# Meshes ---------------------------------------------------------------------------------------------------------------


def test_i05_several_materials_in_one_obj(tmp_path):
    """A 2x2 picture tiled three times, one of 4 rows x 2, and a plain color: each on its own face."""
    rng = np.random.default_rng(0)
    pictures = {"a": rng.integers(0, 256, (2, 2, 3)), "b b": rng.integers(0, 256, (4, 2, 3))}
    for name, pixels in pictures.items():
        png(tmp_path / f"{name}.png", pixels)
    (tmp_path / "m.mtl").write_text(
        "newmtl A\nKd 1 1 1\nmap_Kd a.png\n\nnewmtl B\nmap_Kd b b.png\nnewmtl C # plain\nKd .25 .5 .75\n"
    )
    text = "mtllib m.mtl\n"
    for k in range(3):
        text += f"v {k} 0 0\nv {k + 1} 0 0\nv {k + 1} 1 0\nv {k} 1 0\n"
    text += "vt 0 0\nvt 3 0\nvt 3 3\nvt 0 3\nvt 1 0\nvt 1 1\nvt 0 1\n"
    text += "usemtl C\nf 9 10 11 12\nusemtl A\nf 1/1 2/2 3/3 4/4\nusemtl B\nf 5/1 6/5 7/6 8/7\n"
    (tmp_path / "m.obj").write_text(text)
    with pytest.warns(UserWarning, match="2 triangles have no texcoords"):
        mesh = dr.load_mesh(tmp_path / "m.obj")
    assert [m.albedo.shape for m in mesh.materials] == [(), (2, 2, 3), (4, 2, 3)]
    assert mesh.material_ids.tolist() == [0, 0, 1, 1, 2, 2]
    mesh = mesh.with_vertices(mesh.vertices - torch.tensor([1.5, 0.5, 0.0]))
    linear = {name: dr.srgb_to_linear(torch.tensor(p / 255, dtype=torch.float32)) for name, p in pictures.items()}
    # Frames in which every texel is an odd number of pixels: the middle pixel shows that texel alone.
    image, mask = material_colors(mesh, 42, 126)
    assert mask.all()
    torch.testing.assert_close(image[:, 84:], torch.tensor([0.25, 0.5, 0.75]).expand(42, 42, 3))
    for row, column in ((0, 0), (1, 2), (2, 1)):
        tile = image[14 * row : 14 * row + 14, 14 * column : 14 * column + 14]
        torch.testing.assert_close(tile[3::7, 3::7], linear["a"], atol=1e-5, rtol=0)
    image, _ = material_colors(mesh, 60, 90, half_height=None, pixels_per_unit=(30.0, 60.0))
    torch.testing.assert_close(image[7::15, 37:60:15], linear["b b"], atol=1e-5, rtol=0)


def gltf_quad(
    folder, *, material=None, colors=None, color_type=5126, name="quad.gltf", picture=None, extra=None
) -> str:
    """A unit quad in the z = 0 plane, texcoords with (0, 0) at its upper left, as a .gltf with inlined buffer."""
    positions = np.array([[-0.5, 0.5, 0], [-0.5, -0.5, 0], [0.5, -0.5, 0], [0.5, 0.5, 0]], "<f4")
    texcoords = np.array([[0, 0], [0, 1], [1, 1], [1, 0]], "<f4")
    arrays = [(positions, 5126, "VEC3", {}), (texcoords, 5126, "VEC2", {})]
    arrays.append((np.array([[0], [1], [2], [0], [2], [3]], "<u2"), 5123, "SCALAR", {}))
    attributes = {"POSITION": 0, "TEXCOORD_0": 1}
    if colors is not None:
        kind = {5126: "<f4", 5123: "<u2"}[color_type]
        array = np.repeat(np.array([colors]), 4, 0)
        array = array if color_type == 5126 else np.rint(array * 65535)
        arrays.append((array.astype(kind), color_type, f"VEC{len(colors)}", {"normalized": color_type != 5126}))
        attributes["COLOR_0"] = 3
    binary, views, accessors = b"", [], []
    for array, component, kind, options in arrays:
        views.append({"buffer": 0, "byteOffset": len(binary), "byteLength": array.nbytes})
        accessor = {"bufferView": len(views) - 1, "componentType": component, "count": len(array), "type": kind}
        accessors.append({**accessor, **options})
        binary += array.tobytes() + b"\0" * (-array.nbytes % 4)
    (folder / "quad.bin").write_bytes(binary)
    primitive = {"attributes": attributes, "indices": 2}
    tree = {
        "asset": {"version": "2.0"}, "scenes": [{"nodes": [0]}], "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "buffers": [{"uri": "quad.bin", "byteLength": len(binary)}], "bufferViews": views, "accessors": accessors,
    }  # fmt: skip
    if material is not None:
        primitive["material"] = 0
        tree["materials"] = [material]
    if picture is not None:
        png(folder / "a picture.png", picture)
        tree |= {"images": [{"uri": "a%20picture.png"}], "textures": [{"source": 0}]}
    tree |= extra or {}
    (folder / name).write_text(json.dumps(tree))
    return folder / name


def test_i08_instances_and_nodes_outside_of_the_scene(tmp_path):
    turn = [0.0, 0.0, float(np.sin(np.pi / 4)), float(np.cos(np.pi / 4))]
    nodes = [
        {"mesh": 0, "translation": [3, 0, 0]},
        {"rotation": turn, "scale": [2, 2, 2], "children": [2]},
        {"mesh": 0, "translation": [0, 0, 1]},
        {"mesh": 0, "translation": [100, 0, 0]},
    ]
    path = gltf_quad(tmp_path, extra={"nodes": nodes, "scenes": [{"nodes": [0, 1]}], "scene": 0})
    mesh = dr.load_mesh(path, dtype=F64)
    base = dr.load_mesh(gltf_quad(tmp_path, name="base.gltf"), dtype=F64).vertices
    first = base + torch.tensor([3.0, 0, 0], dtype=F64)
    x, y, z = base.unbind(-1)
    second = torch.stack([-2 * y, 2 * x, 2 * z + 2], -1)
    torch.testing.assert_close(mesh.vertices, torch.cat([first, second]), atol=1e-6, rtol=0)
    assert mesh.triangle_count == 4


def test_mirrored_nodes_keep_their_outside_and_normals(tmp_path):
    nodes = [{"mesh": 0, "scale": [-1, 1, 1]}]
    mesh = dr.load_mesh(gltf_quad(tmp_path, extra={"nodes": nodes}))
    torch.testing.assert_close(mesh.triangle_normals(), torch.tensor([0.0, 0.0, 1.0]).expand(2, 3))
    torch.testing.assert_close(mesh.normals, torch.tensor([0.0, 0.0, 1.0]).expand(2, 3))


@pytest.mark.parametrize(
    ("material", "colors", "color_type", "expected"),
    [
        ({"pbrMetallicRoughness": {"baseColorFactor": [0.2, 0.4, 0.6, 1]}}, None, 5126, [0.2, 0.4, 0.6]),
        ({"pbrMetallicRoughness": {"baseColorFactor": [0.5, 0.5, 0.5, 1], "baseColorTexture": {"index": 0}}},
         None, 5126, [0.5, 0.5, 0.5]),
        ({}, [0.3, 0.6, 0.9], 5126, [0.3, 0.6, 0.9]),
        ({}, [0.3, 0.6, 0.9, 1.0], 5123, [0.3, 0.6, 0.9]),
        ({"pbrMetallicRoughness": {"baseColorFactor": [0.5, 0.5, 1, 1]}}, [0.5, 0.2, 0.25], 5126, [0.25, 0.1, 0.25]),
    ],
)  # fmt: skip
def test_i10_gltf_factors_and_colours(tmp_path, material, colors, color_type, expected):
    white = np.full((2, 2, 3), 255)
    path = gltf_quad(tmp_path, material=material, colors=colors, color_type=color_type, picture=white)
    image, mask = material_colors(dr.load_mesh(path))
    assert mask.all()
    assert (image - torch.tensor(expected)).abs().max() < (1e-6 if color_type == 5126 else 1e-5)
    # Written and read again, they are the same.
    dr.save_mesh(tmp_path / "again.glb", dr.load_mesh(path))
    assert (material_colors(dr.load_mesh(tmp_path / "again.glb"))[0] - image).abs().max() < 1e-6


@pytest.mark.parametrize("suffix", [".obj", ".ply", ".gltf", ".glb"])
def test_i11_v_direction(tmp_path, suffix):
    """Rows red green / blue white: the upper left quarter is red, the lower right white, also after a round trip."""
    picture = (np.array([[RED, GREEN], [BLUE, WHITE]]) * 255).astype(np.uint8)
    png(tmp_path / "p.png", picture)
    path = tmp_path / f"quad{suffix}"
    corners = [(-0.5, -0.5, 0, 0), (0.5, -0.5, 1, 0), (0.5, 0.5, 1, 1), (-0.5, 0.5, 0, 1)]  # x y u v, v from the bottom
    if suffix == ".obj":
        (tmp_path / "m.mtl").write_text("newmtl m\nmap_Kd p.png\n")
        text = "mtllib m.mtl\nusemtl m\n" + "".join(f"v {x} {y} 0\nvt {u} {v}\n" for x, y, u, v in corners)
        path.write_text(text + "f 1/1 2/2 3/3 4/4\n")
    elif suffix == ".ply":
        header = "ply\nformat ascii 1.0\nelement vertex 4\n"
        header += "".join(f"property float {name}\n" for name in ("x", "y", "z", "s", "t"))
        header += "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
        path.write_text(header + "".join(f"{x} {y} 0 {u} {v}\n" for x, y, u, v in corners) + "4 0 1 2 3\n")
    else:
        texture = {"pbrMetallicRoughness": {"baseColorTexture": {"index": 0}, "metallicFactor": 0}}
        gltf = gltf_quad(tmp_path, material=texture, picture=picture)
        path = gltf if suffix == ".gltf" else tmp_path / "quad.glb"
        if suffix == ".glb":
            dr.save_mesh(path, dr.load_mesh(gltf))
    expected = torch.tensor([[RED, GREEN], [BLUE, WHITE]])
    plain = dr.Material(albedo=torch.tensor(picture / 255, dtype=torch.float32))

    def quarters(mesh):
        image, mask = material_colors(mesh if mesh.material is not None else mesh.replace(material=plain), 30, 30)
        assert mask.all()
        return image[7::15, 7::15]  # the middle pixels of the texels

    mesh = dr.load_mesh(path)
    torch.testing.assert_close(quarters(mesh), expected, atol=1e-4, rtol=0)
    again = tmp_path / f"again{'.glb' if suffix == '.gltf' else suffix}"
    dr.save_mesh(again, mesh)
    torch.testing.assert_close(quarters(dr.load_mesh(again)), expected, atol=1e-4, rtol=0)


def test_i19_centred_before_the_cast(tmp_path):
    """Large coordinates: float64 keeps them, and centred in float64 they survive the cast."""
    (tmp_path / "utm.obj").write_text(
        "v 4500000.25 500000.5 100\nv 4500001.25 500000.5 100\nv 4500000.25 500001.5 100\nf 1 2 3\n"
    )
    exact = torch.tensor(
        [[4500000.25, 500000.5, 100], [4500001.25, 500000.5, 100], [4500000.25, 500001.5, 100]], dtype=F64
    )
    mesh = dr.load_mesh(tmp_path / "utm.obj", recenter=True)
    assert mesh.dtype == torch.float32
    assert (mesh.vertices.double() + mesh.offset - exact).abs().max() < 1e-6
    assert mesh.vertices.abs().max() <= 1
    with pytest.warns(UserWarning, match=r"coordinates up to 4.5e\+06 lose .* in torch.float32.*recenter=True"):
        dr.load_mesh(tmp_path / "utm.obj")


# Pictures -------------------------------------------------------------------------------------------------------------


def test_i13_16_bit_grey_png(tmp_path):
    PIL.Image.fromarray(np.array([[0, 257], [40000, 65535]], np.uint16)).save(tmp_path / "a.png")
    image = dr.load_image(tmp_path / "a.png", dtype=F64)
    assert image.shape == (2, 2, 1)
    assert image.flatten().tolist() == pytest.approx([0, 257 / 65535, 40000 / 65535, 1])
    PIL.Image.fromarray(np.array([[0, 1], [100, 200]], np.uint16)).save(tmp_path / "small.png")
    small = dr.load_image(tmp_path / "small.png", dtype=F64)
    assert small.flatten().tolist() == pytest.approx([0, 1 / 65535, 100 / 65535, 200 / 65535])
    dr.save_image(tmp_path / "again.png", small, bits=16)
    with PIL.Image.open(tmp_path / "again.png") as stored:
        assert stored.mode.startswith("I;16")
        assert np.asarray(stored).tolist() == [[0, 1], [100, 200]]
    assert torch.equal(dr.load_image(tmp_path / "again.png", dtype=F64), small)


def png16_with_filters(pixels: np.ndarray, kinds: list[int]) -> bytes:
    """A 16-bit PNG whose rows use the given filters, after the formulas of the specification."""
    height, width, channels = pixels.shape
    step = 2 * channels
    rows = [row.astype(">u2").tobytes() for row in pixels]
    lines = b""
    for y, row in enumerate(rows):
        up_row = rows[y - 1] if y else bytes(len(row))
        line = []
        for i, value in enumerate(row):
            a, b = row[i - step] if i >= step else 0, up_row[i]
            c = up_row[i - step] if i >= step else 0
            p = a + b - c
            paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            line.append((value - [0, a, b, (a + b) // 2, paeth][kinds[y]]) % 256)
        lines += bytes([kinds[y], *line])

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    packed = zlib.compress(lines)
    data = chunk(b"IDAT", packed[:7]) + chunk(b"IDAT", packed[7:])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_i14_16_bit_png_of_every_kind_and_filter(tmp_path, channels):
    pixels = np.random.default_rng(0).integers(0, 65536, (10, 7, channels))
    (tmp_path / "a.png").write_bytes(png16_with_filters(pixels, [0, 1, 2, 3, 4] * 2))
    image = dr.load_image(tmp_path / "a.png", alpha="straight", dtype=F64)
    assert torch.equal(image, torch.tensor(pixels / 65535))
    dr.save_image(tmp_path / "b.png", dr.load_image(tmp_path / "a.png", dtype=F64), bits=16)
    again = dr.load_image(tmp_path / "b.png", alpha="straight", dtype=F64)
    torch.testing.assert_close(again, image, atol=1 / 65535 / 2 + 1e-12, rtol=0)


def test_i14_values_of_the_case(tmp_path):
    pixels = np.array([[[0, 300, 65535], [32768, 1000, 40000]]])
    (tmp_path / "a.png").write_bytes(png16_with_filters(pixels, [0]))
    assert abs(float(dr.load_image(tmp_path / "a.png")[0, 0, 1]) - 300 / 65535) < 1e-6


@pytest.mark.parametrize("suffix", [".exr", ".hdr"])
def test_i16_exr_and_hdr(tmp_path, suffix):
    if suffix == ".exr":
        pytest.importorskip("OpenEXR", reason="OpenEXR is not installed: pip install diffrender-torch[exr]")
    image = torch.tensor([[[0.25, 2.5, 100.0], [0.0, 0.5, 1e-3]], [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]])
    if suffix == ".exr":
        image[0, 1, 0] = -0.5
    path = tmp_path / f"a{suffix}"
    dr.save_image(path, image)
    again = dr.load_image(path)
    assert again.dtype == torch.float32
    assert again[0, 0, 2] > 50
    relative = ((again - image).abs() / image.abs().amax(-1, keepdim=True).clamp(min=1e-6)).max()
    assert relative < (1e-6 if suffix == ".exr" else 1e-2)
    wide = torch.rand(5, 300, 3) * torch.logspace(-4, 4, 300)[:, None]
    dr.save_image(path, wide)
    assert ((dr.load_image(path) - wide).abs() / wide.amax(-1, keepdim=True)).max() < 4e-3


def test_i16_exr_channels_go_by_their_names(tmp_path):
    openexr = pytest.importorskip("OpenEXR", reason="OpenEXR is not installed: pip install diffrender-torch[exr]")
    values = {name: np.full((2, 3), k + 1, np.float16) for k, name in enumerate("ABGR")}
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    openexr.File(header, values).write(str(tmp_path / "rgba.exr"))
    assert dr.load_image(tmp_path / "rgba.exr")[0, 0].tolist() == [4, 3, 2, 1]
    openexr.File(header, {"Z": values["G"]}).write(str(tmp_path / "z.exr"))
    assert dr.load_image(tmp_path / "z.exr").tolist() == [[[3]] * 3] * 2
    openexr.File(header, {"U": values["G"], "V": values["B"]}).write(str(tmp_path / "uv.exr"))
    with pytest.raises(ValueError, match=r"uv.exr must have channels R, G, B or Y, or a single one, got \['U', 'V'\]"):
        dr.load_image(tmp_path / "uv.exr")


def test_i16_run_length_coded_hdr(tmp_path):
    """Runs, stretches, and the old repetition marks, made by hand."""
    head = b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\nEXPOSURE=1\n\n"
    runs = (
        bytes([2, 2, 0, 10]) + bytes([138, 128]) + bytes([4, 1, 2, 3, 4, 134, 9]) + bytes([138, 0]) + bytes([138, 129])
    )
    (tmp_path / "a.hdr").write_bytes(head + b"-Y 1 +X 10\n" + runs)
    image = dr.load_image(tmp_path / "a.hdr")
    assert image[0, :, 0].tolist() == [1.0] * 10
    assert image[0, :, 1].tolist() == [k / 128 for k in (1, 2, 3, 4, 9, 9, 9, 9, 9, 9)]
    old = bytes([64, 32, 16, 129]) + bytes([1, 1, 1, 3]) + bytes([128, 0, 0, 129])
    (tmp_path / "b.hdr").write_bytes(head + b"+Y 1 +X 5\n" + old)
    assert dr.load_image(tmp_path / "b.hdr")[0, :, 0].tolist() == [0.5] * 4 + [1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no picture", "must be a Radiance HDR file"),
        (
            b"#?RADIANCE\nFORMAT=32-bit_rle_xyze\n\n-Y 1 +X 1\n",
            "must have FORMAT=32-bit_rle_rgbe, got FORMAT=32-bit_rle_x",
        ),
        (b"#?RADIANCE\n\n-Y one +X 1\n", "must give its size as `-Y H .X W`, got '-Y one .X 1'"),
        (b"#?RADIANCE\n\n-Y 2 +X 1\n\1\2\3\4", "row 1: the row must hold 1 pixels, got 0 before the file ends"),
        (b"#?RADIANCE\n\n-Y 1 +X 9\n\2\2\0\x08", "row 0: the row must be 9 pixels wide, got 8"),
        (b"#?RADIANCE\n\n-Y 1 +X 9\n\2\2\0\x09\x90", "row 0: channel 0 must hold 9 bytes, got broken data"),
    ],
)
def test_broken_hdr_is_one_clear_error(tmp_path, content, message):
    (tmp_path / "a.hdr").write_bytes(content)
    with pytest.raises(ValueError, match="load_image: .*a.hdr.*" + message):
        dr.load_image(tmp_path / "a.hdr")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.png", b"no picture", "must be a picture, got one that Pillow cannot read"),
        ("a.jpg", b"", "must be a picture"),
        ("a.png", b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + bytes(8) + b"\x10\3\0\0\0", "got color type 3"),
        ("a.exr", b"no picture", "must be an OpenEXR file"),
    ],
)
def test_broken_pictures_are_one_clear_error(tmp_path, name, content, message):
    if name.endswith("exr"):
        pytest.importorskip("OpenEXR", reason="OpenEXR is not installed: pip install diffrender-torch[exr]")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"load_image: .*{name}.*{message}"):
        dr.load_image(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"path must name a file, got .*none.png', which does not exist"):
        dr.load_image(tmp_path / "none.png")


def test_cut_off_pictures_are_errors(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 65536, (20, 20, 3))
    whole = png16_with_filters(pixels, [2] * 20)
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="a.png must hold a complete PNG picture"):
        dr.load_image(tmp_path / "a.png")
    png(tmp_path / "b.png", pixels >> 8)
    data = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="b.png must be a picture"):
        dr.load_image(tmp_path / "b.png")


def test_palettes_and_bytes_are_decoded_to_linear(tmp_path):
    colors = np.array([[[188, 0, 255, 255], [10, 20, 30, 255], [188, 188, 188, 0]]], np.uint8)
    expected = dr.srgb_to_linear(torch.tensor(colors / 255))[..., :3]
    palette = PIL.Image.fromarray(colors[..., :3]).convert("P", palette=PIL.Image.Palette.ADAPTIVE)
    palette.save(tmp_path / "p.png")
    torch.testing.assert_close(dr.load_image(tmp_path / "p.png", dtype=F64), expected)
    index = palette.getpixel((2, 0))
    palette.save(tmp_path / "t.png", transparency=index)
    image = dr.load_image(tmp_path / "t.png", dtype=F64)
    assert image[0, :, 3].tolist() == [1, 1, 0]
    assert image[0, 2, :3].tolist() == [0, 0, 0]
    stored = dr.load_image(tmp_path / "p.png", colorspace="linear", dtype=F64)
    torch.testing.assert_close(stored, torch.tensor(colors[..., :3] / 255))
    PIL.Image.fromarray(np.array([[True, False]])).save(tmp_path / "bits.png")
    assert dr.load_image(tmp_path / "bits.png").tolist() == [[[1], [0]]]


def test_i20_hidden_colours_do_not_leak_and_rotation_tags_are_not_applied(tmp_path):
    a = np.array([[[200, 100, 50, 255], [200, 100, 50, 128], [255, 0, 0, 0]]], np.uint8)
    b = a.copy()
    b[0, 2, :3] = [1, 2, 250]
    for name, pixels in (("a", a), ("b", b)):
        png(tmp_path / f"{name}.png", pixels)
    for options in ({}, {"background": 0.0}, {"background": [0.1, 0.2, 0.3]}):
        one, two = (dr.load_image(tmp_path / f"{name}.png", **options) for name in "ab")
        assert torch.equal(one, two)
        assert one.shape[-1] == (3 if options else 4)
    torch.testing.assert_close(one[0, 2], torch.tensor([0.1, 0.2, 0.3]))
    straight = dr.load_image(tmp_path / "b.png", alpha="straight", colorspace="linear")
    torch.testing.assert_close(straight, torch.tensor(b / 255, dtype=torch.float32))
    # What save_image wrote comes back.
    dr.save_image(tmp_path / "c.png", dr.load_image(tmp_path / "a.png"))
    torch.testing.assert_close(dr.load_image(tmp_path / "c.png"), dr.load_image(tmp_path / "a.png"))

    for tag in (6, 0):
        exif = PIL.Image.Exif()
        exif[0x0112] = tag
        PIL.Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "r.jpg", exif=exif)
        assert dr.load_image(tmp_path / "r.jpg").shape == (4, 6, 3)
