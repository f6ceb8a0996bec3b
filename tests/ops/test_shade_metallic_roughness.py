"""shade_metallic_roughness: energy, reciprocity, grazing and head-on configurations, the smallest roughness."""

import math

import pytest
import torch

import diffrender as dr
from tests.ops.rows.shade import EYE, checked_mask, color_map, lights, surface
from tests.ops.rows.shade_checks import check_background_is_ignored, check_drivers_agree
from tests.ops.rows.shade_metallic_roughness import material
from tests.support.vocabulary import fd, rnd

F64 = torch.float64
UP = torch.tensor([0.0, 0.0, 1.0], dtype=F64)
HERE = torch.zeros(3, dtype=F64)


def direction(degrees, turn=0.0):
    """Unit vector at an angle from +z."""
    a, b = math.radians(degrees), math.radians(turn)
    return torch.tensor([math.sin(a) * math.cos(b), math.sin(a) * math.sin(b), math.cos(a)], dtype=F64)


def shade(view, to_light, albedo=1.0, metallic=1.0, roughness=0.5, normal=UP, **options):
    """Radiance (3,) of one point under a directional light of irradiance 1."""
    light = dr.DirectionalLight(-to_light, 1.0)
    maps = (albedo, metallic, roughness)
    return dr.shade_metallic_roughness(HERE, normal, *maps, light, view_directions=view, **options)[0, 0, 0]


def white_environment(count):
    """Directional lights that together are radiance 1 from the hemisphere: a regular grid of cosine^2 and azimuth."""
    z = ((torch.arange(count, dtype=F64) + 0.5) / count).sqrt()
    phi = 2 * math.pi * (torch.arange(2 * count, dtype=F64) + 0.5) / (2 * count)
    z, phi = torch.meshgrid(z, phi, indexing="ij")
    sine = (1 - z * z).sqrt()
    directions = torch.stack([sine * phi.cos(), sine * phi.sin(), z], -1).reshape(1, -1, 3)
    # Equal steps of z^2 are equal parts of the integral of z, pi in all; a light's irradiance is its part over z.
    irradiance = (math.pi / directions.shape[1]) / directions[..., 2:]
    return dr.pack_lights(dr.DirectionalLight(-directions, irradiance))


def albedo_of(view_cosine, table, **maps):
    view = direction(math.degrees(math.acos(view_cosine)))
    maps = {"albedo": 1.0, "metallic": 1.0, "roughness": 0.5} | maps
    options = {"multi_scatter": maps.pop("multi_scatter", False)}
    return dr.shade_metallic_roughness(HERE, UP, *maps.values(), table, view_directions=view, **options)[
        0, 0, 0, 0
    ].item()


@pytest.mark.parametrize("roughness", [0.2, 0.4, 0.7, 1.0])
def test_ggx_distribution_integrates_to_one(roughness):
    """Seen along the light, h = l = v: the radiance is D / (4 s) with s = sqrt((n.v)^2 (1 - A) + A)."""
    count = 4000
    theta = (torch.arange(count, dtype=F64) + 0.5) * (math.pi / 2 / count)
    view = torch.stack([theta.sin(), 0 * theta, theta.cos()], -1)[None, None]
    # One item per direction, so that each has a light of its own.
    light = dr.DirectionalLight(-view[0, 0], 1.0)
    radiance = dr.shade_metallic_roughness(HERE, UP, 1.0, 1.0, roughness, light, view_directions=view[0, 0])[:, 0, 0, 0]
    alpha_squared = roughness**4
    distribution = 4 * radiance * (theta.cos() ** 2 * (1 - alpha_squared) + alpha_squared).sqrt()
    integral = 2 * math.pi * (distribution * theta.cos() * theta.sin()).sum() * (math.pi / 2 / count)
    assert integral.item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("roughness", "loss"), [(0.5, 0.09), (0.8, 0.44), (1.0, 0.68)])
def test_single_scattering_loses_the_known_energy(roughness, loss):
    value = albedo_of(0.95, white_environment(96), roughness=roughness)
    assert value == pytest.approx(1 - loss, abs=0.006)


