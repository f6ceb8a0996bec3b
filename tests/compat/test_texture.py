"""texture and texture_construct_mip: every mode against the specification, values and all gradients."""

import itertools

import pytest
import torch

from diffrender.compat import nvdiffrast as dr
from tests.compat import specification_texture as specification
from tests.support.vocabulary import relative_error, rnd, uniform

F64 = torch.float64
MIP = ("linear-mipmap-nearest", "linear-mipmap-linear")
PLAIN = ("nearest", "linear")
LEAVES = ("tex", "uv", "uv_da", "bias", "mips")


def arguments(boundary_mode, seed=0, size=(8, 16), lookups=(6, 7), spread=1.5):
    """Texture, coordinates inside and outside of it, derivatives of levels 0 to 4, and a bias."""
    cube = boundary_mode == "cube"
    tex = rnd(1, 6, size[0], size[0], 3, seed=seed, dtype=F64) if cube else rnd(1, *size, 3, seed=seed, dtype=F64)
    if cube:
        uv = rnd(1, *lookups, 3, seed=seed + 1, dtype=F64)
    else:
        uv = uniform(1, *lookups, 2, seed=seed + 1, low=0.5 - spread, high=0.5 + spread, dtype=F64)
    length = 2 ** uniform(1, *lookups, 1, seed=seed + 2, low=-1, high=3, dtype=F64) / size[0]
    uv_da = length * rnd(1, *lookups, 6 if cube else 4, seed=seed + 3, dtype=F64)
    return {"tex": tex, "uv": uv, "uv_da": uv_da, "bias": 0.7 * rnd(1, *lookups, seed=seed + 4, dtype=F64)}


def compare(values, filter_mode, boundary_mode, tolerance=1e-9, **options):
    """Value and gradients to every argument, of both."""
    ours = {k: v.clone().requires_grad_() for k, v in values.items()}
    theirs = {k: v.clone().requires_grad_() for k, v in values.items()}
    result = dr.texture(
        ours["tex"], ours["uv"], ours.get("uv_da"), ours.get("bias"),
        filter_mode=filter_mode, boundary_mode=boundary_mode, **options,
    )  # fmt: skip
    truth = specification.texture(
        theirs["tex"], theirs["uv"], theirs.get("uv_da"), theirs.get("bias"),
        filter_mode=filter_mode, boundary_mode=boundary_mode, **options,
    )  # fmt: skip
    assert relative_error(result, truth) < tolerance
    assert truth.std() > 0.03
    weights = rnd(*truth.shape, seed=77, dtype=F64)
    grads = torch.autograd.grad(result, list(ours.values()), weights, allow_unused=True)
    truths = torch.autograd.grad(truth, list(theirs.values()), weights, allow_unused=True)
    for name, grad, expected in zip(values, grads, truths, strict=True):
        grad = torch.zeros_like(values[name]) if grad is None else grad
        expected = torch.zeros_like(values[name]) if expected is None else expected
        if expected.any():
            assert relative_error(grad, expected) < tolerance, name
        else:
            assert grad.abs().max() < 1e-12, name
    return truths


@pytest.mark.parametrize("boundary_mode", ["wrap", "clamp", "zero", "cube"])
@pytest.mark.parametrize("filter_mode", PLAIN)
def test_filters_without_mips(filter_mode, boundary_mode):
    for seed, size in itertools.product(range(3), [(8, 16), (5, 7), (1, 3)]):
        values = arguments(boundary_mode, seed, size)
        values = {"tex": values["tex"], "uv": values["uv"]}
        truths = compare(values, filter_mode, boundary_mode)
        assert (truths[1] is not None and bool(truths[1].any())) == (filter_mode == "linear")


