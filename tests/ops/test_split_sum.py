"""split_sum: against brute force and against autograd of its interpolation, bounds, transforms, refusals."""

import pytest
import torch

import diffrender as dr
from diffrender.ops.split_sum import _refined, reflected_share
from tests.reference import split_sum as reference
from tests.support.contract import QUIET
from tests.support.vocabulary import rnd, uniform

F64 = torch.float64


def places(count=64):
    """Within the bounds, on them, and beyond."""
    cosine, roughness = (uniform(count, low=-0.1, high=1.1, seed=k, dtype=F64) for k in (1, 2))
    cosine[:4], roughness[2:6] = torch.tensor([0, 1e-4, 1, 0.5]), torch.tensor([0, 1, 0, 1])
    return cosine, roughness


@pytest.mark.parametrize(
    ("roughness", "cosine", "scale", "bias"),
    [(0.5, 0.5, 0.8345, 0.0224), (0.3, 0.1, 0.5630, 0.3214), (1.0, 0.95, 0.3167, 0.0001), (0.8, 0.95, 0.5577, 0.00015)],
)
def test_split_sum_has_the_reference_numbers(roughness, cosine, scale, bias):
    """From brute force with 3000 x 6000 directions of light and, independently, 3000 x 3000 half vectors."""
    found = dr.split_sum(torch.tensor(cosine, dtype=F64), torch.tensor(roughness, dtype=F64))
    assert found[0].item() == pytest.approx(scale, abs=1e-3)
    assert found[1].item() == pytest.approx(bias, abs=1e-3)


def test_values_are_the_integrals_between_the_nodes_too():
    for cosine, roughness in zip(*(uniform(5, low=0.02, high=1, seed=k, dtype=F64) for k in (3, 4)), strict=True):
        roughness = roughness.clamp(min=0.2)
        truth = reference.integrals(float(cosine), float(roughness))
        assert reflected_share(cosine, roughness).tolist() == pytest.approx(truth, abs=1e-3), (cosine, roughness)


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-11), (torch.float32, 2e-4)])
def test_values_and_gradients_equal_the_reference(dtype, tolerance):
    """Places beyond the bounds have the value at the bound; there and on a bound gradients may be one-sided."""
    inputs = [x.to(dtype) for x in places()]
    weights = rnd(len(inputs[0]), 3, seed=9, dtype=dtype)
    leaves, true_leaves = ([x.detach().clone().requires_grad_() for x in inputs] for _ in range(2))
    value = reflected_share(*leaves)
    truth = reference.look_up(_refined(64).to(dtype), *true_leaves)
    assert value.dtype == dtype
    torch.testing.assert_close(value, truth, rtol=tolerance, atol=tolerance)
    grads, true_grads = (
        torch.autograd.grad((x * weights).sum(), y) for x, y in ((value, leaves), (truth, true_leaves))
    )
    for grad, true_grad, x in zip(grads, true_grads, inputs, strict=True):
        inside = (x > 1e-3) & (x < 0.999)
        assert inside.any()
        scale = true_grad[inside].abs().max()
        assert ((grad - true_grad)[inside].abs() <= 10 * tolerance * scale).all()
        outside = (x < 0) | (x > 1)
        assert outside.any()
        assert not grad[outside].any()


def test_split_sum_gradient_is_continuous_and_bounds_have_none():
    cosine = uniform(5, low=0.1, high=0.95, seed=1, dtype=F64).requires_grad_()
    roughness = uniform(5, low=0.1, high=0.95, seed=2, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(reflected_share, (cosine, roughness))
    outside = torch.tensor([-0.5, 1.5], dtype=F64, requires_grad=True)
    sum(dr.split_sum(outside, torch.full((2,), 0.5, dtype=F64))).sum().backward()
    assert not outside.grad.any()


def test_broadcasts_and_gives_each_argument_its_sum():
    cosine = uniform(3, 1, low=0.1, high=0.9, seed=5, dtype=F64).requires_grad_()
    roughness = uniform(4, low=0.1, high=0.9, seed=6, dtype=F64).requires_grad_()
    assert [x.shape for x in dr.split_sum(cosine, roughness)] == [(3, 4)] * 2
    assert torch.autograd.gradcheck(dr.split_sum, (cosine, roughness))


@QUIET
def test_forward_mode_is_the_transpose_of_reverse_mode():
    inputs = [uniform(20, low=0.05, high=0.95, seed=k, dtype=F64) for k in (7, 8)]
    tangents = [rnd(20, seed=k, dtype=F64) for k in (17, 18)]
    value, product = torch.func.jvp(reflected_share, tuple(inputs), tuple(tangents))
    weights = rnd(*value.shape, seed=3, dtype=F64)
    grads = torch.func.grad(lambda *x: (reflected_share(*x) * weights).sum(), argnums=(0, 1))(*inputs)
    expected = sum((g * t).sum() for g, t in zip(grads, tangents, strict=True))
    torch.testing.assert_close((product * weights).sum(), expected, rtol=1e-12, atol=1e-12)
    alone = torch.func.jvp(lambda x: reflected_share(x, inputs[1]), (inputs[0],), (tangents[0],))[1]
    expected = torch.func.grad(lambda x: (reflected_share(x, inputs[1]) * weights).sum())(inputs[0]) * tangents[0]
    torch.testing.assert_close((alone * weights).sum(), expected.sum(), rtol=1e-12, atol=1e-12)


@QUIET
def test_vmap_and_compile_equal_eager():
    inputs = [uniform(4, 5, low=0.05, high=0.95, seed=k, dtype=F64) for k in (1, 2)]
    truth = reflected_share(*inputs)
    torch.testing.assert_close(torch.func.vmap(reflected_share)(*inputs), truth, rtol=1e-14, atol=1e-14)
    torch._dynamo.reset()
    compiled = torch.compile(reflected_share, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), truth, rtol=1e-14, atol=1e-14)


def test_second_derivatives_are_refused_and_wrong_types_named():
    leaf = torch.tensor(0.5, dtype=F64, requires_grad=True)
    (grad,) = torch.autograd.grad(dr.split_sum(leaf, leaf)[0], leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="split_sum"):
        grad.backward()
    with pytest.raises(TypeError, match="split_sum: cosine must"):
        dr.split_sum(torch.tensor(1), leaf)
    with pytest.raises(TypeError, match="split_sum: roughness is torch.float32 but cosine is torch.float64"):
        dr.split_sum(leaf, leaf.float())
