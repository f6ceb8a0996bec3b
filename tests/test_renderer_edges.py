"""The renderer's edges="segments"."""

import pytest
import torch

import diffrender as dr
from diffrender import geometry

CAMERA = dr.Camera.perspective(fov_y_deg=40, width=40, height=32).look_at([0.9, 1.2, 3.6])


def colored(mesh, seed=0):
    colors = torch.rand(len(mesh.vertices), 3, generator=torch.Generator().manual_seed(seed), dtype=mesh.vertices.dtype)
    return dr.Mesh(mesh.vertices, mesh.triangles, colors=colors)


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


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="Renderer: edges must be one of 'segments', 'pairs', 'coverage', None"):
        dr.Renderer((8, 8), edges="all")
