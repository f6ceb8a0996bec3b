"""EnvironmentLight: against quadrature of the shading op, gradients, what it keeps, files."""

import copy
import importlib.util
import io as bytes_io
import math
import os
from pathlib import Path

import pytest
import torch

import diffrender as dr
from benchmarks import prefilter
from diffrender.ops._cube import cube_texels
from tests.support.vocabulary import rnd, uniform

F64 = torch.float64
DATA = Path(os.environ.get("DIFFRENDER_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
SKY = DATA / "hdr" / "sunsky.exr"
EYE = (0.3, 0.4, 3.0)


def surface(batch=1, height=3, width=4, dtype=torch.float32):
    """Points, normals that look towards the viewer within 70 degrees, and a material."""
    positions = uniform(batch, height, width, 3, low=-0.5, high=0.5, seed=1, dtype=dtype)
    normals = rnd(batch, height, width, 3, seed=2, dtype=dtype) * 0.6
    normals[..., 2] += 1.5
    albedo = uniform(batch, height, width, 3, low=0.2, high=0.9, seed=3, dtype=dtype)
    metallic, roughness = (uniform(batch, height, width, 1, low=0.1, high=0.9, seed=k, dtype=dtype) for k in (4, 5))
    return positions, normals, albedo, metallic, roughness


def smooth_sky(size=32, dtype=torch.float32):
    x, y, z = cube_texels(size)[0].to(dtype).unbind(-1)
    return torch.stack([1 + 0.6 * y + 0.2 * x * z, 1.2 + 0.5 * z - 0.3 * x, 1 + 0.4 * x * y + 0.3 * y * y], -1)


def all_directions(sky, size=64):
    """The sky as very many directional lights."""
    directions, solid_angle = (x.flatten(0, 2) for x in cube_texels(size))
    radiance = dr.texture_cube(sky.double(), directions[None, None])[0, 0]
    return dr.DirectionalLight(-directions[None], (radiance * solid_angle[:, None])[None])


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("metallic", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("roughness", [0.5, 1.0])
def test_constant_environment_is_the_integral_of_the_shading_op(metallic, roughness):
    """Split sum is exact there: only the grid of lights and the table are left as errors."""
    positions, normals, albedo, *_ = surface(dtype=F64)
    sky = torch.full((6, 4, 4, 3), 0.5, dtype=F64)
    light = dr.EnvironmentLight(sky, diffuse_size=4)
    value = light.shade(positions, normals, albedo, metallic, roughness, camera_position=EYE)
    lights = all_directions(sky)
    truth = dr.shade_metallic_roughness(positions, normals, albedo, metallic, roughness, lights, camera_position=EYE)
    assert (value / truth - 1).abs().max() < 4e-3


def test_white_furnace():
    """A white metal disappears with multiple scattering, and without it never reflects more than arrives."""
    positions, normals, *_ = surface()
    light = dr.EnvironmentLight(torch.full((6, 8, 8, 3), 0.7))
    for roughness in (0.0, 0.3, 1.0):
        maps = (positions, normals, 1.0, 1.0, roughness)
        assert torch.allclose(light.shade(*maps, camera_position=EYE, multi_scatter=True), torch.tensor(0.7), rtol=2e-4)
        assert light.shade(*maps, camera_position=EYE).max() < 0.7 * 1.001


@pytest.mark.parametrize(("roughness", "tolerance"), [(0.2, 0.01), (0.4, 0.02), (0.7, 0.06), (1.0, 0.12)])
@pytest.mark.parametrize("metallic", [0.0, 1.0])
def test_split_sum_approximates_brute_force(roughness, tolerance, metallic):
    """The same smooth environment as 24576 lights: within 2 percent for smooth materials; rougher lobes are skewed
    by the cosine of the light, which the approximation does not see."""
    positions, normals, albedo, *_ = surface(dtype=F64)
    sky = smooth_sky(64, F64)
    light = dr.EnvironmentLight(sky, levels=6)
    value = light.shade(positions, normals, albedo, metallic, roughness, camera_position=EYE)
    lights = all_directions(sky, 96 if roughness < 0.3 else 64)
    truth = dr.shade_metallic_roughness(positions, normals, albedo, metallic, roughness, lights, camera_position=EYE)
    assert (value / truth - 1).abs().mean() < tolerance


def test_mirror_shows_the_background():
    """Roughness 0: exactly what the environment holds in the reflected direction."""
    light = dr.EnvironmentLight(rnd(6, 16, 16, 3).abs())
    positions, normals, *_ = surface()
    n = torch.nn.functional.normalize(normals, dim=-1)
    v = torch.nn.functional.normalize(torch.tensor(EYE) - positions, dim=-1)
    reflected = 2 * (n * v).sum(-1, keepdim=True) * n - v
    value = light.shade(positions, normals, 1.0, 1.0, 0.0, camera_position=EYE, multi_scatter=True)
    assert torch.allclose(value, light.radiance(reflected), rtol=1e-3)


def test_panorama_equals_its_cube():
    panorama = uniform(16, 32, 3, seed=3)
    maps = surface()
    one = dr.EnvironmentLight(panorama, size=16)
    other = dr.EnvironmentLight(dr.cube_from_lat_long(panorama, 16))
    assert torch.equal(one.shade(*maps, camera_position=EYE), other.shade(*maps, camera_position=EYE))


def test_rotation_turns_the_environment():
    """A quarter turn about y: what lay at +x of the map lies at -z of the world."""
    turn = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]])
    sky = smooth_sky(8)
    light, turned = dr.EnvironmentLight(sky), dr.EnvironmentLight(sky, world_from_light=turn)
    seen = turned.radiance(torch.tensor([[[0.0, 0.0, -1.0]]]))
    assert torch.allclose(seen, light.radiance(torch.tensor([[[1.0, 0.0, 0.0]]])))
    positions, normals, *material = surface()
    rotated = turned.shade(positions @ turn.T, normals @ turn.T, *material, camera_position=torch.tensor(EYE) @ turn.T)
    assert torch.allclose(rotated, light.shade(positions, normals, *material, camera_position=EYE), atol=1e-5)


