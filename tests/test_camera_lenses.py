"""Orthographic and distorting cameras, crops, rays: formulas of OpenCV, inverses, gradients, pictures."""

import math

import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender import geometry

F64 = torch.float64
K = torch.tensor([[60.0, 0.0, 30.0], [0.0, 55.0, 25.0], [0.0, 0.0, 1.0]], dtype=F64)
LENSES = {
    "4": ([-0.2, 0.05, 0.002, -0.003], False),
    "5": ([-0.25, 0.1, 0.001, 0.002, -0.02], False),
    "8": ([0.3, 0.05, 0.001, -0.001, 0.01, 0.5, 0.1, 0.02], False),
    "pincushion": ([0.4, 0.1, 0.0, 0.0], False),
    "fisheye": ([0.05, -0.01, 0.003, -0.0005], True),
}


def lens(name: str, **options) -> dr.Camera:
    coefficients, fisheye = LENSES[name]
    pose = {"R": torch.eye(3, dtype=F64), "t": torch.zeros(3, dtype=F64), **options}
    distortion = torch.tensor(coefficients, dtype=F64)
    return dr.Camera.from_opencv(K, **pose, width=64, height=48, distortion=distortion, fisheye=fisheye, near=0.05)


def opencv_pixels(points: np.ndarray, coefficients: list[float], fisheye: bool) -> np.ndarray:
    """The formulas of OpenCV's manual, one point at a time; pixels from the centre of the first one."""
    pixels = []
    for X, Y, Z in points:
        x, y = X / Z, Y / Z
        r = math.hypot(x, y)
        if fisheye:
            k1, k2, k3, k4 = coefficients
            theta = math.atan2(math.hypot(X, Y), Z)
            image = theta + k1 * theta**3 + k2 * theta**5 + k3 * theta**7 + k4 * theta**9
            u, v = X / math.hypot(X, Y) * image, Y / math.hypot(X, Y) * image
        else:
            k1, k2, p1, p2, k3, k4, k5, k6 = [*coefficients, 0, 0, 0, 0][:8]
            factor = (1 + k1 * r**2 + k2 * r**4 + k3 * r**6) / (1 + k4 * r**2 + k5 * r**4 + k6 * r**6)
            u = x * factor + 2 * p1 * x * y + p2 * (r**2 + 2 * x**2)
            v = y * factor + p1 * (r**2 + 2 * y**2) + 2 * p2 * x * y
        pixels.append([60 * u + 30, 55 * v + 25])
    return np.array(pixels)


@pytest.mark.parametrize("name", LENSES)
def test_distorted_points_are_where_opencv_puts_them(name):
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.uniform(-0.55, 0.55, (40, 2)), np.ones((40, 1))], 1) * rng.uniform(0.5, 4, (40, 1))
    pixels = lens(name).project(torch.from_numpy(points))
    torch.testing.assert_close(pixels - 0.5, torch.from_numpy(opencv_pixels(points, *LENSES[name])))


@pytest.mark.parametrize("name", LENSES)
def test_rays_and_unproject_invert_project(name):
    camera = lens(name, R=geometry.so3_exp(torch.tensor([0.3, -0.5, 0.2], dtype=F64)), t=torch.randn(3, dtype=F64))
    pixels = camera.pixel_centers().reshape(-1, 2)
    depth = 1 + torch.rand(len(pixels), dtype=F64)
    points = camera.unproject(pixels, depth)
    torch.testing.assert_close(camera.project(points), pixels, atol=1e-7, rtol=0)
    torch.testing.assert_close(camera.depth(points), depth)
    origins, directions = camera.rays(pixels)
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones_like(depth))
    torch.testing.assert_close(camera.project(origins + 3 * directions), pixels, atol=1e-7, rtol=0)


