"""perturb_normals: closed forms, conventions, mirrored uv, grazing view, what is zero, both bodies of the kernel."""

import math

import pytest
import torch

import diffrender as dr
from diffrender.geometry import safe_normalize
from tests.ops.rows.perturb_normals import tangent_map, texels, views
from tests.ops.rows.shade import SIZE, checked_mask, surface
from tests.support.vocabulary import rnd

F64 = torch.float64
UP = torch.tensor([0.0, 0.0, 1.0], dtype=F64)
RIGHT = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=F64)


def stored(x, y, z):
    return torch.tensor([x, y, z], dtype=F64) / 2 + 0.5


def one(normal=UP, tangent=RIGHT, texel=(0.5, 0.5, 1.0), **options):
    """The result for one pixel."""
    texel = torch.as_tensor(texel, dtype=F64)
    return dr.perturb_normals(normal, tangent, texel, **options)[0, 0, 0]


# --- values ---------------------------------------------------------------------------------------


def test_flat_map_is_the_renormalised_interpolated_normal():
    normals = 0.3 * surface(2)[1]
    flat = torch.tensor([0.5, 0.5, 1.0], dtype=F64)
    torch.testing.assert_close(dr.perturb_normals(normals, tangent_map(2), flat), safe_normalize(normals))


@pytest.mark.parametrize("convention", ["opengl", "directx"])
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_green_is_up_or_down_and_turns_with_the_side(convention, side):
    """The tangent points right; up in the picture is +y on a plain surface and -y on a mirrored one."""
    tangent = RIGHT * torch.tensor([1, 1, 1, side], dtype=F64)
    up = side if convention == "opengl" else -side
    value = one(tangent=tangent, texel=stored(0.48, 0.6, 0.64), convention=convention)
    assert torch.allclose(value, torch.tensor([0.48, 0.6 * up, 0.64], dtype=F64))


def test_tangent_and_normal_of_any_length_weigh_as_they_are():
    """The rule of baked maps: no pixel makes them unit length or orthogonal again."""
    value = one(normal=2 * UP, tangent=torch.tensor([0.6, 0.0, 0.3, 1.0], dtype=F64), texel=stored(0.5, 0.25, 0.75))
    expected = 0.5 * torch.tensor([0.6, 0.0, 0.3], dtype=F64) + 0.25 * torch.tensor([0.0, 1.2, 0.0], dtype=F64)
    expected = expected + 0.75 * 2 * UP
    assert torch.allclose(value, expected / expected.norm())


def test_scale_acts_on_x_and_y_only():
    for scale in (0.0, 0.5, 2.0, -1.0):
        expected = torch.tensor([0.48 * scale, 0.6 * scale, 0.64], dtype=F64)
        assert torch.allclose(one(texel=stored(0.48, 0.6, 0.64), scale=scale), expected / expected.norm())


def test_normals_never_point_into_the_surface():
    value = one(texel=stored(0.6, 0.0, -0.8))
    assert value.tolist() == [1, 0, 0]


def test_bumps_of_a_plane_equal_the_normals_of_the_bumpy_plane():
    """A height field as geometry and as a normal map: z = h(x, y), normal (-h_x, -h_y, 1); y down the picture."""
    y, x = torch.meshgrid(torch.linspace(1, -1, 40, dtype=F64), torch.linspace(-1, 1, 40, dtype=F64), indexing="ij")
    slope_x, slope_y = 0.6 * (3 * x).cos(), -0.4 * (2 * y).sin()
    truth = safe_normalize(torch.stack([-slope_x, -slope_y, torch.ones_like(x)], -1))
    quad = dr.geometry.quad().to(F64)
    tangents, rows = quad.vertex_tangents()
    at = tangents[rows[0, 0]]
    value = dr.perturb_normals(UP, at, truth / 2 + 0.5)[0]
    assert torch.allclose(value, truth)


# --- grazing view ---------------------------------------------------------------------------------


def leaning(cosine):
    """View directions with this cosine to +z, in the plane of the tangent."""
    return torch.tensor([-math.sqrt(1 - cosine**2), 0.0, cosine], dtype=F64)


def test_normal_is_bent_back_only_below_the_bound():
    texel, geometric = stored(0.6, 0.0, 0.8), torch.tensor([-0.1, 0.0, 1.0], dtype=F64)
    plain = one(texel=texel)
    for cosine in (0.99, 0.8, 0.75):
        # n' . v = 0.8 cosine - 0.6 sine
        view = leaning(cosine)
        seen = float(plain @ view)
        value = one(texel=texel, view_directions=view, geometric_normals=geometric)
        assert torch.equal(value, plain) == (seen >= 0.1)
    away = leaning(0.3)
    value = one(texel=texel, view_directions=away, geometric_normals=geometric)
    assert torch.allclose(value, safe_normalize(geometric))
    assert torch.equal(one(texel=texel, view_directions=away, geometric_normals=geometric, grazing=0.0), plain)