# --- among the lights -----------------------------------------------------------------------------


def test_environment_adds_to_other_lights():
    positions, normals, albedo, metallic, roughness = surface()
    light, sun = dr.EnvironmentLight(smooth_sky(8)), dr.DirectionalLight((0.1, -0.2, -1.0))
    for multi_scatter in (False, True):
        options = {"camera_position": EYE, "multi_scatter": multi_scatter}
        maps = (positions, normals, albedo, metallic, roughness)
        both = dr.shade_metallic_roughness(*maps, [sun, light], **options)
        apart = dr.shade_metallic_roughness(*maps, sun, **options) + light.shade(*maps, **options)
        assert torch.allclose(both, apart)
        assert torch.allclose(dr.shade_metallic_roughness(*maps, light, **options), light.shade(*maps, **options))
    diffuse = dr.shade_lambert(positions, normals, albedo, [light], camera_position=EYE)
    assert torch.allclose(diffuse, albedo / math.pi * light.irradiance(normals), rtol=1e-5)
    assert torch.allclose(diffuse, dr.shade_lambert(positions, normals, albedo, light, two_sided=False))


def test_models_without_environment_say_so():
    light = dr.EnvironmentLight(smooth_sky(2))
    positions, normals, *_ = surface()
    with pytest.raises(ValueError, match="shade_blinn_phong: lights must be made of lights with a direction"):
        dr.shade_blinn_phong(positions, normals, 0.5, 0.5, 20.0, [light], camera_position=EYE)
    with pytest.raises(TypeError, match="pack_lights: lights must hold lights only, got EnvironmentLight"):
        dr.pack_lights([light])


def test_s05_one_environment_per_item():
    positions, normals, albedo, metallic, roughness = surface(batch=4, height=3, width=4)
    maps = uniform(4, 6, 8, 8, 3, seed=7)
    turns = torch.linalg.qr(rnd(4, 3, 3, seed=8))[0]
    intensity = uniform(4, 3, seed=9)
    together = dr.EnvironmentLight(maps, world_from_light=turns, intensity=intensity)
    image = together.shade(positions, normals, albedo, metallic, roughness, camera_position=EYE)
    shared = together.shade(positions[:1], normals[:1], albedo[:1], metallic[:1], roughness[:1], camera_position=EYE)
    assert shared.shape == image.shape
    for b in range(4):
        alone = dr.EnvironmentLight(maps[b], world_from_light=turns[b], intensity=intensity[b])
        item = [x[b : b + 1] for x in (positions, normals, albedo, metallic, roughness)]
        assert torch.allclose(image[b : b + 1], alone.shade(*item, camera_position=EYE), atol=1e-6)


def test_s11_nothing_is_clamped():
    sky = torch.nn.Parameter(torch.full((6, 4, 4, 3), 6.0))
    positions, normals, *_ = surface()
    image = dr.EnvironmentLight(sky).shade(positions, normals, 1.0, 0.0, 0.5, camera_position=EYE)
    assert image.max() > 5
    (image - 2).square().mean().backward()
    assert sky.grad.sum() > 0


