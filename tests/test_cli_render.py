"""`python -m diffrender render`: files in, pictures out; and the camera and lights that it chooses."""

from pathlib import Path

import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender import cli, geometry
from diffrender.view import frame_camera, studio_lights

io = pytest.importorskip("imageio.v3")


def saved_mesh(folder: Path) -> Path:
    cube = geometry.cube()
    material = dr.Material((0.8, 0.1, 0.1), roughness=0.6)
    path = folder / "cube.glb"
    dr.save_mesh(path, dr.Mesh(cube.vertices * 7 + 100.0, cube.triangles, material=material))
    return path


@pytest.mark.parametrize("azimuth", [0.0, 77.0, 200.0])
@pytest.mark.parametrize(("width", "height"), [(64, 48), (30, 60)])
def test_frame_camera_shows_all_of_a_mesh_in_the_middle(azimuth: float, width: int, height: int) -> None:
    mesh = geometry.torus().replace(vertices=geometry.torus().vertices * 50 + torch.tensor([300.0, -20.0, 7.0]))
    camera = frame_camera(mesh, width=width, height=height, azimuth_deg=azimuth)
    pixels = camera.project(mesh.vertices)
    assert (pixels > 0).all()
    assert (pixels < torch.tensor([width, height])).all()
    depth = camera.depth(mesh.vertices)
    assert (depth > camera.near).all()
    assert (depth < camera.far).all()
    extent = pixels.amax(0) - pixels.amin(0)
    assert float((extent / torch.tensor([width, height])).max()) > 0.5


def test_frame_camera_of_several_angles_and_of_nothing() -> None:
    camera = frame_camera(geometry.cube(), width=8, height=8, azimuth_deg=torch.tensor([0.0, 90.0]))
    torch.testing.assert_close(camera.eye[0, [0, 2]], camera.eye[1, [2, 0]], atol=1e-5, rtol=1e-5)
    lights = studio_lights(camera)
    assert dr.pack_lights(lights).values.shape[:2] == (2, 3)
    empty = dr.Mesh(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match="frame_camera: mesh must have triangles with finite corners"):
        frame_camera(empty, width=8, height=8)


def test_render_writes_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "cube.png"
    assert cli.main(["render", str(saved_mesh(tmp_path)), "-o", str(out), "--size", "40x32"]) == 0
    picture = np.asarray(io.imread(out))
    assert picture.shape == (32, 40, 3)
    assert (picture[0, 0] == 255).all()
    red, green, _ = picture[16, 20].astype(int)
    assert red > 2 * green


def test_render_transparent_and_turntable(tmp_path: Path) -> None:
    out, turn = tmp_path / "cube.png", tmp_path / "cube.gif"
    arguments = ["render", str(saved_mesh(tmp_path)), "-o", str(out), "--size", "24", "--background", "none"]
    assert cli.main([*arguments, "--turntable", str(turn), "--frames", "3", "--samples", "1"]) == 0
    picture = np.asarray(io.imread(out))
    assert picture.shape == (24, 24, 4)
    assert picture[0, 0, 3] == 0
    assert picture[12, 12, 3] == 255
    assert len(list(io.imiter(turn))) == 3


def test_render_with_an_environment_shows_it_and_is_lit_by_it(tmp_path: Path) -> None:
    """Green sky over red ground: behind the mesh as such, on the mesh as its light."""
    panorama = torch.zeros(32, 64, 3)
    panorama[:16, :, 1] = 1
    panorama[16:, :, 0] = 1
    sky, out, ball = tmp_path / "sky.hdr", tmp_path / "ball.hdr", tmp_path / "ball.glb"
    dr.save_image(sky, panorama)
    sphere = geometry.icosphere(3)
    dr.save_mesh(ball, dr.Mesh(sphere.vertices, sphere.triangles, material=dr.Material(1.0)))
    arguments = ["render", str(ball), "-o", str(out), "--size", "33", "--elevation", "0", "--env", str(sky)]

    def picture(*more: str) -> torch.Tensor:
        assert cli.main([*arguments, *more]) == 0
        return dr.load_image(out)

    image = picture()
    torch.testing.assert_close(image[0, 0], torch.tensor([0.0, 1.0, 0.0]))
    torch.testing.assert_close(image[32, 32], torch.tensor([1.0, 0.0, 0.0]))
    top, bottom = image[5, 16], image[27, 16]
    assert top[1] > 0.6 > 0.3 > top[0]
    assert bottom[0] > 0.6 > 0.3 > bottom[1]
    torch.testing.assert_close(picture("--exposure", "1"), 2 * image, rtol=0.02, atol=0.01)  # of Radiance's 8 bits
    plain = picture("--background", "0.5")
    torch.testing.assert_close(plain[0, 0], torch.full((3,), 0.5))
    torch.testing.assert_close(plain[16, 16], image[16, 16])


def test_exposure_brightens_the_studio(tmp_path: Path) -> None:
    out = tmp_path / "cube.exr"
    pytest.importorskip("OpenEXR")
    arguments = ["render", str(saved_mesh(tmp_path)), "-o", str(out), "--size", "16", "--background", "0"]
    assert cli.main(arguments) == 0
    image = dr.load_image(out)
    assert cli.main([*arguments, "--exposure", "-1"]) == 0
    torch.testing.assert_close(dr.load_image(out), image / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{missing}", "-o", "{out}.png"], "missing.glb"),
        (["{mesh}", "-o", "{out}.tiff"], "must end in .png"),
        (["{mesh}", "-o", "{out}.png", "--turntable", "{out}.avi"], "must end in .mp4, .gif"),
        (["{mesh}", "-o", "{out}.png", "--env", "{mesh}"], "cube.glb: file must end in .hdr"),
        (["{mesh}", "-o", "{out}.png", "--env", "{out}.hdr"], "out.hdr"),
        (["{mesh}", "-o", "{out}.png", "--env", "{text}"], "text.hdr must be a Radiance HDR file"),
    ],
)
def test_wrong_files_give_one_line_and_code_2(tmp_path: Path, capsys, arguments: list[str], message: str) -> None:
    names = {"missing": tmp_path / "missing.glb", "out": tmp_path / "out", "mesh": saved_mesh(tmp_path)}
    names["text"] = tmp_path / "text.hdr"
    names["text"].write_text("no picture")
    assert cli.main(["render", *(text.format(**names) for text in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(
    "option",
    [
        ["--size", "0"],
        ["--size", "1x2x3"],
        ["--background", "1,2"],
        ["--samples", "0"],
        ["--exposure", "bright"],
        ["--env", "x.hdr", "--unlit"],
    ],
)
def test_wrong_options_give_one_line_and_code_2(tmp_path: Path, capsys, option: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["render", "x.glb", "-o", "x.png", *option])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