@pytest.mark.parametrize("boundary_mode", ["wrap", "clamp", "zero", "cube"])
@pytest.mark.parametrize("filter_mode", MIP)
@pytest.mark.parametrize("given", [("uv_da",), ("bias",), ("uv_da", "bias")], ids="+".join)
def test_filters_with_mips(filter_mode, boundary_mode, given):
    """linear-mipmap-nearest takes the floor of the level and gives it no gradient."""
    for seed in range(3):
        values = arguments(boundary_mode, seed)
        if "uv_da" not in given:
            values["bias"] = uniform(1, 6, 7, seed=seed, low=-0.5, high=4.5, dtype=F64)
        values = {k: v for k, v in values.items() if k in ("tex", "uv", *given)}
        truths = compare(values, filter_mode, boundary_mode)
        moved = truths[2] is not None and bool(truths[2].any())
        assert moved == (filter_mode == "linear-mipmap-linear")


@pytest.mark.parametrize("boundary_mode", ["wrap", "cube"])
@pytest.mark.parametrize("max_mip_level", [1, 2, 30])
def test_max_mip_level_bounds_the_levels(boundary_mode, max_mip_level):
    compare(arguments(boundary_mode), "linear-mipmap-linear", boundary_mode, max_mip_level=max_mip_level)


def test_max_mip_level_0_is_linear():
    values = arguments("wrap")
    result = dr.texture(*values.values(), filter_mode="linear-mipmap-linear", max_mip_level=0)
    assert torch.equal(result, dr.texture(values["tex"], values["uv"]))


def test_auto_is_trilinear_if_something_gives_the_level_else_linear():
    values = arguments("wrap")
    tex, uv, uv_da, bias = values.values()
    trilinear = {"filter_mode": "linear-mipmap-linear"}
    assert torch.equal(dr.texture(tex, uv), dr.texture(tex, uv, filter_mode="linear"))
    assert torch.equal(dr.texture(tex, uv, uv_da), dr.texture(tex, uv, uv_da, **trilinear))
    assert torch.equal(dr.texture(tex, uv, None, bias), dr.texture(tex, uv, None, bias, **trilinear))
    assert not torch.equal(dr.texture(tex, uv), dr.texture(tex, uv, uv_da))
    # What the filter does not need is not looked at.
    assert torch.equal(dr.texture(tex, uv, uv_da, bias, filter_mode="linear"), dr.texture(tex, uv))
    assert torch.equal(dr.texture(tex, uv, mip=[tex[:, ::2, ::2]]), dr.texture(tex, uv))


# --- mips that are given ---------------------------------------------------------------------------