def test_s07_constant_environment_has_irradiance_pi():
    light = dr.EnvironmentLight(torch.ones(6, 4, 4, 3))
    assert torch.allclose(light.irradiance(rnd(1, 5, 5, 3)), torch.tensor(math.pi), rtol=1e-5)


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"multi_scatter": True, "diffuse_fresnel": False}])
def test_gradcheck_of_every_argument(options):
    positions, normals, albedo, metallic, roughness = surface(height=2, width=2, dtype=F64)
    turn = torch.linalg.qr(rnd(3, 3, seed=4, dtype=F64))[0]
    leaves = [uniform(6, 2, 2, 3, seed=6, dtype=F64), torch.tensor([0.5, 1.0, 2.0], dtype=F64), turn]
    leaves += [positions, normals, torch.tensor(EYE, dtype=F64), albedo, metallic, roughness]
    leaves += [uniform(1, 2, 2, 1, seed=9, dtype=F64)]
    leaves = [x.requires_grad_() for x in leaves]

    def shade(sky, intensity, turn, positions, normals, camera, albedo, metallic, roughness, occlusion):
        light = dr.EnvironmentLight(sky, intensity=intensity, world_from_light=turn, levels=2, diffuse_size=2)
        return light.shade(
            positions, normals, albedo, metallic, roughness, camera_position=camera, occlusion=occlusion, **options
        )

    assert torch.autograd.gradcheck(shade, leaves)


def test_gradcheck_of_a_panorama_and_grazing_view():
    positions, normals, albedo, metallic, roughness = surface(height=1, width=3, dtype=F64)
    with torch.no_grad():
        normals[..., 2] *= 0.05  # nearly edge-on
    normals.requires_grad_()
    panorama = uniform(3, 5, 3, seed=1, dtype=F64).requires_grad_()

    def shade(panorama, normals):
        light = dr.EnvironmentLight(panorama, size=2, levels=2, diffuse_size=2)
        return light.shade(positions, normals, albedo, metallic, roughness, camera_position=EYE)

    assert torch.autograd.gradcheck(shade, (panorama, normals))


def test_reflection_and_its_gradient_are_continuous_across_seams():
    """Directions a hair on either side of an edge and of a corner of the cube: the same value and gradient to the map's
    directions as far as a piecewise linear picture allows."""
    light = dr.EnvironmentLight(smooth_sky(32, F64))
    for seam in ([0.0, 1.0, 1.0], [1.0, 1.0, 1.0]):
        directions = torch.tensor(seam, dtype=F64) + 1e-6 * rnd(1, 8, 8, 3, dtype=F64)
        for call in (light.radiance, light.irradiance):
            value = call(directions)
            assert (value - value.mean((1, 2), keepdim=True)).abs().max() < 1e-5
    normals = torch.tensor([0.0, 0.0, 1.0], dtype=F64).expand(1, 8, 8, 3)
    value = light.shade(directions * 0, normals, 1.0, 1.0, 0.4, view_directions=directions)
    assert (value - value.mean((1, 2), keepdim=True)).abs().max() < 1e-5


def test_d11_background_is_ignored_whatever_it_holds():
    maps = surface()
    mask = torch.ones(1, 3, 4, dtype=torch.bool)
    mask[0, 1] = False
    light = dr.EnvironmentLight(smooth_sky(4))

    def run(fill):
        leaves = [torch.where(mask[..., None], x, fill).requires_grad_() for x in maps]
        image = light.shade(*leaves, camera_position=EYE, mask=mask)
        grads = torch.autograd.grad(image, leaves, rnd(*image.shape))
        assert not image[~mask].any()
        assert not any(g[~mask].any() for g in grads)
        return [image, *grads]

    for poison in (float("nan"), float("inf"), 0.0):
        assert all(torch.equal(a, b) for a, b in zip(run(poison), run(1.0), strict=True))


def test_zero_normals_and_back_sides_are_dark_without_nan():
    light = dr.EnvironmentLight(smooth_sky(4))
    positions = torch.zeros(1, 1, 3, 3)
    normals = torch.tensor([[[[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 0.0, 1.0]]]]).requires_grad_()
    eye = (0.0, 0.0, 2.0)
    one_sided = light.shade(positions, normals, 0.5, 0.5, 0.5, camera_position=eye, two_sided=False)
    assert not one_sided[0, 0, :2].any()
    (grad,) = torch.autograd.grad(one_sided.sum(), normals)
    assert torch.isfinite(grad).all()
    assert not grad[0, 0, :2].any()
    both = light.shade(positions, normals, 0.5, 0.5, 0.5, camera_position=eye)
    assert torch.equal(both[0, 0, 1], both[0, 0, 2])
    assert not both[0, 0, 0].any()


