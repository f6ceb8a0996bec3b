"""Renderer(edges="coverage"): pictures averaged over the area of each pixel, and the derivative of all of it."""

import pytest
import torch

import diffrender as dr
from tests.support.vocabulary import uniform

F64 = torch.float64
SIZE = (9, 11)


def camera(eye=(0.3, 0.4, 3.5), dtype=F64):
    return dr.Camera.perspective(fov_y_deg=45, width=SIZE[1], height=SIZE[0], dtype=dtype).look_at(list(eye))


def sphere(levels=1, shift=(0.0, 0.0, 0.0), seed=0):
    mesh = dr.geometry.icosphere(levels)
    vertices = mesh.vertices.to(F64) + torch.tensor(shift, dtype=F64)
    return dr.Mesh(vertices, mesh.triangles, colors=uniform(len(vertices), 3, seed=seed, dtype=F64))


def test_alpha_is_the_covered_area():
    result = dr.Renderer(SIZE, edges="coverage", outputs=("color", "alpha", "mask"))(sphere(), camera())
    clip = camera().clip_positions(sphere().vertices)
    areas = dr.coverage(clip, sphere().triangles, SIZE)
    assert result.alpha.sum().item() == pytest.approx(areas.weight.sum().item(), rel=1e-12)
    assert result.mask.dtype == torch.bool
    # Without a background colors are premultiplied: all white gives alpha.
    white = dr.Mesh(sphere().vertices, sphere().triangles)
    color = dr.Renderer(SIZE, edges="coverage")(white, camera()).color
    torch.testing.assert_close(color, result.alpha.expand_as(color))


def test_background_fills_what_is_left():
    behind = uniform(*SIZE, 3, seed=4, dtype=F64)
    result = dr.Renderer(SIZE, edges="coverage", outputs=("color", "alpha"), background=behind)(sphere(), camera())
    alone = dr.Renderer(SIZE, edges="coverage")(sphere(), camera()).color
    torch.testing.assert_close(result.color, alone + (1 - result.alpha) * behind)


def test_converges_to_what_many_samples_show():
    n = 16
    mesh = sphere(2)
    color = dr.Renderer(SIZE, edges="coverage", background=0.2)(mesh, camera()).color
    fine = camera().scaled(n)
    samples = dr.Renderer((fine.height, fine.width), edges=None, background=0.2)(mesh, fine).color
    mean = samples.reshape(1, SIZE[0], n, SIZE[1], n, 3).mean((2, 4))
    # Rows of samples misplace an edge by up to half a sample, with a contrast of up to 0.8, and to both sides alike.
    assert (color - mean).abs().max() < 0.8 / (2 * n)
    assert abs((color - mean).mean()) < 5e-4


def test_outputs_that_are_not_smooth_stay_point_samples():
    outputs = ("color", "depth", "normal", "position", "triangle_id")
    points = dr.Renderer(SIZE, edges=None, outputs=outputs)(sphere(), camera())
    result = dr.Renderer(SIZE, edges="coverage", outputs=outputs)(sphere(), camera())
    for name in outputs[1:]:
        assert torch.equal(getattr(result, name), getattr(points, name))
    averaged = (*outputs[:4], "alpha")
    smooth = dr.Renderer(SIZE, edges="coverage", outputs=averaged, smooth=averaged)(sphere(), camera())
    inside = (smooth.alpha > 1 - 1e-9)[..., 0]
    assert inside.sum() > 10
    torch.testing.assert_close(smooth.depth[inside], points.depth[inside], rtol=0.05, atol=0)