@pytest.mark.parametrize("distortion", [None, "5", "8", "fisheye"])
def test_gradients_reach_every_parameter(distortion):
    coefficients, fisheye = LENSES[distortion] if distortion else (None, False)
    points = torch.tensor([[0.2, -0.1, 2.0], [0.0, 0.0, 1.5], [-0.5, 0.3, 1.2], [1e-4, 0.0, 1.0]], dtype=F64)
    pixels = torch.tensor([[10.0, 20.0], [50.0, 7.0]], dtype=F64)

    def project(focal, principal, near, far, twist, points, pixels, depth, *lens):
        camera = dr.Camera(
            focal_px=focal, principal_px=principal, near=near, far=far, camera_from_world=torch.eye(4, dtype=F64),
            width=64, height=48, distortion=lens[0] if lens else None,
            distortion_model="fisheye" if fisheye else "radial_tangential",
        )  # fmt: skip
        camera = camera.moved(twist)
        origins, directions = camera.rays(pixels)
        seen = points * points.new_tensor([1.0, -1.0, -1.0])
        return camera.clip_positions(seen), camera.project(seen), directions, origins, camera.unproject(pixels, depth)

    values = [[60.0, 55.0], [30.0, 25.0], 0.05, 100.0, [0.0, 0.01, 0.02, 0.1, 0.0, -0.05]]
    arguments = [torch.tensor(v, dtype=F64, requires_grad=True) for v in values]
    arguments += [
        points.requires_grad_(),
        pixels.requires_grad_(),
        torch.tensor([1.0, 2.0], dtype=F64).requires_grad_(),
    ]
    if coefficients:
        arguments.append(torch.tensor(coefficients, dtype=F64, requires_grad=True))
    assert torch.autograd.gradcheck(project, arguments)


def test_points_beyond_the_fold_never_come_back():
    """k1 = -0.3 folds at r = 1.054; a direction at r = 1.8 would appear at 0.05, in the middle of the picture."""
    camera = dr.Camera.from_opencv(
        K, torch.eye(3), torch.zeros(3), 64, 48, distortion=torch.tensor([-0.3, 0.0, 0.0, 0.0])
    )
    r = torch.linspace(0, 30, 4000, dtype=F64)
    for direction in ([1.0, 0.0], [0.6, -0.8], [-1.0, 0.3]):
        toward = torch.nn.functional.normalize(torch.tensor(direction, dtype=F64), dim=0)
        points = torch.cat([r[:, None] * toward, torch.ones(4000, 1)], -1)
        image = (camera.project(points) - camera.principal_px) / camera.focal_px
        radius = image.norm(dim=-1)
        assert (radius.diff() > 0).all()
        exact = r * (1 - 0.3 * r * r)
        is_inside = r < 1.05
        torch.testing.assert_close(radius[is_inside], exact[is_inside])
        assert (radius[~is_inside] > 0.7).all()
    # Through the plane of the eye to behind the camera, clip positions go on smoothly.
    z = torch.linspace(0.5, -0.5, 101, dtype=F64)
    clip = camera.clip_positions(torch.stack([torch.full_like(z, 2.0), torch.zeros_like(z), z], -1))
    assert torch.isfinite(clip).all()
    assert clip.diff(dim=0).abs().max() < 0.1


