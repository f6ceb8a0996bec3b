"""shade_blinn_phong: closed forms, small and large exponents, ties."""

import math

import pytest
import torch

import diffrender as dr
from tests.ops.rows.shade_blinn_phong import material
from tests.ops.rows.shade_checks import check_background_is_ignored, check_drivers_agree
from tests.support.vocabulary import uniform

F64 = torch.float64
UP = torch.tensor([0.0, 0.0, 1.0], dtype=F64)
HERE = torch.zeros(3, dtype=F64)


def shade(normal, view, to_light, albedo=0.0, specular=1.0, shininess=20.0, **options):
    light = dr.DirectionalLight(-to_light, 1.0)
    return dr.shade_blinn_phong(HERE, normal, albedo, specular, shininess, light, view_directions=view, **options)[
        0, 0, 0
    ]


def test_highlight_peaks_at_the_normalisation_factor():
    value = shade(UP, UP, UP, albedo=0.3, specular=0.5, shininess=24.0)
    assert value[0].item() == pytest.approx(0.3 / math.pi + 0.5 * 32 / (8 * math.pi), rel=1e-12)


def test_highlight_falls_with_the_power_of_the_cosine():
    view = torch.tensor([math.sin(0.8), 0.0, math.cos(0.8)], dtype=F64)
    value = shade(UP, view, UP, shininess=7.0)
    assert value[0].item() == pytest.approx(15 / (8 * math.pi) * math.cos(0.4) ** 7, rel=1e-12)


@pytest.mark.parametrize("shininess", [1.0, 5.0, 80.0, 3000.0])
def test_float32_power_keeps_its_digits(shininess):
    """The packets have a power of their own: against float64, relative to values that are not negligible."""
    angle = uniform(4000, low=0.0, high=1.5, seed=1, dtype=F64)
    views = torch.stack([angle.sin(), 0 * angle, angle.cos()], -1).view(1, 50, 80, 3)

    def call(dtype):
        light = dr.pack_lights(dr.DirectionalLight(-UP, 1.0)).to(dtype)
        maps = [x.to(dtype) for x in (HERE, UP, HERE, HERE + 1)]
        return dr.shade_blinn_phong(*maps, shininess, light, view_directions=views.to(dtype)).double()

    truth = call(F64)
    error = (call(torch.float32) - truth).abs()
    # n.h has been rounded some eight times by 2^-24, which the exponent multiplies; the power itself adds a few units.
    assert (error <= (4 * shininess + 40) * 2**-23 * truth + 1e-30).all()


def test_shininess_below_one_counts_as_one_and_at_one_moves():
    view = torch.tensor([0.6, 0.0, 0.8], dtype=F64)
    for shininess, moves in ((0.3, False), (1.0, True), (1.1, True)):
        leaf = torch.tensor([shininess], dtype=F64, requires_grad=True)
        value = shade(UP, view, UP, shininess=leaf)
        assert bool(torch.autograd.grad(value.sum(), leaf)[0].any()) == moves
        assert torch.equal(value, shade(UP, view, UP, shininess=max(shininess, 1.0)))


def test_half_vector_on_the_horizon_has_finite_gradient():
    """n.h = 0 with exponent 1, where x^s ln x and x^(s-1) are delicate."""
    normal = torch.tensor([1.0, 0.0, 0.0], dtype=F64)
    view, to_light = torch.tensor([-1.0, 0.0, 1.0], dtype=F64), torch.tensor([1.0, 0.0, 1.0], dtype=F64)
    leaves = [x.clone().requires_grad_() for x in (normal, view, to_light, torch.tensor([1.0], dtype=F64))]
    value = shade(leaves[0], leaves[1], leaves[2], shininess=leaves[3], two_sided=False)
    value.sum().backward()
    assert not value.any()
    assert all(torch.isfinite(x.grad).all() for x in leaves)


def test_light_behind_gives_zero_value_and_gradient():
    leaves = [x.clone().requires_grad_() for x in (UP, UP, -UP)]
    value = shade(*leaves, albedo=0.5)
    value.sum().backward()
    assert not value.any()
    assert all(not x.grad.any() for x in leaves)


@pytest.mark.parametrize("degrees", [1.0, 60.0, 89.9])
def test_gradcheck_from_head_on_to_grazing(degrees):
    angle = math.radians(degrees)
    view = torch.tensor([math.sin(angle), 0.1, math.cos(angle)], dtype=F64)
    to_light = torch.tensor([-math.sin(angle), 0.2, math.cos(angle)], dtype=F64)
    leaves = [x.clone().requires_grad_() for x in (UP, view, to_light, torch.tensor([37.0], dtype=F64))]

    def call(normal, view, to_light, shininess):
        return shade(normal, view, to_light, 0.5, 0.7, shininess)

    assert torch.autograd.gradcheck(call, leaves, eps=1e-8, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_d11_background_is_not_shaded_whatever_it_holds(dtype):
    check_background_is_ignored(dr.shade_blinn_phong, material(2).values(), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 33])
def test_packets_and_single_pixels_agree(dtype, width):
    check_drivers_agree("shade_blinn_phong", lambda *shape: list(material(*shape).values()), (), dtype, width)
