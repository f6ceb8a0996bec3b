"""Cameras of other libraries: each is checked through a picture.

A triangle over the tips of the three axes, coloured by them, is rendered. At every covered pixel the picture says which
world point it shows; the other library's own formulas, written out here in NumPy, must put that point on the centre of
that pixel. The formulas are those of the libraries' manuals; Mitsuba, where it is installed, is asked itself.
"""

import importlib.util
import json
import math

import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender import geometry

F64 = torch.float64
WIDTH, HEIGHT = 72, 48
AXES = dr.Mesh(torch.eye(3, dtype=F64), torch.tensor([[0, 1, 2]]), colors=torch.eye(3, dtype=F64))


def seen_points(camera: dr.Camera) -> tuple[np.ndarray, np.ndarray]:
    """World points that the picture shows and the (x, y) centres of the pixels they are seen in."""
    renderer = dr.Renderer((HEIGHT, WIDTH), edges=None, outputs=("color", "position", "mask"))
    result = renderer(AXES, camera)
    mask = result.mask[0, ..., 0]
    assert mask.sum() > 40, "the camera does not see the triangle"
    # The colour of a point of this triangle is its position, so a mirrored or shifted picture shows here too.
    torch.testing.assert_close(result.color[0][mask], result.position[0][mask])
    return result.position[0][mask].numpy(), camera.pixel_centers()[mask].numpy()


def homogeneous(points: np.ndarray) -> np.ndarray:
    return np.concatenate([points, np.ones((len(points), 1))], 1)


def pose(seed: int, axes: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """R, t of x_cam = R x + t for a camera at about (1, 1, 3.5) looking at the triangle, with the given axes."""
    look = geometry.look_at(torch.tensor([1.2, 1.0, 3.5], dtype=F64), [0.3, 0.3, 0.3]).numpy()
    tilt = np.eye(4)
    noise = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=F64)
    tilt[:3, :3] = geometry.so3_exp(0.1 * noise).numpy()
    both = np.diag([*axes, 1]) @ tilt @ look
    return both[:3, :3], both[:3, 3]


@pytest.mark.parametrize("pixel_center", ["integer", "half"])
def test_opencv(pixel_center):
    R, t = pose(0, (1, -1, -1))
    K = np.array([[70.0, 0, 33.25], [0, 65, 26.5], [0, 0, 1]])
    camera = dr.Camera.from_opencv(
        torch.tensor(K), torch.tensor(R), torch.tensor(t), WIDTH, HEIGHT, pixel_center=pixel_center
    )
    points, pixels = seen_points(camera)
    image = (points @ R.T + t) @ K.T
    expected = image[:, :2] / image[:, 2:] + (0.5 if pixel_center == "integer" else 0)
    np.testing.assert_allclose(expected, pixels, atol=1e-4)
    back = camera.to_opencv(pixel_center=pixel_center)
    assert torch.equal(back["K"], torch.tensor(K))
    torch.testing.assert_close(back["R"], torch.tensor(R))
    torch.testing.assert_close(back["t"], torch.tensor(t))
    assert torch.linalg.det(camera.camera_from_world[:3, :3]).item() == pytest.approx(1)
    again = dr.Camera.from_opencv(**back, pixel_center=pixel_center)
    assert torch.equal(again.clip_from_world, camera.clip_from_world)


@pytest.mark.parametrize(
    "make",
    [
        lambda **planes: dr.Camera.from_opencv(np.eye(3), np.eye(3), np.zeros(3), 8, 8, **planes),
        lambda **planes: dr.Camera.from_pytorch3d(np.eye(3), np.zeros(3), 1.0, np.zeros(2), 8, 8, **planes),
        lambda **planes: dr.Camera.from_blender(np.eye(4), 8, 8, **planes),
        lambda **planes: dr.Camera.from_kaolin(np.eye(4), 9.0, 8, 8, **planes),
        lambda near, far: dr.Camera.from_mitsuba(np.eye(4), 40, 8, 8, near_clip=near, far_clip=far),
    ],
)
@pytest.mark.parametrize(("near", "far"), [(0.0, 100.0), (5000.0, 100.0), (torch.tensor([0.1, 2.0]), 1.0)])
def test_clipping_planes_in_the_wrong_order_are_an_error(make, near, far):
    with pytest.raises(ValueError, match=rf"Camera.from_\w+: near must be above 0 and below far={far}, got "):
        make(near=near, far=far)


