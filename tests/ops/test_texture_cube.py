"""What is special to texture_cube: orientation, seams and corners, directions without value."""

import pytest
import torch

import diffrender as dr
from tests.reference import texture_cube as reference
from tests.support.vocabulary import g, relative_error, rnd, uniform

F64 = torch.float64


def unit(*shape, seed=0):
    return torch.nn.functional.normalize(rnd(*shape, 3, seed=seed, dtype=F64), dim=-1)


def seams(count):
    """(12, count, 3) points along the edges of the cube, and the two face axes (12, 3) that meet at each."""
    points, sides = [], []
    for first in range(3):
        for second in range(first + 1, 3):
            for sign_first in (-1, 1):
                for sign_second in (-1, 1):
                    point = torch.zeros(count, 3, dtype=F64)
                    point[:, first], point[:, second] = sign_first, sign_second
                    point[:, 3 - first - second] = torch.linspace(-1, 1, count, dtype=F64)
                    side = torch.zeros(2, 3, dtype=F64)
                    side[0, first], side[1, second] = sign_first, sign_second
                    points.append(point)
                    sides.append(side)
    return torch.stack(points), torch.stack(sides)


def test_texel_centres_give_their_texels_in_the_orientation_of_opengl():
    """Directions made from the table of the OpenGL specification, face by face."""
    size = 5
    texture = rnd(6, size, size, 2, dtype=F64)
    t, s = torch.meshgrid(*[(torch.arange(size, dtype=F64) + 0.5) / size * 2 - 1] * 2, indexing="ij")
    one = torch.ones_like(s)
    faces = [(one, -t, -s), (-one, -t, s), (s, one, t), (s, -one, -t), (s, -t, one), (-s, -t, -one)]
    directions = torch.stack([torch.stack(f, -1) for f in faces]).reshape(1, 6 * size, size, 3)
    for filter in ("linear", "nearest"):
        values = dr.texture_cube(texture, 3.7 * directions, filter=filter)
        torch.testing.assert_close(values.reshape(texture.shape), texture, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("level", [0.0, 0.6, 1.0, 2.5, 9.0])
def test_seams_and_corners_are_continuous_at_every_level(size, level):
    """A step of 1e-9 across each of the 24 sides of seams, ends (the 8 corners) included."""
    texture = rnd(6, size, size, 3, dtype=F64)
    points, sides = seams(101)
    directions = torch.stack([points + 1e-9 * sides[:, None, k] for k in (0, 1)])
    levels = torch.full(directions.shape[:-1], level, dtype=F64)
    one, other = (
        dr.texture_cube(texture, d[None].flatten(0, 1)[None], level=x[None])
        for d, x in zip(directions, levels, strict=True)
    )
    assert (one - other).abs().max() < 1e-6
    assert one.std() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_constant_cube_stays_constant_at_every_level(dtype):
    texture = torch.full((6, 7, 7, 3), 0.7, dtype=dtype)
    directions = torch.cat([rnd(1, 40, 50, 3, dtype=dtype), seams(50)[0].to(dtype).reshape(1, 12, 50, 3)], 1)
    level = uniform(1, 52, 50, low=-1, high=4, dtype=dtype)
    assert (dr.texture_cube(texture, directions) == 0.7).all() or dtype == F64
    for values in (dr.texture_cube(texture, directions), dr.texture_cube(texture, directions, level=level)):
        assert (values - 0.7).abs().max() < 4 * torch.finfo(dtype).eps


def test_a_smooth_function_of_direction_is_reproduced():
    """Texels hold a quadratic of the unit direction; at seams, where the texel grid bends, it errs by O(1 / size)."""
    errors = []
    for size in (16, 32):
        st = (torch.arange(size, dtype=F64) + 0.5) / size * 2 - 1
        t, s = torch.meshgrid(st, st, indexing="ij")
        local = torch.stack([s, t, torch.ones_like(s)], -1)
        world = torch.einsum("frw,abr->fabw", reference.FRAMES, local)
        world = torch.nn.functional.normalize(world, dim=-1)

        def function(d):
            return torch.stack([d[..., 0] * d[..., 1] + d[..., 2], d[..., 2] ** 2 - d[..., 0]], -1)

        directions = unit(1, 50, 60)
        errors.append((dr.texture_cube(function(world), directions) - function(directions)).abs().max().item())
    assert errors[1] < 0.01
    assert errors[1] < errors[0] / 1.9


@pytest.mark.parametrize("filter", ["nearest", "linear", "mip_nearest", "mip_linear"])
def test_directions_without_value_give_zero_and_no_gradient(filter):
    bad = torch.tensor(
        [[0, 0, 0], [torch.nan, 1, 0], [1, torch.inf, 0], [-torch.inf, 0, 0], [1, 0, torch.nan]], dtype=F64
    )
    directions = torch.cat([bad, unit(7)])[None, None].requires_grad_()
    texture = rnd(6, 4, 4, 3, dtype=F64).requires_grad_()
    steps = 0.2 * rnd(1, 1, 12, 6, dtype=F64).requires_grad_()
    options = {"direction_derivatives": steps} if filter.startswith("mip") else {}
    values = dr.texture_cube(texture, directions, filter=filter, **options)
    assert not values[:, :, :5].any()
    weights = rnd(*values.shape, seed=1, dtype=F64)
    leaves = [texture, directions, *options.values()]
    grads = torch.autograd.grad((values * weights).sum(), leaves, materialize_grads=True)
    assert all(torch.isfinite(x).all() for x in grads)
    assert all(not x[:, :, :5].any() for x in grads[1:])
    good = {name: x[:, :, 5:] for name, x in options.items()}
    alone = g(
        lambda x: (dr.texture_cube(x, directions[:, :, 5:], filter=filter, **good) * weights[:, :, 5:]).sum(), texture
    )
    assert torch.equal(grads[0], alone)


def test_length_of_directions_does_not_matter_from_tiny_to_huge():
    texture, directions = rnd(6, 8, 8, 3), unit(1, 20, 20).float()
    values = dr.texture_cube(texture, directions)
    for scale in (1e-30, 1e-3, 7.0, 1e30):
        assert (dr.texture_cube(texture, directions * scale) - values).abs().max() < 1e-5


def test_gradient_to_directions_is_tangential():
    """The value does not depend on the length of the direction."""
    texture, directions = rnd(6, 5, 5, 2, dtype=F64), unit(1, 30, 30)
    grad = g(lambda d: (dr.texture_cube(texture, d) ** 2).sum(), directions)
    assert (grad * directions).sum(-1).abs().max() < 1e-12
    assert grad.abs().max() > 1


def test_footprint_of_a_turned_view_is_that_of_the_faces():
    """Level from derivatives through the projection equals the level from finite differences of (s, t)."""
    size = 64
    directions, steps = unit(1, 10, 10), 0.03 * rnd(1, 10, 10, 6, seed=3, dtype=F64)
    faces = reference.FRAMES[reference.face_of(directions)]
    eps = 1e-6
    columns = []
    for k in (0, 1):
        step = steps[..., k::2]
        ahead = reference.project(faces, directions + eps * step)
        columns.append((ahead - reference.project(faces, directions - eps * step)) / (2 * eps) * size)
    singular = torch.linalg.svdvals(torch.stack(columns, -1))[..., 0]
    # Levels whose texels hold their own index return the level.
    shape = [6, size, size, 1]
    texture = torch.zeros(shape, dtype=F64)
    mips = [torch.full((6, size >> k, size >> k, 1), float(k), dtype=F64) for k in range(1, 7)]
    level = dr.texture_cube(texture, directions, direction_derivatives=steps, mips=mips)[..., 0]
    torch.testing.assert_close(level, singular.log2().clamp(0, 6), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", range(1, 10))
def test_random_sizes_equal_the_reference(size):
    texture, directions = rnd(2, 6, size, size, 3, dtype=F64), rnd(2, 9, 11, 3, dtype=F64)
    directions[:, ::2] = directions[:, ::2].sign() * directions[:, ::2].abs() ** 0.1
    steps = 2 / size * rnd(2, 9, 11, 6, seed=1, dtype=F64)
    weights = rnd(2, 9, 11, 3, seed=2, dtype=F64)
    for filter in ("nearest", "linear", "mip_nearest", "mip_linear"):
        results = []
        for op in (dr.texture_cube, reference.texture_cube):
            leaves = [x.clone().requires_grad_() for x in (texture, directions, steps)]
            options = {"direction_derivatives": leaves[2]} if filter.startswith("mip") else {}
            values = op(leaves[0], leaves[1], filter=filter, **options)
            grads = torch.autograd.grad((values * weights).sum(), leaves, materialize_grads=True, allow_unused=True)
            results.append([values, *grads])
        for value, truth in zip(*results, strict=True):
            assert relative_error(value, truth) < 1e-10
