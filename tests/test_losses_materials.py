"""Losses for materials and high range, tone curves, and the mesh losses with weights or a reference."""

import math

import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender import geometry, losses
from tests.support.vocabulary import rnd, uniform

F64 = torch.float64


# Tone curves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "formula"),
    [
        ("linear", lambda x: x),
        ("reinhard", lambda x: x / (1 + x)),
        ("log", np.log1p),
        ("aces", lambda x: (2.51 * x * x + 0.03 * x) / (2.43 * x * x + 0.59 * x + 0.14)),
    ],
)
def test_tone_curves_are_their_formulas_mirrored_below_zero(operator, formula):
    x = torch.tensor([1e-4, 0.02, 0.5, 1.0, 7.2, 300.0], dtype=F64)
    torch.testing.assert_close(dr.tonemap(x, operator), torch.from_numpy(formula(x.numpy())))
    torch.testing.assert_close(dr.tonemap(-x, operator), -dr.tonemap(x, operator))
    torch.testing.assert_close(dr.tonemap(x, operator, exposure=-2.0), dr.tonemap(x / 4, operator))
    leaves = [torch.cat([x, -x]).requires_grad_(), torch.tensor(0.3, dtype=F64, requires_grad=True)]
    assert torch.autograd.gradcheck(lambda r, e: dr.tonemap(r, operator, exposure=e), leaves)
    samples = torch.linspace(-3, 20, 2000, dtype=F64)
    assert (dr.tonemap(samples, operator).diff() > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("operator", ["linear", "reinhard", "log", "aces"])
def test_tone_curves_are_finite_at_black_and_have_a_limit_at_infinity(operator, dtype):
    x = torch.tensor([0.0, -0.0, 1e-38, -1e-38, 3e38, -3e38, math.inf], dtype=dtype, requires_grad=True)
    value = dr.tonemap(x, operator)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert not value.isnan().any()
    assert slope.isfinite().all()
    assert (slope[:4] == slope[0]).all()
    assert slope[0].item() == pytest.approx(0.03 / 0.14 if operator == "aces" else 1.0)
    limit = {"reinhard": 1.0, "aces": 2.51 / 2.43}.get(operator, math.inf)
    assert value[-1].item() == pytest.approx(limit)


def test_unknown_tone_curve_is_refused():
    with pytest.raises(ValueError, match="tonemap: operator must be one of 'linear', 'reinhard'"):
        dr.tonemap(torch.ones(3), "filmic")
    with pytest.raises(TypeError, match="tonemap: radiance must be float32 or float64"):
        dr.tonemap(torch.ones(3, dtype=torch.uint8))


# Image losses ---------------------------------------------------------------------------------------------------------


def srgb_of_log(x):
    y = np.log1p(x)
    return np.where(y <= 0.0031308, 12.92 * y, 1.055 * y ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (losses.smape, lambda a, b: np.abs(a - b) / (np.abs(a) + np.abs(b) + 0.01)),
        (losses.log_srgb_l1, lambda a, b: np.abs(srgb_of_log(a) - srgb_of_log(b))),
        (losses.mask_bce, lambda a, b: -(b * np.log(0.001 + 0.998 * a) + (1 - b) * np.log(0.999 - 0.998 * a))),
    ],
    ids=["smape", "log_srgb_l1", "mask_bce"],
)
def test_image_losses_are_their_formulas(loss, formula):
    image, target = uniform(2, 2, 5, 6, 3, seed=1, dtype=F64).unbind(0)
    scale = 1.0 if loss is losses.mask_bce else 20.0
    image, target = image * scale, target * scale
    truth = torch.from_numpy(formula(image.numpy(), target.numpy()))
    torch.testing.assert_close(loss(image, target), truth.mean())
    weight = (uniform(5, 6, 1, seed=2) > 0.5).to(F64)
    inside = weight.expand(2, 5, 6, 3) > 0
    torch.testing.assert_close(loss(image, target, weight=weight), truth[inside].mean())
    assert torch.autograd.gradcheck(lambda x: loss(x, target, weight=weight), image.clone().requires_grad_())