def test_opencv_takes_distortion_as_calibrations_hold_it():
    K, coefficients = np.eye(3) * 50, np.array([0.1, -0.02, 1e-3, 2e-3, 0.0])
    row = dr.Camera.from_opencv(K, np.eye(3), np.zeros(3), 8, 8, distortion=coefficients)
    column = dr.Camera.from_opencv(K, np.eye(3), np.zeros(3), 8, 8, distortion=coefficients[:, None])
    assert torch.equal(row.distortion, column.distortion)
    rig = dr.Camera.from_opencv([K, K], [np.eye(3)] * 2, [np.zeros(3)] * 2, 8, 8, distortion=[coefficients] * 2)
    assert torch.equal(rig[1].distortion, row.distortion)
    with pytest.raises(ValueError, match=r"4, 5, 8 coefficients .* got \(14,\). Thin prism and tilt are not known"):
        dr.Camera.from_opencv(K, np.eye(3), np.zeros(3), 8, 8, distortion=np.zeros(14))


def test_opencv_takes_rotation_vectors_and_columns():
    vector, t = torch.tensor([0.1, 0.2, -0.3], dtype=F64), torch.tensor([[0.1], [0.2], [3.0]], dtype=F64)
    one = dr.Camera.from_opencv(torch.eye(3) * 50, vector, t, 8, 8)
    two = dr.Camera.from_opencv(torch.eye(3) * 50, geometry.so3_exp(vector), t[:, 0], 8, 8)
    assert torch.equal(one.clip_from_world, two.clip_from_world)
    three = dr.Camera.from_opencv(torch.eye(3) * 50, vector[:, None], t, 8, 8)  # as cv2.solvePnP gives it
    assert torch.equal(one.camera_from_world, three.camera_from_world)
    vectors = torch.stack([vector, -vector, 2 * vector])
    batch = dr.Camera.from_opencv(torch.eye(3) * 50, vectors[..., None], t.expand(3, 3, 1), 8, 8)
    assert torch.equal(batch.camera_from_world[0], one.camera_from_world)
    with pytest.raises(
        ValueError, match=r"R must be a rotation, got .* For three rotation vectors, pass R\[..., None\]"
    ):
        dr.Camera.from_opencv(torch.eye(3) * 50, vectors, t, 8, 8)
    with pytest.raises(ValueError, match="R must be a rotation"):
        dr.Camera.from_opencv(torch.eye(3) * 50, torch.diag(torch.tensor([1.0, 1.0, -1.0])), t, 8, 8)
    with pytest.raises(ValueError, match=r"from_opencv: K must have no skew \(K\[0, 1\] = 0\), got 2"):
        dr.Camera.from_opencv([[9.0, 2.0, 4.0], [0.0, 9.0, 4.0], [0.0, 0.0, 1.0]], vector, t, 8, 8)
    with pytest.raises(ValueError, match=r"from_opencv: K must have shape \(3, 3\) or \(B, 3, 3\), got \(4, 4\)"):
        dr.Camera.from_opencv(torch.eye(4), vector, t, 8, 8)
    with pytest.raises(ValueError, match="must be a perspective one, got an orthographic one"):
        dr.Camera.orthographic(half_width=1, width=4, height=4).to_opencv()


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("SIMPLE_PINHOLE", [70, 35, 25]),
        ("PINHOLE", [70, 65, 35, 25]),
        ("SIMPLE_RADIAL", [70, 35, 25, -0.1]),
        ("RADIAL", [70, 35, 25, -0.1, 0.05]),
        ("OPENCV", [70, 65, 35, 25, -0.1, 0.05, 0.002, -0.003]),
        ("FULL_OPENCV", [70, 65, 35, 25, -0.1, 0.05, 0.002, -0.003, 0.01, 0.2, 0.01, 0.02]),
        ("SIMPLE_RADIAL_FISHEYE", [70, 35, 25, -0.05]),
        ("RADIAL_FISHEYE", [70, 35, 25, -0.05, 0.01]),
        ("OPENCV_FISHEYE", [70, 65, 35, 25, -0.05, 0.01, 0.002, 0.001]),
    ],
)
def test_colmap(model, parameters):
    """world-to-camera quaternion QW QX QY QZ, image (x, y) in pixels whose centres are at half-integers."""
    R, t = pose(1, (1, -1, -1))
    quaternion = geometry.quaternion_from_rotation(torch.tensor(R))
    camera = dr.Camera.from_colmap(
        model, torch.tensor(parameters, dtype=F64), quaternion, torch.tensor(t), WIDTH, HEIGHT
    )
    points, pixels = seen_points(camera)
    u, v, w = (points @ R.T + t).T
    u, v = u / w, v / w
    has_one_focal_length = "SIMPLE" in model or model.startswith("RADIAL")
    fx, fy, cx, cy, *k = [parameters[0], *parameters] if has_one_focal_length else parameters
    k1, k2, p1, p2, k3, k4, k5, k6 = [*k, *[0] * 8][:8]
    if "FISHEYE" in model:
        r = np.hypot(u, v)
        theta = np.arctan(r)
        radial = theta * (1 + k1 * theta**2 + k2 * theta**4 + p1 * theta**6 + p2 * theta**8) / r
        x, y = u * radial, v * radial
    else:
        r2 = u**2 + v**2
        radial = (1 + k1 * r2 + k2 * r2**2 + k3 * r2**3) / (1 + k4 * r2 + k5 * r2**2 + k6 * r2**3)
        x = u * radial + 2 * p1 * u * v + p2 * (r2 + 2 * u**2)
        y = v * radial + 2 * p2 * u * v + p1 * (r2 + 2 * v**2)
    # Straight edges stand for the bent ones to 0.05 pixels; without distortion there is nothing to bend.
    np.testing.assert_allclose(np.stack([fx * x + cx, fy * y + cy], 1), pixels, atol=0.06 if k else 1e-4)
    torch.testing.assert_close(
        camera.project(torch.tensor(points)), torch.tensor(np.stack([fx * x + cx, fy * y + cy], 1))
    )


