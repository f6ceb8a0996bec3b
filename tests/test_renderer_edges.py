"""The renderer's edges="segments" and interior="flow"."""

import pytest
import torch

import diffrender as dr
from diffrender import geometry
from tests.support.vocabulary import rnd

CAMERA = dr.Camera.perspective(fov_y_deg=40, width=40, height=32).look_at([0.9, 1.2, 3.6])


def colored(mesh, seed=0):
    colors = torch.rand(len(mesh.vertices), 3, generator=torch.Generator().manual_seed(seed), dtype=mesh.vertices.dtype)
    return dr.Mesh(mesh.vertices, mesh.triangles, colors=colors)


def vertex_gradient(renderer, mesh, weights):
    vertices = mesh.vertices.clone().requires_grad_()
    moved = dr.Mesh(vertices, mesh.triangles, colors=mesh.colors)
    color = renderer(moved, CAMERA).color
    return color.detach(), torch.autograd.grad((color * weights).sum(), vertices)[0]


def test_segments_are_the_default_and_equal_the_op():
    mesh = colored(geometry.icosphere(2))
    renderer = dr.Renderer((32, 40), background=0.25)
    assert renderer.edges == "segments"
    clip = CAMERA.clip_positions(mesh.vertices)
    fragments = dr.rasterize(clip, mesh.triangles, (32, 40))
    image = dr.interpolate(mesh.colors, mesh.triangles, fragments)
    image = torch.where((fragments.triangle_id >= 0)[..., None], image, 0.25)
    expected = dr.antialias(image, fragments, clip, mesh.triangles, topology=mesh.edge_topology())
    assert torch.equal(renderer(mesh, CAMERA).color, expected)


def test_alpha_is_the_area_that_is_covered():
    """Against 16 x 16 samples per pixel, for a cube whose silhouette cuts many pixels."""
    mesh = geometry.cube()
    alpha = dr.Renderer((32, 40), outputs="alpha")(mesh, CAMERA).alpha
    fine = dr.Renderer((512, 640), edges=None, outputs="alpha")(mesh, CAMERA.scaled(16)).alpha
    mean = fine.reshape(1, 32, 16, 40, 16, 1).mean((2, 4))
    # Not at single corners of the silhouette, which can show at no centre around.
    assert ((alpha - mean).abs() > 0.02).sum() <= 4
    pairs = dr.Renderer((32, 40), edges="pairs", outputs="alpha")(mesh, CAMERA).alpha
    assert (alpha - mean).norm() < 0.5 * (pairs - mean).norm()


@pytest.mark.parametrize("cull", [None, "back"])
def test_a_list_of_meshes_equals_single_ones(cull):
    meshes = [colored(geometry.icosphere(1), 1), colored(geometry.cube(), 2)]
    cameras = CAMERA.look_at(geometry.orbit_eyes(2, 3.9))
    renderer = dr.Renderer((32, 40), background=0.5, cull=cull)
    together = renderer(meshes, cameras).color
    for k, mesh in enumerate(meshes):
        torch.testing.assert_close(together[k : k + 1], renderer(mesh, cameras[k]).color, rtol=0, atol=1e-6)