@pytest.mark.parametrize("focal", [60.0, 35.0])
def test_a_wall_seen_past_the_fold_covers_each_pixel_once(focal):
    """A wide wall: its far parts lie beyond the fold, and must not be drawn over the middle.

    At 35 pixels of focal length the picture is larger than the image circle: nothing is drawn outside of that, up to
    the last triangles that the circle cuts.
    """
    matrix = torch.tensor([[focal, 0.0, 30.0], [0.0, focal, 25.0], [0.0, 0.0, 1.0]])
    distortion = torch.tensor([-0.3, 0.0, 0.0, 0.0])
    camera = dr.Camera.from_opencv(matrix, torch.eye(3), torch.zeros(3), 64, 48, distortion=distortion)
    wall = geometry.quad(60, 60)
    wall = wall.replace(vertices=wall.vertices + torch.tensor([0.0, 0.0, 1.0]))
    result = dr.Renderer((48, 64), edges=None, outputs=("position", "mask", "triangle_id"))(wall, camera)
    pixels = camera.pixel_centers()
    is_reached = torch.isfinite(camera.rays(pixels.reshape(-1, 2))[1]).all(-1).reshape(48, 64)
    assert torch.equal(is_reached, ((pixels - camera.principal_px) / focal).norm(dim=-1) < 2 / 3 / math.sqrt(0.9))
    mask = result.mask[0, ..., 0]
    assert mask[is_reached].all()
    assert (camera.project(result.position[0][is_reached]) - pixels[is_reached]).norm(dim=-1).max() < 0.1
    assert mask[~is_reached].float().mean() < 0.05 or is_reached.float().mean() > 0.9
    assert set(result.triangle_id.unique().tolist()) <= {-1, 0, 1}


@pytest.mark.parametrize("name", LENSES)
def test_pictures_of_distorting_lenses_are_what_their_rays_meet(name):
    """A plane at an angle: at each pixel, the picture shows where the exact ray of the pixel's centre meets it."""
    camera = lens(name).to(torch.float32)
    plane = geometry.quad(30, 30)
    place = geometry.compose(
        geometry.translation([0.1, -0.2, 2.0]), geometry.rotation([0.3, 1.0, 0.1], 0.4), geometry.scaling(1.0)
    )
    plane = plane.replace(vertices=geometry.transform_points(place, plane.vertices))
    result = dr.Renderer((48, 64), edges=None, outputs=("position", "depth", "mask"))(plane, camera)
    origins, directions = camera.rays(camera.pixel_centers().reshape(-1, 2))
    normal = place[:3, 2]
    distance = ((place[:3, 3] - origins) @ normal) / (directions @ normal)
    expected = (origins + distance[:, None] * directions).reshape(48, 64, 3)
    mask = result.mask[0, ..., 0]
    assert mask.float().mean() > 0.6
    pixel_error = camera.project(result.position[0][mask]) - camera.pixel_centers()[mask]
    assert pixel_error.norm(dim=-1).max() < 0.1
    torch.testing.assert_close(result.position[0][mask], expected[mask], atol=0.02, rtol=0)
    torch.testing.assert_close(
        result.depth[0][mask][:, 0], camera.depth(result.position[0][mask]), atol=1e-4, rtol=1e-4
    )


def test_a_fisheye_sees_behind_itself():
    """The inside of a cube through a lens of 200 degrees: every pixel whose ray exists shows the wall it meets."""
    camera = dr.Camera.from_opencv(
        torch.tensor([[20.0, 0.0, 40.0], [0.0, 20.0, 40.0], [0.0, 0.0, 1.0]]), torch.eye(3), torch.zeros(3), 80, 80,
        distortion=torch.zeros(4), fisheye=True, near=0.01, pixel_center="half",
    )  # fmt: skip
    cube = geometry.cube(size=2.0)
    result = dr.Renderer((80, 80), edges=None, outputs=("position", "mask"))(cube, camera)
    _, directions = camera.rays(camera.pixel_centers().reshape(-1, 2))
    expected = (directions / directions.abs().amax(-1, keepdim=True)).reshape(80, 80, 3)
    angle = (camera.pixel_centers() - 40).norm(dim=-1) / 20
    seen = angle < 1.9  # radians: 109 degrees from the axis
    assert result.mask[0, ..., 0][seen].all()
    assert expected[seen][:, 2].min() < -0.2
    assert (result.position[0] - expected)[seen].abs().max() < 0.02


