"""Cases C: cameras. C04, C05, C08 and C11 also have tests next to the camera's own, in tests/test_camera.py."""

import math

import pytest
import torch

import diffrender as dr
from diffrender import geometry
from tests.support.vocabulary import rnd

F64 = torch.float64


def quad_at(z: float, half: float = 0.06) -> dr.Mesh:
    quad = geometry.quad(2 * half, 2 * half)
    return quad.with_vertices(quad.vertices + torch.tensor([0.0, 0.0, z]))


def centroid(mesh: dr.Mesh, camera: dr.Camera) -> tuple[float, float]:
    """Mean column and row index of the covered pixels."""
    mask = dr.Renderer((camera.height, camera.width), edges=None, outputs=("mask",))(mesh, camera).mask[0, ..., 0]
    rows, columns = torch.nonzero(mask, as_tuple=True)
    return float(columns.float().mean()), float(rows.float().mean())


def opencv(cx: float, cy: float, **options) -> dr.Camera:
    K = torch.tensor([[60.0, 0.0, cx], [0.0, 60.0, cy], [0.0, 0.0, 1.0]])
    return dr.Camera.from_opencv(K, torch.eye(3), torch.zeros(3), 64, 48, **options)


def test_c01_half_pixel_principal_point():
    by_centres, by_corners = opencv(31.5, 23.5), opencv(32.0, 24.0, pixel_center="half")
    assert centroid(quad_at(2.0), by_centres) == pytest.approx((31.5, 23.5), abs=0.02)
    renderer = dr.Renderer((48, 64), edges="pairs")
    assert torch.equal(renderer(quad_at(2.0), by_centres).color, renderer(quad_at(2.0), by_corners).color)


@pytest.mark.parametrize(("cx", "cy"), [(10.5, 40.5), (50.5, 5.5), (-5.0, 23.5)])
def test_c02_principal_point_far_from_the_middle(cx, cy):
    camera = opencv(cx, cy)
    K = torch.tensor([[60.0, 0.0, cx], [0.0, 60.0, cy], [0.0, 0.0, 1.0]])
    assert torch.equal(camera.to_opencv()["K"], K)
    if cx > 0:
        assert centroid(quad_at(2.0), camera) == pytest.approx((cx, cy), abs=0.02)
    else:
        mask = dr.Renderer((48, 64), edges=None, outputs=("mask",))(quad_at(2.0), camera).mask
        assert not mask.any()
        aside = quad_at(2.0).with_vertices(quad_at(2.0).vertices + torch.tensor([1.0, 0.0, 0.0]))
        assert centroid(aside, camera) == pytest.approx((cx + 30, cy), abs=0.02)


def test_c04_opencv_against_opengl_axes(tmp_path):
    """An L of markers at +x, +y and far z of OpenCV's camera, under a random pose."""
    R = geometry.so3_exp(torch.tensor([0.7, -1.1, 0.4], dtype=F64))
    t = torch.tensor([0.3, -0.2, 0.5], dtype=F64)
    K = torch.tensor([[60.0, 0.0, 31.5], [0.0, 60.0, 23.5], [0.0, 0.0, 1.0]], dtype=F64)
    camera = dr.Camera.from_opencv(K, R, t, 64, 48)
    in_camera = torch.tensor([[0.0, 0.0, 3.0], [0.6, 0.0, 3.0], [0.0, 0.6, 3.0], [0.0, 0.0, 5.0]], dtype=F64)
    world = (in_camera - t) @ R  # rows of R^T (x - t)
    o, px, py, pz = camera.project(world)
    assert px[0] > o[0] + 1
    assert py[1] > o[1] + 1
    torch.testing.assert_close(pz, o)
    torch.testing.assert_close(camera.depth(world), in_camera[:, 2])
    assert torch.linalg.det(camera.camera_from_world[:3, :3]).item() == pytest.approx(1, abs=1e-6)
    back = camera.to_opencv()
    torch.testing.assert_close(back["R"], R)
    torch.testing.assert_close(back["t"], t)

    # Row 0 is on top in arrays and in saved pictures: the y marker lies in a lower row of both.
    marker = geometry.icosphere(1, radius=0.15)
    mesh = marker.with_vertices(marker.vertices + world[2].float())
    image = dr.Renderer((48, 64), edges=None, outputs=("mask",))(mesh, camera.to(torch.float32)).mask[0].float()
    dr.save_image(tmp_path / "l.png", image)
    stored = dr.load_image(tmp_path / "l.png") if hasattr(dr, "load_image") else image
    assert torch.nonzero(stored[..., 0] > 0)[:, 0].float().mean() > 24 + 5


