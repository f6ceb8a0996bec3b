"""What `least_width` takes off the gradient of narrow triangles, against the reference with its cotangents scaled; what
the renderer makes of it: no triangle seen on edge outweighs all others."""

import math

import pytest
import torch

import diffrender as dr
from tests.ops.rows.base import SIZE, sub_pixel_triangle, turned_cube, two_layers
from tests.reference import rasterize as reference
from tests.support.scenes import random_scene
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64
SCENES = {
    "cube": turned_cube,
    "two layers, one behind the camera": two_layers,
    "tenth of a pixel": sub_pixel_triangle,
    "random": lambda: random_scene(12, F64),
}


def scene_of(name):
    positions, triangles, *rest = SCENES[name]()
    positions = positions.double()
    return positions if positions.dim() == 3 else positions[None], triangles, rest[0] if rest else SIZE


def floats(fragments):
    return [x for x in fragments[1:] if x is not None]


@pytest.mark.parametrize("derivatives", [False, True])
@pytest.mark.parametrize("least_width", [0.125, 6.0])
@pytest.mark.parametrize("scene", SCENES)
def test_gradient_is_that_of_scaled_cotangents(scene, least_width, derivatives):
    positions, triangles, size = scene_of(scene)
    positions.requires_grad_()
    ours = dr.rasterize(positions, triangles, size, derivatives=derivatives, least_width=least_width)
    share = reference.gradient_share(
        reference.fragment_values(positions, triangles, ours.triangle_id, True), least_width
    )
    assert (share < 0.9).any() or least_width < 1
    grads = [rnd(*x.shape, seed=k, dtype=F64) for k, x in enumerate(floats(ours))]
    scaled = [g * share.reshape(*share.shape, *[1] * (g.dim() - 3)) for g in grads]
    truth = floats(reference.fragment_values(positions, triangles, ours.triangle_id, derivatives))
    (expected,) = torch.autograd.grad(truth, positions, scaled)
    (found,) = torch.autograd.grad(floats(ours), positions, grads)
    assert expected.any()
    assert relative_error(found, expected) < 1e-10

    again = dr.fragments_at(positions, triangles, ours.triangle_id, derivatives=derivatives, least_width=least_width)
    assert torch.equal(torch.autograd.grad(floats(again), positions, grads)[0], found)


@pytest.mark.parametrize("algorithm", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_narrowest_triangles_give_finite_gradients(dtype, algorithm):
    """Along a row of centres, from a tenth of it to below the smallest number: nothing is left of 1 / width."""
    triangles, ids = torch.tensor([[0, 1, 2]], dtype=torch.int32), torch.zeros(1, 1, 4, dtype=torch.int32)
    largest = []
    for exponent in range(1, 45):
        width = 10.0**-exponent
        points = [[-4.0, -width, 0.3, 1.0], [4.0, -0.9 * width, 0.1, 1.0], [0.0, width, 0.2, 1.0]]
        positions = torch.tensor([points], dtype=dtype)
        grads = [rnd(1, 1, 4, 2, dtype=dtype), rnd(1, 1, 4, dtype=dtype), None]
        call = torch.ops.diffrender.rasterize_backward
        grad = call(positions, triangles, ids, *grads, algorithm, 1, 0, 0.125)
        assert grad.isfinite().all()
        largest.append(float(grad.abs().max()))
    assert max(largest) < 2 * largest[0]
    assert min(largest[:15]) > 0.5 * largest[1]


@pytest.mark.parametrize("algorithm", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_triangles_seen_from_outside_are_bounded_too(dtype, algorithm):
    """Corners are rounded to 1/256 pixel to decide what shows: centres then lie up to 1/512 pixel beside a triangle
    that is narrower, where its barycentrics are large."""
    triangles, largest = torch.tensor([[0, 1, 2]], dtype=torch.int32), []
    for exponent in range(1, 10):
        width = 10.0**-exponent
        low = 1 / 512 if width < 1 / 512 else 0.0
        points = [[-4.0, low, 0.3, 1.0], [4.0, low, 0.1, 1.0], [0.0, low + width, 0.2, 1.0]]
        positions = torch.tensor([points], dtype=dtype)
        for shown in (2, 4):  # by single pixels and by runs of them
            ids = torch.zeros(1, 1, shown, dtype=torch.int32)
            fragments = dr.fragments_at(positions, triangles, ids)
            grads = [rnd(1, 1, shown, 2, dtype=dtype), rnd(1, 1, shown, dtype=dtype), None]
            grad = torch.ops.diffrender.rasterize_backward(positions, triangles, ids, *grads, algorithm, 1, 0, 0.125)
            assert grad.isfinite().all()
            largest.append(float(grad[..., :2].abs().max()))
    assert float(fragments.barycentrics.abs().max()) > 1e5
    assert max(largest) < 4 * max(largest[:4]), largest


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
@pytest.mark.parametrize("scene", ["cube", "two layers, one behind the camera"])
def test_forward_mode_is_scaled_alike(scene):
    positions, triangles, size = scene_of(scene)
    ids = dr.rasterize(positions, triangles, size).triangle_id

    def call(clip_positions):
        return tuple(floats(dr.fragments_at(clip_positions, triangles, ids, derivatives=True, least_width=6.0)))

    tangent = rnd(*positions.shape, dtype=F64)
    values, moved = torch.func.jvp(call, (positions,), (tangent,))
    grads = tuple(rnd(*x.shape, seed=k, dtype=F64) for k, x in enumerate(values))
    (back,) = torch.func.vjp(call, positions)[1](grads)
    forward = sum(float((a * b).sum()) for a, b in zip(moved, grads, strict=True))
    assert forward == pytest.approx(float((back * tangent).sum()), rel=1e-10)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "1"])