def test_split_meshes_keep_attributes_area_and_materials():
    camera = lens("5").to(torch.float32)
    cube = geometry.cube()
    vertices = cube.vertices + torch.tensor([0.0, 0.0, 2.0])
    mesh = cube.replace(
        vertices=vertices, colors=vertices * 2, material=["a", "b"], material_ids=(torch.arange(12) % 2),
        normals=cube.triangle_normals(), normal_triangles=torch.arange(12)[:, None].expand(12, 3),
    )  # fmt: skip
    split, source = camera.split_edges(mesh)
    assert split.triangle_count > 12
    torch.testing.assert_close(split.colors, 2 * split.vertices)
    torch.testing.assert_close(split.triangle_normals(), mesh.triangle_normals()[source.long()])
    torch.testing.assert_close(
        split.normals[split.normal_triangles[:, 1].long()], mesh.triangle_normals()[source.long()]
    )
    assert torch.equal(split.material_ids, mesh.material_ids[source.long()])
    areas = [geometry.triangle_area_vectors(m.vertices, m.triangles).norm(dim=-1) / 2 for m in (mesh, split)]
    torch.testing.assert_close(torch.zeros(12).index_add(0, source.long(), areas[1]), areas[0])
    # No cracks: every inner edge belongs to two triangles.
    assert (split.edges().triangle_count == 2).all()


def test_gradient_of_a_distorted_picture_reaches_mesh_and_lens():
    vertices = (geometry.quad(1.2, 1.2).vertices + torch.tensor([0.05, 0.0, 2.0])).double()
    quad = geometry.quad(1.2, 1.2).to(F64)

    def loss(vertices, distortion):
        camera = dr.Camera.from_opencv(
            K, torch.eye(3, dtype=F64), torch.zeros(3, dtype=F64), 64, 48, distortion=distortion
        )
        mesh = quad.with_vertices(vertices)
        position = dr.Renderer((48, 64), edges=None, outputs=("position",))(mesh, camera).position
        return position[0, 12:36, 16:48].sin().sum()

    arguments = (vertices.requires_grad_(), torch.tensor([-0.1, 0.02, 0.001, 0.002], dtype=F64, requires_grad=True))
    gradients = torch.autograd.grad(loss(*arguments), arguments)
    for index, argument in enumerate(arguments):
        direction = torch.randn_like(argument)
        step = 1e-6 * direction
        moved = [[a + s * step if k == index else a for k, a in enumerate(arguments)] for s in (1, -1)]
        slope = (loss(*moved[0]) - loss(*moved[1])).item() / 2e-6
        assert (gradients[index] * direction).sum().item() == pytest.approx(slope, rel=1e-4)


# Orthographic cameras, crops, depth -----------------------------------------------------------------------------------


def test_orthographic_projection_is_linear_and_rays_are_parallel():
    camera = dr.Camera.orthographic(half_height=1.5, width=64, height=48, principal_px=(30.0, 25.0), dtype=F64)
    camera = camera.look_at([1.0, 2.0, 3.0])
    points = torch.randn(10, 3, dtype=F64)
    x, y, z = geometry.transform_points(camera.camera_from_world, points).unbind(-1)
    pixels = camera.project(points)
    torch.testing.assert_close(pixels, torch.stack([30 + 16 * x, 25 - 16 * y], -1))
    torch.testing.assert_close(camera.depth(points), -z)
    torch.testing.assert_close(camera.unproject(pixels, -z), points)
    origins, directions = camera.rays(pixels)
    torch.testing.assert_close(directions, -camera.camera_from_world[2, :3].expand(10, 3))
    torch.testing.assert_close(camera.depth(origins), torch.zeros(10, dtype=F64), atol=1e-12, rtol=0)
    same = dr.Camera.orthographic(half_width=2.0, width=64, height=48)
    assert torch.equal(same.focal_px, torch.tensor([16.0, 16.0]))
    assert repr(same) == "Camera(one camera, orthographic, 64 x 48 pixels, torch.float32, cpu)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give exactly one of half_height, half_width and pixels_per_unit, got none"),
        ({"half_width": 1, "half_height": 1}, "give exactly one of .*, got half_height and half_width"),
        ({"half_width": 0}, "half_width must be positive, got 0"),
        ({"half_width": 1, "near": 3, "far": 2}, "near must be below far=2, got 3"),
    ],
)
def test_orthographic_says_what_is_wrong(options, message):
    with pytest.raises(ValueError, match="Camera.orthographic: " + message):
        dr.Camera.orthographic(width=4, height=4, **options)


