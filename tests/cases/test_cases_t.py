"""Cases T: textures. Each test carries the id of its case and says the fault it guards against."""

import itertools

import pytest
import torch

import diffrender as dr
from tests.support.vocabulary import aa, g, itp, ras, rnd, uniform

F64 = torch.float64
FILTERS = ("nearest", "linear", "mip_nearest", "mip_linear")
WRAPS = ("repeat", "clamp", "mirror", "zero")


def sample(texels, uv, filter, wrap="repeat", step=0.3):
    """texture with derivatives where the filter needs them."""
    options = {}
    if filter.startswith("mip"):
        options["texcoord_derivatives"] = torch.full((*uv.shape[:3], 4), step, dtype=uv.dtype)
    return dr.texture(texels, uv, filter=filter, wrap=wrap, **options)


@pytest.mark.parametrize("wrap", WRAPS)
def test_t01_texel_centres(wrap):
    """Fault: uv 0 and 1 are the centres of the corner texels, a squeeze by half a texel."""
    texels = rnd(4, 6, 3)
    v, u = torch.meshgrid((torch.arange(4) + 0.5) / 4, (torch.arange(6) + 0.5) / 6, indexing="ij")
    for filter in ("nearest", "linear"):
        assert (
            dr.texture(texels, torch.stack([u, v], -1)[None], filter=filter, wrap=wrap)[0] - texels
        ).abs().max() < 1e-6
    between = dr.texture(texels, torch.tensor([[[[1 / 6, 0.5 / 4]]]]), wrap=wrap)[0, 0, 0]
    torch.testing.assert_close(between, texels[0, :2].mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [(5, 5), (6, 10), (7, 1), (3, 4)])
@pytest.mark.parametrize("wrap", ["repeat", "clamp"])
def test_t02_mip_gradient_of_an_odd_sized_texture(size, wrap):
    """Fault: the last row and column are dropped on the way down; shape or mass of the gradient is lost."""
    texels = rnd(*size, 2).requires_grad_()
    uv, cotangent = uniform(1, 20, 20, 2, low=-1, high=2), rnd(1, 20, 20, 2, seed=1)
    level = torch.full((1, 20, 20), 1.3)
    (dr.texture(texels, uv, level=level, wrap=wrap) * cotangent).sum().backward()
    assert texels.grad.shape == texels.shape
    assert abs(texels.grad.sum() - cotangent.sum()) < 1e-3 * cotangent.abs().sum()


@pytest.mark.parametrize(("filter", "wrap"), list(itertools.product(FILTERS, WRAPS)))
def test_t04_texture_batch_with_zero_border(filter, wrap):
    """Fault: the test of bounds uses the index of the whole batch for one pair of filter and border."""
    texels, uv = rnd(3, 5, 4, 3), uniform(3, 9, 8, 2, low=-0.7, high=1.7)
    values = sample(texels, uv, filter, wrap)
    for b in range(3):
        assert torch.equal(values[b], sample(texels[b : b + 1], uv[b : b + 1], filter, wrap)[0])


def test_t04_zero_border_fades_over_half_a_texel():
    texels = torch.ones(1, 4, 4, 1)
    u = torch.tensor([-0.2, -0.125, -0.0625, 0.0, 0.0625, 0.125, 0.5, 1.0, 1.125])
    values = dr.texture(texels, torch.stack([u, torch.full_like(u, 0.5)], -1)[None, None], wrap="zero")[0, 0, :, 0]
    truth = torch.tensor([0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.0])
    assert torch.equal(values, truth)


def test_t05_uv_gradient_at_the_clamp_border():
    """Fault: on the border the gradient is -texel * W, as if padded with zeros."""
    ramp = torch.tensor([3.0, 5, 7, 9, 11])[None, :, None]
    u = torch.tensor([-0.2, 0, 0.05, 0.5, 0.95, 1, 1.2])
    uv = torch.stack([u, torch.full_like(u, 0.5)], -1)[None, None]
    grad = g(lambda x: dr.texture(ramp, x, wrap="clamp").sum(), uv)[0, 0, :, 0]
    assert (grad >= 0).all()
    assert float(grad[3]) == pytest.approx(10)
    assert grad[0] == grad[1] == grad[2] == grad[5] == grad[6] == 0


