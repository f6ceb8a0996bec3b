"""Cameras: frames, lenses, look-at, batches, gradients. Cases C."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender import geometry

F64 = torch.float64


def perspective(**options) -> dr.Camera:
    return dr.Camera.perspective(**{"fov_y_deg": 40, "width": 64, "height": 48, "dtype": F64, **options})


# Frames ---------------------------------------------------------------------------------------------------------------


def test_project_is_the_pinhole_formula():
    camera = perspective(fov_y_deg=None, focal_px=(70.0, 50.0), principal_px=(30.0, 20.0))
    points = torch.tensor([[0.3, -0.4, -2.0], [0.0, 0.0, -5.0], [-1.0, 1.0, -1.0]], dtype=F64)
    x, y, z = points.unbind(-1)
    expected = torch.stack([30 - 70 * x / z, 20 + 50 * y / z], -1)
    torch.testing.assert_close(camera.project(points), expected)
    torch.testing.assert_close(camera.depth(points), -z)


def test_near_and_far_are_the_ends_of_clip_space():
    camera = perspective(near=0.5, far=20.0)
    clip = camera.clip_positions(torch.tensor([[0.0, 0.0, -0.5], [0.0, 0.0, -20.0]], dtype=F64))
    torch.testing.assert_close(clip[:, 2] / clip[:, 3], torch.tensor([-1.0, 1.0], dtype=F64))


def test_c04_right_is_right_and_up_is_up():
    """OpenGL axes: +x lands right, +y lands up, so its row is smaller, and the view is along -z."""
    camera = perspective(camera_from_world=torch.eye(4, dtype=F64))
    origin, x, y, behind = camera.project(
        torch.tensor([[0.0, 0, -3], [0.2, 0, -3], [0, 0.2, -3], [0, 0, 3]], dtype=F64)
    )
    assert x[0] > origin[0]
    assert x[1] == origin[1]
    assert y[1] < origin[1]
    assert y[0] == origin[0]
    assert camera.depth(torch.tensor([[0.0, 0, 3]], dtype=F64)) < 0
    torch.testing.assert_close(behind, origin)


def test_c04_pictures_agree_with_project():
    """Three markers: the centroid of the pixels that show each is where `project` says, row 0 on top."""
    camera = dr.Camera.perspective(fov_y_deg=50, width=400, height=300).look_at([1.0, 2.0, 6.0], [0.2, 0.1, 0.0])
    centres = torch.tensor([[0.0, 0.0, 0.0], [1.5, 0.0, 0.0], [0.0, 1.2, 0.0]])
    sphere = geometry.icosphere(3, radius=0.1)
    triangles = torch.cat([sphere.triangles + k * sphere.vertex_count for k in range(3)])
    markers = dr.Mesh((centres[:, None] + sphere.vertices).reshape(-1, 3), triangles)
    renderer = dr.Renderer((300, 400), edges=None, outputs=("triangle_id",))
    marker = renderer(markers, camera).triangle_id[0] // sphere.triangle_count
    for k in range(3):
        rows, columns = torch.nonzero(marker == k, as_tuple=True)
        centroid = torch.stack([columns.float().mean(), rows.float().mean()]) + 0.5
        torch.testing.assert_close(centroid, camera.project(centres)[k], atol=0.1, rtol=0)


@pytest.mark.parametrize("principal", [(10.5, 40.5), (31.5, 23.5), (-5.0, 24.0)])
def test_c02_principal_point_far_from_the_middle(principal):
    """A quad of +-1.8 pixels around the axis: its centroid in pixel-centre indices is the principal point - 0.5."""
    camera = dr.Camera.perspective(
        focal_px=60.0, principal_px=(principal[0] + 0.5, principal[1] + 0.5), width=64, height=48
    )
    assert torch.equal(camera.principal_px, torch.tensor(principal) + 0.5)
    quad = geometry.quad(0.12, 0.12)
    quad = quad.with_vertices(quad.vertices - torch.tensor([0.0, 0.0, 2.0]))
    mask = dr.Renderer((48, 64), edges=None, outputs=("mask",))(quad, camera).mask[0, ..., 0]
    rows, columns = torch.nonzero(mask, as_tuple=True)
    if principal[0] < 0:
        assert len(rows) == 0
    else:
        assert float(columns.float().mean()) == pytest.approx(principal[0], abs=0.02)
        assert float(rows.float().mean()) == pytest.approx(principal[1], abs=0.02)


# Lenses ---------------------------------------------------------------------------------------------------------------


def test_fields_of_view_and_focal_length_agree():
    by_y = perspective(fov_y_deg=40.0)
    focal = 24 / math.tan(math.radians(20))
    by_focal = perspective(fov_y_deg=None, focal_px=focal)
    by_x = perspective(fov_y_deg=None, fov_x_deg=math.degrees(2 * math.atan(32 / focal)))
    for other in (by_focal, by_x):
        torch.testing.assert_close(other.clip_from_camera, by_y.clip_from_camera)
    # The upper border of the picture is 20 degrees above the axis.
    edge = by_y.project(torch.tensor([[0.0, math.tan(math.radians(20)), -1.0]], dtype=F64))
    torch.testing.assert_close(edge, torch.tensor([[32.0, 0.0]], dtype=F64), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fov_x_deg": 30}, "give exactly one of fov_y_deg, fov_x_deg and focal_px, got fov_y_deg and fov_x_deg"),
        ({"fov_y_deg": None}, "give exactly one of fov_y_deg, fov_x_deg and focal_px, got none"),
        ({"fov_y_deg": 180}, "fov_y_deg must be between 0 and 180, got 180"),
        ({"fov_y_deg": None, "focal_px": -3.0}, "focal_px must be positive, got -3.0"),
        ({"near": 0}, "near must be above 0 and below far=100.0, got 0"),
        ({"near": 5, "far": 2}, "near must be above 0 and below far=2, got 5"),
        ({"width": 0}, "width and height must be at least 1, got 0 x 48"),
        ({"near": torch.ones(2, 2)}, r"near must be one number or \(B,\) numbers, got shape \(2, 2\)"),
    ],
)
def test_perspective_says_what_is_wrong(options, message):
    with pytest.raises(ValueError, match="Camera.perspective: " + message):
        perspective(**options)


def test_scaled_camera_sees_the_same_on_more_pixels():
    camera = perspective(principal_px=(20.0, 30.0)).look_at([0.0, 1.0, 4.0])
    points = torch.randn(5, 3, dtype=F64)
    large = camera.scaled(2.5)
    assert (large.width, large.height) == (160, 120)
    torch.testing.assert_close(large.project(points), 2.5 * camera.project(points))
    with pytest.raises(ValueError, match="factor must leave at least one pixel, got 0.001"):
        camera.scaled(0.001)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1)])
def test_c11_numbers_of_any_form_give_each_camera_its_own(shape):
    values = {"fov_y_deg": [30.0, 50.0, 70.0], "near": [0.1, 0.2, 0.5], "far": [10.0, 20.0, 40.0]}
    items = 3 if shape and shape[0] == 3 else 1
    options = {name: torch.tensor(v[:items], dtype=F64).reshape(shape) for name, v in values.items()}
    eyes = torch.tensor([[0.0, 0, 3], [1, 2, 3], [-2, 0, 4]], dtype=F64)
    batch = dr.Camera.perspective(**options, width=64, height=48).look_at(eyes)
    assert len(batch) == 3
    for k in range(3):
        own = {name: v[min(k, items - 1)] for name, v in values.items()}
        single = perspective(**own).look_at(eyes[k])
        torch.testing.assert_close(batch[k].clip_from_world, single.clip_from_world)
        torch.testing.assert_close(batch.clip_from_world[k], single.clip_from_world)


# Look-at --------------------------------------------------------------------------------------------------------------


def is_rotation(matrix: torch.Tensor) -> bool:
    linear = matrix[..., :3, :3]
    identity = torch.eye(3, dtype=linear.dtype).expand_as(linear)
    return bool(torch.allclose(linear @ linear.mT, identity, atol=1e-5) and (torch.linalg.det(linear) > 0).all())


def test_look_at_centres_the_target_and_keeps_up_up():
    eye, target = torch.tensor([1.0, 2.0, 3.0], dtype=F64), torch.tensor([0.5, -1.0, 0.2], dtype=F64)
    camera = perspective().look_at(eye, target)
    assert is_rotation(camera.camera_from_world)
    torch.testing.assert_close(camera.eye, eye)
    centre, above = camera.project(torch.stack([target, target + torch.tensor([0, 0.1, 0], dtype=F64)]))
    torch.testing.assert_close(centre, torch.tensor([32.0, 24.0], dtype=F64))
    assert above[1] < 24
    torch.testing.assert_close(above[0], centre[0])
    torch.testing.assert_close(camera.depth(target[None]), (eye - target).norm()[None])


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("elevation", [90.0, 89.9999, -90.0, -89.9999])
def test_c05_look_at_near_the_pole(elevation, dtype):
    angle = math.radians(elevation)
    level = 0.0 if abs(elevation) == 90 else 5 * math.cos(angle)
    eye = torch.tensor([0.0, 5 * math.sin(angle), level], dtype=dtype, requires_grad=True)
    pose = geometry.look_at(eye)
    assert is_rotation(pose)
    (pose * torch.randn(4, 4, dtype=dtype)).sum().backward()
    assert eye.grad is not None
    assert torch.isfinite(eye.grad).all()
    # From above, the camera arrives with world -z up, on the pole as next to it.
    camera_up = pose[1, :3]
    if elevation > 0:
        torch.testing.assert_close(camera_up.detach(), torch.tensor([0.0, 0, -1], dtype=dtype), atol=1e-4, rtol=0)


@pytest.mark.parametrize("up", [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, -3.0]])
def test_c05_fallbacks_for_other_parallel_ups(up):
    pose = geometry.look_at([0.0, 0.0, 2.0], up=up)
    assert is_rotation(pose)
    torch.testing.assert_close(pose[1, :3], torch.tensor([0.0, 1.0, 0.0]))  # -z is parallel too: +y


def test_c05_eye_at_target_is_an_error():
    with pytest.raises(ValueError, match="look_at: eye must differ from target, got the same point"):
        perspective().look_at([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="eye must differ from target"):
        geometry.look_at(torch.tensor([[0.0, 0, 1], [0, 0, 0]]))


def test_look_at_checks_shapes():
    with pytest.raises(ValueError, match=r"look_at: eye, target and up must have shape \(3,\) or \(B, 3\), got \(4,\)"):
        geometry.look_at(torch.zeros(4))


# Batches, gradients, housekeeping -------------------------------------------------------------------------------------


def test_batches_index_like_tensors():
    eyes = geometry.orbit_eyes(5, 3.0)
    cameras = dr.Camera.perspective(fov_y_deg=40, width=8, height=8).look_at(eyes)
    torch.testing.assert_close(cameras[1:3].eye, eyes[1:3])
    torch.testing.assert_close(cameras[torch.tensor([4, 0])].eye, eyes[[4, 0]])
    assert cameras[2].batch_size is None
    assert [camera.batch_size for camera in (cameras, cameras[:1])] == [5, 1]
    points = torch.randn(7, 3)
    assert cameras.project(points).shape == (5, 7, 2)
    torch.testing.assert_close(cameras.project(points)[3], cameras[3].project(points))
    single = cameras[0]
    with pytest.raises(TypeError, match="only a batch of cameras can be indexed"):
        single[0]
    with pytest.raises(TypeError, match="only a batch of cameras has a length"):
        len(single)


def test_poses_of_another_shape_are_named():
    with pytest.raises(
        ValueError, match=r"camera_from_world must have shape \(4, 4\) or \(B, 4, 4\), got \(3, 4\). geom"
    ):
        perspective().with_pose(torch.eye(4, dtype=F64)[:3])
    with pytest.raises(TypeError, match="Camera: camera_from_world must be a tensor, got ndarray"):
        perspective().with_pose(np.eye(4))  # pyright: ignore[reportArgumentType]


def test_stack_makes_a_batch_of_single_cameras():
    rig = dr.Camera.perspective(fov_y_deg=torch.tensor([30.0, 40.0, 50.0]), width=64, height=48).look_at(
        torch.rand(3, 3) + 1
    )
    again = dr.Camera.stack([rig[k] for k in range(3)])
    assert torch.equal(again.clip_from_world, rig.clip_from_world)
    loader = torch.utils.data.DataLoader(
        range(3), batch_size=2, collate_fn=lambda ks: dr.Camera.stack([rig[k] for k in ks])
    )
    assert [len(batch) for batch in loader] == [2, 1]
    lens = dr.Camera.from_opencv(torch.eye(3) * 50, torch.eye(3), torch.zeros(3), 64, 48, distortion=torch.rand(5))
    assert torch.equal(dr.Camera.stack([lens, lens]).distortion[1], lens.distortion)
    for odd in (lens, rig[0].scaled(2), lens.to(torch.float64)):
        with pytest.raises(ValueError, match="Camera.stack: cameras must be of one kind, got Camera"):
            dr.Camera.stack([rig[0], odd])
    for cameras, actual in (([], "none"), ([rig], "one with a batch axis")):
        with pytest.raises(
            ValueError, match=f"Camera.stack: cameras must be single cameras, at least one, got {actual}"
        ):
            dr.Camera.stack(cameras)


def test_moved_turns_about_the_center():
    pose = dr.Camera.perspective(fov_y_deg=40, width=64, height=48, dtype=torch.float64).look_at([1.0, 2.0, 3.0])
    center, turn = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64), torch.tensor([0.2, -0.5, 0.9]).double()
    turned = pose.moved(torch.cat([torch.zeros(3).double(), turn]), center=center)
    torch.testing.assert_close(turned.project(center[None]), pose.project(center[None]))
    torch.testing.assert_close(turned.depth(center[None]), pose.depth(center[None]))
    # A point beside it turns as the rotation says: in the camera's frame, about the center.
    rotation, beside = geometry.so3_exp(turn), center + torch.tensor([0.1, 0.2, -0.3]).double()
    own = geometry.transform_points(pose.camera_from_world, torch.stack([center, beside]))
    expected = own[0] + rotation @ (own[1] - own[0])
    torch.testing.assert_close(geometry.transform_points(turned.camera_from_world, beside[None])[0], expected)
    # Without a turn it is the same as about the eye, and centers of a batch belong to its poses.
    shift = torch.tensor([0.1, 0.2, 0.3, 0.0, 0.0, 0.0]).double()
    torch.testing.assert_close(pose.moved(shift, center=center).camera_from_world, pose.moved(shift).camera_from_world)
    twists = torch.stack([torch.cat([shift[:3], turn]), torch.cat([shift[:3], -turn])])
    both = pose.moved(twists, center=torch.stack([center, beside]))
    torch.testing.assert_close(both[1].camera_from_world, pose.moved(twists[1], center=beside).camera_from_world)
    assert torch.autograd.gradcheck(
        lambda twist, point: pose.moved(twist, center=point).camera_from_world,
        (torch.zeros(2, 6).double().requires_grad_(), center.requires_grad_()),
    )
    with pytest.raises(TypeError, match="Camera.moved: twist must be a tensor, got ndarray"):
        pose.moved(np.zeros(6))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"Camera.moved: twist must have shape \(6,\) or \(B, 6\), got \(3,\)."):
        pose.moved(torch.zeros(3))
    with pytest.raises(TypeError, match=r"twist is torch.float32 but the camera is torch.float64. Convert one of them"):
        pose.moved(torch.zeros(6))
    with pytest.raises(TypeError, match=r"Camera: camera_from_world is torch.float32 but focal_px is torch.float64"):
        pose.with_pose(torch.eye(4))


def test_projection_is_differentiable_in_every_number():
    def project(focal, principal, near, far, eye, target, up, points):
        camera = dr.Camera.perspective(
            focal_px=focal, principal_px=principal, near=near, far=far, width=64, height=48
        ).look_at(eye, target, up)
        return camera.project(points), camera.clip_positions(points)

    values = [[60.0], [30.0, 20.0], 0.1, 50.0, [1.0, 2.0, 4.0], [0.1, 0.2, 0.3], [0.1, 1.0, 0.2]]
    arguments = [torch.tensor(v, dtype=F64, requires_grad=True) for v in values]
    points = torch.randn(3, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(project, (*arguments, points))
    fov = torch.tensor(40.0, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda f: dr.Camera.perspective(fov_y_deg=f, width=64, height=48).clip_from_camera, fov
    )


def test_r07_autocast_does_not_touch_cameras():
    cameras = dr.Camera.perspective(fov_y_deg=40, width=64, height=48)
    points, eyes = torch.randn(50, 3), geometry.orbit_eyes(4, 5.0)
    plain = cameras.look_at(eyes).clip_positions(points)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = cameras.look_at(eyes).clip_positions(points)
    assert torch.equal(plain, cast)


def test_r11_vmap_over_poses():
    eyes, points = geometry.orbit_eyes(4, 5.0), torch.randn(6, 3)
    lens = dr.Camera.perspective(fov_y_deg=40, width=64, height=48)
    together = torch.func.vmap(lambda eye: lens.look_at(eye).project(points))(eyes)
    torch.testing.assert_close(together, lens.look_at(eyes).project(points))


def test_r08_cameras_pickle_copy_and_convert():
    camera = dr.Camera.perspective(fov_y_deg=40, width=64, height=48).look_at(geometry.orbit_eyes(3, 2.0))
    for twin in (pickle.loads(pickle.dumps(camera)), copy.deepcopy(camera)):
        assert torch.equal(twin.clip_from_world, camera.clip_from_world)
    assert camera.to(F64).clip_from_world.dtype == F64
    assert repr(camera) == "Camera(3 cameras, 64 x 48 pixels, torch.float32, cpu)"


def test_c08_near_and_far_really_cut():
    """A strip from depth 1 to 9 below the axis; near 2, far 6."""
    strip = dr.Mesh(
        torch.tensor([[-1.0, -1, -1], [1, -1, -1], [1, -1, -9], [-1, -1, -9]]), torch.tensor([[0, 1, 2], [0, 2, 3]])
    )
    camera = dr.Camera.perspective(fov_y_deg=60, width=200, height=400, near=2, far=6)
    result = dr.Renderer((400, 200), edges=None, outputs=("depth", "mask"))(strip, camera)
    depth = result.depth[result.mask]
    assert depth.min() >= 2 - 1e-3
    assert depth.max() <= 6 + 1e-3
    # One row changes the depth by depth^2 / focal length.
    focal = float(camera.focal_px[1])
    assert depth.min() < 2 + 1.5 * 4 / focal
    assert depth.max() > 6 - 1.5 * 36 / focal
