"""Renderer: outputs, backgrounds, the edge op, batches and gradients."""

import copy
import math
import pickle

import pytest
import torch

import diffrender as dr
from diffrender import geometry

F64 = torch.float64
ALL = ("color", "alpha", "mask", "depth", "normal", "position", "triangle_id")
CAMERA = dr.Camera.perspective(fov_y_deg=40, width=64, height=48).look_at([0.0, 0.0, 4.0])
SPHERE = geometry.icosphere(3)


def renderer(**options) -> dr.Renderer:
    return dr.Renderer((48, 64), **{"edges": "pairs", **options})


def pixel_rays(camera: dr.Camera) -> torch.Tensor:
    """(H, W, 3) directions in world space with length 1 along the viewing axis."""
    rows, columns = torch.meshgrid(torch.arange(camera.height), torch.arange(camera.width), indexing="ij")
    x = (columns + 0.5 - camera.principal_px[0]) / camera.focal_px[0]
    y = -(rows + 0.5 - camera.principal_px[1]) / camera.focal_px[1]
    return torch.stack([x, y, -torch.ones_like(x)], -1) @ camera.camera_from_world[:3, :3]


def test_outputs_of_a_sphere_are_those_of_the_formula():
    camera = CAMERA.look_at([1.0, 2.0, 3.0])
    fine = geometry.icosphere(5)
    result = renderer(outputs=ALL)(fine, camera)
    rays = pixel_rays(camera)
    # |eye + t ray| = 1
    a, b = rays.square().sum(-1), (rays * camera.eye).sum(-1)
    discriminant = b * b - a * (camera.eye.square().sum() - 1)
    t = (-b - discriminant.clamp(min=0).sqrt()) / a
    inside = discriminant > 0.05  # pixels clear of the silhouette
    point = camera.eye + t[..., None] * rays
    assert result.mask[0, ..., 0][inside].all()
    assert not result.mask[0, ..., 0][discriminant < -0.05].any()
    torch.testing.assert_close(result.depth[0, ..., 0][inside], t[inside], atol=2e-3, rtol=0)
    torch.testing.assert_close(result.position[0][inside], point[inside], atol=2e-3, rtol=0)
    torch.testing.assert_close(result.normal[0][inside], point[inside], atol=5e-3, rtol=0)
    torch.testing.assert_close(result.normal.norm(dim=-1), result.mask[..., 0].float())
    triangle = fine.triangles[result.triangle_id[0][inside].long()].long()
    nearest = (fine.vertices[triangle] - point[inside][:, None]).norm(dim=-1).amax(-1)
    assert nearest.max() < 0.1  # the triangle named is the one there


def test_background_pixels_hold_what_is_documented():
    result = renderer(outputs=ALL)(SPHERE, CAMERA)
    background = ~result.mask[..., 0]
    assert result.triangle_id[background].unique().tolist() == [-1]
    for image in (result.depth, result.normal, result.position):
        assert (image[background] == 0).all()
    corner = torch.zeros_like(background)
    corner[:, :5, :5] = True
    assert (result.alpha[corner] == 0).all()
    assert (result.color[corner] == 0).all()


def test_only_what_was_asked_for_is_made():
    result = renderer(outputs=("depth",))(SPHERE, CAMERA)
    assert result.depth.shape == (1, 48, 64, 1)
    assert [name for name in ALL if getattr(result, name) is not None] == ["depth"]
    assert renderer(outputs="alpha")(SPHERE, CAMERA).alpha is not None


def test_g14_depth_keeps_its_digits_with_a_wide_range():
    camera = dr.Camera.perspective(fov_y_deg=40, width=64, height=48, near=0.01, far=1000)
    angle = math.radians(5)
    plane = geometry.quad(40.0, 40.0)
    tilted = geometry.transform_points(geometry.rotation([0.0, 1.0, 0.0], angle), plane.vertices)
    pair = torch.cat([tilted - torch.tensor([0.0, 0, 10.02]), tilted - torch.tensor([0.0, 0, 10.0])])
    mesh = dr.Mesh(pair, torch.cat([plane.triangles, plane.triangles + 4]))
    result = renderer(edges=None, outputs=("depth", "triangle_id"))(mesh, camera)
    assert set(result.triangle_id.unique().tolist()) == {2, 3}
    # z = -10 - tan(angle) x and x = ray_x * depth
    expected = 10 / (1 - math.tan(angle) * pixel_rays(camera)[..., 0])
    torch.testing.assert_close(result.depth[0, ..., 0], expected, rtol=1e-4, atol=0)