def test_fit_recovers_a_sky_from_a_picture_of_a_sphere():
    """Gradient descent through the filter: the error of the picture falls by a factor of 50."""
    normals = torch.nn.functional.normalize(rnd(1, 16, 16, 3), dim=-1)
    maps = (torch.zeros(1, 16, 16, 3), normals, 0.8, 1.0, 0.3)
    view = torch.nn.functional.normalize(normals + 0.3 * rnd(1, 16, 16, 3, seed=1), dim=-1)
    target = dr.EnvironmentLight(smooth_sky(8)).shade(*maps, view_directions=view)
    light = dr.EnvironmentLight(torch.nn.Parameter(torch.full((6, 8, 8, 3), 0.5)))
    optimizer = torch.optim.Adam(light.parameters(), lr=0.05)
    losses = []
    for _ in range(80):
        loss = (light.shade(*maps, view_directions=view) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 50


# --- module, cache, files -------------------------------------------------------------------------


def test_filtered_maps_are_kept_until_the_map_changes():
    light = dr.EnvironmentLight(smooth_sky(8))
    first = light.prefilter()
    assert light.prefilter() is first
    light.map.mul_(2)
    second = light.prefilter()
    assert second is not first
    assert torch.allclose(second.diffuse, 2 * first.diffuse)
    light.map = smooth_sky(4)
    assert light.prefilter().mirror.shape == (6, 4, 4, 3)
    assert light.prefilter() is light.prefilter()
    light.load_state_dict({**light.state_dict(), "map": torch.ones(6, 4, 4, 3)})
    assert torch.allclose(light.prefilter().diffuse, torch.ones(()))
    light.map.data.fill_(3.0)
    light.refresh()
    assert torch.allclose(light.prefilter().diffuse, torch.tensor(3.0))
    light.double()
    assert light.prefilter().diffuse.dtype == F64


def test_trainable_map_is_filtered_anew_and_can_be_shared():
    light = dr.EnvironmentLight(torch.nn.Parameter(smooth_sky(4)))
    maps = surface()
    for _ in range(2):
        light.shade(*maps, camera_position=EYE).sum().backward()
    shared = light.prefilter()
    total = sum(light.shade(*maps, camera_position=eye, prefiltered=shared).sum() for eye in (EYE, (0.0, 0.0, 2.0)))
    light.map.grad = None
    total.backward()
    assert light.map.grad.any()
    with torch.no_grad():
        kept = light.prefilter()
        assert light.prefilter() is kept
        light.map.add_(1)
        assert light.prefilter() is not kept
    # Values that were kept without a graph do not cut the gradient later.
    assert light.prefilter().diffuse.requires_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_vmap_and_compile_equal_eager():
    light = dr.EnvironmentLight(smooth_sky(4))
    positions, normals, albedo, metallic, roughness = surface()

    def shade(albedo):
        return light.shade(positions, normals, albedo, metallic, roughness, camera_position=EYE)

    varied = torch.stack([albedo, 0.5 * albedo])
    assert torch.allclose(torch.func.vmap(shade)(varied), torch.stack([shade(a) for a in varied]), atol=1e-6)
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(shade, backend="aot_eager")(albedo), shade(albedo), atol=1e-6)


def test_maps_made_in_inference_mode_are_not_kept():
    light = dr.EnvironmentLight(smooth_sky(4))
    positions, normals, *material = surface()
    with torch.inference_mode():
        light.shade(positions, normals, *material, camera_position=EYE)
    normals.requires_grad_()
    light.shade(positions, normals, *material, camera_position=EYE).sum().backward()
    assert normals.grad.any()


def test_map_made_by_other_operations_gets_its_gradient():
    log_map = torch.zeros(6, 4, 4, 3, requires_grad=True)
    light = dr.EnvironmentLight(torch.ones(6, 4, 4, 3))
    light.map = log_map.exp()
    light.shade(*surface(), camera_position=EYE).sum().backward()
    assert (log_map.grad != 0).any()
    assert not list(light.parameters())