@pytest.mark.parametrize("elevation", [90.0, 89.9999, -90.0])
def test_c05_look_at_with_up_parallel_to_the_view(elevation):
    angle = math.radians(elevation)
    level = 0.0 if abs(elevation) == 90 else 5 * math.cos(angle)
    eye = torch.tensor([0.0, 5 * math.sin(angle), level], requires_grad=True)
    camera = dr.Camera.perspective(fov_y_deg=40, width=16, height=16).look_at(eye)
    R = camera.camera_from_world[:3, :3]
    assert (R @ R.T - torch.eye(3)).abs().max() < 1e-5
    assert torch.linalg.det(R) > 0
    camera.project(torch.tensor([[0.3, 0.1, 0.2]])).sum().backward()
    assert torch.isfinite(eye.grad).all()
    with pytest.raises(ValueError, match="eye must differ from target"):
        camera.look_at([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(("near", "far"), [(0.05, 100.0), (1.0, 20.0), (-3.0, 1e4)])
def test_c07_orthographic_depth_is_linear(near, far):
    """A plane at distance 5 tilted by 30 degrees: depth is 5 + x tan(30), whatever near and far are."""
    x = torch.tensor([-6.0, 6.0, 6.0, -6.0])
    vertices = torch.stack([x, torch.tensor([-6.0, -6, 6, 6]), -(5 + x * math.tan(math.pi / 6))], -1)
    plane = dr.Mesh(vertices, torch.tensor([[0, 1, 2], [0, 2, 3]]))
    camera = dr.Camera.orthographic(half_width=2, width=40, height=30, near=near, far=far)
    renderer = dr.Renderer((30, 40), edges=None, outputs=("depth", "position", "mask"))
    result = renderer(plane, camera)
    assert result.mask.all()
    expected = 5 + camera.unproject(camera.pixel_centers().reshape(-1, 2), torch.ones(1200))[:, 0].reshape(
        30, 40
    ) * math.tan(math.pi / 6)
    assert (result.depth[0, ..., 0] - expected).abs().max() < 1e-3
    back = renderer(plane, camera.moved(torch.tensor([0.0, 0.0, -3.0, 0.0, 0.0, 0.0])))
    torch.testing.assert_close(back.depth, result.depth + 3, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(back.position, result.position, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["perspective", "orthographic", "radial_tangential"])
def test_c08_near_and_far_planes_really_cut(kind):
    """A strip from depth 1 to 9, near 2, far 6."""
    strip = dr.Mesh(
        torch.tensor([[-1.0, -1, -1], [1, -1, -1], [1, -1, -9], [-1, -1, -9]]), torch.tensor([[0, 1, 2], [0, 2, 3]])
    )
    size = {"width": 200, "height": 400, "near": 2, "far": 6}
    if kind == "orthographic":
        camera = dr.Camera.orthographic(half_height=5, **size).look_at([0.0, 0.5, 0.0], [0.0, 0.0, -1.0])
        low, high = 2, 6
    else:
        camera = dr.Camera.perspective(fov_y_deg=60, **size)
        if kind != "perspective":
            camera = camera._replace(distortion=torch.tensor([-0.05, 0.01, 0.0, 0.0]))
        low, high = 2, 6
    result = dr.Renderer((400, 200), edges=None, outputs=("depth", "mask"))(strip, camera)
    depth = result.depth[result.mask]
    assert depth.min() >= low - 1e-3
    assert depth.max() <= high + 1e-3
    assert depth.min() < low + 0.1
    assert depth.max() > high - 0.2


@pytest.mark.parametrize("edges", ["pairs", None])
def test_c10_a_cropped_window_crops_backward_too(edges):
    camera = dr.Camera.perspective(fov_y_deg=40, width=64, height=64, near=0.5, far=20).look_at([0.5, 0.8, 4.0])
    sphere = geometry.icosphere(2, radius=0.3)  # its silhouette lies inside of the window
    base = sphere.replace(colors=(sphere.vertices + 1) / 2)
    cotangent = rnd(24, 48, 3, seed=1)

    def run(camera, rows, columns):
        vertices = base.vertices.clone().requires_grad_()
        color = dr.Renderer((camera.height, camera.width), edges=edges, background=0.2)(
            base.with_vertices(vertices), camera
        ).color[0]
        window = color[rows, columns]
        return window.detach(), torch.autograd.grad((window * cotangent).sum(), vertices)[0]

    full = run(camera, slice(16, 40), slice(8, 56))
    crop = run(camera.cropped((8, 16, 56, 40)), slice(None), slice(None))
    assert full[0].std() > 0.05
    torch.testing.assert_close(crop[0], full[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(crop[1], full[1], atol=1e-4 * float(full[1].abs().max()), rtol=1e-4)


@pytest.mark.parametrize("form", ["number", (), (1,), (3,), (3, 1)])
@pytest.mark.parametrize("kind", ["fov", "ortho", "K"])
def test_c11_per_item_camera_numbers(form, kind):
    """Pictures of a batch equal those of its items, however the numbers are given."""
    items = 3 if form in ((3,), (3, 1)) else 1
    numbers = {"size": [30.0, 45.0, 60.0], "near": [0.1, 0.5, 1.0], "far": [10.0, 8.0, 20.0]}

    def make(values):
        if kind == "fov":
            return dr.Camera.perspective(fov_y_deg=values["size"], near=values["near"], far=values["far"], **frame)
        if kind == "ortho":
            size = values["size"]
            return dr.Camera.orthographic(half_height=size / 20, near=values["near"], far=values["far"], **frame)
        f = torch.as_tensor(values["size"]).reshape(-1) + 20
        zero, one = torch.zeros_like(f), torch.ones_like(f)
        K = torch.stack([f, zero, 15 * one, zero, f, 13 * one, zero, zero, one], -1).reshape(-1, 3, 3)
        if torch.as_tensor(values["size"]).ndim == 0:
            K = K[0]
        pose = {"R": torch.eye(3), "t": torch.zeros(3), "near": values["near"], "far": values["far"]}
        return dr.Camera.from_opencv(K, **pose, **frame)

    frame = {"width": 32, "height": 24}
    given = {k: v[0] if form == "number" else torch.tensor(v[:items]).reshape(form) for k, v in numbers.items()}
    eyes = torch.tensor([[0.0, 0, 3], [1, 2, 3], [-2, 0, 4]])
    renderer = dr.Renderer((24, 32), edges="pairs", outputs=("color", "depth"))
    mesh = geometry.icosphere(2)
    batch = renderer(mesh, make(given).look_at(eyes))
    for k in range(3):
        own = {name: v[min(k, items - 1)] for name, v in numbers.items()}
        single = renderer(mesh, make(own).look_at(eyes[k]))
        torch.testing.assert_close(batch.color[k], single.color[0])
        torch.testing.assert_close(batch.depth[k], single.depth[0])