def test_flow_changes_the_interior_gradient_only():
    """Same picture; the same gradient to colours; close to the exact interior where colours vary slowly."""
    sphere = geometry.icosphere(3)
    mesh = dr.Mesh(sphere.vertices.double(), sphere.triangles, colors=0.5 + 0.4 * sphere.vertices.double())
    weights = torch.rand(1, 32, 40, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    results = [
        vertex_gradient(dr.Renderer((32, 40), interior=interior, background=0.5), mesh, weights)
        for interior in ("exact", "flow")
    ]
    assert torch.equal(results[0][0], results[1][0])
    exact, flow = results[0][1].sum(0), results[1][1].sum(0)
    assert (exact - flow).norm() > 0
    assert (exact - flow).norm() < 0.3 * exact.norm()  # one sample per pixel of a sphere of 14 pixels


def test_flow_does_not_look_across_edges():
    """Two flat squares of different colours over each other and over the background: nothing changes inside of them, so
    without edges there is no gradient, although the picture has steps everywhere."""
    near, far = geometry.quad(0.7, 0.7), geometry.quad(1.9, 1.9)
    vertices = torch.cat([near.vertices + torch.tensor([0.1, 0.05, 0.5]), far.vertices])
    triangles = torch.cat([near.triangles, far.triangles + len(near.vertices)])
    colors = torch.cat([torch.full((len(near.vertices), 3), 0.9), torch.full((len(far.vertices), 3), 0.2)])
    mesh = dr.Mesh(vertices, triangles, colors=colors)
    weights = torch.rand(1, 32, 40, 3, generator=torch.Generator().manual_seed(5))
    _, grad = vertex_gradient(dr.Renderer((32, 40), edges=None, interior="flow", background=0.0), mesh, weights)
    assert grad.abs().max() < 1e-5
    _, grad = vertex_gradient(dr.Renderer((32, 40), interior="flow", background=0.0), mesh, weights)
    assert grad.abs().max() > 1


def test_exact_visibility_is_handed_to_the_op():
    """On a crumpled sphere, whose folds hide each other between the centres."""
    mesh = colored(geometry.icosphere(3))
    mesh = dr.Mesh(mesh.vertices + 0.05 * rnd(*mesh.vertices.shape, seed=3), mesh.triangles, colors=mesh.colors)
    clip = CAMERA.clip_positions(mesh.vertices)
    fragments = dr.rasterize(clip, mesh.triangles, (32, 40))
    image = dr.interpolate(mesh.colors, mesh.triangles, fragments)
    image = torch.where((fragments.triangle_id >= 0)[..., None], image, 0.25)
    topology = mesh.edge_topology()
    window, exact = (
        dr.antialias(image, fragments, clip, mesh.triangles, topology=topology, visibility=visibility)
        for visibility in ("window", "exact")
    )
    assert not torch.equal(window, exact)
    assert torch.equal(dr.Renderer((32, 40), background=0.25, visibility="exact")(mesh, CAMERA).color, exact)


@pytest.mark.parametrize("edges", ["segments", "pairs"])
@pytest.mark.parametrize("recompute", [True, False, "tiles"])
def test_identity_shows_point_samples_and_keeps_the_gradient(edges, recompute):
    mesh = colored(geometry.icosphere(2))
    weights = rnd(1, 32, 40, 3, seed=7)
    options = {"edges": edges, "background": 0.25, "recompute": recompute}
    blended, expected = vertex_gradient(dr.Renderer((32, 40), **options), mesh, weights)
    same, grad = vertex_gradient(dr.Renderer((32, 40), forward="identity", **options), mesh, weights)
    samples, interior = vertex_gradient(dr.Renderer((32, 40), **{**options, "edges": None}), mesh, weights)
    assert torch.equal(same, samples)
    assert not torch.equal(blended, samples)
    # The interior is differentiated under the cotangent itself, not its mixture: silhouettes are what is the same.
    clip = CAMERA.clip_positions(mesh.vertices)
    fragments = dr.rasterize(clip, mesh.triangles, (32, 40))
    leaf = mesh.vertices.clone().requires_grad_()
    alone = dr.antialias(samples, fragments, CAMERA.clip_positions(leaf), mesh.triangles, method=edges,
                         topology=mesh.edge_topology())  # fmt: skip
    (moving,) = torch.autograd.grad((alone * weights).sum(), leaf)
    torch.testing.assert_close(grad, interior + moving, rtol=1e-4, atol=1e-4 * float(grad.abs().max()))
    assert moving.norm() > 0.1 * expected.norm()


def test_identity_leaves_every_layer_and_the_outputs_in_smooth_unmixed():
    """Glass before a ball: what shows through the glass is not blended either, and yet moves."""
    ball, pane = geometry.icosphere(2), geometry.quad(1.0, 1.0)
    mesh = geometry.pack_meshes([
        ball.replace(material=dr.Material((0.9, 0.2, 0.1))),
        dr.Mesh(pane.vertices + torch.tensor([0.0, 0.0, 1.5]), pane.triangles,
                material=dr.Material((0.1, 0.3, 0.8, 0.5), alpha_mode="BLEND")),
    ]).mesh  # fmt: skip
    names = ("color", "alpha", "depth")
    options = {"outputs": names, "smooth": names, "background": 0.3}
    leaf = mesh.vertices.clone().requires_grad_()
    same = dr.Renderer((32, 40), forward="identity", **options)(mesh.with_vertices(leaf), CAMERA)
    samples = dr.Renderer((32, 40), edges=None, **options)(mesh, CAMERA)
    for name in names:
        assert torch.equal(getattr(same, name), getattr(samples, name)), name
    (grad,) = torch.autograd.grad((same.color * rnd(1, 32, 40, 3, seed=1)).sum(), leaf)
    assert grad[: ball.vertex_count].abs().max() > 0.1
    assert grad[ball.vertex_count :].abs().max() > 0.1


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="Renderer: visibility must be one of 'window', 'exact', got 'all'"):
        dr.Renderer((8, 8), visibility="all")
    with pytest.raises(ValueError, match="Renderer: visibility=.exact. is an option of edges=.segments."):
        dr.Renderer((8, 8), edges="pairs", visibility="exact")
    with pytest.raises(ValueError, match="Renderer: interior must be one of 'steady', 'exact', 'flow', got 'none'"):
        dr.Renderer((8, 8), interior="none")
    with pytest.raises(ValueError, match="Renderer: edges must be one of 'segments', 'pairs', 'coverage', None"):
        dr.Renderer((8, 8), edges="all")
    with pytest.raises(ValueError, match="Renderer: interior=.flow. is for pictures of point samples"):
        dr.Renderer((8, 8), edges="coverage", interior="flow")
    with pytest.raises(ValueError, match="Renderer: forward must be one of 'area', 'identity', got 'none'"):
        dr.Renderer((8, 8), forward="none")
    for edges in (None, "coverage"):
        with pytest.raises(ValueError, match="forward=.identity. is an option of edges=.segments. and .pairs."):
            dr.Renderer((8, 8), edges=edges, forward="identity")
