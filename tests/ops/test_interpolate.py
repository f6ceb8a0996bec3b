"""What is special to interpolate: exactness, independence of what lies on background, separate index arrays."""

import pytest
import torch

import diffrender as dr
from tests.support.scenes import icosphere, perspective, pixel_rays, rigid, to_clip
from tests.support.vocabulary import P, g, rnd, uniform

F64 = torch.float64
TRIANGLE = torch.tensor([[0, 1, 2]])


def sphere_scene(batch=1):
    """Positions (B, V, 4), triangles, fragments with derivatives of a coarse sphere, 20 x 23."""
    vertices, triangles = icosphere(1, dtype=F64)
    camera = perspective(50, 20, 23)
    poses = 0.2 * rnd(batch, 6, dtype=F64) + torch.tensor([0, 0, -3.0, 0, 0, 0], dtype=F64)
    positions = torch.stack([to_clip(vertices, camera @ rigid(pose)) for pose in poses])
    return positions, triangles, dr.rasterize(positions, triangles, (20, 23), derivatives=True)


def test_constant_attributes_stay_constant():
    """Weights add to one, and their derivatives to zero."""
    positions, triangles, fragments = sphere_scene(2)
    attributes = torch.full((positions.shape[1], 3), 0.7, dtype=F64)
    values, steps = dr.interpolate(attributes, triangles, fragments, derivatives="all")
    hit = fragments.triangle_id >= 0
    assert (values[hit] - 0.7).abs().max() < 1e-15
    assert steps.abs().max() < 1e-14
    assert (values[~hit] == 0).all()


def test_interpolated_positions_lie_on_the_rays_of_their_pixels():
    vertices, triangles = icosphere(1, dtype=F64)
    pose = rigid(torch.tensor([0.1, -0.2, -3.0, 0.3, 0.5, 0.1], dtype=F64))
    in_camera = to_clip(vertices, pose)[:, :3]
    fragments = dr.rasterize(to_clip(in_camera, perspective(50, 31, 37)), triangles, (31, 37))
    points = dr.interpolate(in_camera, triangles, fragments)[0]
    hit = fragments.triangle_id[0] >= 0
    on_ray = torch.linalg.cross(points, pixel_rays(50, 31, 37), dim=-1)[hit]
    assert on_ray.abs().max() < 1e-13


def test_value_derivatives_are_slopes_of_the_surface():
    """An affine function of screen position with equal w: its derivative is its slope, channel by channel in order."""
    p = P(12, 15)
    corners = [(-4.0, -3.0), (40.0, 2.0), (1.0, 37.0)]
    positions = torch.tensor([p(x, y) for x, y in corners], dtype=F64)
    slopes = torch.tensor([[2.0, -1.0], [0.5, 3.0], [0.0, 0.25]], dtype=F64)  # (channel, d/dx and d/dy)
    attributes = torch.tensor(corners, dtype=F64) @ slopes.T
    fragments = dr.rasterize(positions, TRIANGLE, (12, 15), derivatives=True)
    hit = fragments.triangle_id >= 0
    for channels in ("all", [0, 1, 2], [2, 0], [1], [-1], []):
        picked = slopes if channels == "all" else slopes[channels]
        _, steps = dr.interpolate(attributes, TRIANGLE, fragments, derivatives=channels)
        assert steps.shape == (1, 12, 15, 2 * len(picked))
        torch.testing.assert_close(steps[hit], picked.reshape(1, -1).expand(int(hit.sum()), -1), rtol=1e-12, atol=1e-12)
        assert (steps[~hit] == 0).all()


def test_another_index_array_reads_other_rows():
    """A separate uv table: the same triangles with rows of their own."""
    positions, triangles, fragments = sphere_scene()
    attributes = uniform(positions.shape[1], 2, dtype=F64)
    own = attributes[triangles.long().reshape(-1)]
    rows = torch.arange(len(own)).reshape(-1, 3)
    assert torch.equal(dr.interpolate(own, rows, fragments), dr.interpolate(attributes, triangles, fragments))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 8, 33])
