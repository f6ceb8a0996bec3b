"""irradiance_sh and sh_from_environment: against integrals, both sign conventions, conservation."""

import math

import pytest
import torch

import diffrender as dr
from diffrender.ops._cube import cube_texels
from diffrender.ops.irradiance_sh import _evaluate_basis, _lat_long_texels
from tests.ops.rows.shade import checked_mask, surface
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64


def unit(*shape, seed=0):
    return torch.nn.functional.normalize(rnd(*shape, 3, seed=seed, dtype=F64), dim=-1)


@pytest.mark.parametrize("convention", ["unsigned", "condon_shortley"])
def test_irradiance_of_a_smooth_environment_is_the_cosine_integral(convention):
    """Radiance that is itself a polynomial of degree 2 is represented exactly: only the grid is left as an error."""
    directions, solid_angle = _lat_long_texels(200, 400)
    x, y, z = directions.unbind(-1)
    radiance = torch.stack([2 + x - 0.5 * y * z, 1 + z * z, 1.5 + 0.3 * x * y - z], -1)
    coefficients = dr.sh_from_environment(radiance, convention=convention)
    normals = unit(1, 2, 3)
    irradiance = dr.irradiance_sh(coefficients, normals, convention=convention)
    cosine = torch.einsum("bhwi,rci->bhwrc", normals, directions).clamp(min=0)
    truth = torch.einsum("bhwrc,rck,rc->bhwk", cosine, radiance, solid_angle)
    assert relative_error(irradiance, truth) < 1e-4


def test_conventions_disagree_exactly_in_the_terms_of_odd_m():
    normals = unit(1, 3, 4)
    for k in range(9):
        one = torch.zeros(9, 1, dtype=F64)
        one[k] = 1
        plain, signed = (dr.irradiance_sh(one, normals, convention=c) for c in ("unsigned", "condon_shortley"))
        assert torch.equal(signed, -plain if k in (1, 3, 5, 7) else plain)


def test_values_equal_the_published_constants():
    """Ramamoorthi and Hanrahan 2001, equation 13, with all coefficients 1."""
    c1, c2, c3, c4, c5 = 0.429043, 0.511664, 0.743125, 0.886227, 0.247708
    n = unit(1, 5, 5)
    x, y, z = n.unbind(-1)
    truth = c1 * (x * x - y * y) + c3 * z * z + c4 - c5 + 2 * c1 * (x * y + x * z + y * z) + 2 * c2 * (x + y + z)
    assert torch.allclose(dr.irradiance_sh(torch.ones(9, 1, dtype=F64), n)[..., 0], truth, atol=3e-6)


def test_cube_and_lat_long_agree():
    direction = torch.tensor([0.48, 0.6, -0.64], dtype=F64)
    pictures = []
    for directions, _ in (_lat_long_texels(128, 256), cube_texels(64)):
        lobe = torch.exp(4 * (directions @ direction - 1))
        pictures.append(torch.stack([lobe, 1 + directions[..., 0], directions[..., 1] ** 2], -1))
    lat_long, cube = (dr.sh_from_environment(p) for p in pictures)
    assert (lat_long - cube).abs().max() < 2e-3


def test_texels_cover_the_sphere():
    for directions, solid_angle in (_lat_long_texels(9, 7), cube_texels(5)):
        assert solid_angle.sum().item() == pytest.approx(4 * math.pi, rel=1e-12)
        assert torch.allclose(directions.norm(dim=-1), torch.ones_like(solid_angle))


@pytest.mark.parametrize(
    ("rows", "columns", "towards"),
    [
        ([0], range(16), (0, 1, 0)),
        ([7], range(16), (0, -1, 0)),
        ([3, 4], [7, 8], (0, 0, -1)),
        ([3, 4], [11, 12], (1, 0, 0)),
        ([3, 4], [15, 0], (0, 0, 1)),
        ([3, 4], [3, 4], (-1, 0, 0)),
    ],
)
def test_bright_texels_light_the_side_that_faces_them(rows, columns, towards):
    """Row 0 is up, the middle column looks to -z, columns go on to +x."""
    environment = torch.zeros(8, 16, 1, dtype=F64)
    for row in rows:
        environment[row, list(columns)] = 1
    directions = torch.tensor([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], dtype=F64)
    irradiance = dr.irradiance_sh(dr.sh_from_environment(environment), directions)[:, 0, 0, 0]
    assert directions[irradiance.argmax()].tolist() == list(towards)


