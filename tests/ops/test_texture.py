"""What is special to texture: agreement with grid_sample, precision, levels, taps, sums of many pixels."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import diffrender as dr
from tests.reference import texture as reference
from tests.support.vocabulary import g, relative_error, rnd, uniform

F64 = torch.float64
FILTERS = ("nearest", "linear", "mip_nearest", "mip_linear")
WRAPS = ("repeat", "clamp", "mirror", "zero")
PADDING = {"clamp": "border", "zero": "zeros", "mirror": "reflection"}


@pytest.mark.parametrize("wrap", PADDING)
@pytest.mark.parametrize("filter", ["nearest", "linear"])
@pytest.mark.parametrize("channels", [1, 3, 6])
def test_equals_grid_sample_where_the_two_overlap(wrap, filter, channels):
    """Values and both gradients, odd sizes, coordinates up to two textures outside."""
    texels = rnd(2, 5, 8, channels, dtype=F64).requires_grad_()
    uv = uniform(2, 20, 30, 2, low=-2, high=3, dtype=F64).requires_grad_()
    ours = dr.texture(texels, uv, filter=filter, wrap=wrap)
    mode = {"linear": "bilinear"}.get(filter, filter)
    options = {"mode": mode, "padding_mode": PADDING[wrap], "align_corners": False}
    theirs = F.grid_sample(texels.permute(0, 3, 1, 2), 2 * uv - 1, **options).permute(0, 2, 3, 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    weights = rnd(*ours.shape, seed=1, dtype=F64)
    for ours_grad, theirs_grad in zip(
        *(torch.autograd.grad((x * weights).sum(), (texels, uv)) for x in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("wraps", list(itertools.product(WRAPS, WRAPS[:2])) + [("repeat", "zero"), ("zero", "mirror")])
@pytest.mark.parametrize("size", [(1, 1), (4, 7), (1, 6)])
def test_gradcheck_of_every_filter_and_wrap(filter, wraps, size):
    texels = rnd(1, *size, 2, dtype=F64).requires_grad_()
    uv = uniform(2, 2, 3, 2, low=-1.4, high=2.3, seed=1, dtype=F64).requires_grad_()
    per_texel = torch.tensor([1 / size[1], 1 / size[1], 1 / size[0], 1 / size[0]], dtype=F64)
    steps = (2 * rnd(2, 2, 3, 4, seed=2, dtype=F64) * per_texel).requires_grad_()
    for taps in (1, 3) if filter.startswith("mip") else (1,):

        def call(texels, uv, steps, taps=taps):
            options = {"texcoord_derivatives": steps, "max_anisotropy": taps} if filter.startswith("mip") else {}
            return dr.texture(texels, uv, filter=filter, wrap=wraps, **options)

        inputs = (texels, uv, steps) if filter.startswith("mip") else (texels, uv, steps.detach())
        assert torch.autograd.gradcheck(call, inputs)


def test_random_sizes_equal_the_reference():
    generator = torch.Generator().manual_seed(3)
    for case in range(60):
        height, width, channels = (int(torch.randint(1, 18, (), generator=generator)) for _ in range(3))
        filter, wrap = FILTERS[case % 4], (WRAPS[case // 4 % 4], WRAPS[case // 16 % 4])
        texels = rnd(2 if case % 3 else 1, height, width, channels, seed=case, dtype=F64)
        uv = uniform(2, 7, 9, 2, low=-2, high=3, seed=case, dtype=F64)
        steps = 0.2 * rnd(2, 7, 9, 4, seed=case, dtype=F64)
        weights = rnd(2, 7, 9, channels, seed=case + 1, dtype=F64)
        options = {"max_anisotropy": 1 + case % 5} if filter.startswith("mip") else {}
        results = []
        for op in (dr.texture, reference.texture):
            leaves = [x.clone().requires_grad_() for x in (texels, uv, steps)]
            chosen = {"texcoord_derivatives": leaves[2], **options} if options else {}
            values = op(leaves[0], leaves[1], filter=filter, wrap=wrap, **chosen)
            grads = torch.autograd.grad((values * weights).sum(), leaves, allow_unused=True, materialize_grads=True)
            results.append([values, *grads])
        for value, truth in zip(*results, strict=True):
            # Where the truth is zero but for rounding (a side of one texel), absolute.
            assert (value - truth).abs().max() < 1e-10 * truth.abs().max().clamp(min=1e-2), (case, filter, wrap)


def test_level_is_log2_of_the_largest_singular_value():
    """Levels that hold their own index return the level; a shear has no long column but a long axis."""
    mips = [torch.full((1, 64 >> k, 64 >> k, 1), float(k), dtype=F64) for k in range(7)]
    steps = 0.05 * rnd(1, 20, 20, 4, dtype=F64)
    uv = uniform(1, 20, 20, 2, dtype=F64)
    level = dr.texture(mips[0], uv, texcoord_derivatives=steps, mips=mips[1:])[..., 0]
    singular = torch.linalg.svdvals(64 * steps.reshape(1, 20, 20, 2, 2))
    torch.testing.assert_close(level, singular[..., 0].log2().clamp(0, 6), rtol=1e-12, atol=1e-12)
    # With taps the level belongs to what they leave of the major axis.
    shortened = torch.maximum(singular[..., 0] / 4, singular[..., 1])
    level = dr.texture(mips[0], uv, texcoord_derivatives=steps, mips=mips[1:], max_anisotropy=4)[..., 0]
    torch.testing.assert_close(level, shortened.log2().clamp(0, 6), rtol=1e-12, atol=1e-12)
    floor = dr.texture(mips[0], uv, texcoord_derivatives=steps, mips=mips[1:], filter="mip_nearest")[..., 0]
    assert torch.equal(floor, singular[..., 0].log2().clamp(0, 6).floor())


def test_anisotropic_taps_keep_detail_across_the_axis():
    """Stripes along v, footprint 16 texels long in v and one in u: the average over the footprint is the stripe."""
    stripes = (torch.arange(64) % 4 < 2).to(F64)[None, None, :, None].expand(1, 64, 64, 1)
    u = (torch.arange(64, dtype=F64) + 0.5) / 64
    uv = torch.stack([u, torch.full_like(u, 0.5)], -1)[None, None]
    steps = torch.tensor([1 / 64, 0, 0, 16 / 64], dtype=F64).expand(1, 1, 64, 4)
    blurred = dr.texture(stripes, uv, texcoord_derivatives=steps)
    sharp = dr.texture(stripes, uv, texcoord_derivatives=steps, max_anisotropy=16)
    assert (blurred - 0.5).abs().max() < 1e-12
    torch.testing.assert_close(sharp, stripes[:, :1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-18, 1e18])
def test_footprints_of_any_size_have_a_level(scale):
    """No overflow or underflow of squares in float32."""
    texels = rnd(1, 16, 16, 1)
    steps = (scale * rnd(1, 4, 4, 4)).requires_grad_()
    uv = uniform(1, 4, 4, 2)
    bias = torch.full((1, 4, 4), -math.log2(scale) - 2.0)
    values = dr.texture(texels, uv, texcoord_derivatives=steps, level_bias=bias)
    truth = dr.texture(texels, uv, texcoord_derivatives=steps.detach() / scale, level_bias=torch.full_like(bias, -2.0))
    assert relative_error(values, truth) < 1e-4
    assert torch.isfinite(torch.autograd.grad(values.sum(), steps)[0]).all()


def test_coordinates_of_a_million_keep_their_fraction():
    texels, offset = rnd(1, 8, 8, 2), torch.tensor([1e6, -1e6])
    uv = (torch.randint(0, 16, (1, 30, 30, 2)) / 16.0).float()  # exact next to 1e6 in float32
    for wrap in ("repeat", "mirror"):
        near = dr.texture(texels, uv, wrap=wrap)
        assert torch.equal(dr.texture(texels, uv + offset, wrap=wrap), near)


@pytest.mark.parametrize("size", [1, 8, 700])
@pytest.mark.parametrize("wrap", WRAPS)
def test_sum_of_a_million_pixels_is_right_in_float32(size, wrap):
    """All on one spot of the texture, cotangent 0.1, in a small and in a large texture (one tile, many tiles)."""
    texels = torch.zeros(1, size, size, 1, requires_grad=True)
    spot = (0.5 + size // 2) / size
    uv = torch.full((1, 1024, 1024, 2), spot)
    (dr.texture(texels, uv, wrap=wrap) * 0.1).sum().backward()
    expected = 0.1 * 2**20
    assert abs(texels.grad.double().sum().item() - expected) < 1e-5 * expected
    assert texels.grad[0, size // 2, size // 2].item() == pytest.approx(expected, rel=1e-4 if size > 1 else 1e-5)


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 33])
def test_gradient_of_a_large_texture_is_bit_identical_for_any_threads(filter, channels, set_threads):
    """Many tiles, wrapped borders, a crowded spot that is summed in parts."""
    texels = rnd(300, 200, channels)
    uv = uniform(2, 230, 300, 2, low=-0.3, high=1.3)
    uv[:, :100] = 0.41 + 0.01 * uv[:, :100]
    options = {"texcoord_derivatives": 0.02 * rnd(2, 230, 300, 4)} if filter.startswith("mip") else {}
    weights = rnd(2, 230, 300, channels, seed=1)
    grads = []
    for threads in (1, 2, 1):
        set_threads(threads)
        grads.append(g(lambda x: (dr.texture(x, uv, filter=filter, **options) * weights).sum(), texels))
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])
    double = {name: x.double() for name, x in options.items()}
    truth = g(lambda x: (dr.texture(x, uv.double(), filter=filter, **double) * weights).sum(), texels.double())
    # Of the order of one rounding of a texel coordinate: 200 * 2^-24, weighed by the largest sum.
    assert relative_error(grads[0], truth) < 3e-4


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("filter", FILTERS)
def test_portable_scatter_equals_the_tiles(filter, dtype):
    """The kernel of the GPU, with order-free sums, run on the CPU."""
    texels, uv = rnd(2, 40, 30, 3, dtype=dtype), uniform(2, 50, 60, 2, low=-1, high=2, dtype=dtype)
    grad = rnd(2, 50, 60, 3, seed=1, dtype=dtype)
    code = FILTERS.index(filter)
    mips = torch.ops.diffrender.build_mips(texels[:, None], 3) if code > 1 else None
    steps = 0.1 * rnd(2, 50, 60, 4, dtype=dtype) if code > 1 else None
    needs = (True, code > 1, False, False, False)
    results = [
        torch.ops.diffrender.texture_backward(
            texels, mips, uv, steps, None, grad, code, 0, 3, 3 if code > 1 else 0, 2 if code > 1 else 1, *needs, scatter
        )[: 2 if code > 1 else 1]
        for scatter in (0, 1)
    ]
    for tiles, portable in zip(*results, strict=True):
        assert tiles.any()
        # Integers of 62 bits, less those for the sum of all contributions.
        assert relative_error(portable, tiles) < (2e-6 if dtype == torch.float32 else 1e-12)


def test_a_constant_texture_gets_no_gradient_and_no_memory():
    texels, uv = rnd(4, 4, 3), uniform(1, 5, 5, 2).requires_grad_()
    values = dr.texture(texels, uv)
    values.sum().backward()
    assert texels.grad is None
    assert uv.grad.any()


def test_second_derivative_is_that_of_the_reference():
    """Gradient penalty: the square of the gradient to texcoords, differentiated again to everything."""
    texels, uv = rnd(1, 6, 5, 3, dtype=F64), uniform(1, 4, 5, 2, low=-1, high=2, dtype=F64)
    results = []
    for op in (dr.texture, reference.texture):
        leaves = [x.clone().requires_grad_() for x in (texels, uv)]
        values = op(*leaves, wrap=("mirror", "repeat"))
        grads = torch.autograd.grad((values**3).sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum((x**2).sum() for x in grads), leaves))
    for value, truth in zip(*results, strict=True):
        assert relative_error(value, truth) < 1e-12
