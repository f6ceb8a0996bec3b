"""shade_lambert: closed forms, sides, masks, the leak, and that both bodies of the kernel agree."""

import math

import pytest
import torch

import diffrender as dr
from tests.ops.rows.shade import EYE, checked_mask, color_map, lights, surface
from tests.ops.rows.shade_checks import check_background_is_ignored, check_drivers_agree
from tests.support.vocabulary import fd, rnd

F64 = torch.float64
FRONT = torch.tensor([0.0, 0.0, 1.0], dtype=F64)
HERE = torch.zeros(3, dtype=F64)


def shade(normal, light, albedo=0.8, **options):
    """Radiance (3,) of one point at the origin, seen from +z."""
    options = {"camera_position": 4 * FRONT} | options
    position = options.pop("position", HERE)
    return dr.shade_lambert(position, normal, albedo, light, **options)[0, 0, 0]


def test_white_surface_that_faces_irradiance_pi_is_white():
    assert torch.allclose(shade(FRONT, dr.DirectionalLight(-FRONT), 1.0), torch.ones(3, dtype=F64))


def test_radiance_falls_with_the_cosine():
    for degrees in (0, 30, 60, 89):
        angle = math.radians(degrees)
        sun = dr.DirectionalLight(torch.tensor([-math.sin(angle), 0.0, -math.cos(angle)], dtype=F64), 2.0)
        assert shade(FRONT, sun)[0] == pytest.approx(0.8 / math.pi * 2.0 * math.cos(angle), rel=1e-12)


def test_point_light_falls_with_the_square_of_the_distance():
    near, far = (shade(FRONT, dr.PointLight(d * FRONT, 5.0))[0] for d in (1.5, 3.0))
    assert near == pytest.approx(0.8 / math.pi * 5 / 1.5**2, rel=1e-12)
    assert near == pytest.approx(4 * float(far), rel=1e-12)


def test_radius_bounds_value_and_gradient_next_to_a_point_light():
    light = dr.PointLight((1e-6 * FRONT).requires_grad_(), 1.0, radius=0.1)
    value = shade(FRONT, light, 1.0)[0]
    assert value.item() == pytest.approx(1 / math.pi / 0.01, rel=1e-9)
    value.backward()
    assert light.position.grad[2] == pytest.approx(0, abs=1e-12)


def test_point_at_the_light_is_dark_with_zero_gradient():
    position = HERE.clone().requires_grad_()
    light = dr.PointLight(HERE.clone().requires_grad_(), 1.0, radius=0.0)
    value = shade(FRONT, light, position=position)
    value.sum().backward()
    assert not value.any()
    assert not position.grad.any()
    assert not light.position.grad.any()


def test_spot_light_is_full_inside_dark_outside_and_half_in_the_middle():
    inner, outer = math.cos(math.radians(20)), math.cos(math.radians(40))
    for cosine, share in ((1.0, 1.0), (inner, 1.0), ((inner + outer) / 2, 0.5), (outer, 0.0), (0.5, 0.0)):
        place = torch.tensor([math.sqrt(1 - cosine**2), 0.0, cosine], dtype=F64)
        value = shade(FRONT, dr.SpotLight(place, -FRONT, 1.0, 20.0, 40.0), 1.0)[0]
        assert value == pytest.approx(share * cosine / math.pi, rel=1e-9, abs=1e-12)


def test_spot_light_with_equal_angles_is_a_step_with_finite_gradient():
    light = dr.SpotLight(FRONT, -FRONT, 1.0, 30.0, torch.tensor(30.0, dtype=F64).requires_grad_())
    value = shade(FRONT, light, 1.0)
    assert value[0].item() == pytest.approx(1 / math.pi)
    value.sum().backward()
    assert light.outer_deg.grad == 0


def test_two_sided_surface_shows_the_side_that_is_seen():
    front = shade(FRONT, dr.DirectionalLight(-FRONT))
    assert torch.equal(shade(-FRONT, dr.DirectionalLight(-FRONT)), front)
    assert not shade(-FRONT, dr.DirectionalLight(-FRONT), two_sided=False).any()
    # Seen from behind, a light in front lights the side that nobody sees.
    assert not shade(FRONT, dr.DirectionalLight(-FRONT), camera_position=-4 * FRONT).any()


def test_geometric_normal_decides_the_side():
    """A shading normal that looks away from the viewer is not turned if the surface itself faces the viewer."""
    tilted = torch.tensor([0.96, 0.0, -0.28], dtype=F64)
    sun = dr.DirectionalLight(torch.tensor([-1.0, 0.0, 0.0], dtype=F64))
    assert shade(tilted, sun, geometric_normals=FRONT)[0] == pytest.approx(0.8 * 0.96)
    assert not shade(tilted, sun).any()