def test_distortion_says_what_is_wrong():
    def camera(**options):
        return dr.Camera.from_opencv(torch.eye(3), torch.eye(3), torch.zeros(3), 8, 8, **options)

    with pytest.raises(ValueError, match=r"Camera: distortion must have 4, 5, 8 coefficients .*, got \(6,\)"):
        camera(distortion=torch.zeros(6))
    with pytest.raises(ValueError, match=r"Camera: distortion must have 4 coefficients for the fisheye .*, got \(5,\)"):
        camera(distortion=torch.zeros(5), fisheye=True)
    with pytest.raises(ValueError, match="clip_from_camera must belong to a camera without distortion.*Use clip_posit"):
        _ = camera(distortion=torch.zeros(4)).clip_from_world
    with pytest.raises(ValueError, match="box must be .* with an area, got"):
        camera().cropped((3, 3, 3, 4))


def test_lenses_of_a_batch_are_their_own():
    coefficients = torch.tensor([[-0.2, 0.05, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.3, 0.0, 0.01, 0.0, 0.1]])
    focal = torch.tensor([[60.0, 60], [80, 70], [50, 40]])
    batch = dr.Camera(
        focal_px=focal, principal_px=torch.tensor([32.0, 24.0]), near=torch.tensor(0.1), far=torch.tensor(9.0),
        camera_from_world=geometry.look_at(geometry.orbit_eyes(3, 3.0)), width=64, height=48, distortion=coefficients,
    )  # fmt: skip
    points = 0.5 * torch.randn(7, 3)
    pixels = batch.project(points)
    for k in range(3):
        torch.testing.assert_close(batch[k].project(points), pixels[k])
    undistorted = batch[1]._replace(distortion=None)
    torch.testing.assert_close(undistorted.project(points), pixels[1])
    torch.testing.assert_close(undistorted.clip_positions(points), batch.clip_positions(points)[1])
    together = dr.Renderer((48, 64), edges="pairs")(geometry.icosphere(2), batch).color
    for k in range(3):
        single = dr.Renderer((48, 64), edges="pairs")(geometry.icosphere(2), batch[k]).color
        assert (together[k] - single[0]).abs().mean() < 1e-3  # cut for all lenses together, so not to the last bit


def test_depth_pictures_convert_to_distance_and_ndc():
    camera = dr.Camera.perspective(fov_y_deg=70, width=32, height=24, near=0.5, far=20).look_at([1.0, 0.5, 3.0])
    outputs = ("depth", "position", "mask")
    result = dr.Renderer((24, 32), edges=None, outputs=outputs, recompute=False)(geometry.icosphere(3), camera)
    mask = result.mask[..., 0]
    distance = (result.position - camera.eye).norm(dim=-1)
    torch.testing.assert_close(camera.depth_to_distance(result.depth)[..., 0][mask], distance[mask])
    z = camera.depth_to_zndc(result.depth)[..., 0]
    torch.testing.assert_close(z[mask], result.fragments.depth[mask], atol=1e-5, rtol=0)


def test_resized_and_cropped_pictures_line_up():
    camera = dr.Camera.perspective(fov_y_deg=40, width=64, height=48, dtype=F64).look_at([0.0, 1.0, 4.0])
    points = torch.randn(5, 3, dtype=F64)
    pixels = camera.project(points)
    torch.testing.assert_close(camera.resized(128, 24).project(points), pixels * torch.tensor([2.0, 0.5], dtype=F64))
    window = camera.cropped((8, 16, 56, 40))
    assert (window.width, window.height) == (48, 24)
    torch.testing.assert_close(window.project(points), pixels - torch.tensor([8.0, 16.0], dtype=F64))
