"""Lights: packing, batches, state, devices and types, messages."""

import math

import pytest
import torch

import diffrender as dr

ALL = [
    lambda: dr.AmbientLight((0.1, 0.2, 0.3)),
    lambda: dr.DirectionalLight((0.0, -2.0, 0.0), 2.0),
    lambda: dr.PointLight((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), 0.25),
    lambda: dr.SpotLight((1.0, 2.0, 3.0), (0.0, 0.0, -4.0), 1.5, 20.0, 60.0, 0.5),
]


def test_columns_of_the_table():
    table = dr.pack_lights([make() for make in ALL])
    assert table.types.tolist() == [0, 1, 2, 3]
    assert table.types.dtype == torch.int32
    inner = math.cos(math.radians(20))
    rows = [
        [0.1, 0.2, 0.3, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [2, 2, 2, 0, 0, 0, 0, -1, 0, 0, 0, 0],
        [4, 5, 6, 1, 2, 3, 0, 0, 0, 0.25, 0, 0],
        [1.5, 1.5, 1.5, 1, 2, 3, 0, 0, -1, 0.5, inner, 0.5],
    ]
    assert torch.allclose(table.values, torch.tensor([rows], dtype=torch.float32))


def test_order_of_lights_is_kept():
    lights = [make() for make in ALL]
    order = [2, 0, 3, 1]
    table, sorted_table = dr.pack_lights([lights[k] for k in order]), dr.pack_lights(lights)
    assert table.types.tolist() == order
    assert torch.equal(table.values, sorted_table.values[:, order])


def test_gradient_reaches_every_value():
    direction, color = torch.tensor([1.0, 2.0, 2.0], requires_grad=True), torch.tensor(3.0, requires_grad=True)
    table = dr.pack_lights([dr.DirectionalLight(direction, color), dr.AmbientLight(color)])
    table.values[..., :3].sum().backward(retain_graph=True)
    assert color.grad == 6
    (grad,) = torch.autograd.grad(table.values[0, 0, 6], direction)
    # d(x / |x|) / dx at (1, 2, 2) / 3
    assert torch.allclose(grad, (torch.tensor([1.0, 0, 0]) - direction.detach() / 9) / 3)


def test_zero_direction_gives_finite_values_and_no_gradient():
    direction = torch.zeros(3, requires_grad=True)
    values = dr.DirectionalLight(direction).pack().values
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert not direction.grad.any()


def test_own_and_shared_values_in_one_light():
    light = dr.PointLight(torch.randn(4, 1, 3), torch.rand(1, 5, 3))
    assert light.pack().values.shape == (4, 5, 12)
    assert dr.pack_lights([light, dr.AmbientLight()]).values.shape == (4, 6, 12)


def test_packed_tables_may_be_packed_again():
    table = dr.pack_lights([make() for make in ALL])
    assert dr.pack_lights(table) is table
    twice = dr.pack_lights([table, ALL[0]()])
    assert twice.types.tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("make", ALL)
def test_state_round_trip_is_in_place(make):
    light, other = make(), make()
    state = {name: value + 1 for name, value in other.state_dict().items()}
    tensors = [value for _, value in light.tensors()]
    light.load_state_dict(state)
    for (name, value), before in zip(light.tensors(), tensors, strict=True):
        assert value is before
        assert torch.equal(value, state[name])
        assert not light.state_dict()[name].requires_grad


def test_state_of_another_light_is_refused():
    with pytest.raises(ValueError, match="load_state_dict: state must hold color, position, radius, got color"):
        dr.PointLight((0.0, 0.0, 1.0)).load_state_dict({"color": torch.ones(())})
    with pytest.raises(ValueError, match=r"load_state_dict: color must have shape \(\), got \(3,\)"):
        dr.AmbientLight().load_state_dict({"color": torch.ones(3)})


def test_failed_load_changes_nothing():
    light = dr.PointLight((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    state = {name: value + 1 for name, value in light.state_dict().items()} | {"radius": torch.ones(2)}
    with pytest.raises(ValueError, match=r"load_state_dict: radius must have shape \(\), got \(2,\)"):
        light.load_state_dict(state)
    assert light.position.tolist() == [1, 2, 3]
    assert light.color.tolist() == [4, 5, 6]


@pytest.mark.parametrize("make", ALL)
def test_to_converts_all_values_and_keeps_the_graph(make):
    light = make()
    light.color.requires_grad_()
    double = light.to(torch.float64)
    assert type(double) is type(light)
    assert all(value.dtype == torch.float64 for _, value in double.tensors())
    double.pack().values.sum().backward()
    assert light.color.grad is not None
    assert light.parameters() == [light.color]
    assert double.parameters() == []


def test_numbers_follow_the_type_of_the_tensors():
    light = dr.PointLight(torch.zeros(3, dtype=torch.float64), 2.0)
    assert light.color.dtype == torch.float64
    mixed = dr.pack_lights([light, dr.AmbientLight(0.1)])
    assert mixed.values.dtype == torch.float64


def test_float32_lights_shade_float64_maps_but_not_the_other_way_round():
    maps = (torch.zeros(1, 2, 2, 3, dtype=torch.float64), torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    assert dr.shade_lambert(*maps, 1.0, dr.AmbientLight(0.5), two_sided=False).dtype == torch.float64
    light = dr.AmbientLight(torch.tensor(0.5, dtype=torch.float64))
    with pytest.raises(TypeError, match="shade_lambert: lights is torch.float64 but positions is torch.float32"):
        dr.shade_lambert(maps[0].float(), maps[1].float(), 1.0, light, two_sided=False)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dr.PointLight(torch.zeros(4)), ValueError, r"PointLight: position must .*got \(4,\)"),
        (lambda: dr.PointLight(torch.zeros(1, 1, 1, 3)), ValueError, r"PointLight: position must .*got \(1, 1, 1, 3\)"),
        (lambda: dr.DirectionalLight(1.0), ValueError, "DirectionalLight: direction must have 3 components"),
        (lambda: dr.AmbientLight(torch.ones(3, dtype=torch.int64)), TypeError, "AmbientLight: color must be float32"),
        (lambda: dr.PointLight(torch.zeros(2, 3), torch.ones(3, 3)).pack(), ValueError, "pack_lights: PointLight must"),
        (lambda: dr.pack_lights(dr.Camera), TypeError, "pack_lights: lights must be lights or a sequence"),
        (lambda: dr.pack_lights([dr.AmbientLight(), 3.0]), TypeError, "pack_lights: lights must hold lights only"),
        (
            lambda: dr.pack_lights([dr.AmbientLight(torch.ones(2, 3)), dr.AmbientLight(torch.ones(3, 3))]),
            ValueError,
            "pack_lights: lights must have one batch size, or 1 where shared, got 2, 3",
        ),
    ],
)
def test_bad_light_says_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