@pytest.mark.parametrize("boundary_mode", ["clamp", "cube"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("filter_mode", MIP)
def test_a_list_of_levels_is_read_and_gets_the_gradient(boundary_mode, count, filter_mode):
    """As split-sum shading uses it: levels of their own, a bias for the roughness. The base gets what reads it."""
    values = arguments(boundary_mode, seed=3)
    sizes = [tuple(max(1, n >> k) for n in values["tex"].shape[-3:-1]) for k in range(1, count + 1)]
    levels = [rnd(*values["tex"].shape[:-3], *size, 3, seed=9 + k, dtype=F64) for k, size in enumerate(sizes)]
    results = []
    for run in (lambda t, u, d, b, m: dr.texture(t, u, d, b, m, filter_mode, boundary_mode, 0),
                lambda t, u, d, b, m: specification.texture(t, u, d, b, m, filter_mode, boundary_mode)):  # fmt: skip
        leaves = [v.clone().requires_grad_() for v in (*values.values(), *levels)]
        value = run(*leaves[:4], leaves[4:])
        grads = torch.autograd.grad(value, leaves, rnd(*value.shape, dtype=F64), allow_unused=True)
        results.append((value, *grads))
    for index, (value, truth) in enumerate(zip(*results, strict=True)):
        if truth is None or not truth.any():
            assert value is None or value.abs().max() < 1e-12, index
        else:
            assert relative_error(value, truth) < 1e-9, index


def test_a_list_of_levels_of_a_texture_with_odd_sides():
    """Sides are halved and rounded down; a list may stop before one texel."""
    values = arguments("wrap", seed=6, size=(7, 13))
    for sizes in ([(3, 6)], [(3, 6), (1, 3), (1, 1)]):
        levels = [rnd(1, *size, 3, seed=k, dtype=F64) for k, size in enumerate(sizes)]
        value = dr.texture(*values.values(), levels)
        truth = specification.texture(*values.values(), levels, filter_mode="linear-mipmap-linear")
        torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cube", [False, True])
def test_levels_built_ahead_are_a_snapshot_whose_gradient_goes_to_tex(cube):
    boundary_mode = "cube" if cube else "wrap"
    values = arguments(boundary_mode, seed=4)
    tex, uv, uv_da, bias = values.values()
    tex.requires_grad_()
    mip = dr.texture_construct_mip(tex, cube_mode=cube)
    weights = rnd(1, 6, 7, 3, dtype=F64)
    built = dr.texture(tex, uv, uv_da, bias, boundary_mode=boundary_mode)
    given = dr.texture(tex, uv, uv_da, bias, mip=mip, boundary_mode=boundary_mode, max_mip_level=1)  # 1 is ignored
    torch.testing.assert_close(given, built, rtol=1e-13, atol=1e-13)
    grad, truth = (torch.autograd.grad(x, tex, weights)[0] for x in (given, built))
    assert relative_error(grad, truth) < 1e-12
    with torch.no_grad():
        tex *= 2
    stale = dr.texture(tex, uv, None, torch.full_like(bias, 1.0), mip=mip, boundary_mode=boundary_mode)
    fresh = dr.texture(tex, uv, None, torch.full_like(bias, 1.0), boundary_mode=boundary_mode)
    torch.testing.assert_close(2 * stale, fresh, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="mip must be built from a texture of shape"):
        dr.texture(tex[..., :2], uv, uv_da, mip=mip, boundary_mode=boundary_mode)
    with pytest.raises(ValueError, match="mip must be built with cube_mode="):
        dr.texture(tex, uv, uv_da, mip=mip, boundary_mode="clamp" if cube else "cube")


@pytest.mark.parametrize("max_mip_level", [None, 0, 1, 2])
def test_levels_built_ahead_stop_at_max_mip_level(max_mip_level):
    tex, uv, uv_da, _ = arguments("wrap", seed=5).values()
    mip = dr.texture_construct_mip(tex, max_mip_level)
    given = dr.texture(tex, uv, uv_da, mip=mip)
    torch.testing.assert_close(given, dr.texture(tex, uv, uv_da, max_mip_level=max_mip_level))
    tex.requires_grad_()
    (grad,) = torch.autograd.grad(dr.texture(tex, uv, uv_da, mip=mip).sum(), tex)
    (truth,) = torch.autograd.grad(dr.texture(tex, uv, uv_da, max_mip_level=max_mip_level).sum(), tex)
    torch.testing.assert_close(grad, truth)


def test_gradients_of_built_mips_return_to_the_base_halved_per_halved_side():
    """Level 2 of a 4 x 1 texture: one texel, each base texel a quarter."""
    tex = rnd(1, 1, 4, 1, dtype=F64).requires_grad_()
    uv = torch.full((1, 1, 1, 2), 0.3, dtype=F64)
    value = dr.texture(tex, uv, None, torch.full((1, 1, 1), 2.0, dtype=F64))
    torch.testing.assert_close(value.squeeze(), tex.mean())
    (grad,) = torch.autograd.grad(value.sum(), tex)
    torch.testing.assert_close(grad, torch.full_like(grad, 0.25))


@pytest.mark.parametrize("size", [(5, 7), (6, 10), (1, 9), (3, 64)])
def test_odd_sides_have_mips_here(size):
    """There, an error with a table of sizes. Constants stay, the mean of the last level is that of the texture."""
    tex = rnd(1, *size, 2, dtype=F64).requires_grad_()
    uv = uniform(1, 4, 5, 2, dtype=F64)
    last = torch.full((1, 4, 5), 20.0, dtype=F64)
    for value in (dr.texture(tex, uv, None, last), dr.texture(tex, uv, None, last, dr.texture_construct_mip(tex))):
        torch.testing.assert_close(value, tex.mean((1, 2), keepdim=True).expand_as(value))
        (grad,) = torch.autograd.grad(value.sum(), tex)
        torch.testing.assert_close(grad, torch.full_like(grad, 20 / (size[0] * size[1])))


# --- cubes -----------------------------------------------------------------------------------------


def on_face(face, s, t):
    """A direction that the table of the specification projects to (s, t) of a face."""
    a, b = 2 * s - 1, 2 * t - 1
    one = torch.ones_like(a)
    table = [(one, -b, -a), (-one, -b, a), (a, one, b), (a, -one, -b), (a, -b, one), (-a, -b, -one)]
    return torch.stack(table[face], -1)


@pytest.mark.parametrize("face", range(6))
def test_faces_are_oriented_as_in_opengl(face):
    tex = rnd(1, 6, 4, 4, 2, dtype=F64)
    t, s = torch.meshgrid(*[(torch.arange(4, dtype=F64) + 0.5) / 4] * 2, indexing="ij")
    for filter_mode in PLAIN:
        value = dr.texture(tex, 2.5 * on_face(face, s, t)[None], filter_mode=filter_mode, boundary_mode="cube")
        torch.testing.assert_close(value, tex[:, face])


@pytest.mark.parametrize("face", range(6))
@pytest.mark.parametrize("side", range(4))
def test_a_tap_over_a_side_is_the_texel_of_the_table_of_seams(face, side):
    """A hair inside of the side the value is the mean of the border texel and its neighbour beyond."""
    size = 4
    tex = rnd(1, 6, size, size, 1, dtype=F64)
    for k in range(size):
        along, edge = torch.tensor((k + 0.5) / size, dtype=F64), torch.tensor([1e-12, 1 - 1e-12][side % 2], dtype=F64)
        s, t = (edge, along) if side < 2 else (along, edge)
        value = dr.texture(tex, on_face(face, s, t)[None, None, None], boundary_mode="cube").item()
        border = (0 if side % 2 == 0 else size - 1, k)  # (across, along)
        row, column = (border[1], border[0]) if side < 2 else border
        to, to_column, to_row = specification.SEAMS[face][side]
        names = {"k": k, "r": size - 1 - k, "e": size - 1, 0: 0}
        expected = (tex[0, face, row, column] + tex[0, to, names[to_row], names[to_column]]).item() / 2
        assert value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("face", range(6))
def test_beyond_a_corner_is_the_mean_of_the_other_three_and_so_is_the_gradient(face):
    tex = rnd(1, 6, 4, 4, 1, seed=6, dtype=F64).requires_grad_()
    corners = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=F64) * (1 - 2e-12) + 1e-12
    uv = on_face(face, corners[:, 0], corners[:, 1])[None, None]
    value = dr.texture(tex, uv, boundary_mode="cube")
    truth = specification.texture(tex, uv, boundary_mode="cube")
    torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)
    grad = torch.autograd.grad(value.sum(), tex)[0]
    # Three texels share each corner: each has 1/4 for itself and 1/12 for the missing one.
    assert grad[grad > 1e-6].tolist() == pytest.approx([1 / 3] * 12)


