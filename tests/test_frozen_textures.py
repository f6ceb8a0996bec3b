"""Materials keep stacks and mips of textures that nobody trains: same bits, and every change is seen."""

import copy
import io
import weakref

import pytest
import torch

import diffrender as dr
from diffrender import _frozen
from diffrender.ops import build_mips


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(5)


@pytest.fixture
def maps(generator):
    return {
        "albedo": torch.rand(16, 24, 3, generator=generator),
        "roughness": torch.rand(16, 24, 1, generator=generator),
    }


@pytest.fixture
def lookups(generator):
    return torch.rand(2, 5, 6, 2, generator=generator), torch.rand(2, 5, 6, 4, generator=generator) * 0.2


@pytest.fixture
def builds(monkeypatch):
    """One entry per call of the kernel that makes mips."""
    calls, real = [], build_mips.pack_mips
    monkeypatch.setattr(build_mips, "pack_mips", lambda *args: calls.append(args) or real(*args))
    return calls


def values(material, lookups):
    sample = material.evaluate(*lookups)
    return torch.cat([sample.albedo, sample.roughness.expand(*sample.albedo.shape[:-1], 1)], -1)


def test_second_picture_uses_the_mips_of_the_first_and_has_the_same_bits(maps, lookups, builds):
    material = dr.Material(**maps)
    values(material, lookups)
    moved = [lookups[0].roll(1, 0), lookups[1].flip(1)]
    pictures, gradients = [], []
    for tried in (material, dr.Material(**maps)):
        inputs = [t.clone().requires_grad_() for t in moved]
        pictures.append(values(tried, inputs))
        cotangent = torch.rand(pictures[0].shape, generator=torch.Generator().manual_seed(1))
        gradients.append(torch.autograd.grad(pictures[-1], inputs, cotangent))
    assert torch.equal(*pictures)
    for ours, expected in zip(*gradients, strict=True):
        assert torch.equal(ours, expected)
        assert ours.abs().max() > 0
    assert len(builds) == 2  # one for each material


def test_bilinear_reads_make_no_mips_and_later_ones_do(maps, lookups, builds):
    material = dr.Material(**maps)
    values(material, lookups[:1])
    assert builds == []
    assert torch.equal(values(material, lookups), values(dr.Material(**maps), lookups))
    assert torch.equal(values(material, lookups[:1]), values(dr.Material(**maps), lookups[:1]))
    assert len(builds) == 2


@pytest.mark.parametrize("change", ["in place", "through a view", "replaced", "load_state_dict"])
def test_changes_are_seen(maps, lookups, change):
    base = maps["albedo"].clone()
    material = dr.Material(base[:], roughness=maps["roughness"])
    before = values(material, lookups)
    new = {**maps, "albedo": 1 - maps["albedo"]}
    if change == "in place":
        material.albedo.copy_(new["albedo"])
    elif change == "through a view":
        base.copy_(new["albedo"])
    elif change == "replaced":
        material.albedo = new["albedo"]
    else:
        material.load_state_dict(dr.Material(**new).state_dict())
    after = values(material, lookups)
    assert not torch.equal(before, after)
    assert torch.equal(after, values(dr.Material(**new), lookups))


def test_a_texture_that_is_trained_from_now_on_gets_its_gradient(maps, lookups, builds):
    material = dr.Material(**maps)
    values(material, lookups)
    material.albedo.requires_grad_()
    cotangent = torch.rand(2, 5, 6, 4, generator=torch.Generator().manual_seed(1))
    (ours,) = torch.autograd.grad(values(material, lookups), material.albedo, cotangent)
    fresh = dr.Material(maps["albedo"].detach().clone().requires_grad_(), roughness=maps["roughness"])
    (expected,) = torch.autograd.grad(values(fresh, lookups), fresh.albedo, cotangent)
    assert torch.equal(ours, expected)
    assert ours.abs().max() > 0
    # Nothing of the trained texture is kept.
    assert set(material._frozen._kept) == {("roughness",)}


