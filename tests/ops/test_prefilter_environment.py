"""prefilter_environment: against closed forms and brute force, conservation, seams."""

import math

import pytest
import torch

import diffrender as dr
from diffrender.ops._cube import cube_texels
from diffrender.ops.prefilter_environment import _energies, _filter
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64


def texels(size):
    """(6 S S, 3) directions and (6 S S,) solid angles."""
    directions, solid_angle = cube_texels(size)
    return directions.reshape(-1, 3), solid_angle.reshape(-1)


def lobe(cosine, roughness):
    """n.l D(n.h) with the view along the normal, by the textbook formula."""
    alpha_squared = roughness**4
    half = (1 + cosine) / 2
    return cosine.clamp(min=0) * alpha_squared / (math.pi * (half * (alpha_squared - 1) + 1) ** 2)


@pytest.mark.parametrize("roughness", [0.02, 0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("size", [3, 16])
def test_constant_environment_stays_constant(roughness, size):
    sky = torch.tensor([0.25, 1.0, 40.0]).expand(6, size, size, 3)
    filtered = dr.prefilter_environment(sky, roughness, 8)
    assert ((filtered / torch.tensor([0.25, 1.0, 40.0])) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("roughness", [0.15, 0.4, 1.0])
def test_lobe_integrates_to_one_over_the_normal_distribution(roughness):
    """The weight is GGX: the integral of D(n.h) n.h over half vectors is 1 (Walter et al. 2007). With n = v the
    half vectors cover a cone of 45 degrees as l covers the hemisphere, dh = dl / (4 v.h), and the rest has a closed
    form: tan^2(45 degrees) = 1 leaves the share 1 / (1 + A)."""
    directions, solid_angle = texels(256)
    cosine = directions @ torch.tensor([0.36, 0.48, 0.8], dtype=F64)
    lit = cosine > 0
    total = (lobe(cosine, roughness)[lit] / cosine[lit] / 4 * solid_angle[lit]).sum()
    assert total.item() == pytest.approx(1 / (1 + roughness**4), rel=2e-3)


@pytest.mark.parametrize("roughness", [0.2, 0.4, 0.6, 0.8, 1.0])
def test_equals_brute_force_over_all_texels(roughness):
    """Coarse texels far from the normal stand for fine ones: blocks of noise change by a few per mille of the mean,
    smooth skies by less; a single bright texel in the dark, the worst case, by a few percent of its halo."""
    size, result = 64, 8
    directions, solid_angle = texels(size)
    smooth = 2 + directions[:, 0] + torch.sin(3 * directions[:, 1]) * directions[:, 2]
    noise = rnd(6, 8, 8, dtype=F64).abs().repeat_interleave(8, 1).repeat_interleave(8, 2).reshape(-1)
    sun = torch.zeros_like(smooth)
    sun[[777, 9999]] = 1000
    sky = torch.stack([smooth, noise, sun], -1)
    filtered = dr.prefilter_environment(sky.view(6, size, size, 3).float(), roughness, result).reshape(-1, 3).double()
    weight = lobe(texels(result)[0] @ directions.T, roughness) * solid_angle
    truth = weight @ sky / weight.sum(1, keepdim=True)
    error = (filtered / truth - 1).abs()
    assert error[:, 0].max() < 2e-3
    assert error[:, 1].max() < 8e-3
    lit = truth[:, 2] > 1e-3 * truth[:, 2].max()
    assert error[lit, 2].mean() < 0.03


def test_roughness_one_is_irradiance_over_pi():
    """Against spherical harmonics, exact for a polynomial of degree 2."""
    x, y, z = texels(64)[0].unbind(-1)
    sky = torch.stack([2 + x - 0.5 * y * z, 1 + z * z, 1.5 + 0.3 * x * y - z], -1).view(6, 64, 64, 3)
    diffuse = dr.prefilter_environment(sky, 1.0, 8)
    normals = texels(8)[0].view(6, 8, 8, 3)
    assert relative_error(diffuse, dr.irradiance_sh(dr.sh_from_environment(sky), normals) / math.pi) < 2e-3


@pytest.mark.parametrize("roughness", [0.2, 0.5])
def test_result_does_not_depend_on_how_faces_cut_the_environment(roughness):
    """A bump on the middle of a face, on an edge and on a corner of the cube gives the same profile around it."""
    profiles = []
    for center in ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]):
        center = torch.nn.functional.normalize(torch.tensor(center, dtype=F64), dim=0)
        sky = torch.exp(40 * (texels(64)[0] @ center - 1)).view(6, 64, 64, 1)
        filtered = dr.prefilter_environment(sky.float(), roughness, 48)
        directions = texels(48)[0]
        bins = torch.acos((directions @ center).clamp(-1, 1)) // 0.05
        values = filtered.reshape(-1).double()
        profiles.append(torch.stack([values[bins == k].mean() for k in range(16)]))
    for profile in profiles[1:]:
        # Texels of a bin lie at somewhat different distances on each grid.
        assert (profile - profiles[0]).abs().max() < 0.02 * profiles[0].max()


@pytest.mark.parametrize("roughness", [0.3, 1.0])
def test_gradient_is_continuous_across_seams(roughness):
    """The gradient of one result texel is the lobe around it, on whichever face: per solid angle it depends on the
    distance alone, and neighbours across an edge or a corner differ as little as neighbours within a face. (The kink
    of the cosine at the horizon is smoothed by coarse texels.)"""
    size = 32
    sky = torch.zeros(6, size, size, 1, dtype=F64, requires_grad=True)
    # A result texel next to a corner of the cube, so that the lobe lies on three faces.
    filtered = _filter(_energies(sky[None]), roughness, 16, 0.07)[0]
    (grad,) = torch.autograd.grad(filtered[4, 15, 15, 0], sky)
    directions, solid_angle = texels(size)
    density = grad.reshape(-1) / solid_angle
    normal = texels(16)[0].view(6, 16, 16, 3)[4, 15, 15]
    truth = lobe(directions @ normal, roughness)
    truth = truth / (truth * solid_angle).sum()
    assert (density.view(6, -1) > 0.3 * truth.max()).any(1).sum() >= 3
    assert (density - truth).abs().max() < (0.03 if roughness < 1 else 0.06) * truth.max()


@pytest.mark.parametrize("size", [1, 2, 6, 8])
def test_pyramid_keeps_the_energy_and_solid_angle(size):
    sky = rnd(2, 6, size, size, 3, dtype=F64)
    energies = _energies(sky)
    side, first = size, 0
    for level in range(energies.levels):
        count = side * side
        part = energies.pyramid[:, 6 * first : 6 * (first + count)]
        assert torch.allclose(part.sum(1), energies.pyramid[:, : 6 * size * size].sum(1), atol=1e-12)
        assert 6 * energies.nodes[first : first + count, 3].sum().item() == pytest.approx(4 * math.pi)
        first += count
        side //= 2
        assert side >= 1 or level == energies.levels - 1


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize(("size", "result"), [(8, 4), (6, 3), (4, 8), (8, 1), (4, 2), (2, 6)])
def test_packets_and_single_texels_agree(channels, size, result):
    """The body of the GPU, one texel at a time, on the CPU; and sums in fixed point."""
    op = torch.ops.diffrender
    energies = _energies(rnd(2, 6, size, size, channels))
    options = (*energies[2:], result, 0.3**4, 0.3)
    packets, single = (op.prefilter_environment(*energies[:2], *options, driver) for driver in (0, 1))
    for a, b in zip(packets, single, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    arguments = (rnd(*packets[0].shape), packets[1], energies.nodes, *energies[2:], 0.3**4, 0.3)
    first = op.prefilter_environment_backward(*arguments, 0, 0)
    for scatter in (0, 1):
        assert torch.allclose(op.prefilter_environment_backward(*arguments, scatter, 1), first, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("result", [4, 5, 8, 16])
def test_turning_the_environment_turns_the_result(result):
    """All 24 rotations: in float32 the weights of one texel serve its images, in float64 each texel has its own."""

    def turned(size, rotation):
        """For each texel, the one that the rotation takes to it."""
        directions = texels(size)[0]
        return (directions @ rotation @ directions.T).argmax(-1)

    quarter_x = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=F64)
    quarter_z = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=F64)
    sky = rnd(6, 8, 8, 3)
    expected = dr.prefilter_environment(sky, 0.4, result).reshape(-1, 3)
    exact = dr.prefilter_environment(sky.double(), 0.4, result).reshape(-1, 3)
    rotations = {}
    todo = [torch.eye(3, dtype=F64)]
    while todo:
        rotation = todo.pop()
        key = tuple(rotation.reshape(-1).round().int().tolist())
        if key in rotations:
            continue
        rotations[key] = rotation
        todo += [quarter_x @ rotation, quarter_z @ rotation]
        there, back = turned(8, rotation), turned(result, rotation)
        assert there.unique().numel() == there.numel()
        ours = dr.prefilter_environment(sky.reshape(-1, 3)[there].view_as(sky), 0.4, result).reshape(-1, 3)
        torch.testing.assert_close(ours, expected[back], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours, exact[back].float(), rtol=1e-5, atol=1e-6)
    assert len(rotations) == 24


def test_several_lobes_equal_single_ones():
    sky = rnd(2, 6, 8, 8, 3)
    both = dr.prefilter_environment(sky, [0.3, 0.8], [4, 3])
    assert isinstance(both, tuple)
    for value, (roughness, size) in zip(both, ((0.3, 4), (0.8, 3)), strict=True):
        assert torch.equal(value, dr.prefilter_environment(sky, roughness, size))
        assert torch.equal(value[1], dr.prefilter_environment(sky[1], roughness, size))


def test_narrow_lobe_keeps_what_a_mirror_sees():
    sky = rnd(6, 8, 8, 3)
    assert (dr.prefilter_environment(sky, 0.01, 8) - sky).abs().max() < 1e-2
