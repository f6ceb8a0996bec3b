"""The vectors of the CPU give the numbers of the portable kernels; many taps and hostile arguments."""

import pytest
import torch

import diffrender as dr
from tests.ops.test_texture import FILTERS, WRAPS
from tests.support.vocabulary import relative_error, rnd, uniform

F32, F64 = torch.float32, torch.float64
LOOKUPS = 147  # more than two blocks, and no multiple of a vector
MODES = {
    "linear": {},
    "mip_linear": {"derivatives": True},
    "anisotropic": {"derivatives": True, "max_anisotropy": 3},
}


def look_up(texels, uv, steps, derivatives=False, **options):
    return dr.texture(texels, uv, texcoord_derivatives=steps if derivatives else None, wrap="clamp", **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 8, 12, 21])
def test_vectors_equal_the_portable_kernel_bit_for_bit(mode, channels):
    """One lookup of one channel at a time is no vector: a batch of single lookups into a shared texture of one channel.

    A cotangent in one channel makes a sum over the channels that rounds nowhere.
    """
    texels = rnd(20, 17, channels)
    uv, steps = uniform(1, 1, LOOKUPS, 2, low=-0.2, high=1.2, seed=1), 0.2 * rnd(1, 1, LOOKUPS, 4, seed=2)
    cotangent = rnd(LOOKUPS, seed=3)
    block_uv = uv.clone().requires_grad_()
    blocks = look_up(texels, block_uv, steps, **MODES[mode])
    for c in range(channels):
        one_uv = uv.view(LOOKUPS, 1, 1, 2).clone().requires_grad_()
        one = look_up(texels[..., c : c + 1], one_uv, steps.view(LOOKUPS, 1, 1, 4), **MODES[mode]).view(LOOKUPS)
        assert torch.equal(blocks[0, 0, :, c], one)
        (grad_one,) = torch.autograd.grad(one, one_uv, cotangent)
        (grad_block,) = torch.autograd.grad(blocks[0, 0, :, c], block_uv, cotangent, retain_graph=True)
        assert grad_one.any()
        assert torch.equal(grad_block.view(LOOKUPS, 2), grad_one.view(LOOKUPS, 2))


def values_and_gradient(texels, uv, cotangent, steps=None, **options):
    leaf = uv.clone().requires_grad_()
    values = dr.texture(texels, leaf, texcoord_derivatives=steps, **options)
    return values, torch.autograd.grad(values, leaf, cotangent)[0]


@pytest.mark.parametrize("wrap", [*WRAPS, ("repeat", "mirror")])
@pytest.mark.parametrize("mode", MODES)
def test_many_lookups_of_a_small_texture_equal_few_bit_for_bit(mode, wrap):
    """Many lookups read small levels from copies with a border, few read the levels themselves."""
    options = {k: v for k, v in MODES[mode].items() if k != "derivatives"}
    for channels, size, dtype in (
        (1, (9, 6), F32),
        (2, (1, 7), F32),
        (3, (6, 9), F32),
        (4, (9, 4), F32),
        (9, (5, 5), F32),
        (2, (8, 3), F64),
    ):
        texels = rnd(2, *size, channels, dtype=dtype)
        uv = uniform(2, 40, 13, 2, low=-1.2, high=2.2, seed=1, dtype=dtype)
        uv[0, 3, 5, 0] = float("nan")
        steps = 0.2 * rnd(2, 40, 13, 4, seed=2, dtype=dtype) if "derivatives" in MODES[mode] else None
        if steps is not None:  # one to four channels have loops of their own for lookups of the same levels
            steps[:, 10:20] = torch.tensor([0.3, 0.1, 0, 0.3], dtype=dtype)
            steps[:, 20:30] = 0.02
        cotangent = rnd(2, 40, 13, channels, seed=3, dtype=dtype)
        values, grad = values_and_gradient(texels, uv, cotangent, steps, wrap=wrap, **options)
        assert grad.any()
        for k in range(40):
            one = None if steps is None else steps[:, k : k + 1]
            few = values_and_gradient(texels, uv[:, k : k + 1], cotangent[:, k : k + 1], one, wrap=wrap, **options)
            assert torch.equal(few[0], values[:, k : k + 1])
            assert torch.equal(few[1], grad[:, k : k + 1])


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("order", ["in_a_row", "all_over"])
def test_one_channel_equals_the_first_of_two_bit_for_bit(order, wrap):
    """One channel without mips has a loop of its own, which asks ahead for texels of a large texture."""
    texels = rnd(2, 300, 450, 2)
    uv = uniform(2, 37, 61, 2, low=-1.2, high=2.2, seed=1)
    if order == "in_a_row":
        uv = uv.sort(2).values
    uv[1, 20, 30] = float("inf")
    cotangent = torch.zeros(2, 37, 61, 2)
    cotangent[..., 0] = rnd(2, 37, 61, seed=3)
    both, grad_both = values_and_gradient(texels, uv, cotangent, wrap=wrap)
    one, grad_one = values_and_gradient(texels[..., :1], uv, cotangent[..., :1], wrap=wrap)
    assert grad_one.any()
    assert torch.equal(one, both[..., :1])
    assert torch.equal(grad_one, grad_both)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 16])