def test_gradcheck_from_mesh_and_camera_to_the_picture():
    # No face of the second lies in the plane of one of the first: which of two coplanar faces shows is no smooth event.
    first, second = sphere(0), sphere(0, (0.7, 0.23, 0.55), seed=1)
    triangles = torch.cat([first.triangles, second.triangles + len(first.vertices)])
    renderer = dr.Renderer(SIZE, edges="coverage", outputs=("color", "alpha"), background=0.3)

    def render(vertices, colors, eye):
        mesh = dr.Mesh(vertices, triangles, colors=colors)
        view = dr.Camera.perspective(fov_y_deg=45, width=SIZE[1], height=SIZE[0], dtype=F64).look_at(eye)
        result = renderer(mesh, view)
        return result.color, result.alpha

    vertices = torch.cat([first.vertices, second.vertices]).requires_grad_()
    colors = torch.cat([first.colors, second.colors]).requires_grad_()
    eye = torch.tensor([0.3, 0.4, 3.5], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(render, (vertices, colors, eye), fast_mode=True)


def test_different_meshes_and_several_cameras_equal_single_calls():
    renderer = dr.Renderer(SIZE, edges="coverage", outputs=("color", "alpha"))
    meshes = [sphere(0), sphere(1, (0.4, 0.1, 0.0), seed=2)]
    both = renderer(meshes, camera())
    for k, mesh in enumerate(meshes):
        torch.testing.assert_close(both.color[k : k + 1], renderer(mesh, camera()).color, rtol=0, atol=1e-12)


@pytest.mark.parametrize("recompute", [True, False])
def test_a_capacity_changes_no_picture_and_no_gradient(recompute):
    results = []
    for capacity in (None, 2000):
        mesh = sphere()
        vertices = mesh.vertices.clone().requires_grad_()
        renderer = dr.Renderer(SIZE, edges="coverage", background=0.2, capacity=capacity, recompute=recompute)
        lamps = [dr.DirectionalLight(torch.tensor([0.3, -0.5, -1.0], dtype=vertices.dtype))]
        result = renderer(mesh.with_vertices(vertices), camera(), lamps).check()
        assert result.area_counts[0] < 2000
        results.append([result.color, *torch.autograd.grad(result.color.square().sum(), vertices)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-11, atol=1e-12)


def test_a_capacity_that_is_too_small_is_an_error():
    with pytest.raises(RuntimeError, match="coverage: capacity must be at least .* fragments, got 20"):
        dr.Renderer(SIZE, edges="coverage", capacity=(20, 9999, 999))(sphere(), camera())
    with pytest.raises(ValueError, match='capacity is an option of edges="coverage"'):
        dr.Renderer(SIZE, edges="segments", capacity=20)
    with pytest.raises(ValueError, match="Renderer: capacity must be None, a number of fragments, or .*, got -1"):
        dr.Renderer(SIZE, edges="coverage", capacity=-1)


@pytest.mark.parametrize("what", ["lamp", "environment", "intensity", "constants", "textures"])
def test_what_differs_between_items_is_seen_by_its_own_item(what):
    """Lights and materials with a batch axis: the list of fragments holds those of all items."""
    cameras = [camera(), camera((-0.6, 0.9, 3.1))]
    both = camera([(0.3, 0.4, 3.5), (-0.6, 0.9, 3.1)])
    directions, tint = uniform(2, 3, seed=1, dtype=F64), uniform(2, 3, seed=2, dtype=F64)
    maps, texels = uniform(2, 6, 4, 4, 3, seed=3, dtype=F64), uniform(2, 5, 6, 3, seed=4, dtype=F64)
    normals = 0.3 * uniform(2, 4, 4, 3, seed=5, dtype=F64) + 0.6
    leaves = [t.requires_grad_() for t in (directions, tint, maps, texels, normals)]

    def picture(k, view):
        def own(tensor, name):
            return tensor[0] if what != name else tensor if k is None else tensor[k]

        lamp = dr.DirectionalLight(own(directions, "lamp") - 1.5)
        sky = dr.EnvironmentLight(own(maps, "environment"), intensity=own(tint, "intensity"), diffuse_size=4)
        material = dr.Material(
            own(texels, "textures"), normal=own(normals, "textures"), emissive=own(tint, "constants"), roughness=0.4
        ).to(F64)
        plate = dr.geometry.quad(2.0, 2.0).to(F64).replace(material=material)
        outputs = ("color", "albedo")
        renderer = dr.Renderer(SIZE, edges="coverage", outputs=outputs, smooth=(*outputs, "alpha"))
        result = renderer(plate, view, [lamp, sky])
        return torch.cat([result.color, result.albedo], -1)

    together, apart = picture(None, both), torch.cat([picture(k, view) for k, view in enumerate(cameras)])
    assert (together.flatten(1) > 0.01).any(1).all()
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)
    weights = uniform(*apart.shape, seed=6, dtype=F64)
    grads = [torch.autograd.grad((image * weights).sum(), leaves) for image in (together, apart)]
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-12)