def test_colors_are_interpolated_in_perspective():
    quad = geometry.quad(2.0, 2.0)
    turned = geometry.transform_points(geometry.rotation([0.0, 1.0, 0.0], 0.9), quad.vertices)
    mesh = dr.Mesh(turned, quad.triangles, colors=torch.cat([turned, turned[:, :1] * 2 + 1], -1))
    result = renderer(edges=None, outputs=("color", "position", "mask"))(mesh, CAMERA)
    covered = result.mask[..., 0]
    position = result.position[covered]
    torch.testing.assert_close(result.color[covered], torch.cat([position, position[:, :1] * 2 + 1], -1))


def test_mesh_without_colors_is_white():
    result = renderer(outputs=("color", "alpha"))(SPHERE, CAMERA)
    assert torch.equal(result.color, result.alpha.expand(-1, -1, -1, 3))


def test_stored_normals_are_used_with_their_own_index_table():
    cube = geometry.cube()
    flat = cube.replace(
        normals=cube.triangle_normals(), normal_triangles=torch.arange(12).unsqueeze(-1).expand(-1, 3).contiguous()
    )
    result = renderer(edges=None, outputs=("normal", "triangle_id"))(flat, CAMERA.look_at([2.0, 3.0, 4.0]))
    covered = result.triangle_id >= 0
    expected = cube.triangle_normals()[result.triangle_id[covered].long()]
    torch.testing.assert_close(result.normal[covered], expected)


# Background and edges -------------------------------------------------------------------------------------------------


def test_s10_white_on_white_is_white_everywhere():
    result = renderer(background=1.0)(SPHERE, CAMERA)
    torch.testing.assert_close(result.color, torch.ones_like(result.color), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "background", ["white", torch.full((48, 64, 3), 255, dtype=torch.uint8)], ids=["name", "bytes"]
)
def test_backgrounds_are_refused_that_are_no_radiance(background):
    with pytest.raises(TypeError, match="Renderer: background must be numbers, a float picture or a light, got"):
        renderer(background=background)(SPHERE, CAMERA)


def test_s10_gradient_to_the_background_is_one_minus_alpha():
    background = torch.rand(48, 64, 3, requires_grad=True)
    result = renderer(outputs=("color", "alpha"), background=background)(SPHERE, CAMERA)
    alpha = result.alpha.detach()[0, ..., 0]
    edge = (alpha > 0) & (alpha < 1)
    assert edge.any()
    grad = torch.autograd.grad(result.color.sum(), background)[0]
    # A blended pixel takes its background from a neighbour: the sum over the picture is what is kept.
    assert float(grad.sum()) == pytest.approx(float(3 * (1 - alpha).sum()), rel=1e-5)
    far_away = torch.zeros_like(edge)
    far_away[:4, :4] = True
    assert (grad[far_away] == 1).all()


def test_background_is_blended_before_the_edges():
    """A blended pixel is a convex mix of object and background: premultiplied color plus (1 - alpha) background."""
    over = renderer(background=(0.2, 0.4, 0.6))(SPHERE, CAMERA).color
    alone = renderer(outputs=("color", "alpha"))(SPHERE, CAMERA)
    torch.testing.assert_close(over, alone.color + (1 - alone.alpha) * torch.tensor([0.2, 0.4, 0.6]))


@pytest.mark.parametrize("shape", [(), (3,), (48, 64, 3), (2, 48, 64, 3)])
def test_background_forms(shape):
    cameras = CAMERA.look_at(geometry.orbit_eyes(2, 4.0))
    background = torch.rand(shape)
    at_construction = renderer(background=background)(SPHERE, cameras).color
    at_call = renderer(background=0.9)(SPHERE, cameras, background=background).color
    assert torch.equal(at_construction, at_call)
    corner = at_call[:, 0, 0]
    expected = background[..., 0, 0, :] if len(shape) > 1 else background
    torch.testing.assert_close(corner, expected.expand_as(corner))


def test_one_call_of_the_edge_op_blends_all_smooth_outputs(monkeypatch):
    calls = []
    from diffrender import renderer as module

    def counted(image, *arguments, **options):
        calls.append(image.shape[-1])
        return dr.antialias(image, *arguments, **options)

    monkeypatch.setattr(module, "antialias", counted)
    renderer(outputs=ALL, smooth=("color", "alpha", "depth", "normal"))(SPHERE, CAMERA)
    renderer(outputs=("depth", "normal"))(SPHERE, CAMERA)
    renderer(edges=None, outputs=ALL)(SPHERE, CAMERA)
    assert calls == [3 + 1 + 1 + 3]


