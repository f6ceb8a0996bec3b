"""Cases S (shading) that concern the shading ops; those of colour and normals are in other files."""

import math

import pytest
import torch

import diffrender as dr
from diffrender.ops.irradiance_sh import _evaluate_basis, _lat_long_texels
from tests.support.vocabulary import rnd, uniform

OPS = {
    "lambert": lambda *a, **k: dr.shade_lambert(*a[:2], 0.7, a[2], **k),
    "blinn_phong": lambda *a, **k: dr.shade_blinn_phong(*a[:2], 0.7, 0.3, 20.0, a[2], **k),
    "metallic_roughness": lambda *a, **k: dr.shade_metallic_roughness(*a[:2], 0.7, 0.4, 0.5, a[2], **k),
}
EYE = (0.0, 0.0, 5.0)


@pytest.fixture(params=OPS)
def shade(request):
    return lambda *maps, **options: OPS[request.param](*maps, camera_position=EYE, **options)


def scene(batch=4, height=3, width=4):
    """Width equals the batch size: a wrong alignment of axes would not be noticed by its shape."""
    normals = rnd(batch, height, width, 3, seed=1) * 0.3
    normals[..., 2] += 1
    return uniform(batch, height, width, 3, low=-1.0, seed=2), normals


def test_s05_one_light_per_item(shade):
    positions, normals = scene()
    directions = rnd(4, 3, seed=3)
    directions[:, 2] = -1 - directions[:, 2].abs()
    together = shade(positions, normals, dr.DirectionalLight(directions))
    for b in range(4):
        alone = shade(positions[b : b + 1], normals[b : b + 1], dr.DirectionalLight(directions[b]))
        assert torch.equal(together[b : b + 1], alone)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, 3)])
def test_s05_shared_light_in_every_form(shade, shape):
    positions, normals = scene()
    direction = torch.tensor([0.2, -0.3, -1.0])
    truth = torch.cat(
        [shade(positions[b : b + 1], normals[b : b + 1], dr.DirectionalLight(direction)) for b in range(4)]
    )
    assert torch.equal(shade(positions, normals, dr.DirectionalLight(direction.view(shape))), truth)


def test_s05_several_lights_per_item(shade):
    positions, normals = scene()
    places = rnd(4, 5, 3, seed=5) + torch.tensor([0.0, 0.0, 3.0])
    colors = uniform(4, 5, 3, seed=6)
    together = shade(positions, normals, dr.PointLight(places, colors))
    for b in range(4):
        item = (positions[b : b + 1], normals[b : b + 1])
        alone = sum(shade(*item, dr.PointLight(places[b, k], colors[b, k])) for k in range(5))
        torch.testing.assert_close(together[b : b + 1], alone)


def test_s05_own_and_shared_lights_in_one_call(shade):
    positions, normals = scene()
    own, shared = dr.PointLight(rnd(4, 3, seed=7) + 3.0), dr.DirectionalLight((0.0, 0.1, -1.0), 2.0)
    together = shade(positions, normals, [own, shared])
    torch.testing.assert_close(together, shade(positions, normals, own) + shade(positions, normals, shared))


def test_s05_gradient_of_a_shared_light_is_the_sum_over_the_items(shade):
    positions, normals = scene()
    weights = rnd(4, 3, 4, 3, seed=8)

    def gradient(direction):
        leaf = direction.clone().requires_grad_()
        image = shade(positions, normals, dr.DirectionalLight(leaf))
        return torch.autograd.grad((image * weights).sum(), leaf)[0]

    direction = torch.tensor([0.2, -0.3, -1.0])
    own = gradient(direction.expand(4, 3))
    assert own.shape == (4, 3)
    torch.testing.assert_close(gradient(direction), own.sum(0))


def test_s07_basis_is_orthonormal_and_constant_environment_gives_pi():
    directions, solid_angle = _lat_long_texels(200, 400)
    for convention in ("unsigned", "condon_shortley"):
        basis = _evaluate_basis(directions, convention)
        products = torch.einsum("rci,rcj,rc->ij", basis, basis, solid_angle)
        assert (products - torch.eye(9, dtype=products.dtype)).abs().max() < 2e-3
        coefficients = dr.sh_from_environment(torch.ones(200, 400, 3), convention=convention)
        irradiance = dr.irradiance_sh(coefficients, rnd(1, 9, 9, 3), convention=convention)
        assert (irradiance - math.pi).abs().max() < 1e-2


def test_s11_no_hidden_clamp(shade):
    """Fault: the result is clamped to [0, 1]: bright pixels have no gradient."""
    positions, normals = torch.zeros(1, 4, 4, 3), torch.tensor([0.0, 0.0, 1.0])
    intensity = torch.tensor(60.0, requires_grad=True)
    image = shade(positions, normals, dr.DirectionalLight((0.0, 0.0, -1.0), intensity))
    assert image.max() > 1.5
    ((image - 2) ** 2).mean().backward()
    assert intensity.grad.abs() > 0


def test_s11_negative_values_pass(shade):
    """Signed light, as an optimiser may propose, is no special case."""
    positions, normals = scene()
    image = shade(positions, normals, dr.DirectionalLight((0.0, 0.0, -1.0), -1.0))
    torch.testing.assert_close(image, -shade(positions, normals, dr.DirectionalLight((0.0, 0.0, -1.0), 1.0)))


def test_s11_infinite_input_stays_infinite_and_harms_no_neighbour(shade):
    positions, normals = scene(1, 3, 9)
    color = torch.full((3,), float("inf"))
    image = shade(positions, normals, dr.DirectionalLight((0.0, 0.0, -1.0), color))
    assert torch.isinf(image).all()
    mask = torch.zeros(1, 3, 9, dtype=torch.bool)
    assert not shade(positions, normals, dr.DirectionalLight((0.0, 0.0, -1.0), color), mask=mask).any()
