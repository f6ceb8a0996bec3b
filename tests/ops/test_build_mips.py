"""What is special to build_mips: constants, means, sizes."""

import pytest
import torch

import diffrender as dr
from tests.support.vocabulary import g, rnd

F64 = torch.float64
SIDES = (1, 2, 3, 4, 5, 7, 8, 12, 13, 17)


@pytest.mark.parametrize("height", SIDES)
@pytest.mark.parametrize("width", SIDES)
def test_constants_stay_and_means_are_kept_at_any_size(height, width):
    texture = rnd(2, height, width, 3, dtype=F64)
    levels = dr.build_mips(texture)
    assert len(levels) == max(height, width).bit_length() - 1
    for k, (level, flat) in enumerate(zip(levels, dr.build_mips(torch.full_like(texture, 0.7)), strict=True), start=1):
        assert level.shape == (2, max(1, height >> k), max(1, width >> k), 3)
        torch.testing.assert_close(level.mean((1, 2)), texture.mean((1, 2)), rtol=1e-13, atol=1e-13)
        assert (flat - 0.7).abs().max() < 1e-15


def test_powers_of_two_are_means_of_four():
    texture = rnd(1, 8, 4, 2, dtype=F64)
    first = dr.build_mips(texture)[0]
    pooled = torch.nn.functional.avg_pool2d(texture.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    torch.testing.assert_close(first, pooled, rtol=1e-15, atol=1e-15)


def test_five_texels_become_two_by_shares_of_area():
    texture = torch.tensor([1.0, 10.0, 100.0, 1000.0, 10000.0], dtype=F64)[None, :, None]
    level = dr.build_mips(texture)[0][0, :, 0]
    truth = torch.tensor([1 + 10 + 50.0, 50 + 1000 + 10000.0], dtype=F64) / 2.5
    torch.testing.assert_close(level, truth, rtol=1e-15, atol=0)


def test_gradient_of_every_level_is_the_transpose():
    texture = rnd(1, 13, 6, 2, dtype=F64)
    levels = dr.build_mips(texture)
    for k, level in enumerate(levels):
        weights = rnd(*level.shape, seed=k, dtype=F64)
        grad = g(lambda x, k=k, w=weights: (dr.build_mips(x)[k] * w).sum(), texture)
        torch.testing.assert_close((grad * texture).sum(), (weights * level).sum(), rtol=1e-13, atol=1e-13)
        # A filter with weights that add to one hands on the whole of its cotangent, scaled by the share of texels.
        torch.testing.assert_close(grad.sum(), weights.sum(), rtol=1e-12, atol=1e-12)


def test_a_single_texel_has_no_levels():
    assert dr.build_mips(torch.ones(1, 1, 3)) == ()
    assert dr.build_mips(torch.ones(4, 4, 3), max_level=0) == ()
