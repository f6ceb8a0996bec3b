"""split_sum: values, bounds, gradients."""

import pytest
import torch

import diffrender as dr
from diffrender.ops.split_sum import reflected_share
from tests.support.vocabulary import uniform

F64 = torch.float64


@pytest.mark.parametrize(
    ("roughness", "cosine", "scale", "bias"),
    [(0.5, 0.5, 0.8345, 0.0224), (0.3, 0.1, 0.5630, 0.3214), (1.0, 0.95, 0.3167, 0.0001), (0.8, 0.95, 0.5577, 0.00015)],
)
def test_split_sum_has_the_reference_numbers(roughness, cosine, scale, bias):
    """From brute force with 3000 x 6000 directions of light and, independently, 3000 x 3000 half vectors."""
    found = dr.split_sum(torch.tensor(cosine, dtype=F64), torch.tensor(roughness, dtype=F64))
    assert found[0].item() == pytest.approx(scale, abs=1e-3)
    assert found[1].item() == pytest.approx(bias, abs=1e-3)


def test_split_sum_gradient_is_continuous_and_bounds_have_none():
    cosine = uniform(5, low=0.1, high=0.95, seed=1, dtype=F64).requires_grad_()
    roughness = uniform(5, low=0.1, high=0.95, seed=2, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(reflected_share, (cosine, roughness))
    outside = torch.tensor([-0.5, 1.5], dtype=F64, requires_grad=True)
    sum(dr.split_sum(outside, torch.full((2,), 0.5, dtype=F64))).sum().backward()
    assert not outside.grad.any()