@pytest.mark.parametrize(("filter", "wrap"), list(itertools.product(FILTERS, WRAPS)))
def test_t07_texture_of_one_texel(filter, wrap):
    """Fault: a neighbour out of bounds, a division by size - 1."""
    constant = torch.tensor([0.3, -0.7, 1.9])
    texels = constant.reshape(1, 1, 1, 3).clone().requires_grad_()
    uv = uniform(1, 10, 100, 2, low=-3, high=3).requires_grad_()
    cotangent = rnd(1, 10, 100, 3, seed=1)
    values = sample(texels, uv, filter, wrap)
    grad_texels, grad_uv = torch.autograd.grad((values * cotangent).sum(), (texels, uv))
    if wrap != "zero":
        assert (values - constant).abs().max() == 0
        assert not grad_uv.any()
        torch.testing.assert_close(grad_texels.view(3), cotangent.sum((0, 1, 2)), rtol=1e-5, atol=1e-4)
        return
    # Full in the middle, fading to zero half a texel outside (nearest: cut at the border).
    x = uv.detach() - 0.5
    fade = (x.abs() <= 0.5).float() if filter == "nearest" else (1 - x.abs()).clamp(min=0)
    torch.testing.assert_close(values, fade.prod(-1, keepdim=True) * constant, rtol=1e-5, atol=1e-6)


