"""Image and mesh losses, and the metrics of reports."""

import math

import pytest
import torch

import diffrender as dr
from diffrender import geometry, losses, metrics

F64 = torch.float64


def images(*shape):
    return torch.rand(2, *shape, dtype=F64).unbind(0)


# Image losses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (losses.l1, lambda d, t: d.abs().mean()),
        (losses.mse, lambda d, t: d.square().mean()),
        (losses.smooth_l1, lambda d, t: torch.nn.functional.huber_loss(d, 0 * d, delta=0.1) / 0.1),
        (losses.relative_mse, lambda d, t: (d.square() / (t.square() + 0.01)).mean()),
    ],
    ids=["l1", "mse", "smooth_l1", "relative_mse"],
)
def test_image_losses_are_their_formulas(loss, formula):
    image, target = images(2, 5, 6, 3)
    torch.testing.assert_close(loss(image, target), formula(image - target, target))
    weight = (torch.rand(5, 6, 1) > 0.5).to(F64)
    weighted = loss(image, target, weight=weight)
    inside = weight.expand(2, 5, 6, 3) > 0
    torch.testing.assert_close(weighted, formula((image - target)[inside], target[inside]))
    assert torch.autograd.gradcheck(lambda x: loss(x, target, weight=weight), image.clone().requires_grad_())


def test_image_losses_with_nothing_to_weigh_are_zero_with_zero_gradient():
    image = torch.rand(4, 4, 3, requires_grad=True)
    value = losses.mse(image, torch.rand(4, 4, 3), weight=torch.zeros(4, 4, 1))
    value.backward()
    assert value == 0
    assert image.grad is not None
    assert (image.grad == 0).all()


def test_a_mask_without_a_channel_axis_is_a_clear_error():
    image = torch.rand(2, 4, 5, 3)
    message = r"losses: weight must expand to .* \(2, 4, 5, 3\), got \(2, 4, 5\). A mask needs a channel axis"
    with pytest.raises(ValueError, match=message):
        losses.l1(image, torch.zeros_like(image), weight=torch.ones(2, 4, 5))


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (torch.zeros(4, 4, 3, dtype=torch.uint8), "got torch.uint8. diffrender.load_image makes linear floats."),
        (torch.zeros(4, 4, 3, dtype=torch.bool), "got torch.bool. Convert it with .float()."),
    ],
    ids=["bytes", "bool"],
)
@pytest.mark.parametrize("loss", [losses.l1, losses.log_srgb_l1, losses.mask_iou, losses.mask_bce, losses.ssim])
def test_losses_refuse_pictures_of_integers(loss, picture, message):
    name = loss.__name__
    with pytest.raises(TypeError, match=f"{name}: target must be a float tensor, {message}"):
        loss(torch.zeros(4, 4, 3), picture)
    with pytest.raises(TypeError, match=f"{name}: image must be a float tensor, {message}"):
        loss(picture, torch.zeros(4, 4, 3))


def test_losses_take_half_precision_targets():
    image, target = torch.rand(4, 4, 3), torch.rand(4, 4, 3).half()
    assert torch.equal(losses.mse(image, target), losses.mse(image, target.float()))


def test_losses_refuse_to_broadcast():
    with pytest.raises(ValueError, match=r"l1: .* got \(4, 4, 3\). The same for all of the batch: target.expand"):
        losses.l1(torch.zeros(2, 4, 4, 3), torch.zeros(4, 4, 3))
    with pytest.raises(ValueError, match=r"mse: target must have the shape of image \(4, 4, 3\), got \(4, 4, 1\)"):
        losses.mse(torch.zeros(4, 4, 3), torch.zeros(4, 4, 1))
    with pytest.raises(ValueError, match="smooth_l1: width must be positive, got 0"):
        losses.smooth_l1(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), width=0)


def test_mask_iou_loss_is_one_minus_the_overlap():
    mask, target = torch.zeros(2, 4, 4, 1), torch.zeros(2, 4, 4, 1)
    mask[0, :2], target[0, 1:3] = 1, 1
    mask.requires_grad_()
    loss = losses.mask_iou(mask, target)  # 1 - 4 / 12 for the first, two empty masks agree
    assert float(loss.detach()) == pytest.approx((1 - 1 / 3) / 2)
    loss.backward()
    assert mask.grad is not None
    assert torch.isfinite(mask.grad).all()
    assert (mask.grad[1] == 0).all()


# Mesh losses ----------------------------------------------------------------------------------------------------------


def test_laplacian_is_the_distance_to_the_neighbours_mean():
    mesh = geometry.icosphere(1).to(F64)
    vertices = mesh.vertices.clone()
    vertices[0] *= 1.5
    neighbours = {k: set() for k in range(mesh.vertex_count)}
    for i, j in mesh.edges().vertices.tolist():
        neighbours[i].add(j)
        neighbours[j].add(i)
    offsets = torch.stack([vertices[sorted(n)].mean(0) - vertices[k] for k, n in neighbours.items()])
    expected = offsets.square().sum(-1).mean()
    torch.testing.assert_close(losses.laplacian(mesh.with_vertices(vertices)), expected)
    isolated = dr.Mesh(torch.cat([vertices, torch.ones(1, 3, dtype=F64)]), mesh.triangles)
    torch.testing.assert_close(losses.laplacian(isolated) * 43, expected * 42)


