"""Materials: glTF semantics, constants and textures, batches, state, devices and types, messages."""

import pytest
import torch

import diffrender as dr
from tests.support.vocabulary import rnd, uniform

F64 = torch.float64
GRID = (2, 4, 5)


def texcoords(dtype=F64):
    return uniform(*GRID, 2, low=-0.5, high=1.5, seed=1, dtype=dtype)


def steps():
    return rnd(*GRID, 4, seed=2, dtype=F64) * 0.1


def textures():
    return {
        "albedo": uniform(8, 6, 4, seed=3, dtype=F64),
        "metallic": uniform(8, 6, 1, seed=4, dtype=F64),
        "roughness": uniform(8, 6, 1, seed=5, dtype=F64),
        "normal": uniform(4, 4, 3, seed=6, dtype=F64),
        "emissive": uniform(5, 3, 3, seed=7, dtype=F64),
        "occlusion": uniform(8, 6, 1, seed=8, dtype=F64),
    }


def test_defaults_are_a_white_rough_opaque_dielectric():
    sample = dr.Material().evaluate()
    assert sample.albedo.tolist() == [1, 1, 1]
    assert (sample.metallic.item(), sample.roughness.item(), sample.occlusion.item(), sample.alpha.item()) == (
        0,
        1,
        1,
        1,
    )
    assert sample.emissive.tolist() == [0, 0, 0]
    assert sample.normal is None


def test_every_property_is_factor_times_texture():
    maps, uv, duv = textures(), texcoords(), steps()
    factors = {"albedo_factor": (0.5, 0.25, 2.0, 0.5), "metallic_factor": 0.3, "roughness_factor": 0.7,
               "emissive_factor": (4.0, 5.0, 6.0), "occlusion_strength": 0.25}  # fmt: skip
    material = dr.Material(**maps, **factors, alpha_mode="BLEND")
    sample = material.evaluate(uv, duv)

    def alone(name):
        return dr.texture(maps[name], uv, texcoord_derivatives=duv)

    factor = torch.tensor(factors["albedo_factor"], dtype=F64)
    torch.testing.assert_close(sample.albedo, alone("albedo")[..., :3] * factor[:3])
    torch.testing.assert_close(sample.alpha, alone("albedo")[..., 3:] * 0.5)
    torch.testing.assert_close(sample.metallic, alone("metallic") * 0.3)
    torch.testing.assert_close(sample.roughness, alone("roughness") * 0.7)
    torch.testing.assert_close(sample.emissive, alone("emissive") * torch.tensor([4.0, 5.0, 6.0], dtype=F64))
    torch.testing.assert_close(sample.normal, alone("normal"))
    torch.testing.assert_close(sample.occlusion, 1 + 0.25 * (alone("occlusion") - 1))


def test_gltf_channels_and_colors():
    """Roughness in G, metallic in B, occlusion in R; base colour and emissive are sRGB, the rest is not, nor alpha."""
    stored = torch.tensor([0.25, 0.5, 0.75, 0.6]).expand(2, 2, 4)
    material = dr.Material.from_gltf(
        base_color_texture=stored,
        base_color_factor=(1.0, 0.5, 1.0, 0.5),
        metallic_roughness_texture=stored,
        occlusion_texture=stored,
        normal_texture=stored,
        emissive_texture=stored,
        emissive_factor=(2.0, 2.0, 2.0),
        alpha_mode="BLEND",
    )
    sample = material.evaluate(torch.full((1, 1, 1, 2), 0.5))
    linear = dr.srgb_to_linear(stored[0, 0, :3])
    torch.testing.assert_close(sample.albedo[0, 0, 0], linear * torch.tensor([1.0, 0.5, 1.0]))
    torch.testing.assert_close(sample.emissive[0, 0, 0], 2 * linear)
    torch.testing.assert_close(sample.normal[0, 0, 0], stored[0, 0, :3])
    for name, value in (("roughness", 0.5), ("metallic", 0.75), ("occlusion", 0.25), ("alpha", 0.3)):
        assert getattr(sample, name).item() == pytest.approx(value)