@pytest.mark.parametrize("component", range(3))
def test_ties_of_the_major_axis_go_to_x_then_y(component):
    """Each face has a colour of its own."""
    tex = torch.arange(6, dtype=F64).view(1, 6, 1, 1, 1).expand(1, 6, 3, 3, 1).contiguous()
    directions = torch.tensor([[1, 1, 1], [1, 1, -1], [-1, 1, 1], [0, 1, 1], [0, -1, 1], [1, 0, -1], [-1, -1, 0]])
    uv = directions.to(F64)[None, None] * 3.0
    value = dr.texture(tex, uv, filter_mode="nearest", boundary_mode="cube").flatten()
    assert value.tolist() == [0, 0, 1, 2, 3, 0, 1]


def test_directions_that_are_none_give_zero_and_no_gradient():
    tex = (1 + uniform(1, 6, 4, 4, 2, dtype=F64)).requires_grad_()
    bad = [[0.0, 0, 0], [float("nan"), 1, 0], [1, float("inf"), 0], [0, 0, -float("inf")]]
    uv = torch.tensor([[bad]], dtype=F64).requires_grad_()
    uv_da = rnd(1, 1, 4, 6, dtype=F64)
    for options in ({"filter_mode": "nearest"}, {"filter_mode": "linear"}, {"uv_da": uv_da}):
        value = dr.texture(tex, uv, boundary_mode="cube", **options)
        assert not value.any()
        for grad in torch.autograd.grad(value.sum(), (tex, uv)):
            assert not grad.any()