@pytest.mark.parametrize("roughness", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("view_cosine", [0.3, 0.95])
def test_white_furnace_with_multiple_scattering(roughness, view_cosine):
    """A white metal in a white environment cannot be told from it. 1 percent is the grid of lights and the table."""
    value = albedo_of(view_cosine, white_environment(128), roughness=roughness, multi_scatter=True)
    assert value == pytest.approx(1.0, abs=0.01)


def test_white_dielectric_reflects_about_what_it_receives():
    """At steep angles. At grazing ones glTF's mix reflects more than all, because its Fresnel term sees v.h only."""
    for view_cosine in (0.5, 1.0):
        for roughness in (0.3, 0.8):
            value = albedo_of(view_cosine, white_environment(64), metallic=0.0, roughness=roughness)
            assert 0.8 < value <= 1.03


def test_white_furnace_of_an_ambient_light_is_exact():
    value = dr.shade_metallic_roughness(HERE, UP, 1.0, 0.3, 0.7, dr.AmbientLight(0.8), camera_position=4 * UP)
    assert torch.allclose(value, torch.tensor(0.8, dtype=F64))


@pytest.mark.parametrize(("a", "b"), [((20, 0), (50, 130)), ((70, 10), (5, 0)), ((88, 0), (40, 180))])
def test_reciprocity(a, b):
    """Viewer and light change places: the same, per cosine of the light."""
    first, second = direction(*a), direction(*b)
    for maps in ({"metallic": 1.0, "albedo": 0.6}, {"metallic": 0.2, "roughness": 0.3}):
        one = shade(first, second, **maps) / second[2]
        other = shade(second, first, **maps) / first[2]
        assert torch.allclose(one, other, rtol=1e-12)


def test_short_form_without_diffuse_fresnel_differs_only_by_it():
    view, to_light = direction(20), direction(40, 90)
    grazing = (1 - ((view + to_light).norm() / 2)) ** 5
    full, short = (shade(view, to_light, 0.7, 0.4, diffuse_fresnel=flag) for flag in (True, False))
    missing = 0.7 / math.pi * 0.6 * (0.04 + 0.96 * grazing) * to_light[2]
    assert torch.allclose(short - full, missing.expand(3), rtol=1e-9)


@pytest.mark.parametrize(("view", "light"), [((89.9, 0), (89.8, 180)), ((89.95, 0), (10, 0)), ((30, 0), (89.99, 90))])
@pytest.mark.parametrize("roughness", [0.05, 0.4, 1.0])
def test_gradcheck_at_grazing_angles(view, light, roughness):
    """Both cosines of a few thousandths and below. Steps are small against the cosines, so that no gate is crossed."""
    values = [
        UP, torch.tensor([0.3, 0.6, 0.8], dtype=F64), torch.tensor([0.4], dtype=F64),
        torch.tensor([roughness], dtype=F64), direction(*view), -direction(*light),
    ]  # fmt: skip

    def loss(normal, albedo, metallic, roughness, view, aim):
        sun, weights = dr.DirectionalLight(aim, 1.0), torch.tensor([0.3, 1.0, 0.5], dtype=F64)
        maps = (HERE, normal, albedo, metallic, roughness)
        return (dr.shade_metallic_roughness(*maps, sun, view_directions=view) * weights).sum()

    leaves = [x.clone().requires_grad_() for x in values]
    grads = torch.autograd.grad(loss(*leaves), leaves)
    for k, (value, grad) in enumerate(zip(values, grads, strict=True)):
        for seed in range(3):
            step = rnd(*value.shape, seed=seed, dtype=F64)
            truth = fd(lambda x, k=k: loss(*values[:k], x, *values[k + 1 :]), value, step, 1e-7).item()
            # Relative to the size of the gradient: along some steps its parts cancel.
            assert (grad * step).sum().item() == pytest.approx(truth, abs=1e-4 * float((grad * step).abs().sum())), k
        assert grad.any()


@pytest.mark.parametrize("roughness", [0.045, 0.1, 0.5])
def test_gradcheck_where_normal_and_half_vector_meet(roughness):
    """The peak of the highlight, and a perfectly head-on point: both have a gradient to the roughness."""
    for view, light in (
        (direction(0), direction(0)),
        (direction(30, 0), direction(30, 180)),
        (direction(33), direction(30, 180)),
    ):
        maps = [x.clone().requires_grad_() for x in (
            UP, torch.tensor([roughness + 1e-3], dtype=F64), view, -light)]  # fmt: skip

        def call(normal, roughness, view, aim):
            sun = dr.DirectionalLight(aim, 1.0)
            return dr.shade_metallic_roughness(HERE, normal, 0.5, 0.7, roughness, sun, view_directions=view)

        assert torch.autograd.gradcheck(call, maps, eps=1e-8, atol=1e-4, rtol=1e-4)
        assert torch.autograd.grad(call(*maps).sum(), maps[1])[0].abs() > 1e-3


def test_float32_keeps_its_digits_in_a_narrow_highlight():
    """(n.h)^2 (A - 1) + 1 has lost all digits here: n.h differs from 1 by less than float32 can tell."""
    offsets = torch.linspace(0, 0.3, 40, dtype=F64)
    view = torch.stack([direction(d) for d in offsets.tolist()])
    sun = dr.DirectionalLight(-UP, 1.0)

    def call(dtype):
        normal, views = UP.to(dtype), view.to(dtype)
        return dr.shade_metallic_roughness(
            HERE.to(dtype), normal, 0.5, 1.0, 0.045, dr.pack_lights(sun).to(dtype), view_directions=views
        )

    assert torch.allclose(call(torch.float32).double(), call(F64), rtol=2e-4)


def test_light_exactly_behind_gives_zero_value_and_gradient():
    """v + l = 0: no half vector."""
    leaves = [x.clone().requires_grad_() for x in (UP, direction(90), -direction(90))]
    normal, view, to_light = leaves
    value = shade(view, to_light, normal=normal)
    value.sum().backward()
    assert not value.any()
    assert all(not x.grad.any() for x in leaves)


def test_viewer_or_light_below_the_surface_is_dark():
    horizon = torch.tensor([1.0, 0.0, 0.0], dtype=F64)
    pairs = ((direction(100), direction(20)), (direction(20), direction(100)), (horizon, UP), (UP, horizon))
    for view, to_light in pairs:
        assert not shade(view, to_light, two_sided=False).any()


@pytest.mark.parametrize(("roughness", "moves"), [(0.02, False), (0.045, True), (0.0451, True)])
def test_gradient_at_the_smallest_roughness(roughness, moves):
    """Below it the value is that of the bound and the gradient 0; a roughness put exactly on the bound still moves."""
    leaf = torch.tensor([roughness], dtype=F64, requires_grad=True)
    value = shade(direction(10), direction(11, 180), roughness=leaf)
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    assert bool(grad.any()) == moves
    assert torch.equal(value, shade(direction(10), direction(11, 180), roughness=max(roughness, 0.045)))


def test_reparameterised_roughness_never_freezes():
    for start in (-8.0, 0.0, 8.0):
        leaf = torch.tensor([start], dtype=F64, requires_grad=True)
        roughness = dr.roughness_from_unbounded(leaf)
        assert 0.045 < roughness < 1
        (grad,) = torch.autograd.grad(shade(direction(10), direction(25, 180), roughness=roughness).sum(), leaf)
        assert grad.abs() > 1e-9
        assert torch.allclose(dr.unbounded_from_roughness(roughness), leaf, rtol=1e-6)


def test_multi_scatter_gradient_agrees_with_differences():
    """Off the knots of the table. The look-up is bicubic: its gradient is continuous and that of its value."""
    positions, normals = surface()
    normals[:, -1] *= -1
    maps = [x.clone().requires_grad_() for x in (positions, normals, *material().values())]
    table = lights("dp")

    def call(*maps):
        return dr.shade_metallic_roughness(*maps, table, camera_position=EYE, mask=checked_mask(), multi_scatter=True)

    assert torch.autograd.gradcheck(call, maps, fast_mode=True)


def test_d11_multi_scatter_ignores_the_background():
    def op(*maps, **options):
        return dr.shade_metallic_roughness(*maps, multi_scatter=True, **options)

    check_background_is_ignored(op, material(2).values(), F64)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_d11_background_is_not_shaded_whatever_it_holds(dtype):
    check_background_is_ignored(dr.shade_metallic_roughness, material(2).values(), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 33])
def test_packets_and_single_pixels_agree(dtype, width):
    def maps(*shape):
        return [*material(*shape).values(), color_map(*shape, channels=1)]

    check_drivers_agree("shade_metallic_roughness", maps, (0.045, True), dtype, width)


def test_gradients_of_random_batches_are_finite_in_float32():
    """Roughness at the bound, cosines of all sizes, lights near the surface."""
    size = (40, 50)
    positions = rnd(2, *size, 3)
    maps = [
        positions,
        rnd(2, *size, 3, seed=1),
        torch.rand(2, *size, 3),
        torch.rand(2, *size, 1),
        torch.rand(2, *size, 1),
    ]
    maps[4][:, :20] = 0.0
    leaves = [x.requires_grad_() for x in maps]
    sources = dr.pack_lights([dr.PointLight(rnd(1, 5, 3)), dr.DirectionalLight(rnd(1, 3, 3))])
    image = dr.shade_metallic_roughness(*leaves, sources, camera_position=(0.0, 0.0, 1.0))
    image.sum().backward()
    assert torch.isfinite(image).all()
    assert all(torch.isfinite(x.grad).all() for x in leaves)