def test_gltf_defaults_are_those_of_the_format():
    sample = dr.Material.from_gltf().evaluate()
    assert (sample.metallic.item(), sample.roughness.item()) == (1, 1)
    assert sample.emissive.tolist() == [0, 0, 0]
    # A factor without a picture multiplies 1, a picture without a factor for emission stays dark, as the format says.
    assert dr.Material.from_gltf(emissive_factor=(1.0, 2.0, 3.0)).evaluate().emissive.tolist() == [1, 2, 3]
    dark = dr.Material.from_gltf(emissive_texture=torch.ones(1, 1, 3))
    assert not dark.evaluate(torch.zeros(1, 1, 1, 2)).emissive.any()


@pytest.mark.parametrize(("mode", "expected"), [("OPAQUE", 1.0), ("MASK", 0.0), ("BLEND", 0.3)])
def test_alpha_modes(mode, expected):
    material = dr.Material(albedo=(1.0, 1.0, 1.0, 0.6), albedo_factor=(1.0, 1.0, 1.0, 0.5), alpha_mode=mode)
    assert material.evaluate().alpha.item() == pytest.approx(expected)


def test_cutoff_counts_as_inside():
    material = dr.Material(albedo=(1.0, 1.0, 1.0, 0.25), alpha_mode="MASK", alpha_cutoff=0.25)
    assert material.evaluate().alpha.item() == 1
    assert dr.Material(albedo_factor=(1.0, 1.0, 1.0, 0.2), alpha_mode="MASK").evaluate().alpha.item() == 0


def test_items_of_a_batch_may_differ_in_constants_and_textures():
    uv = texcoords()
    maps = {"albedo": uniform(2, 8, 6, 3, seed=9, dtype=F64), "roughness": uniform(8, 6, 1, seed=5, dtype=F64),
            "metallic": uniform(2, 1, seed=10, dtype=F64)}  # fmt: skip
    factor = uniform(2, 3, seed=11, dtype=F64)
    together = dr.Material(**maps, albedo_factor=factor).evaluate(uv)
    for b in range(2):
        alone = dr.Material(
            albedo=maps["albedo"][b], roughness=maps["roughness"], metallic=maps["metallic"][b], albedo_factor=factor[b]
        ).evaluate(uv[b : b + 1])
        torch.testing.assert_close(together.albedo[b : b + 1], alone.albedo)
        torch.testing.assert_close(together.roughness[b : b + 1], alone.roughness)
        torch.testing.assert_close(together.metallic[b], alone.metallic)


def test_gradients_reach_every_property():
    names = list(textures())
    values = [*textures().values(), uniform(4, seed=12, dtype=F64), uniform(2, 1, seed=13, dtype=F64)]
    uv, duv = texcoords(), steps()

    def evaluate(*values):
        material = dr.Material(
            **dict(zip(names, values, strict=False)), albedo_factor=values[6], roughness_factor=values[7],
            occlusion_strength=0.4, alpha_mode="BLEND",
        )  # fmt: skip
        return material.evaluate(uv, duv)

    leaves = [value.requires_grad_() for value in values]
    assert torch.autograd.gradcheck(evaluate, leaves, fast_mode=True)
    grads = torch.autograd.grad(sum(x.sum() for x in evaluate(*leaves)), leaves)
    for name, grad in zip([*names, "factor", "factor"], grads, strict=True):
        assert grad.any(), name


def test_frozen_textures_get_no_gradient_and_cost_none():
    maps = {k: v.float() for k, v in textures().items()}
    maps["roughness"].requires_grad_()
    sample = dr.Material(**maps).evaluate(texcoords(torch.float32))
    assert sample.roughness.requires_grad
    assert not sample.metallic.requires_grad
    assert not sample.albedo.requires_grad


