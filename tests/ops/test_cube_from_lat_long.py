"""cube_from_lat_long: orientation, conservation of constants and energy, poles."""

import math

import pytest
import torch

import diffrender as dr
from diffrender.ops._cube import cube_texels
from diffrender.ops.irradiance_sh import _lat_long_texels
from tests.support.vocabulary import rnd

F64 = torch.float64


@pytest.mark.parametrize(("shape", "size"), [((4, 8, 3), 4), ((1, 1, 1), 3), ((7, 13, 2), 5), ((64, 128, 1), 8)])
def test_constant_stays_constant(shape, size):
    assert torch.allclose(dr.cube_from_lat_long(torch.full(shape, 3.0), size), torch.tensor(3.0), rtol=1e-5)


def test_directions_agree_with_the_cube():
    """A smooth function of the direction, painted on both: every face shows the right part the right way up."""

    def paint(directions):
        x, y, z = directions.unbind(-1)
        return torch.stack([1 + x * y, 2 + z - x, torch.exp(y)], -1)

    cube = dr.cube_from_lat_long(paint(_lat_long_texels(64, 128)[0]), 32)
    # Bilinear interpolation between texels of 3 degrees, and the mean over a texel instead of its centre.
    assert (cube - paint(cube_texels(32)[0])).abs().max() < 2e-3


def test_poles_and_seam_are_no_borders():
    """y and z are smooth there; a clamped pole or an unwrapped seam would be off by half a texel (0.05)."""
    directions = _lat_long_texels(32, 64)[0]
    cube = dr.cube_from_lat_long(directions, 64)
    assert (cube - cube_texels(64)[0]).abs().max() < 5e-3


def test_energy_of_every_texel_is_kept():
    """The cube holds the integral of the panorama: texel by texel within what a midpoint sum can (rms 3 percent), row
    by row to 5e-3. The rows at the poles get what their bilinear hats reach over the pole, 8 percent more; the next
    ones, where texels are narrowest, are within 3 percent."""
    panorama = torch.zeros(32, 64, 1, dtype=F64, requires_grad=True)
    cube = dr.cube_from_lat_long(panorama, 16)
    (weight,) = torch.autograd.grad((cube[..., 0] * cube_texels(16)[1]).sum(), panorama)
    error = weight[..., 0] / _lat_long_texels(32, 64)[1] - 1
    assert error[1:-1].square().mean().sqrt() < 0.04
    assert error[1:-1].abs().max() < 0.2
    assert error.mean(1)[2:-2].abs().max() < 5e-3
    assert error.mean(1)[[1, -2]].abs().max() < 0.03
    assert error.mean(1)[[0, -1]].abs().max() < 0.1


def test_default_size_keeps_the_resolution():
    assert dr.cube_from_lat_long(torch.rand(2, 32, 64, 3)).shape == (2, 6, 16, 16, 3)
    assert dr.cube_from_lat_long(torch.rand(1, 2, 1)).shape == (6, 1, 1, 1)


def test_batch_equals_single_pictures():
    panorama = rnd(3, 6, 12, 2)
    cubes = dr.cube_from_lat_long(panorama, 4)
    for k in range(3):
        assert torch.equal(cubes[k], dr.cube_from_lat_long(panorama[k], 4))


@pytest.mark.parametrize(("row", "column", "towards"), [(0, 5, (0, 1, 0)), (7, 5, (0, -1, 0)), (4, 8, (0, 0, -1))])
def test_bright_texel_is_found_where_it_was(row, column, towards):
    panorama = torch.zeros(8, 16, 1)
    panorama[row, column] = 1
    cube = dr.cube_from_lat_long(panorama, 16).reshape(-1)
    brightest = cube_texels(16)[0].reshape(-1, 3)[cube.argmax()]
    assert math.degrees(math.acos(float(brightest @ torch.tensor(towards, dtype=F64)))) < 25


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 2), (4, 8), (16, 32)])
def test_order_free_gradient_of_texels_that_see_the_same_part_of_the_panorama(height, width, size):
    """A texel near a pole adds to a texel of the panorama hundreds of times: its integers must not overflow."""
    above = torch.zeros(1, 6, size, size, 1, dtype=F64)
    above[0, 2, size // 2, size // 2] = 1
    for grad in (torch.ones_like(above), above):
        plain, order_free = (
            torch.ops.diffrender.cube_from_lat_long_backward(grad, height, width, algorithm) for algorithm in (0, 1)
        )
        assert plain.any()
        assert (plain - order_free).abs().max() < 1e-9 * plain.abs().max()


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize(("height", "width", "size"), [(32, 64, 16), (9, 17, 5), (8, 16, 16), (1, 1, 3), (40, 80, 1)])
def test_packets_of_float32_agree_with_the_numbers_of_float64(channels, height, width, size):
    generator = torch.Generator().manual_seed(2)
    panorama = torch.rand(2, height, width, channels, generator=generator, requires_grad=True)
    ours = dr.cube_from_lat_long(panorama, size)
    exact = dr.cube_from_lat_long(panorama.double(), size)
    torch.testing.assert_close(ours, exact.float(), rtol=0, atol=1e-5)
    cotangent = torch.rand(ours.shape, generator=generator)
    gradient, truth = (torch.autograd.grad(cube, panorama, cotangent.to(cube.dtype))[0] for cube in (ours, exact))
    torch.testing.assert_close(gradient, truth, rtol=1e-4, atol=1e-5)
    # Shares of a texel add up to 1.
    torch.testing.assert_close(gradient.sum(), cotangent.sum(), rtol=1e-4, atol=0)