def test_channels_do_not_mix(channels):
    """Every channel equals its own call, whichever block of channels the kernel takes it in."""
    positions, triangles, fragments = sphere_scene(2)
    attributes = rnd(2, positions.shape[1], channels, dtype=F64)
    cotangent = rnd(2, 20, 23, channels, dtype=F64)
    values = dr.interpolate(attributes, triangles, fragments)
    grad = g(lambda a: (cotangent * dr.interpolate(a, triangles, fragments)).sum(), attributes)
    for c in range(channels):
        one = slice(c, c + 1)
        assert torch.equal(values[..., one], dr.interpolate(attributes[..., one], triangles, fragments))
        alone = g(
            lambda a, o=one: (cotangent[..., o] * dr.interpolate(a, triangles, fragments)).sum(), attributes[..., one]
        )
        assert torch.equal(grad[..., one], alone)


def test_attribute_gradient_is_the_adjoint_of_interpolation():
    """<J a, y> = <a, J^T y>: interpolation is linear in its attributes."""
    positions, triangles, fragments = sphere_scene(2)
    a, y = rnd(2, positions.shape[1], 3, dtype=F64), rnd(2, 20, 23, 3, seed=1, dtype=F64)
    forward = (dr.interpolate(a, triangles, fragments) * y).sum()
    backward = (a * g(lambda x: (dr.interpolate(x, triangles, fragments) * y).sum(), torch.zeros_like(a))).sum()
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=0)
    # Of a cotangent of ones each covered pixel gives one in all.
    ones = g(lambda x: dr.interpolate(x, triangles, fragments).sum(), a)
    torch.testing.assert_close(ones.sum(), 3.0 * (fragments.triangle_id >= 0).sum().double(), rtol=1e-12, atol=0)


def test_what_stands_on_background_is_never_read():
    """NaN in barycentrics, derivatives and cotangents of background pixels reaches no value and no gradient."""
    positions, triangles, fragments = sphere_scene()
    background = fragments.triangle_id < 0
    attributes = rnd(positions.shape[1], 3, dtype=F64)
    cotangents = [rnd(1, 20, 23, 3, dtype=F64), rnd(1, 20, 23, 6, seed=1, dtype=F64)]

    def run(value):
        fill = background[..., None]
        barycentrics = torch.where(fill, value, fragments.barycentrics).requires_grad_()
        derivatives = torch.where(fill, value, fragments.derivatives).requires_grad_()
        leaf = attributes.clone().requires_grad_()
        inputs = dr.Fragments(fragments.triangle_id, barycentrics, fragments.depth, derivatives)
        outputs = dr.interpolate(leaf, triangles, inputs, derivatives="all")
        leaves = (leaf, barycentrics, derivatives)
        return *outputs, *torch.autograd.grad(outputs, leaves, [torch.where(fill, value, c) for c in cotangents])

    for clean, poisoned in zip(run(0.0), run(torch.nan), strict=True):
        assert torch.equal(clean, poisoned)


def test_nan_attribute_stays_in_its_triangles():
    positions, triangles, fragments = sphere_scene()
    attributes = torch.zeros(positions.shape[1], 1, dtype=F64)
    attributes[5] = torch.nan
    values = dr.interpolate(attributes, triangles, fragments)[..., 0]
    touches = (triangles == 5).any(1)[fragments.triangle_id.long().clamp(min=0)] & (fragments.triangle_id >= 0)
    assert touches.any()
    assert torch.equal(values.isnan(), touches)


def test_items_do_not_see_each_other():
    positions, triangles, fragments = sphere_scene(3)
    attributes = rnd(3, positions.shape[1], 4, dtype=F64)
    values, steps = dr.interpolate(attributes, triangles, fragments, derivatives="all")
    for k in range(3):
        own = dr.Fragments(*(x[k : k + 1] for x in fragments))
        one, one_steps = dr.interpolate(attributes[k : k + 1], triangles, own, derivatives="all")
        assert torch.equal(values[k : k + 1], one)
        assert torch.equal(steps[k : k + 1], one_steps)


def test_single_precision_loses_no_digits_on_large_offsets_of_w():
    """Barycentrics of float32 fragments reproduce a linear attribute to its own precision."""
    vertices, triangles = icosphere(2)
    camera = perspective(40, 64, 64).float() @ rigid(torch.tensor([0.0, 0.0, -4.0, 0.2, 0.1, 0.3]))
    fragments = dr.rasterize(to_clip(vertices, camera), triangles, (64, 64))
    values = dr.interpolate(torch.ones(len(vertices), 1), triangles, fragments)
    assert (values[fragments.triangle_id >= 0] - 1).abs().max() < 3e-7