def test_sample_shades():
    """Constants and pictures of a sample are what the shading op takes."""
    positions, normals = torch.zeros(*GRID, 3), torch.tensor([0.0, 0.0, 1.0])
    material = dr.Material(albedo=torch.full((2, 2, 3), 0.5), roughness=1.0)
    sample = material.evaluate(texcoords(torch.float32))
    image = dr.shade_metallic_roughness(
        positions, normals, sample.albedo, sample.metallic, sample.roughness, dr.DirectionalLight((0.0, 0.0, -1.0)),
        camera_position=(0.0, 0.0, 2.0),
    )  # fmt: skip
    assert torch.allclose(image, torch.full_like(image, 0.49), atol=1e-4)


def test_to_converts_all_tensors_and_keeps_modes_and_graph():
    factor = torch.ones(3, requires_grad=True)
    material = dr.Material(
        albedo=torch.rand(2, 2, 3), albedo_factor=factor, alpha_mode="MASK", alpha_cutoff=0.3, double_sided=True,
        wrap=("clamp", "mirror"),
    )  # fmt: skip
    double = material.to(F64)
    assert all(value.dtype == F64 for _, value in double.tensors())
    assert (double.alpha_mode, double.alpha_cutoff, double.double_sided, double.wrap) == (
        "MASK", 0.3, True, ("clamp", "mirror")
    )  # fmt: skip
    double.albedo_factor.sum().backward()
    assert factor.grad is not None
    assert material.parameters() == [factor]
    assert double.parameters() == []


def test_state_round_trip_is_in_place_and_through_a_file(tmp_path):
    material, other = dr.Material(**textures()), dr.Material(**textures())
    torch.save({name: value + 1 for name, value in other.state_dict().items()}, tmp_path / "material.pt")
    state = torch.load(tmp_path / "material.pt", weights_only=True)
    before = dict(material.tensors())
    material.load_state_dict(state)
    for name, value in material.tensors():
        assert value is before[name]
        assert torch.equal(value, state[name])
        assert not material.state_dict()[name].requires_grad


def test_failed_load_changes_nothing():
    material = dr.Material(albedo=torch.rand(2, 2, 3))
    state = {name: value + 1 for name, value in material.state_dict().items()}
    state["roughness"] = torch.ones(3)
    before = material.albedo.clone()
    with pytest.raises(ValueError, match=r"load_state_dict: roughness must have shape \(\), got \(3,\)"):
        material.load_state_dict(state)
    assert torch.equal(material.albedo, before)
    del state["roughness"]
    with pytest.raises(ValueError, match="load_state_dict: state must hold albedo, "):
        material.load_state_dict(state)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dr.Material(albedo=torch.ones(4, 4, 2)), ValueError, r"Material: albedo must .*got \(4, 4, 2\)"),
        (lambda: dr.Material(roughness=torch.ones(4, 4)), ValueError, r"Material: roughness must .* Add an axis"),
        (lambda: dr.Material(albedo_factor=torch.ones(4, 4, 3)), ValueError, "Material: albedo_factor must"),
        (lambda: dr.Material(albedo=torch.ones(3, dtype=torch.uint8)), TypeError, "Material: albedo must be float32"),
        (lambda: dr.Material(albedo="red"), TypeError, "Material: albedo must be a tensor or numbers, got str"),
        (lambda: dr.Material(metallic=None), TypeError, "Material: metallic must be a tensor or numbers"),
        (lambda: dr.Material(alpha_mode="opaque"), ValueError, "Material: alpha_mode must be one of 'OPAQUE'"),
        (lambda: dr.Material(albedo=torch.ones(2, 2, 3)).evaluate(), ValueError,
         "Material.evaluate: texcoords must be given for the textures albedo"),
        (lambda: dr.Material.from_gltf(metallic_roughness_texture=torch.ones(2, 2, 1)), ValueError,
         "Material.from_gltf: metallic_roughness_texture must have shape"),
        (lambda: dr.Material.from_gltf(base_color_texture=torch.ones(2, 2, 3).byte()), TypeError,
         "Material.from_gltf: base_color_texture must be float32"),
    ],
)  # fmt: skip
def test_bad_material_says_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