def test_visible_surfaces_are_never_black_from_a_steep_map():
    """The case this is made for: the geometric normal is visible, the map's is not; what comes out is visible."""
    view = views(4)
    view[..., 2] = view[..., 2].abs() + 0.05
    steep = texels(4) * torch.tensor([1, 1, 0.6], dtype=F64)
    plain = dr.perturb_normals(UP, tangent_map(4), steep)
    kept = dr.perturb_normals(UP, tangent_map(4), steep, view_directions=view)
    assert ((plain * view).sum(-1) < 0).any()
    assert ((kept * view).sum(-1) > 0).all()


@pytest.mark.parametrize("bound", ["lower", "upper"])
def test_blend_has_no_kink(bound):
    """Slopes left and right of both ends of the blend differ by no more than its curvature over the step."""
    target = 0.0 if bound == "lower" else 0.2
    texel = stored(0.6, 0.0, 0.8)

    def value(offset):
        # The angle between n' and the view sets the cosine directly.
        angle = math.asin(0.6) - math.acos(target + offset)
        view = torch.tensor([math.sin(angle), 0.0, math.cos(angle)], dtype=F64)
        assert float(one(texel=texel) @ view) == pytest.approx(target + offset, abs=1e-12)
        return one(texel=texel, view_directions=view, grazing=0.2)

    step = 1e-4
    left, right = (value(0) - value(-step)) / step, (value(step) - value(0)) / step
    assert (left - right).abs().max() < 0.05


def test_back_faces_are_the_mirror_image_of_front_faces():
    """The same surface seen from behind: the cosine counts from its own side, so it is bent back as far."""
    normals, tangents, texel, view = surface(2)[1], tangent_map(2), texels(2), views(2)
    view[..., 2] = view[..., 2].abs() + 0.02
    facing = (safe_normalize(normals) * view).sum(-1, keepdim=True)
    view = torch.where(facing < 0, -view, view)
    front = dr.perturb_normals(normals, tangents, texel, view_directions=view, grazing=0.5)
    back = dr.perturb_normals(normals, tangents, texel, view_directions=-view, grazing=0.5)
    torch.testing.assert_close(front, back)


def test_examples_of_the_contract_reach_the_blend():
    """Guards the contract row: below, within and above the blend there are pixels."""
    bent = dr.perturb_normals(surface()[1], tangent_map(), texels())
    cosine = (bent * safe_normalize(views())).sum(-1)
    side = torch.where((surface()[1] * views()).sum(-1) < 0, -1.0, 1.0)
    q = cosine * side / 0.1
    assert (q < 0).any()
    assert ((q > 0) & (q < 1)).any()
    assert (q > 1).any()


# --- gradients where things vanish ----------------------------------------------------------------


def zeroed(which):
    maps = {
        "normals": surface()[1], "tangents": tangent_map(), "normal_map": texels(), "scale": torch.ones(1, dtype=F64),
        "geometric_normals": surface(seed=39)[1], "view_directions": views(),
    }  # fmt: skip
    if which == "cancelled":
        maps["tangents"][0, 1, :, :3] = -maps["normals"][0, 1]
        maps["normal_map"][0, 1] = stored(0.5, 0.0, 0.5)
    elif which == "normal_map":
        maps["normal_map"][0, 1] = 0.5
    elif which == "opposite":
        maps["geometric_normals"][0, 1] = -dr.perturb_normals(maps["normals"], maps["tangents"], maps["normal_map"])[
            0, 1
        ]
        maps["view_directions"][0, 1] = maps["geometric_normals"][0, 1]
    else:
        maps[which] = maps[which].clone()
        maps[which][0, 1, :, :3] = 0
    return maps


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(
    "which", ["normals", "tangents", "normal_map", "geometric_normals", "view_directions", "cancelled", "opposite"]
)
def test_d07_what_is_zero_gives_finite_values_and_no_gradient(which, dtype):
    maps = {k: v.to(dtype).requires_grad_() for k, v in zeroed(which).items()}

    def run(view):
        names = list(maps)[:4] if not view else list(maps)
        value = dr.perturb_normals(*[maps[n] for n in names[:3]], **{n: maps[n] for n in names[3:]}, grazing=0.3)
        grads = torch.autograd.grad(value, [maps[n] for n in names], rnd(*value.shape, dtype=dtype))
        return value, dict(zip(names, grads, strict=True))

    for view in (False, True):
        value, grads = run(view)
        assert torch.isfinite(value).all()
        assert all(torch.isfinite(grad).all() for grad in grads.values())
        assert max(float(grad.abs().max()) for grad in grads.values()) < 1e3
        if which in grads:
            assert not grads[which][0, 1].any()
        if which == "normals":
            assert not value[0, 1].any()
            assert not any(grad[0, 1].any() for name, grad in grads.items() if name != "scale")
        elif not view:
            assert torch.allclose(value[0, 1].norm(dim=-1), torch.ones(SIZE[1], dtype=dtype))
        if which in ("tangents", "cancelled", "normal_map") and not view:
            assert torch.allclose(value[0, 1], safe_normalize(maps["normals"])[0, 1])
            for name in ("tangents", "normal_map"):
                assert not grads[name][0, 1].any()
            assert grads["normals"][0, 1].any()