@pytest.mark.parametrize("in_ndc", [True, False])
def test_pytorch3d(in_ndc):
    """x_cam = x R + T; NDC spans 2 on the SHORT side, x to the left, y up: x_ndc = f x/z + p."""
    R, t = pose(2, (-1, 1, -1))
    if in_ndc:
        focal, principal = [2.6, 2.4], [0.1, -0.05]
    else:
        focal, principal = [63.0, 60.0], [33.0, 25.0]
    camera = dr.Camera.from_pytorch3d(
        torch.tensor(R.T)[None], torch.tensor(t)[None], torch.tensor([focal]), torch.tensor([principal]),
        WIDTH, HEIGHT, in_ndc=in_ndc,
    )  # fmt: skip
    assert camera.batch_size == 1
    points, pixels = seen_points(camera)
    x, y, z = (points @ R.T + t).T
    if in_ndc:
        ndc = np.stack([focal[0] * x / z + principal[0], focal[1] * y / z + principal[1]], 1)
        expected = np.array([WIDTH, HEIGHT]) / 2 - ndc * HEIGHT / 2
    else:
        expected = np.stack([principal[0] - focal[0] * x / z, principal[1] - focal[1] * y / z], 1)
    np.testing.assert_allclose(expected, pixels, atol=1e-4)
    for form in (True, False):
        back = camera.to_pytorch3d(in_ndc=form)
        assert back.pop("image_size").tolist() == [[HEIGHT, WIDTH]]
        again = dr.Camera.from_pytorch3d(**back, width=WIDTH, height=HEIGHT)
        torch.testing.assert_close(again.clip_from_world, camera.clip_from_world)
    one = dr.Camera.from_pytorch3d(torch.eye(3), torch.zeros(3), 2.0, torch.zeros(2), WIDTH, HEIGHT)
    assert one.focal_px.tolist() == [48, 48]