# --- batches, types, odd values --------------------------------------------------------------------


@pytest.mark.parametrize("boundary_mode", ["wrap", "cube"])
def test_one_texture_serves_a_batch_and_channels_are_independent(boundary_mode):
    tex, uv, uv_da, bias = (torch.cat([a, b]) for a, b in zip(
        arguments(boundary_mode, 7).values(), arguments(boundary_mode, 8).values(), strict=True))  # fmt: skip
    both = dr.texture(tex, uv, uv_da, bias, boundary_mode=boundary_mode)
    for item in range(2):
        one = slice(item, item + 1)
        alone = dr.texture(tex[one], uv[one], uv_da[one], bias[one], boundary_mode=boundary_mode)
        assert torch.equal(both[one], alone)
    shared = dr.texture(tex[:1], uv, uv_da, bias, boundary_mode=boundary_mode)
    assert torch.equal(shared[0], both[0])
    wide = dr.texture(tex.repeat_interleave(20, -1), uv, uv_da, bias, boundary_mode=boundary_mode)
    torch.testing.assert_close(wide[..., ::20], both, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("boundary_mode", ["wrap", "clamp", "zero", "cube"])
def test_float32_follows_the_specification_to_its_precision(boundary_mode):
    values = arguments(boundary_mode, 9)
    single = dr.texture(*(v.float() for v in values.values()), boundary_mode=boundary_mode)
    truth = specification.texture(*values.values(), filter_mode="linear-mipmap-linear", boundary_mode=boundary_mode)
    assert single.dtype == torch.float32
    assert (single - truth).abs().max() < 1e-5
    strided = values["tex"].transpose(-3, -2).contiguous().transpose(-3, -2)
    again = dr.texture(strided, *list(values.values())[1:], boundary_mode=boundary_mode)
    torch.testing.assert_close(again, truth, rtol=1e-9, atol=1e-9)


def test_clamped_coordinates_on_the_border_have_no_gradient_and_zero_ones_have():
    tex = 1 + uniform(1, 4, 4, 1, dtype=F64)
    uv = torch.tensor([[[[-0.2, 0.4], [1.3, 0.6], [0.05, 0.5]]]], dtype=F64)
    for boundary_mode, moves in (("clamp", [False] * 3), ("zero", [False, False, True])):
        leaf = uv.clone().requires_grad_()
        (grad,) = torch.autograd.grad(dr.texture(tex, leaf, boundary_mode=boundary_mode).sum(), leaf)
        assert (grad[0, 0, :, 0] != 0).tolist() == moves


def test_huge_coordinates_read_no_foreign_memory():
    tex = uniform(1, 4, 4, 1)
    uv = torch.tensor([[[[1e6, -1e6], [3e38, 0.5], [1e10, 1e10]]]])
    for boundary_mode in ("wrap", "clamp", "zero"):
        for filter_mode in PLAIN:
            value = dr.texture(tex, uv, filter_mode=filter_mode, boundary_mode=boundary_mode)
            assert torch.isfinite(value).all()
            assert value.abs().max() <= tex.max()


def test_levels_of_no_and_of_infinite_footprint_are_the_first_and_the_last():
    tex, uv, _, _ = arguments("wrap", 10).values()
    nothing, endless = torch.zeros(1, 6, 7, 4, dtype=F64), torch.full((1, 6, 7, 4), float("inf"), dtype=F64)
    assert torch.equal(dr.texture(tex, uv, nothing), dr.texture(tex, uv))
    mean = tex.mean((1, 2), keepdim=True)
    torch.testing.assert_close(dr.texture(tex, uv, endless), mean.expand(1, 6, 7, 3))
    for steps in (nothing, endless):
        leaf = steps.clone().requires_grad_()
        assert not torch.autograd.grad(dr.texture(tex, uv, leaf).sum(), leaf)[0].any()


def test_derivatives_of_interpolate_are_what_texture_takes():
    """A plane that shows 16 texels per pixel: level 4, a 16th of the texture per pixel."""
    pos = torch.tensor([[[-1.0, -1, 0, 1], [1, -1, 0, 1], [-1, 1, 0, 1], [1, 1, 0, 1]]], dtype=F64)
    tri, uv = torch.tensor([[0, 1, 2], [1, 3, 2]]), torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1]], dtype=F64)
    rast, rast_db = dr.rasterize(dr.RasterizeCudaContext(), pos, tri, (4, 4))
    st, st_da = dr.interpolate(uv, rast, tri, rast_db, diff_attrs="all")
    torch.testing.assert_close(st_da, torch.tensor([0.25, 0, 0, 0.25], dtype=F64).expand(1, 4, 4, 4))
    tex = rnd(1, 64, 64, 3, dtype=F64)
    blocks = tex.unflatten(1, (4, 16)).unflatten(3, (4, 16)).mean((2, 4))
    torch.testing.assert_close(dr.texture(tex, st, st_da), blocks)