def test_side_of_the_tangent_is_a_constant_and_its_zero_counts_as_plain():
    tangents = tangent_map().requires_grad_()
    dr.perturb_normals(surface()[1], tangents, texels()).sum().backward()
    assert tangents.grad[..., :3].any()
    assert not tangents.grad[..., 3].any()
    for w in (0.0, -0.0, 0.2):
        tangent = torch.tensor([1.0, 0.0, 0.0, w], dtype=F64)
        assert one(tangent=tangent, texel=stored(0.0, 0.6, 0.8)).tolist() == pytest.approx([0, 0.6, 0.8])


def test_blue_at_the_clamp_has_a_gradient_and_below_it_none():
    texel = torch.stack([stored(0.6, 0.3, 0.0), stored(0.6, 0.3, -0.2)])[None, None].requires_grad_()
    value = dr.perturb_normals(UP, RIGHT, texel)
    value[..., 2].sum().backward()
    assert texel.grad[0, 0, 0, 2] > 0
    assert texel.grad[0, 0, 1, 2] == 0


@pytest.mark.parametrize("cosine", [0.001, 0.05, 0.0999])
def test_gradients_at_grazing_view(cosine):
    """Just inside both ends of the blend, and in its middle."""
    maps = [surface()[1], tangent_map(), texels(), torch.full((1,), 0.8, dtype=F64)]
    bent = dr.perturb_normals(*maps[:3], scale=maps[3])
    # A view with exactly this cosine to n', on the side that the normal faces.
    across = safe_normalize(torch.linalg.cross(bent, torch.tensor([0.3, 1.0, 0.2], dtype=F64).expand_as(bent)))
    view = cosine * bent + math.sqrt(1 - cosine**2) * across
    facing = (maps[0] * view).sum(-1)
    keep = facing > 0.01
    assert keep.sum() > 5
    leaves = [x.clone().requires_grad_() for x in (*maps, view)]

    def call(normals, tangents, texel, scale, view):
        return dr.perturb_normals(normals, tangents, texel, scale=scale, view_directions=view, mask=keep)

    # Steps of a finite difference stay inside of the blend.
    assert torch.autograd.gradcheck(call, leaves, eps=1e-7, atol=1e-4, rtol=1e-4, fast_mode=True)


# --- masks, drivers -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_d11_background_is_ignored_whatever_it_holds(dtype):
    mask = checked_mask(2)
    maps = [x.to(dtype) for x in (surface(2)[1], tangent_map(2), texels(2), views(2), surface(2, seed=39)[1])]

    def run(fill):
        leaves = [torch.where(mask[..., None], x, fill).requires_grad_() for x in maps]
        scale = torch.full((1,), 0.7, dtype=dtype, requires_grad=True)
        value = dr.perturb_normals(
            *leaves[:3], scale=scale, view_directions=leaves[3], geometric_normals=leaves[4], mask=mask
        )
        grads = torch.autograd.grad(value, [*leaves, scale], rnd(*value.shape, dtype=dtype))
        assert not value[~mask].any()
        assert not any(grad[~mask].any() for grad in grads[:5])
        return [value, *grads]

    for poison in (float("nan"), float("inf"), 0.0, 3e38):
        assert all(torch.equal(a, b) for a, b in zip(run(poison), run(1.0), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("width", [1, 8, 13])
def test_packets_and_single_pixels_agree(dtype, width):
    op, size = torch.ops.diffrender, (3, width)
    maps = [surface(2, size)[1], tangent_map(2, size), texels(2, size), torch.full((1, 1, 1, 1), 0.8),
            surface(2, size, seed=39)[1], views(2, size)]  # fmt: skip
    inputs = (*[x.to(dtype) for x in maps], checked_mask(2, size).int() - 1)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    packets, single = (op.perturb_normals(*inputs, True, 0.3, driver) for driver in (0, 1))
    assert (packets - single).abs().max() <= tolerance
    arguments = (*inputs, rnd(2, *size, 3, dtype=dtype), True, 0.3, *[True] * 6)
    first = op.perturb_normals_backward(*arguments, 0, 0)
    for scatter, driver in ((0, 1), (1, 1)):
        for value, truth in zip(op.perturb_normals_backward(*arguments, scatter, driver), first, strict=True):
            assert (value - truth).abs().max() <= tolerance * max(1.0, float(truth.abs().max()))


def test_inputs_are_all_that_is_saved():
    saved = []
    inputs = [x.float().requires_grad_() for x in (surface()[1], tangent_map(), texels(), views())]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        dr.perturb_normals(*inputs[:3], view_directions=inputs[3])
    kept = {t.untyped_storage().data_ptr(): t.numel() for t in saved}
    assert sum(kept.values()) == sum(x.numel() for x in inputs) + 1