def test_smooth_depth_is_premultiplied_by_coverage():
    quad = geometry.quad(1.7, 1.3)  # at one depth
    result = renderer(outputs=("alpha", "depth"), smooth=("alpha", "depth"))(quad, CAMERA)
    torch.testing.assert_close(result.depth, 4 * result.alpha, rtol=1e-5, atol=1e-5)


def test_without_edges_outputs_are_point_samples():
    result = renderer(edges=None, outputs=("alpha", "mask"))(SPHERE, CAMERA)
    assert torch.equal(result.alpha, result.mask.float())


def test_d05_split_vertices_give_the_same_picture_and_gradient():
    """Vertices split at seams are no silhouettes: topology is welded by position."""
    shared = SPHERE.replace(colors=SPHERE.vertices * 0.5 + 0.5)
    corners = SPHERE.triangles.long().reshape(-1)
    colors = shared.colors
    assert colors is not None
    split = dr.Mesh(SPHERE.vertices[corners], torch.arange(len(corners)).reshape(-1, 3), colors=colors[corners])
    weights = torch.randn(1, 48, 64, 3)
    gradients = []
    for mesh in (shared, split):
        vertices = mesh.vertices.clone().requires_grad_()
        color = renderer()(mesh.with_vertices(vertices), CAMERA).color
        gradients.append(torch.autograd.grad((color * weights).sum(), vertices)[0])
        mesh.picture = color.detach()
    assert (shared.picture - split.picture).abs().max() < 1e-5
    summed = torch.zeros_like(gradients[0]).index_add(0, corners, gradients[1])
    torch.testing.assert_close(summed, gradients[0], rtol=1e-4, atol=1e-4)


def test_cull_leaves_one_side_out():
    quad = geometry.quad()
    assert renderer(cull="front", outputs=("mask",))(quad, CAMERA).mask.sum() == 0
    both = renderer(outputs=("mask",))(quad, CAMERA).mask
    assert both.sum() > 0
    assert torch.equal(renderer(cull="back", outputs=("mask",))(quad, CAMERA).mask, both)


# Batches and gradients ------------------------------------------------------------------------------------------------


def test_d17_one_mesh_through_many_cameras_sums_the_gradients():
    cameras = CAMERA.look_at(geometry.orbit_eyes(3, 4.0))
    weights = torch.randn(3, 48, 64, 4, dtype=F64)
    colors = torch.rand(SPHERE.vertex_count, 3, dtype=F64)
    mesh = SPHERE.to(F64)
    draw = renderer(outputs=("color", "alpha"))

    def gradient(shape, camera, weight):
        vertices = shape.clone().requires_grad_()
        color = colors.clone().requires_grad_()
        result = draw(mesh.with_vertices(vertices, colors=color), camera)
        loss = (torch.cat([result.color, result.alpha], -1) * weight).sum()
        return torch.autograd.grad(loss, (vertices, color))

    doubled = cameras.to(F64)
    together = gradient(mesh.vertices, doubled, weights)
    apart = [gradient(mesh.vertices, doubled[k], weights[k : k + 1]) for k in range(3)]
    repeated = gradient(mesh.vertices.expand(3, -1, -1), doubled, weights)
    assert together[0].shape == mesh.vertices.shape
    for k in range(2):
        torch.testing.assert_close(together[k], sum(grads[k] for grads in apart))
    torch.testing.assert_close(together[0], repeated[0].sum(0))


def test_many_shapes_of_one_topology_through_one_camera():
    shapes = SPHERE.vertices * torch.tensor([1.0, 0.5])[:, None, None]
    together = renderer(outputs=("alpha", "normal"))(SPHERE.with_vertices(shapes), CAMERA)
    for k in range(2):
        alone = renderer(outputs=("alpha", "normal"))(SPHERE.with_vertices(shapes[k]), CAMERA)
        torch.testing.assert_close(together.alpha[k], alone.alpha[0])
        torch.testing.assert_close(together.normal[k], alone.normal[0])


def test_moving_the_shape_changes_alpha_as_the_gradient_says():
    """A disc that grows: the covered area is known, so is its derivative."""
    mesh = geometry.icosphere(4).to(F64)
    camera = CAMERA.to(F64)
    radius = torch.tensor(1.0, dtype=F64, requires_grad=True)
    area = renderer(outputs=("alpha",))(mesh.with_vertices(mesh.vertices * radius), camera).alpha.sum()
    area.backward()
    # A sphere of radius r at distance d is seen as a disc of radius f r / sqrt(d^2 - r^2) pixels.
    focal = float(camera.focal_px[0])
    assert float(area.detach()) == pytest.approx(math.pi * focal**2 / 15, rel=0.01)
    assert radius.grad is not None
    assert float(radius.grad) == pytest.approx(2 * math.pi * focal**2 * 16 / 15**2, rel=0.03)