def test_normal_consistency_measures_the_fold():
    def hinge(angle: float) -> dr.Mesh:
        corners = [[0.0, 0, 0], [0, 1, 0], [-1, 0, 0], [math.cos(angle), 0, math.sin(angle)]]
        return dr.Mesh(torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2], [1, 0, 3]]))

    for angle in (0.0, 0.4, 2.0):
        assert float(losses.normal_consistency(hinge(angle))) == pytest.approx(1 - math.cos(angle))
    alone = dr.Mesh(torch.eye(3), torch.tensor([[0, 1, 2]]))
    assert losses.normal_consistency(alone) == 0


def test_edge_length_measures_the_distance_from_the_target():
    triangle = dr.Mesh(torch.tensor([[0.0, 0, 0], [3, 0, 0], [0, 4, 0]]), torch.tensor([[0, 1, 2]]))
    assert float(losses.edge_length(triangle)) == pytest.approx((9 + 16 + 25) / 3)
    assert float(losses.edge_length(triangle, target=4.0)) == pytest.approx((1 + 0 + 1) / 3)


@pytest.mark.parametrize(
    "loss",
    [losses.laplacian, losses.normal_consistency, losses.edge_length, lambda m: losses.edge_length(m, target=0.3)],
    ids=["laplacian", "normal_consistency", "edge_length", "edge_length_target"],
)
def test_mesh_losses_are_differentiable_and_take_batches(loss):
    mesh = geometry.icosphere(0).to(F64)
    shapes = (mesh.vertices + 0.1 * torch.randn(2, 12, 3, dtype=F64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: loss(mesh.with_vertices(v)), shapes)
    apart = torch.stack([loss(mesh.with_vertices(shape)) for shape in shapes]).mean()
    torch.testing.assert_close(loss(mesh.with_vertices(shapes)), apart)


@pytest.mark.parametrize("target", [0.0, 0.5])
def test_collapsed_triangles_give_finite_losses_and_gradients(target):
    vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]], requires_grad=True)
    mesh = dr.Mesh(vertices, torch.tensor([[0, 1, 2], [2, 1, 3]]))
    total = losses.laplacian(mesh) + losses.normal_consistency(mesh) + losses.edge_length(mesh, target=target)
    total.backward()
    assert vertices.grad is not None
    assert torch.isfinite(vertices.grad).all()


# Metrics --------------------------------------------------------------------------------------------------------------


def test_samples_lie_on_the_surface_evenly():
    """On a cube and a four times larger cube side by side: samples in proportion to area, all on a face."""
    small, large = geometry.cube(1.0), geometry.cube(2.0)
    both = dr.Mesh(torch.cat([small.vertices, large.vertices + 10]), torch.cat([small.triangles, large.triangles + 8]))
    points = metrics.sample_surface(both, 5000, seed=1)
    on_small = points[:, 0] < 5
    assert int(on_small.sum()) == pytest.approx(1000, abs=1)  # stratified: 6 of 30 units of area
    torch.testing.assert_close(points[on_small].abs().amax(-1), torch.full((int(on_small.sum()),), 0.5, dtype=F64))
    assert torch.equal(points, metrics.sample_surface(both, 5000, seed=1))
    assert points[on_small].mean(0).abs().max() < 0.03


def test_chamfer_distance_of_parallel_squares_is_their_distance():
    square = geometry.quad(1.0, 1.0)
    shifted = square.with_vertices(square.vertices + torch.tensor([0.0, 0.0, 0.2]))
    near = metrics.surface_distance(square, shifted, threshold=0.25, samples=20_000)
    assert near.chamfer == pytest.approx(0.2, rel=1e-3)
    assert near.f_score == 1
    assert metrics.surface_distance(square, shifted, threshold=0.1, samples=2000).f_score == 0


def test_f_score_is_the_harmonic_mean_of_precision_and_recall():
    whole = geometry.quad(2.0, 1.0)
    half = geometry.quad(1.0, 1.0)
    half = half.with_vertices(half.vertices + torch.tensor([-0.5, 0.0, 0.0]))
    # Every sample of the half lies on the whole; half of the whole's samples lie on the half.
    score = metrics.surface_distance(half, whole, threshold=0.02, samples=40_000).f_score
    assert score == pytest.approx(2 * 1 * 0.5 / 1.5, abs=0.02)


def test_sampling_needs_an_area():
    flat = dr.Mesh(torch.zeros(3, 3), torch.tensor([[0, 1, 2]]))
    with pytest.raises(ValueError, match="sample_surface: mesh must have an area, got none"):
        metrics.sample_surface(flat, 10)


def test_mask_iou_and_psnr():
    first, second = torch.zeros(3, 4, 4, 1, dtype=torch.bool), torch.zeros(3, 4, 4, 1, dtype=torch.bool)
    first[0, :2], second[0, 1:3] = True, True
    first[1, 0] = True
    assert metrics.mask_iou(first, second).tolist() == pytest.approx([1 / 3, 0, 1])
    with pytest.raises(ValueError, match="mask_iou: masks must be bool of one shape, got torch.float32"):
        metrics.mask_iou(first.float(), second)
    assert metrics.psnr(torch.zeros(4), torch.full((4,), 0.1)) == pytest.approx(20)
    assert metrics.psnr(torch.ones(4), torch.ones(4)) == math.inf
    with pytest.raises(TypeError, match="psnr: image must be a float tensor, got torch.uint8"):
        metrics.psnr(torch.ones(4, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"psnr: reference must have the shape of image \(4, 4, 3\), got \(4, 4, 1\)"):
        metrics.psnr(torch.ones(4, 4, 3), torch.ones(4, 4, 1))