@pytest.mark.parametrize(
    "loss", [losses.smape, losses.log_srgb_l1, losses.mask_bce, losses.relative_mse, losses.mask_iou]
)
def test_losses_at_black_white_and_equal_pictures_are_finite(loss):
    for value in (0.0, 1.0):
        for other in (0.0, 1.0):
            image = torch.full((4, 4, 1), value, requires_grad=True)
            result = loss(image, torch.full((4, 4, 1), other))
            result.backward()
            assert result.isfinite()
            assert image.grad.isfinite().all()


def test_mask_bce_pulls_a_mask_that_is_wrong_by_one():
    """torch's own clamps the logarithm at -100, with a slope of 1e12 there."""
    mask = torch.zeros(1, 1, 1, requires_grad=True)
    losses.mask_bce(mask, torch.ones(1, 1, 1)).backward()
    assert mask.grad.item() == pytest.approx(-998, rel=1e-3)


def ssim_by_windows(a, b, size, sigma):
    """The definition, window by window."""
    offset = np.arange(size) - size // 2
    kernel = np.exp(-0.5 * (offset / sigma) ** 2)
    kernel = np.outer(kernel, kernel)
    kernel /= kernel.sum()
    values = []
    for row in range(a.shape[0] - size + 1):
        for column in range(a.shape[1] - size + 1):
            x, y = (p[row : row + size, column : column + size] for p in (a, b))
            mx, my = (kernel * x).sum(), (kernel * y).sum()
            vx, vy = (kernel * (x - mx) ** 2).sum(), (kernel * (y - my) ** 2).sum()
            cov = (kernel * (x - mx) * (y - my)).sum()
            c1, c2 = 1e-4, 9e-4
            values.append((2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    return np.mean(values)


def test_ssim_is_its_definition():
    image, target = uniform(2, 2, 9, 10, 3, seed=3, dtype=F64).unbind(0)
    target = 0.6 * target + 0.4 * image
    pairs = [(image[b, ..., c].numpy(), target[b, ..., c].numpy()) for b in range(2) for c in range(3)]
    truth = 1 - np.mean([ssim_by_windows(a, b, 5, 1.2) for a, b in pairs])
    assert losses.ssim(image, target, window=5, sigma=1.2).item() == pytest.approx(truth, rel=1e-9)
    assert losses.ssim(image[0], image[0], window=5).item() == pytest.approx(0, abs=1e-12)
    leaf = image[:1, :6, :6].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: losses.ssim(x, target[:1, :6, :6], window=5), leaf)
    flat = torch.full((12, 12, 1), 0.5, requires_grad=True)
    losses.ssim(flat, torch.full((12, 12, 1), 0.5)).backward()
    assert flat.grad.isfinite().all()


def test_ssim_refuses_pictures_below_its_window():
    with pytest.raises(ValueError, match="ssim: image must be at least 11 pixels wide and high, got 10 x 12"):
        losses.ssim(torch.zeros(12, 10, 1), torch.zeros(12, 10, 1))
    with pytest.raises(ValueError, match="ssim: window must be odd and positive, got 4"):
        losses.ssim(torch.zeros(12, 10, 1), torch.zeros(12, 10, 1), window=4)


def test_lpips_hands_the_network_what_it_expects():
    seen = []

    def network(a, b):
        seen.extend([a, b])
        return (a - b).abs().mean((1, 2, 3), keepdim=True)

    image, target = uniform(2, 4, 5, 6, 3, seed=4).unbind(0)
    value = losses.lpips(image, target, network)
    assert seen[0].shape == (4, 3, 5, 6)
    torch.testing.assert_close(seen[0][1, 2], 2 * image[1, :, :, 2] - 1)
    torch.testing.assert_close(value, 2 * (image - target).abs().mean())
    with pytest.raises(ValueError, match="lpips: image must have 3 channels, got 1"):
        losses.lpips(image[..., :1], target[..., :1], network)


# Texture losses -------------------------------------------------------------------------------------------------------


def test_total_variation_counts_steps():
    texture = torch.zeros(4, 6, 2, dtype=F64)
    texture[:, 3:, 0] = 2  # one step between columns, and one more at the seam if the texture repeats
    assert losses.total_variation(texture).item() == pytest.approx(2 / (5 * 2))
    assert losses.total_variation(texture, power=2).item() == pytest.approx(4 / (5 * 2))
    assert losses.total_variation(texture, wrap=True).item() == pytest.approx(2 * 2 / (6 * 2))
    assert losses.total_variation(torch.ones(1, 1, 3)) == 0
    noise = rnd(2, 4, 5, 3, seed=5, dtype=F64).requires_grad_()
    for options in ({}, {"power": 2}, {"wrap": True}):
        assert torch.autograd.gradcheck(lambda x, options=options: losses.total_variation(x, **options), noise)
    with pytest.raises(ValueError, match="total_variation: power must be 1 or 2, got 3"):
        losses.total_variation(noise, power=3)


def test_edge_aware_smoothness_lets_maps_jump_where_the_guide_does():
    values = torch.zeros(4, 6, 1, dtype=F64)
    values[:, 3:] = 1
    along, across = values.expand(4, 6, 3), values[:, :4].transpose(0, 1).expand(4, 4, 3)
    free, costly = losses.edge_aware_smoothness(values, along), losses.edge_aware_smoothness(values, 0 * along)
    assert free.item() == pytest.approx(math.exp(-10) / 5)
    assert costly.item() == pytest.approx(1 / 5)
    assert losses.edge_aware_smoothness(values[:, :4], across).item() == pytest.approx(1 / 3)
    mask = torch.ones(4, 6, 1, dtype=torch.bool)
    mask[:, 3] = False
    assert losses.edge_aware_smoothness(values, 0 * along, mask=mask) == 0
    guide = rnd(2, 4, 5, 3, seed=6, dtype=F64).requires_grad_()
    noise = rnd(2, 4, 5, 2, seed=7, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: losses.edge_aware_smoothness(x, guide, sharpness=1.0), noise)
    assert not torch.autograd.grad(losses.edge_aware_smoothness(noise, guide), guide, allow_unused=True)[0]
    with pytest.raises(ValueError, match="edge_aware_smoothness: guide must have the size of values"):
        losses.edge_aware_smoothness(values, along[:3])


# Mesh losses ----------------------------------------------------------------------------------------------------------


def cotangent(a, b, c):
    """Of the angle at a."""
    u, v = b - a, c - a
    return float(u @ v / torch.linalg.cross(u, v).norm())


def test_cotangent_laplacian_is_its_formula():
    mesh = geometry.icosphere(0).to(F64)
    mesh = mesh.with_vertices(mesh.vertices + 0.15 * rnd(12, 3, seed=8, dtype=F64))
    v = mesh.vertices
    weights: dict[tuple[int, int], float] = {}
    for triangle in mesh.triangles.tolist():
        for k in range(3):
            a, b, c = triangle[k], triangle[(k + 1) % 3], triangle[(k + 2) % 3]
            edge = (min(b, c), max(b, c))
            weights[edge] = weights.get(edge, 0) + cotangent(v[a], v[b], v[c]) / 2
    total, sums = torch.zeros(12, 1, dtype=F64), torch.zeros(12, 3, dtype=F64)
    for (i, j), weight in weights.items():
        weight = max(weight, 0)
        for a, b in ((i, j), (j, i)):
            total[a] += weight
            sums[a] += weight * v[b]
    truth = (sums / total - v).square().sum(-1).mean()
    torch.testing.assert_close(losses.laplacian(mesh, weights="cotangent"), truth)


def test_cotangent_laplacian_sees_no_uneven_triangles_on_a_plane():
    """On a flat sheet of uneven triangles the vertices inside lie at the cotangent mean of their neighbours."""
    u, v = torch.meshgrid(torch.linspace(0, 1, 6, dtype=F64), torch.linspace(0, 1, 6, dtype=F64), indexing="ij")
    flat = torch.stack([u**1.5, v**1.3, 0 * u], -1).reshape(-1, 3)
    i, j = (x.reshape(-1) for x in torch.meshgrid(torch.arange(5), torch.arange(5), indexing="ij"))
    a, b = i * 6 + j, (i + 1) * 6 + j
    sheet = dr.Mesh(flat, torch.cat([torch.stack([a, b, b + 1], -1), torch.stack([a, b + 1, a + 1], -1)]))
    inner = ((u > 0) & (u < 1) & (v > 0) & (v < 1)).reshape(-1)

    def pull(weights):
        leaf = flat.clone().requires_grad_()
        losses.laplacian(sheet.with_vertices(leaf), weights=weights).backward()
        return leaf

    edges, total = sheet.edges().vertices, {}
    for weights in ("uniform", "cotangent"):
        values = torch.ones(len(edges), dtype=F64) if weights == "uniform" else losses.meshes._cotangent_weights(sheet)
        total[weights] = losses.meshes._laplacian_vectors(flat, edges, values)[inner].norm(dim=-1).max().item()
    assert total["cotangent"] < 1e-12
    assert total["uniform"] > 0.01
    assert torch.isfinite(pull("cotangent").grad).all()


@pytest.mark.parametrize("weights", ["uniform", "cotangent"])
def test_laplacian_relative_to_a_reference_forgives_its_details(weights):
    start = geometry.icosphere(1).to(F64)
    start = start.with_vertices(start.vertices + 0.1 * rnd(42, 3, seed=9, dtype=F64))
    options = {"weights": weights, "reference": start}
    assert losses.laplacian(start, **options) == 0
    moved = start.with_vertices(start.vertices + torch.tensor([1.0, 2.0, 3.0], dtype=F64))
    assert losses.laplacian(moved, **options).item() == pytest.approx(0, abs=1e-25)
    shapes = (start.vertices + 0.1 * rnd(2, 42, 3, seed=10, dtype=F64)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: losses.laplacian(start.with_vertices(v), **options), shapes, fast_mode=True
    )
    apart = torch.stack([losses.laplacian(start.with_vertices(shape), **options) for shape in shapes]).mean()
    torch.testing.assert_close(losses.laplacian(start.with_vertices(shapes), **options), apart)


def test_edge_length_variance_is_the_variance_of_each_shape():
    mesh = geometry.icosphere(0).to(F64)
    shapes = (mesh.vertices + 0.1 * rnd(2, 12, 3, seed=11, dtype=F64)).requires_grad_()
    variances = []
    for shape in shapes.detach():
        ends = shape[mesh.edges().vertices]
        variances.append((ends[:, 0] - ends[:, 1]).norm(dim=-1).var(correction=0))
    loss = lambda v: losses.edge_length_variance(mesh.with_vertices(v))  # noqa: E731
    torch.testing.assert_close(loss(shapes), torch.stack(variances).mean())
    assert torch.autograd.gradcheck(loss, shapes)


@pytest.mark.parametrize("options", [{"weights": "cotangent"}, {"reference": True}, None])
def test_collapsed_triangles_give_finite_losses_and_gradients(options):
    vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]], requires_grad=True)
    mesh = dr.Mesh(vertices, torch.tensor([[0, 1, 2], [2, 1, 3]]))
    if options is None:
        total = losses.edge_length_variance(mesh)
    else:
        options = {**options, "reference": mesh.detach()} if "reference" in options else options
        total = losses.laplacian(mesh, **options)
    total.backward()
    assert total.isfinite()
    assert vertices.grad.isfinite().all()


@pytest.mark.parametrize(
    "loss",
    [losses.laplacian, lambda m: losses.laplacian(m, weights="cotangent"), losses.edge_length,
     losses.edge_length_variance, losses.normal_consistency],
)  # fmt: skip
def test_mesh_without_triangles_costs_nothing(loss):
    vertices = torch.rand(4, 3, requires_grad=True)
    value = loss(dr.Mesh(vertices, torch.zeros(0, 3, dtype=torch.int32)))
    value.backward()
    assert value == 0
    assert not vertices.grad.any()


def test_laplacian_refuses_other_triangles_and_weights():
    mesh = geometry.icosphere(0)
    with pytest.raises(ValueError, match="laplacian: reference must have the triangles of mesh"):
        losses.laplacian(mesh, reference=geometry.icosphere(1))
    with pytest.raises(ValueError, match='laplacian: weights must be "uniform" or "cotangent", got \'cot\''):
        losses.laplacian(mesh, weights="cot")