def test_t08_no_blurred_line_at_a_uv_seam():
    """Fault: derivatives by differences between pixels, so the coarsest level is picked where u jumps."""
    count = 48
    angle = torch.linspace(0, 2 * torch.pi, count + 1)
    # The seam faces the camera.
    ring = torch.stack([-angle.sin(), torch.zeros_like(angle), angle.cos()], -1)
    corners = torch.cat([ring, ring + torch.tensor([0, 1.0, 0])]) * torch.tensor([1.0, 1, 1]) + torch.tensor(
        [0, -0.5, -3]
    )
    clip = torch.stack([2 * corners[:, 0], 2 * corners[:, 1], -corners[:, 2] - 1, -corners[:, 2]], -1)
    k = torch.arange(count)
    triangles = torch.cat(
        [torch.stack([k, k + 1, k + count + 2], -1), torch.stack([k, k + count + 2, k + count + 1], -1)]
    )
    uv = torch.stack([angle.repeat(2) / (2 * torch.pi), torch.tensor([0.0, 1.0]).repeat_interleave(count + 1)], -1)
    r = ras(clip, triangles, 64, 64, derivatives=True)
    texcoords, steps = itp(uv, r, triangles, derivatives="all")
    mips = [torch.full((1, 1, 256 >> level, 1), float(level)) for level in range(9)]
    level = dr.texture(mips[0], texcoords, texcoord_derivatives=steps, mips=mips[1:])[0, ..., 0]
    hit = r.id[0] >= 0
    both = hit[:, 1:] & hit[:, :-1]
    wraps = (texcoords[0, :, 1:, 0] - texcoords[0, :, :-1, 0]).abs() > 0.5
    assert (both & wraps).any()
    # Towards the silhouette the true footprint grows without bound, so only the half that faces the camera counts.
    columns = hit.any(0).nonzero()
    first, last = int(columns.min()), int(columns.max())
    middle = slice(first + (last - first) // 4, last - (last - first) // 4)
    assert (both & wraps)[:, middle].any()
    assert (level[:, 1:] - level[:, :-1])[:, middle][both[:, middle]].abs().max() < 0.5


@pytest.mark.parametrize(("filter", "wrap"), list(itertools.product(FILTERS, WRAPS)))
def test_t10_nan_inf_and_huge_uv(filter, wrap):
    """Fault: the conversion of NaN to an index reads foreign memory. NaN and inf give 0 and no gradient."""
    uv = uniform(1, 8, 9, 2)
    bad = torch.zeros(8, 9, dtype=torch.bool)
    for k, value in enumerate((torch.nan, torch.inf, -torch.inf, 1e20, -1e20, 3e38)):
        uv[0, k, k % 9, k % 2] = value
        bad[k, k % 9] = True
    texels = rnd(1, 6, 5, 2).requires_grad_()
    leaf = uv.clone().requires_grad_()
    cotangent = rnd(1, 8, 9, 2, seed=1)
    values = sample(texels, leaf, filter, wrap)
    grads = torch.autograd.grad((values * cotangent).sum(), (texels, leaf))
    assert torch.equal(values[0][~bad], sample(texels, torch.where(bad[..., None], 0.5, uv), filter, wrap)[0][~bad])
    assert torch.isfinite(values).all()
    assert all(torch.isfinite(x).all() for x in grads)
    lost = ~torch.isfinite(uv).all(-1)
    assert not values[lost].any()
    assert not grads[1][lost].any()


def test_t11_level_bias_range():
    """Fault: a level below 0 or above the last is read; the gradient of a clamped level is not 0."""
    texels, uv = rnd(8, 8, 2, dtype=F64), uniform(1, 1, 1, 2, dtype=F64)
    levels = [texels, *dr.build_mips(texels)]

    def at(bias):
        return dr.texture(texels, uv, level_bias=torch.full((1, 1, 1), bias, dtype=F64))[0, 0, 0]

    def grad(bias):
        return g(lambda b: dr.texture(texels, uv, level_bias=b).sum(), torch.full((1, 1, 1), bias, dtype=F64)).item()

    assert torch.equal(at(-5.0), at(0.0))
    assert torch.equal(at(-0.01), at(0.0))
    assert torch.equal(at(99.0), at(3.0))
    torch.testing.assert_close(at(3.0), texels.mean((0, 1)), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(at(2.999), 0.001 * dr.texture(levels[2], uv)[0, 0, 0] + 0.999 * at(3.0))
    assert grad(-5.0) == grad(-0.01) == grad(99.0) == 0
    assert grad(0.5) == pytest.approx((dr.texture(levels[1], uv) - dr.texture(texels, uv)).sum().item())


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 16, 31, 33])
@pytest.mark.parametrize("filter", FILTERS)
def test_t13_channel_counts(channels, filter):
    """Fault: kernels made for 1, 2 and 4 channels have a wrong tail for 3, 5 or 33."""
    texels, uv = rnd(2, 9, 7, channels, dtype=F64), uniform(2, 6, 8, 2, low=-1, high=2, dtype=F64)
    cotangent = rnd(2, 6, 8, channels, seed=1, dtype=F64)

    def run(which):
        leaves = [texels[..., which].clone().requires_grad_(), uv.clone().requires_grad_()]
        values = sample(leaves[0], leaves[1], filter)
        return values, *torch.autograd.grad((values * cotangent[..., which]).sum(), leaves)

    together = run(slice(None))
    single = list(zip(*(run(slice(c, c + 1)) for c in range(channels)), strict=True))
    for value, parts in zip(together[:2], single[:2], strict=True):
        torch.testing.assert_close(value, torch.cat(parts, -1), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(together[2], sum(single[2]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels", [3, 5])
def test_t13_channel_counts_of_a_textured_render(channels):
    """The same through interpolate and antialias."""
    square = torch.tensor([[-0.7, -0.6, 0, 1], [0.8, -0.5, 0, 1], [0.6, 0.7, 0, 1], [-0.5, 0.9, 0, 1]], dtype=F64)
    triangles = [(0, 1, 2), (0, 2, 3)]
    uv = torch.tensor([[0, 1], [1, 1], [1, 0], [0, 0]], dtype=F64)
    texels = rnd(8, 8, channels, dtype=F64)

    def picture(texels):
        r = ras(square, triangles, 16, 18)
        return aa(dr.texture(texels, itp(uv, r, triangles)), r, square, triangles)

    parts = [picture(texels[..., c : c + 1]) for c in range(channels)]
    torch.testing.assert_close(picture(texels), torch.cat(parts, -1), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("cotangent", "tolerance"), [(0.1, 10.0), (1.0, 0.0)])
@pytest.mark.parametrize("filter", ["nearest", "linear"])
def test_t14_a_million_pixels_on_one_texel(cotangent, tolerance, filter):
    """Fault: naive float32 sums. (A sequential sum of 2^20 times 0.1 is off by 1 %.)"""
    texels = torch.zeros(16, 16, 1, requires_grad=True)
    uv = torch.full((1, 1024, 1024, 2), 4.5 / 16)
    (dr.texture(texels, uv, filter=filter) * cotangent).sum().backward()
    assert abs(texels.grad.double().sum().item() - cotangent * 2**20) <= tolerance
    assert texels.grad[4, 4].item() == pytest.approx(cotangent * 2**20, rel=1e-5)