def test_wrong_widths_are_refused(value):
    positions, triangles, size = scene_of("cube")
    with pytest.raises(ValueError, match="rasterize: least_width must be a number of pixels, 0 or more"):
        dr.rasterize(positions, triangles, size, least_width=value)
    ids = dr.rasterize(positions, triangles, size).triangle_id
    with pytest.raises(ValueError, match="fragments_at: least_width must be a number of pixels, 0 or more"):
        dr.fragments_at(positions, triangles, ids, least_width=value)


# The renderer --------------------------------------------------------------------------------------------------------


def bent_sheet(width: float) -> tuple[dr.Mesh, dr.Camera]:
    """A sheet that faces the viewer and then turns back, so that `width` pixels show of the rest, which goes from black
    to white; centres of pixels lie in the middle of that."""
    camera = dr.Camera.orthographic(half_height=1.0, width=16, height=16, near=0.0, far=10.0, dtype=F64)
    middle, half = 1 / 16, width / 16
    rows = [[x, y, z] for x, z in ((-0.6, 0.0), (middle - half, 0.0), (middle + half, -1.0)) for y in (-0.71, 0.73)]
    colors = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 1.0], dtype=F64)[:, None].expand(6, 3)
    triangles = torch.tensor([[0, 2, 3], [0, 3, 1], [2, 4, 5], [2, 5, 3]])
    mesh = dr.Mesh(torch.tensor(rows, dtype=F64), triangles, colors=colors)
    return mesh, camera.look_at(torch.tensor([0.0, 0.0, 5.0], dtype=F64))


def gradient(width: float, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """Picture, and gradient of all the white of it to the vertices."""
    mesh, camera = bent_sheet(width)
    vertices = mesh.vertices.clone().requires_grad_()
    picture = dr.Renderer((16, 16), **options)(mesh.with_vertices(vertices), camera).color
    return picture.detach(), torch.autograd.grad(picture.sum(), vertices)[0]


@pytest.mark.parametrize("edges", ["segments", "pairs", None])
def test_a_triangle_on_edge_does_not_outweigh_the_rest(edges):
    exact, steady, truth = (
        [float(gradient(width, **options)[1].abs().max()) for width in (0.16, 0.04, 0.01)]
        for options in ({"edges": edges, "interior": "exact"}, {"edges": edges}, {"edges": "coverage"})
    )
    # Four times narrower, four times steeper; what it should be does not depend on the width.
    assert exact[2] > 8 * exact[0]
    assert max(truth) < 1.1 * min(truth)
    assert max(steady) < 20 * max(truth), (steady, truth)


@pytest.mark.parametrize("recompute", [True, False, "tiles"])
def test_steady_is_the_default_and_changes_narrow_triangles_only(recompute):
    picture, steady = gradient(0.01, recompute=recompute)
    same, exact = gradient(0.01, recompute=recompute, interior="exact")
    assert torch.equal(picture, same)
    _, named = gradient(0.01, recompute=recompute, interior="steady")
    assert torch.equal(steady, named)
    assert not torch.allclose(steady, exact)
    assert torch.equal(*(gradient(0.2, recompute=recompute, **options)[1] for options in ({}, {"interior": "exact"})))


def test_a_part_of_the_gradient_is_lost_in_proportion():
    """Without an edge op there is nothing but the interior: of a triangle 1/160 pixel wide a tenth of it is left."""
    _, steady = gradient(1 / 160, edges=None)
    _, exact = gradient(1 / 160, edges=None, interior="exact")
    torch.testing.assert_close(steady, exact / 10, rtol=1e-6, atol=1e-9)