def test_module_has_parameters_and_survives_copies():
    light = dr.EnvironmentLight(torch.nn.Parameter(smooth_sky(4)), intensity=torch.nn.Parameter(torch.ones(3)))
    assert {name for name, _ in light.named_parameters()} == {"map", "intensity"}
    assert set(light.state_dict()) == {"map", "intensity", "world_from_light"}
    with torch.no_grad():
        light.prefilter()
    other = copy.deepcopy(light)
    file = bytes_io.BytesIO()
    torch.save(light, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    maps = surface()
    for copied in (other, loaded):
        assert copied.map is not light.map
        value = copied.shade(*maps, camera_position=EYE)
        assert torch.equal(value, light.shade(*maps, camera_position=EYE))


@pytest.mark.parametrize(("size", "count"), [(256, 6), (64, 4), (16, 2), (4, 2), (1, 1)])
def test_levels_end_at_faces_of_eight_texels(size, count):
    if size == 256:
        light = dr.EnvironmentLight(torch.ones(6, 64, 64, 3), levels=6)
        assert [x.shape[1] for x in light.prefilter().levels] == [32, 16, 8, 4, 2]
        return
    light = dr.EnvironmentLight(torch.ones(6, size, size, 3))
    assert 1 + len(light.prefilter().levels) == count
    assert torch.allclose(
        light.shade(*surface(), camera_position=EYE, multi_scatter=True)[..., 0].isfinite().float(), torch.ones(())
    )


def test_wrong_maps_are_refused():
    for shape in ((6, 4, 4, 1), (5, 5), (6, 4, 5, 3, 3), (2, 5, 4, 4, 3)):
        with pytest.raises(ValueError, match="EnvironmentLight: map must have shape"):
            dr.EnvironmentLight(torch.ones(shape))
    with pytest.raises(TypeError, match="EnvironmentLight: map must be float32 or float64"):
        dr.EnvironmentLight(torch.ones(6, 4, 4, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="EnvironmentLight: world_from_light must have shape"):
        dr.EnvironmentLight(torch.ones(6, 4, 4, 3), world_from_light=torch.eye(4))
    with pytest.raises(ValueError, match="EnvironmentLight: levels must be at least 1"):
        dr.EnvironmentLight(torch.ones(6, 4, 4, 3), levels=0)
    light = dr.EnvironmentLight(torch.ones(6, 4, 4, 3))
    with pytest.raises(ValueError, match="EnvironmentLight: camera_position must be given"):
        light.shade(*surface())
    with pytest.raises(TypeError, match="EnvironmentLight: positions is torch.float64 but map is torch.float32"):
        light.shade(*surface(dtype=F64), camera_position=EYE)


def test_panorama_files_are_read(tmp_path):
    picture = 5 * uniform(4, 8, 3, seed=2)
    dr.save_image(tmp_path / "sky.hdr", picture)
    light = dr.EnvironmentLight.from_file(tmp_path / "sky.hdr", size=4)
    assert light.cube().shape == (6, 4, 4, 3)
    # One exponent between the channels of a pixel, with 8 bits each.
    assert (light.map - picture).abs().max() < 0.01 * picture.max()


@pytest.mark.skipif(not SKY.is_file(), reason=f"needs {SKY} (set DIFFRENDER_TEST_DATA)")
def test_real_sky_lights_the_side_of_the_sun():
    pytest.importorskip("OpenEXR", reason="needs the extra exr")
    light = dr.EnvironmentLight.from_file(SKY)
    assert light.map.shape == (32, 64, 3)
    luminance = light.map.mean(-1)
    row, column = divmod(int(luminance.argmax()), 64)
    theta, phi = math.pi * (row + 0.5) / 32, 2 * math.pi * ((column + 0.5) / 64 - 0.5)
    sun = torch.tensor([math.sin(theta) * math.sin(phi), math.cos(theta), -math.sin(theta) * math.cos(phi)])
    towards, away = (light.irradiance(sign * sun.expand(1, 1, 1, 3)).mean() for sign in (1, -1))
    assert towards > 2 * away


def test_example_and_benchmark_run(tmp_path, capsys):
    root = Path(__file__).resolve().parents[1]
    specification = importlib.util.spec_from_file_location("environment_example", root / "examples" / "environment.py")
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    output = tmp_path / "spheres.png"
    assert example.main(["--output", str(output), "--count", "2", "--size", "12", "--cube", "16"]) == 0
    assert dr.io.load_image(output).shape == (24, 24, 3)
    assert prefilter.main(["--size", "16", "--repeat", "1"]) == 0
    assert "prefilter backward" in capsys.readouterr().out