def test_light_from_exactly_behind_the_horizon_gives_zero_gradient():
    """n . l = 0 counts as dark: the gate is shut at the tie."""
    normal = FRONT.clone().requires_grad_()
    value = shade(normal, dr.DirectionalLight(torch.tensor([-1.0, 0.0, 0.0], dtype=F64)))
    value.sum().backward()
    assert not value.any()
    assert not normal.grad.any()


def test_leak_lets_the_gradient_through_on_the_dark_side_only():
    sun = dr.DirectionalLight(torch.tensor([0.3, 0.0, 1.0], dtype=F64))
    for leak in (0.0, 0.25):
        normal = FRONT.clone().requires_grad_()
        value = shade(normal, sun, 1.0, leak=leak, two_sided=False)
        value.sum().backward()
        assert not value.any()
        toward = -sun.direction / sun.direction.norm()
        tangent = toward - FRONT * (FRONT @ toward)
        assert torch.allclose(normal.grad, leak * 3 * tangent, atol=1e-12)
    lit = [FRONT.clone().requires_grad_() for _ in range(2)]
    for normal, leak in zip(lit, (0.0, 0.25), strict=True):
        shade(normal, dr.DirectionalLight(torch.tensor([0.3, 0.0, -1.0], dtype=F64)), leak=leak).sum().backward()
    assert torch.equal(lit[0].grad, lit[1].grad)


def test_d07_zero_normal_gives_zero_and_no_gradient():
    normals = torch.stack([torch.zeros(3, dtype=F64), FRONT]).view(1, 1, 2, 3).requires_grad_()
    value = dr.shade_lambert(HERE, normals, 0.5, dr.DirectionalLight(-FRONT), camera_position=4 * FRONT)
    value.sum().backward()
    assert not value[0, 0, 0].any()
    assert not normals.grad[0, 0, 0].any()
    assert torch.isfinite(normals.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_d11_background_is_not_shaded_whatever_it_holds(dtype):
    check_background_is_ignored(dr.shade_lambert, [color_map(2)], dtype)


def test_mask_may_be_the_triangle_id_of_fragments():
    positions, normals = surface()
    mask = checked_mask()
    by_mask, by_id, with_axis = (
        dr.shade_lambert(positions, normals, 0.5, lights("d"), camera_position=EYE, mask=m)
        for m in (mask, torch.where(mask, 7, -1), mask[..., None])
    )
    assert torch.equal(by_mask, by_id)
    assert torch.equal(by_mask, with_axis)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 33])
def test_packets_and_single_pixels_agree(dtype, width):
    check_drivers_agree("shade_lambert", lambda *shape: [color_map(*shape)], (0.0,), dtype, width)


def test_gradient_of_each_light_value_agrees_with_differences():
    """Light by light, through the packing: directions of any length, cone angles in degrees, radius."""
    positions, normals = surface()
    weights = rnd(1, 3, 11, 3, dtype=F64)
    place, aim = torch.tensor([0.4, 0.3, 2.2], dtype=F64), torch.tensor([-0.3, 0.1, -2.0], dtype=F64)
    angles = (torch.tensor(15.0, dtype=F64), torch.tensor(40.0, dtype=F64))
    cases = [
        (dr.AmbientLight, {"color": torch.tensor(0.3, dtype=F64)}),
        (dr.DirectionalLight, {"direction": aim, "color": torch.tensor([1.0, 2.0, 3.0], dtype=F64)}),
        (dr.PointLight, {"position": place, "color": torch.tensor(4.0, dtype=F64),
                         "radius": torch.tensor(2.4, dtype=F64)}),
        (dr.SpotLight, {"position": place, "direction": aim, "color": torch.tensor([5.0, 1.0, 2.0], dtype=F64),
                        "inner_deg": angles[0], "outer_deg": angles[1]}),
    ]  # fmt: skip
    for kind, values in cases:
        for name, value in values.items():

            def loss(x, kind=kind, values=values, name=name):
                light = kind(**{**values, name: x})
                image = dr.shade_lambert(positions, normals, 0.7, light, camera_position=EYE)
                return (image * weights).sum()

            step = rnd(value.numel(), dtype=F64).view(value.shape)
            leaf = value.clone().requires_grad_()
            (grad,) = torch.autograd.grad(loss(leaf), leaf)
            truth = fd(loss, value, step, 1e-5).item()
            assert (grad * step).sum().item() == pytest.approx(truth, rel=1e-5, abs=1e-8), (kind, name)
            assert grad.any(), (kind, name)