def test_pytorch3d_and_opencv_differ_by_the_known_rules():
    """R transposed, the first two columns of that and the first two entries of T with the other sign; the principal
    point mirrored about the middle; all in units of half the short side."""
    R, t = pose(3, (1, -1, -1))
    K = torch.tensor([[70.0, 0, 33.0], [0, 65, 26], [0, 0, 1]], dtype=F64)
    camera = dr.Camera.from_opencv(K, torch.tensor(R), torch.tensor(t), WIDTH, HEIGHT, pixel_center="half")
    other = camera.to_pytorch3d()
    sign = torch.tensor([-1.0, -1.0, 1.0], dtype=F64)
    torch.testing.assert_close(other["R"][0], torch.tensor(R).T * sign)
    torch.testing.assert_close(other["T"][0], torch.tensor(t) * sign)
    torch.testing.assert_close(other["focal_length"][0], torch.tensor([70.0, 65.0], dtype=F64) / 24)
    torch.testing.assert_close(other["principal_point"][0], torch.tensor([36.0 - 33.0, 24.0 - 26.0], dtype=F64) / 24)


@pytest.mark.parametrize("sensor_fit", ["AUTO", "HORIZONTAL", "VERTICAL"])
@pytest.mark.parametrize("world", ["y_up", "z_up"])
def test_blender(sensor_fit, world):
    """View frame of Blender: half the fitted side is sensor / 2 / lens at distance 1; shifts in fitted sides."""
    R, t = pose(4, (1, 1, 1))
    world_from_camera = np.eye(4)
    world_from_camera[:3, :3], world_from_camera[:3, 3] = R.T, -R.T @ t
    y_up_from_z_up = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
    matrix_world = np.linalg.inv(y_up_from_z_up) @ world_from_camera if world == "y_up" else world_from_camera
    shift = (0.04, -0.03)
    camera = dr.Camera.from_blender(
        torch.tensor(matrix_world) @ torch.diag(torch.tensor([2.0, 2, 2, 1], dtype=F64)), WIDTH, HEIGHT, lens_mm=40.0,
        sensor_width_mm=36.0, sensor_height_mm=30.0, sensor_fit=sensor_fit, shift=shift, world=world,
    )  # fmt: skip
    points, pixels = seen_points(camera)
    if world == "y_up":
        points = points @ y_up_from_z_up[:3, :3]  # back to z-up, where Blender's camera is
    x, y, z, _ = (homogeneous(points) @ np.linalg.inv(matrix_world).T).T
    side, sensor = (HEIGHT, 30.0) if sensor_fit == "VERTICAL" else (WIDTH, 36.0)
    per_side = np.stack([x / -z, y / -z], 1) * 40.0 / sensor - shift  # in fitted sides from the frame's middle, y up
    expected = np.array([WIDTH / 2, HEIGHT / 2]) + per_side * [side, -side]
    np.testing.assert_allclose(expected, pixels, atol=1e-4)


def nerf_transforms() -> tuple[dict, list[np.ndarray]]:
    matrices = []
    for seed in (5, 6):
        R, t = pose(seed, (1, 1, 1))
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = R.T, -R.T @ t
        matrices.append(matrix)
    return {"frames": [{"transform_matrix": m.tolist()} for m in matrices]}, matrices