def test_camera_receives_gradients():
    camera = CAMERA.to(F64)
    eye = torch.tensor([0.0, 0.0, 4.0], dtype=F64, requires_grad=True)
    area = renderer(outputs=("alpha",))(SPHERE.to(F64), camera.look_at(eye)).alpha.sum()
    area.backward()
    # d(pi f^2 / (d^2 - 1)) / dd
    focal = float(camera.focal_px[0])
    assert eye.grad is not None
    assert float(eye.grad[2]) == pytest.approx(-2 * math.pi * focal**2 * 4 / 15**2, rel=0.03)
    assert eye.grad[:2].abs().max() < 0.03 * eye.grad[2].abs()


def test_triangle_id_and_mask_carry_no_gradient():
    vertices = SPHERE.vertices.clone().requires_grad_()
    result = renderer(outputs=ALL)(SPHERE.with_vertices(vertices), CAMERA)
    assert not result.triangle_id.requires_grad
    assert not result.mask.requires_grad
    assert all(getattr(result, n).requires_grad for n in ("color", "alpha", "depth", "normal", "position"))


def test_meshes_without_triangles_are_background():
    empty = dr.Mesh(torch.rand(4, 3), torch.zeros(0, 3, dtype=torch.int64))
    result = renderer(outputs=ALL, background=0.25)(empty, CAMERA)
    assert (result.color == 0.25).all()
    assert (result.alpha == 0).all()
    assert (result.triangle_id == -1).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: dr.Renderer((48, 64), edges="pair"),
            ValueError,
            "Renderer: edges must be one of 'segments', 'pairs', 'coverage', None, got 'pair'",
        ),
        (
            lambda: renderer(outputs=("colour",)),
            ValueError,
            "Renderer: outputs must name some of color, .*got 'colour'",
        ),
        (
            lambda: renderer(outputs=("depth",))(SPHERE, CAMERA.to(torch.float64)),
            TypeError,
            r"Renderer: mesh is float32 but camera is float64. Convert one of them: camera.to\(mesh.dtype\)",
        ),
        (lambda: renderer(smooth=("mask",)), ValueError, "Renderer: smooth must name some of .*, got 'mask'"),
        (lambda: dr.Renderer(64, edges=None), ValueError, r"Renderer: resolution must be .*\(height, width\), got 64"),
        (
            lambda: dr.Renderer((64, 48), edges=None)(SPHERE, CAMERA),
            ValueError,
            r"camera must have the renderer's resolution \(64, 48\), got \(48, 64\). Use camera.scaled",
        ),
        (
            lambda: renderer()(
                SPHERE.with_vertices(SPHERE.vertices.expand(3, -1, -1)), CAMERA.look_at(torch.rand(2, 3))
            ),
            ValueError,
            "Renderer: mesh must hold 2 shapes, one per camera, or one for all, got 3",
        ),
        (
            lambda: renderer(background=torch.zeros(4))(SPHERE, CAMERA),
            ValueError,
            r"Renderer: background must be one number or have shape \(3,\), \(48, 64, 3\) or \(1, 48, 64, 3\), got",
        ),
    ],
)
def test_renderer_says_what_is_wrong(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_r08_renderers_pickle_and_copy():
    original = renderer(background=0.5)
    picture = original(SPHERE, CAMERA).color
    for twin in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert torch.equal(twin(SPHERE, CAMERA).color, picture)


@pytest.mark.parametrize("samples", [1, 2])
def test_float32_camera_shows_a_lit_float64_mesh(samples: int):
    mesh, lamp = SPHERE.to(F64), dr.PointLight([0.0, 2.0, 2.0])
    eye = torch.tensor([0.0, 0.3, 3.0], requires_grad=True)
    camera = dr.Camera.perspective(fov_y_deg=40, width=64, height=48).look_at(eye)
    renderer = dr.Renderer((48, 64), samples=samples)
    picture = renderer(mesh, camera, lamp).color
    assert picture.dtype == F64
    assert torch.equal(picture, renderer(mesh, camera.to(F64), lamp).color)
    (grad,) = torch.autograd.grad(picture, eye, torch.rand_like(picture))
    assert bool((grad != 0).all())
