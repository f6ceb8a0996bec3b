"""rasterize with exact_legacy=True: values and gradients of the specification."""

import numpy as np
import pytest
import torch

from diffrender.compat import nvdiffrast as dr
from tests.compat import specification
from tests.compat.scenes import loose_triangles, sphere
from tests.support.scenes import random_scene
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64
CONTEXT = dr.RasterizeCudaContext()
MODES = pytest.mark.parametrize("exact_legacy", [False, True], ids=["ours", "legacy"])


def raster(pos, tri, size, **options):
    return dr.rasterize(CONTEXT, pos, tri, size, **options)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [(11, 14), (8, 9)])
def test_legacy_values_follow_the_specification(seed, size):
    pos, tri = loose_triangles(20 + seed)
    if seed == 3:
        pos, tri = sphere(seed)
    shown, _ = specification.ids(pos.numpy(), tri.numpy(), *size)
    expected, expected_db = specification.values(pos.numpy(), tri.numpy(), shown)
    rast, rast_db = raster(pos, tri, size, exact_legacy=True)
    assert np.array_equal(rast[..., 3].numpy(), shown)
    torch.testing.assert_close(rast, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
    assert relative_error(rast_db, torch.from_numpy(expected_db)) < 1e-9
    single, single_db = raster(pos.float(), tri, size, exact_legacy=True)
    same = (single[..., 3] == rast[..., 3]) & (rast[..., 3] > 0)
    assert same.sum() > 0.98 * (shown > 0).sum()
    assert (single[same] - rast[same]).abs().max() < 1e-5
    assert relative_error(single_db[same], rast_db[same]) < 1e-4


def test_legacy_range_mode_follows_the_specification():
    pos, tri = loose_triangles(30, batch=1)
    ranges = torch.tensor([[0, 5], [3, 7]], dtype=torch.int32)
    shown, _ = specification.ids(pos[0].numpy(), tri.numpy(), 9, 12, ranges=ranges.tolist())
    rast, _ = raster(pos[0], tri, (9, 12), ranges=ranges, exact_legacy=True)
    expected, _ = specification.values(pos[0].numpy(), tri.numpy(), shown)
    torch.testing.assert_close(rast, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)


def test_coverage_is_decided_on_sixteenths_with_exact_legacy():
    """An edge 1/40 pixel left of the pixel centres: rounded to 1/16 it passes through them."""
    x = 2 * (8.5 - 1 / 40) / 16 - 1
    pos = torch.tensor([[[-1, -1, 0, 1], [x, -1, 0, 1], [x, 1, 0, 1], [-1, 1, 0, 1], [1, -1, 0, 1], [1, 1, 0, 1]]])
    tri = torch.tensor([[0, 1, 2], [0, 2, 3], [1, 4, 5], [1, 5, 2]], dtype=torch.int32)
    for exact_legacy in (False, True):
        rast, _ = raster(pos, tri, (16, 16), exact_legacy=exact_legacy)
        assert (rast[0, :, 8, 3] >= 3).all()  # right of the edge, or on it: the half-open rule
        assert (rast[0, :, 7, 3] <= 2).all()
    right = pos.clone()
    right[:, [1, 2], 0] += 2 * (1 / 40 + 1 / 40) / 16  # now right of the centres
    assert (raster(right, tri, (16, 16))[0][0, :, 8, 3] <= 2).all()
    assert (raster(right, tri, (16, 16), exact_legacy=True)[0][0, :, 8, 3] >= 3).all()


def test_halves_of_sixteenths_are_rounded_to_even():
    """Edges at 0.5 + 1/32 and 0.5 - 1/32 pixels go to 0.5, onto the centres of column 8: these are right of them."""
    tri = torch.tensor([[0, 1, 2], [0, 2, 3], [1, 4, 5], [1, 5, 2]], dtype=torch.int32)
    for offset, column in ((1 / 32, 8), (-1 / 32, 8), (3 / 32, 9), (-3 / 32, 8)):
        x = (0.5 + offset) / 8
        pos = torch.tensor([[[-1, -1, 0, 1], [x, -1, 0, 1], [x, 1, 0, 1], [-1, 1, 0, 1], [1, -1, 0, 1], [1, 1, 0, 1]]])
        rast, _ = raster(pos, tri, (16, 16), exact_legacy=True)
        assert (rast[0, :, column:, 3] >= 3).all()
        assert (rast[0, :, :column, 3] <= 2).all()


def test_a_triangle_without_area_that_rounding_gives_one():
    """Corners on a line that 1/16 pixel bends over a pixel centre: finite values, rast_db is not. Here: nothing."""
    places = torch.tensor([[-1, -6 / 16], [0, -6 / 16 - 5 / 64], [2, -6 / 16 - 15 / 64]], dtype=F64)  # from the centre
    pos = torch.cat([places / 2, torch.zeros(3, 1, dtype=F64), torch.ones(3, 1, dtype=F64)], 1)[None].requires_grad_()
    tri = torch.tensor([[0, 1, 2]])
    rast, rast_db = raster(pos, tri, (4, 4), exact_legacy=True)
    assert torch.nonzero(rast[0, :, :, 3]).tolist() == [[1, 2]]
    assert torch.isfinite(rast).all()
    assert not torch.isfinite(rast_db[0, 1, 2]).any()
    (grad,) = torch.autograd.grad(rast[..., 0].sum(), pos)
    assert torch.isfinite(grad).all()
    for output in raster(pos, tri, (4, 4)):
        assert not output.any()


@pytest.mark.parametrize("seed", range(3))
def test_legacy_gradients_follow_the_specification(seed):
    pos, tri = loose_triangles(40 + seed, batch=2)
    size = (9, 10)
    pos.requires_grad_()
    rast, rast_db = raster(pos, tri, size, exact_legacy=True)
    weights = [rnd(*rast.shape, seed=k, dtype=F64) for k in (1, 2)]
    (grad,) = torch.autograd.grad([rast, rast_db], pos, weights)
    shown = rast[..., 3].detach().numpy().astype(np.int64)
    truth = specification.rasterize_backward(pos.detach().numpy(), tri.numpy(), shown, *(w.numpy() for w in weights))
    assert relative_error(grad, torch.from_numpy(truth)) < 1e-9
    assert not grad[..., 2].any()
    assert truth.any()


def test_small_triangles_lose_their_gradient_to_the_epsilon_there_and_keep_it_here():
    """S = twice the area, in clip units, = 1e-6: half of the gradient."""
    pos = torch.tensor([[[-0.3, -0.3, 0, 1], [0.7, -0.3, 0, 1], [-0.3, 0.7, 0, 1]]], dtype=F64) * 1e-3
    tri = torch.tensor([[0, 1, 2]])

    def gradient(exact_legacy):
        leaf = pos.clone().requires_grad_()
        rast, _ = raster(leaf, tri, (1, 1), exact_legacy=exact_legacy)
        assert rast[0, 0, 0, 3] == 1
        return torch.autograd.grad(rast[0, 0, 0, 0], leaf)[0]

    ours, legacy = gradient(False), gradient(True)

    def weight_of_corner_0(p):
        x, y = p[0, :, 0], p[0, :, 1]
        parts = [x[j] * y[k] - y[j] * x[k] for j, k in ((1, 2), (2, 0), (0, 1))]
        return parts[0] / sum(parts)

    exact = torch.autograd.functional.jacobian(weight_of_corner_0, pos)
    assert relative_error(ours, exact) < 1e-9
    assert 0.4 < (legacy.norm() / exact.norm()) < 0.8


def test_depth_has_a_gradient_here_and_none_there():
    pos, tri = loose_triangles(50)
    for exact_legacy, moves in ((False, True), (True, False)):
        leaf = pos.clone().requires_grad_()
        rast, _ = raster(leaf, tri, (8, 8), exact_legacy=exact_legacy)
        (grad,) = torch.autograd.grad(rast[..., 2].sum(), leaf, allow_unused=True)
        assert bool(grad is not None and grad.any()) == moves


@MODES
def test_the_switch_is_what_calls_use_that_say_nothing(exact_legacy):
    pos, tri = loose_triangles(51)
    truth = raster(pos, tri, (16, 16), exact_legacy=exact_legacy)[0]
    assert not torch.equal(truth, raster(pos, tri, (16, 16), exact_legacy=not exact_legacy)[0])
    assert dr.get_exact_legacy() is False
    try:
        dr.set_exact_legacy(exact_legacy)
        assert torch.equal(raster(pos, tri, (16, 16))[0], truth)
        assert torch.equal(raster(pos, tri, (16, 16), exact_legacy=exact_legacy)[0], truth)
    finally:
        dr.set_exact_legacy(False)
    with pytest.raises(TypeError, match="enabled must be True or False"):
        dr.set_exact_legacy("yes")  # pyright: ignore[reportArgumentType]


@MODES
def test_hostile_scenes_stay_finite(exact_legacy):
    """Degenerate, huge, NaN and infinite triangles, or behind the camera, do no harm to values and gradients."""
    for seed in range(60):
        pos, tri, size = random_scene(seed, F64)
        leaf = pos[None].clone().requires_grad_()
        rast, rast_db = raster(leaf, tri, size, exact_legacy=exact_legacy)
        assert torch.isfinite(rast).all()
        assert (rast[..., :2] >= 0).all()
        assert (rast[..., 2].abs() <= 1).all()
        (grad,) = torch.autograd.grad(rast, leaf, torch.ones_like(rast))
        assert torch.isfinite(grad).all(), seed
        if not exact_legacy:
            assert torch.isfinite(rast_db).all()