def test_errors_name_the_argument():
    tex, uv, uv_da, bias = arguments("wrap").values()
    with pytest.raises(ValueError, match="filter_mode must be one of 'auto', 'nearest'"):
        dr.texture(tex, uv, filter_mode="cubic")
    with pytest.raises(ValueError, match="boundary_mode must be one of 'wrap', 'clamp', 'zero', 'cube'"):
        dr.texture(tex, uv, boundary_mode="mirror")
    with pytest.raises(ValueError, match="filter_mode must come with uv_da or mip_level_bias"):
        dr.texture(tex, uv, filter_mode="linear-mipmap-linear")
    with pytest.raises(ValueError, match=r"texcoords must have shape \(B, H, W, 2\)"):
        dr.texture(tex, uv_da)
    with pytest.raises(ValueError, match=r"texcoord_derivatives must have shape \(1, 6, 7, 4\)"):
        dr.texture(tex, uv, uv_da[..., :2])
    with pytest.raises(ValueError, match=r"level_bias must have shape \(1, 6, 7\)"):
        dr.texture(tex, uv, None, bias[..., None])
    with pytest.raises(ValueError, match="have six square faces"):
        dr.texture(rnd(1, 5, 4, 4, 1, dtype=F64), torch.cat([uv, uv[..., :1]], -1), boundary_mode="cube")
    with pytest.raises(ValueError, match=r"mips\[0\] must have shape \(1, 4, 8, 3\)"):
        dr.texture(tex, uv, uv_da, mip=[tex])
    with pytest.raises(ValueError, match="mips must have at most 4 levels"):
        dr.texture(tex, uv, uv_da, mip=[rnd(1, max(1, 8 >> k), max(1, 16 >> k), 3, dtype=F64) for k in range(1, 7)])
    with pytest.raises(ValueError, match=r"tex must have shape \(N, 6, S, S, C\) with cube_mode"):
        dr.texture_construct_mip(tex, cube_mode=True)
    with pytest.raises(ValueError, match="max_level must be at least 0"):
        dr.texture_construct_mip(tex, max_mip_level=-1)