@pytest.mark.parametrize("form", ["angle", "focal"])
def test_nerf_transforms(tmp_path, form):
    transforms, matrices = nerf_transforms()
    if form == "angle":
        transforms |= {"camera_angle_x": 0.9}
        focal, center = [WIDTH / 2 / math.tan(0.45)] * 2, [WIDTH / 2, HEIGHT / 2]
    else:
        transforms |= {"fl_x": 70.0, "fl_y": 66.0, "cx": 33.0, "cy": 26.0, "w": WIDTH, "h": HEIGHT}
        focal, center = [70.0, 66.0], [33.0, 26.0]
    (tmp_path / "transforms.json").write_text(json.dumps(transforms))
    size = () if form == "focal" else (WIDTH, HEIGHT)
    cameras = dr.Camera.from_nerf_transforms(tmp_path / "transforms.json", *size)
    assert len(cameras) == 2
    for k, matrix in enumerate(matrices):
        points, pixels = seen_points(cameras[k].to(F64))
        x, y, z, _ = (homogeneous(points) @ np.linalg.inv(matrix).T).T
        expected = np.stack([center[0] + focal[0] * x / -z, center[1] - focal[1] * y / -z], 1)
        np.testing.assert_allclose(expected, pixels, atol=1e-4)
    turned = dr.Camera.from_nerf_transforms(transforms, WIDTH, HEIGHT, world="y_up")
    expected_eye = torch.tensor(matrices[0][[0, 2, 1], 3] * [1, 1, -1])
    torch.testing.assert_close(turned.eye[0].double(), expected_eye, atol=1e-5, rtol=0)
    lens = dr.Camera.from_nerf_transforms({**transforms, "k1": 0.1, "p2": 0.01}, WIDTH, HEIGHT)
    torch.testing.assert_close(lens.distortion[0], torch.tensor([0.1, 0, 0, 0.01, 0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": []}, "must have frames, got none"),
        ({"frames": [{"file_path": "a"}]}, "frame 0: transform_matrix must be 4x4, got None"),
        ({"camera_angle_x": None}, "frame 0: must have camera_angle_x or fl_x, got neither"),
    ],
)
def test_nerf_transforms_name_what_is_missing(tmp_path, change, message):
    transforms = {**nerf_transforms()[0], "camera_angle_x": 0.9, **change}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({k: v for k, v in transforms.items() if v is not None}))
    with pytest.raises(ValueError, match=rf"from_nerf_transforms: .*t\.json.*{message}"):
        dr.Camera.from_nerf_transforms(path, 8, 8)
    path.write_text("not json")
    with pytest.raises(ValueError, match=r"t\.json must be a JSON file"):
        dr.Camera.from_nerf_transforms(path, 8, 8)