def test_nothing_is_kept_of_a_texture_that_is_trained_or_no_longer_there(maps, lookups):
    material = dr.Material(maps["albedo"])
    for change in (lambda: material.albedo.requires_grad_(), lambda: setattr(material, "albedo", torch.rand(3))):
        material.evaluate(*lookups)
        mips = weakref.ref(material._frozen._kept[("albedo",)].mips.values)
        change()
        material.evaluate(*lookups)
        assert material._frozen._kept == {}
        assert mips() is None
        material.albedo = maps["albedo"].detach().clone()


def test_steps_of_a_fused_optimizer_are_seen_afterwards(maps, lookups):
    """They leave no trace in torch's count of changes."""
    material = dr.Material(maps["albedo"])
    material.evaluate(*lookups)
    texture = material.albedo.requires_grad_()
    optimizer = torch.optim.Adam([texture], 0.1, fused=True)
    material.evaluate(*lookups).albedo.square().sum().backward()
    optimizer.step()
    texture.requires_grad_(False)
    assert torch.equal(material.evaluate(*lookups).albedo, dr.Material(texture.clone()).evaluate(*lookups).albedo)


@pytest.mark.parametrize("names", [("albedo",), ("albedo", "roughness")])
def test_assignments_to_data_are_seen(maps, lookups, names):
    """What Module.to and vector_to_parameters do: the same tensor, but other memory, size or type."""
    maps = {name: torch.nn.Parameter(maps[name], requires_grad=False) for name in names}
    material = dr.Material(**maps)
    for change in (lambda t: 1 - t, lambda t: t[:8], lambda t: t.double()):
        material.evaluate(*lookups)
        for texture in maps.values():
            texture.data = change(texture.data)
        inputs = [t.to(maps["albedo"].dtype) for t in lookups]
        fresh = dr.Material(**{name: texture.detach().clone() for name, texture in maps.items()})
        assert torch.equal(values(material, inputs), values(fresh, inputs))


def test_old_stack_goes_before_the_new_one_is_made(maps, lookups, monkeypatch):
    material = dr.Material(**maps)
    values(material, lookups)
    stack = weakref.ref(material._frozen._kept[("albedo", "roughness")].stack)
    seen, make = [], _frozen._stack
    monkeypatch.setattr(_frozen, "_stack", lambda textures: seen.append(stack()) or make(textures))
    material.albedo = 1 - maps["albedo"]
    values(material, lookups)
    assert seen == [None]


def test_copies_and_files_leave_it_behind(maps, lookups):
    material = dr.Material(**maps)
    expected = values(material, lookups)
    file = io.BytesIO()
    torch.save(material, file)
    file.seek(0)
    for other in (
        copy.deepcopy(material),
        torch.load(file, weights_only=False),
        material.replace(),
        material.to("cpu"),
    ):
        assert other._frozen._kept == {}
        assert torch.equal(values(other, lookups), expected)


def test_transforms_modes_and_inference_keep_nothing(maps, lookups):
    material = dr.Material(**maps)
    expected = values(material, lookups)
    material = dr.Material(**maps)
    with torch.inference_mode():
        assert torch.equal(values(material, lookups), expected)
    assert dr.saved_bytes(lambda: values(material, lookups)) == 0
    per_item = torch.func.vmap(lambda uv, slopes: values(material, (uv[None], slopes[None]))[0])(*lookups)
    assert torch.equal(per_item, expected)
    assert material._frozen._kept == {}
    assert torch.equal(values(material, lookups), expected)
    assert len(material._frozen._kept) == 1


def test_packed_mips_hold_all_levels(maps, lookups):
    packed = build_mips.PackedMips.of(maps["albedo"])
    own = dr.texture(maps["albedo"], lookups[0], texcoord_derivatives=lookups[1])
    given = dr.texture(maps["albedo"], lookups[0], texcoord_derivatives=lookups[1], mips=packed, filter="mip_linear")
    assert torch.equal(own, given)
    with pytest.raises(ValueError, match="max_level must be None with packed mips, got 1"):
        dr.texture(
            maps["albedo"], lookups[0], texcoord_derivatives=lookups[1], mips=packed, filter="mip_linear", max_level=1
        )