def test_vectors_of_float32_follow_the_scalars_of_float64(mode, channels):
    texels = rnd(2, 33, 18, channels, dtype=F64)
    uv, steps = uniform(2, 9, 11, 2, low=-0.2, high=1.2, seed=1, dtype=F64), 0.2 * rnd(2, 9, 11, 4, seed=2, dtype=F64)
    results = []
    for dtype in (torch.float32, F64):
        leaves = [x.to(dtype).requires_grad_() for x in (texels, uv, steps)]
        value = look_up(leaves[0], leaves[1], leaves[2], **MODES[mode])
        grads = torch.autograd.grad((value * rnd(*value.shape, seed=3, dtype=dtype)).sum(), leaves, allow_unused=True)
        results.append([value, *(grad for grad in grads if grad is not None)])
    for single, double in zip(*results, strict=True):
        # Coordinates of 33 texels keep 18 bits of their fraction; a few lookups are next to a bend of the filter.
        difference = (single.double() - double).abs() / double.abs().max()
        assert difference.flatten().quantile(0.98) < 3e-5


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_coarse_level_does_not_reach_the_gradient_of_lookups_without_a_share_of_it(bad, channels, dtype):
    """One lookup of a block lies between two levels; the others read the finest one alone, and no bad texel of it."""
    texels, between = rnd(5, 5, channels, dtype=dtype), 7
    texels[2, 2] = bad  # in all four texels of the next level
    uv = uniform(1, 1, LOOKUPS, 2, low=0.0, high=0.25, seed=1, dtype=dtype)
    steps = torch.zeros(1, 1, LOOKUPS, 4, dtype=dtype)
    steps[0, 0, between] = torch.tensor([0.3, 0, 0, 0.3], dtype=dtype)
    cotangent = rnd(1, 1, LOOKUPS, channels, seed=3, dtype=dtype)
    others = torch.arange(LOOKUPS) != between
    _, level_0 = values_and_gradient(texels, uv, cotangent, None)
    for options in ({}, {"max_anisotropy": 2}):
        for with_steps in (False, True):  # the gradient of the footprint reads the coarser level of every lookup
            values, grad = values_and_gradient(
                texels, uv, cotangent, steps.clone().requires_grad_(with_steps), **options
            )
            assert values[0, 0, others].isfinite().all()
            assert not values[0, 0, between].isfinite().any()
            assert not grad[0, 0, between].isfinite().any()
            assert torch.allclose(grad[0, 0, others], level_0[0, 0, others], rtol=1e-4, atol=1e-5)


def test_order_free_sum_of_many_taps_on_one_texel_does_not_overflow():
    """64 taps on two levels of 1 x 1 texel: 512 equal contributions of a lookup to the same sum."""
    lookups = 3000
    texels, uv = torch.zeros(1, 1, 1, 1), torch.full((1, 1, lookups, 2), 0.75)
    steps = torch.tensor([4.0, 0, 0, 1.0]).expand(1, 1, lookups, 4).contiguous()
    grad = torch.ones(1, 1, lookups, 1)
    arguments = (texels, torch.zeros(1, 0, 1), uv, steps, None, grad, 3, 0, 0, 0, 64, True, False, False, False, False)
    for scatter in (0, 1):
        sums = torch.ops.diffrender.texture_backward(*arguments, scatter)[0]
        assert sums.item() == pytest.approx(lookups, rel=1e-5)


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 1), (64, 65)])
def test_hostile_coordinates_give_finite_numbers(filter, wrap, size):
    texels = (1 + rnd(2, *size, 3).abs()).requires_grad_()
    special = [float("nan"), float("inf"), -float("inf"), 1e6 + 0.25, -1e6, 3e38, -3e38, 1e-45, -0.0, 1.0, 0.5]
    values = torch.tensor(special)
    uv = torch.stack(torch.meshgrid(values, values, indexing="ij"), -1).expand(2, -1, -1, -1).clone().requires_grad_()
    steps = torch.tensor([[1e30, 0, 0, 1], [float("nan"), 0, 0, 1], [0.0, 0, 0, 0], [float("inf"), 1, 1, 1],
                          [1e-40, 0, 0, 1e-40], [1e38, -1e38, 1e38, 1e38]])  # fmt: skip
    steps = steps.repeat(21, 1)[: len(special) ** 2].view(1, len(special), len(special), 4).expand(2, -1, -1, -1)
    taps = 5 if filter == "mip_linear" else 1
    options = {"texcoord_derivatives": steps, "max_anisotropy": taps} if filter.startswith("mip") else {}
    result = dr.texture(texels, uv, filter=filter, wrap=wrap, **options)
    assert result.isfinite().all()
    assert not result[~uv.detach().isfinite().all(-1)].any()
    assert (result <= texels.max() * (1 + 1e-6)).all()
    grad_texels, grad_uv = torch.autograd.grad(result.sum(), (texels, uv), allow_unused=True)
    assert grad_texels.isfinite().all()
    assert grad_uv.isfinite().all()
    assert not grad_uv[~uv.detach().isfinite()].any()
    if wrap != "zero":
        finite = uv.detach().isfinite().all(-1).sum().item()
        assert relative_error(grad_texels.sum(), torch.tensor(3.0 * finite)) < 1e-5


def test_strided_and_broadcast_arguments_equal_dense_ones():
    texels = rnd(3, 12, 10, 2).permute(0, 2, 1, 3)[:, ::2]
    uv = uniform(1, 2, 7, 6, low=-1, high=2).permute(0, 3, 2, 1)[:, ::3].expand(3, -1, -1, -1)
    steps = (0.1 * rnd(1, 1, 1, 4)).expand(3, *uv.shape[1:3], 4)
    dense = dr.texture(texels.contiguous(), uv.contiguous(), texcoord_derivatives=steps.contiguous())
    assert torch.equal(dr.texture(texels, uv, texcoord_derivatives=steps), dense)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_refused_with_a_message(dtype):
    with pytest.raises(TypeError, match="texture: texture must be float32 or float64"):
        dr.texture(torch.zeros(2, 2, 1, dtype=dtype), torch.zeros(1, 1, 2, dtype=dtype))