def test_gltf_perspective_and_orthographic():
    """The projection matrices of the glTF 2.0 specification, section 3.10.3."""
    R, t = pose(7, (1, 1, 1))
    world_from_camera = np.eye(4)
    world_from_camera[:3, :3], world_from_camera[:3, 3] = R.T, -R.T @ t
    a, yfov, n, f = WIDTH / HEIGHT, 0.7, 0.1, 50.0
    perspective = np.array([
        [1 / (a * math.tan(yfov / 2)), 0, 0, 0], [0, 1 / math.tan(yfov / 2), 0, 0],
        [0, 0, (f + n) / (n - f), 2 * f * n / (n - f)], [0, 0, -1, 0],
    ])  # fmt: skip
    r, top = 1.5, 1.0
    orthographic = np.diag([1 / r, 1 / top, 2 / (n - f), 1])
    orthographic[2, 3] = (f + n) / (n - f)
    lenses = {
        "perspective": ({"yfov": yfov, "aspectRatio": a, "znear": n, "zfar": f}, perspective),
        "orthographic": ({"xmag": r, "ymag": top, "znear": n, "zfar": f}, orthographic),
    }
    for kind, (lens, projection) in lenses.items():
        camera = dr.Camera.from_gltf({"type": kind, kind: lens}, torch.tensor(world_from_camera), WIDTH, HEIGHT)
        points, pixels = seen_points(camera)
        clip = homogeneous(points) @ np.linalg.inv(world_from_camera).T @ projection.T
        ndc = clip[:, :2] / clip[:, 3:]
        expected = np.stack([(ndc[:, 0] + 1) * WIDTH / 2, (1 - ndc[:, 1]) * HEIGHT / 2], 1)
        np.testing.assert_allclose(expected, pixels, atol=1e-4)
        np.testing.assert_allclose(camera.clip_positions(torch.tensor(points)).numpy(), clip, atol=1e-9)
    infinite = dr.Camera.from_gltf(
        {"type": "perspective", "perspective": {"yfov": 1.0, "znear": 0.1}}, torch.eye(4), 8, 8
    )
    assert infinite.far.item() == 1000
    with pytest.raises(ValueError, match=r"camera must have perspective\.znear, got \['yfov'\]"):
        dr.Camera.from_gltf({"type": "perspective", "perspective": {"yfov": 1.0}}, torch.eye(4), 8, 8)
    with pytest.raises(ValueError, match="must be one of 'perspective', 'orthographic', got 'fish'"):
        dr.Camera.from_gltf({"type": "fish"}, torch.eye(4), 8, 8)
    with pytest.raises(ValueError, match="the pose must be a rotation and a translation, got one that mirrors"):
        dr.Camera.from_gltf(
            {"type": "perspective", "perspective": lenses["perspective"][0]},
            torch.diag(torch.tensor([-1.0, 1, 1, 1])),
            8,
            8,
        )


def test_kaolin():
    """Kaolin's perspective matrix: rows (fx, 0, -x0, 0), (0, fy, -y0, 0), over half the width and height."""
    R, t = pose(8, (1, 1, 1))
    view = np.eye(4)
    view[:3, :3], view[:3, 3] = R, t
    camera = dr.Camera.from_kaolin(torch.tensor(view)[None], 70.0, WIDTH, HEIGHT, focal_y=66.0, x0=3.0, y0=-2.0)
    points, pixels = seen_points(camera)
    x, y, z, _ = (homogeneous(points) @ view.T).T
    ndc = np.stack([(70 * x - 3 * z) / (WIDTH / 2), (66 * y + 2 * z) / (HEIGHT / 2)], 1) / -z[:, None]
    expected = np.stack([(ndc[:, 0] + 1) * WIDTH / 2, (1 - ndc[:, 1]) * HEIGHT / 2], 1)
    np.testing.assert_allclose(expected, pixels, atol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("mitsuba") is None, reason="mitsuba is not installed")
@pytest.mark.parametrize("fov_axis", ["x", "y", "diagonal", "smaller", "larger"])
def test_mitsuba(fov_axis):
    import mitsuba as mi

    mi.set_variant("scalar_rgb")
    offset = (0.06, -0.04)
    to_world = mi.ScalarTransform4f().look_at(origin=[1.2, 1.0, 3.5], target=[0.3, 0.3, 0.3], up=[0.1, 1, 0])
    sensor = mi.load_dict({
        "type": "perspective", "fov": 35.0, "fov_axis": fov_axis, "to_world": to_world,
        "principal_point_offset_x": offset[0], "principal_point_offset_y": offset[1],
        "film": {"type": "hdrfilm", "width": WIDTH, "height": HEIGHT},
    })  # fmt: skip
    camera = dr.Camera.from_mitsuba(
        torch.tensor(np.array(to_world.matrix)), 35.0, WIDTH, HEIGHT, fov_axis=fov_axis, principal_point_offset=offset
    )
    points, pixels = seen_points(camera.to(F64))
    for point, pixel in list(zip(points, pixels, strict=True))[::7]:
        ray, _ = sensor.sample_ray(0.0, 0.5, [pixel[0] / WIDTH, pixel[1] / HEIGHT], [0.5, 0.5])
        origin, direction = np.array(ray.o), np.array(ray.d)
        closest = origin + direction * ((point - origin) @ direction)
        np.testing.assert_allclose(closest, point, atol=2e-5)