def test_batched_environments_equal_single_ones():
    environments = rnd(3, 6, 4, 4, 2, dtype=F64)
    batched = dr.sh_from_environment(environments)
    assert batched.shape == (3, 9, 2)
    assert torch.allclose(batched, torch.stack([dr.sh_from_environment(e) for e in environments]))


def test_gradient_of_the_projection_is_exact():
    environment = rnd(4, 6, 3, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(dr.sh_from_environment, environment)


def test_unknown_shape_or_convention_is_refused():
    with pytest.raises(ValueError, match="sh_from_environment: environment must have shape"):
        dr.sh_from_environment(torch.ones(4, 3))
    with pytest.raises(ValueError, match="sh_from_environment: convention must be one of"):
        dr.sh_from_environment(torch.ones(4, 8, 3), convention="kaolin")


def test_length_of_normals_does_not_matter_and_gradient_is_tangential():
    normals = surface()[1].requires_grad_()
    coefficients = rnd(9, 3, dtype=F64)
    value = dr.irradiance_sh(coefficients, normals)
    assert torch.allclose(value, dr.irradiance_sh(coefficients, 7.0 * normals.detach()))
    (grad,) = torch.autograd.grad(value.sum(), normals)
    assert (grad * normals).sum(-1).abs().max() < 1e-12


def test_zero_normal_gives_zero_and_no_gradient():
    normals = torch.zeros(1, 1, 2, 3, dtype=F64)
    normals[0, 0, 1, 2] = 1
    normals.requires_grad_()
    coefficients = rnd(9, 3, dtype=F64).requires_grad_()
    value = dr.irradiance_sh(coefficients, normals)
    value.sum().backward()
    assert not value[0, 0, 0].any()
    assert not normals.grad[0, 0, 0].any()
    assert torch.isfinite(coefficients.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_d11_background_is_ignored_whatever_it_holds(dtype):
    mask = checked_mask(2)
    normals, table = surface(2)[1].to(dtype), rnd(9, 3, dtype=dtype)

    def run(fill):
        leaves = [table.clone().requires_grad_(), torch.where(mask[..., None], normals, fill).requires_grad_()]
        image = dr.irradiance_sh(*leaves, mask=mask)
        grads = torch.autograd.grad(image, leaves, rnd(*image.shape, dtype=dtype))
        assert not image[~mask].any()
        assert not grads[1][~mask].any()
        return [image, *grads]

    for poison in (float("nan"), float("inf"), 0.0):
        assert all(torch.equal(a, b) for a, b in zip(run(poison), run(1.0), strict=True))


def test_window_keeps_the_mean_and_removes_negative_irradiance():
    """A small sun: nine coefficients overshoot below zero on the far side, windowed ones much less."""
    environment = torch.zeros(32, 64, 1, dtype=F64)
    environment[16, 32] = 100
    coefficients = dr.sh_from_environment(environment)
    normals = unit(1, 40, 40)
    plain, windowed = (dr.irradiance_sh(dr.window_sh(coefficients, s), normals) for s in (0.0, 0.15))
    assert torch.equal(dr.window_sh(coefficients, 0.0), coefficients)
    assert torch.equal(dr.window_sh(coefficients, 0.15)[0], coefficients[0])
    assert plain.min() < 0
    assert windowed.min() > 0.5 * plain.min()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("width", [1, 8, 13])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_packets_and_single_pixels_agree(dtype, width, channels):
    op = torch.ops.diffrender
    normals = surface(2, (3, width))[1].to(dtype)
    inputs = (rnd(2, 9, channels, dtype=dtype), normals, checked_mask(2, (3, width)).int() - 1)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    packets, single = (op.irradiance_sh(*inputs, driver) for driver in (0, 1))
    assert (packets - single).abs().max() <= tolerance * 10
    arguments = (*inputs, rnd(*packets.shape, dtype=dtype), True, True)
    first = op.irradiance_sh_backward(*arguments, 0, 0)
    for scatter, driver in ((0, 1), (1, 1)):
        for value, truth in zip(op.irradiance_sh_backward(*arguments, scatter, driver), first, strict=True):
            assert (value - truth).abs().max() <= tolerance * max(1.0, float(truth.abs().max()))


def test_basis_is_orthonormal():
    directions, solid_angle = _lat_long_texels(200, 400)
    for convention in ("unsigned", "condon_shortley"):
        basis = _evaluate_basis(directions, convention)
        products = torch.einsum("rci,rcj,rc->ij", basis, basis, solid_angle)
        assert (products - torch.eye(9, dtype=F64)).abs().max() < 2e-3
