"""antialias: layout, topology by index, gradient boost; with exact_legacy=True, the values of the specification."""

import numpy as np
import pytest
import torch

import diffrender
from diffrender.compat import nvdiffrast as dr
from diffrender.compat.nvdiffrast._legacy_antialias import opposite_vertices
from tests.compat import specification
from tests.compat.scenes import loose_triangles, on_grid, sphere
from tests.support.scenes import random_scene
from tests.support.vocabulary import relative_error, rnd, uniform

F64 = torch.float64
CONTEXT = dr.RasterizeCudaContext()
MODES = pytest.mark.parametrize("exact_legacy", [False, True], ids=["ours", "legacy"])


def pictures(seed, kind="loose", size=(11, 12), channels=3, dtype=F64, exact_legacy=False):
    """color, rast, pos, tri of a random scene."""
    if kind in ("half pixels", "sixteenths"):
        # Ties in depth, edges through centres and half way between them, slopes of exactly 45 degrees.
        pos, tri = on_grid(seed, size, {"half pixels": 0.5, "sixteenths": 1 / 16}[kind], dtype=dtype)
    else:
        pos, tri = loose_triangles(seed, dtype=dtype) if kind == "loose" else sphere(seed, dtype=dtype)
    rast, _ = dr.rasterize(CONTEXT, pos, tri, size, exact_legacy=exact_legacy)
    return uniform(*rast.shape[:3], channels, seed=seed + 90, dtype=dtype), rast, pos, tri


# --- both modes ----------------------------------------------------------------------------------


@MODES
def test_a_mask_takes_the_area_that_a_straight_edge_covers(exact_legacy):
    """Columns left of x = 5.3 are covered: the sixth gets 0.3 where the rule is linear in the distance."""
    x = 2 * 5.3 / 8 - 1
    pos = torch.tensor([[[-3, -3, 0, 1], [x, -3, 0, 1], [x, 3, 0, 1], [-3, 3, 0, 1]]], dtype=F64, requires_grad=True)
    tri = torch.tensor([[0, 1, 2], [0, 2, 3]])
    rast, _ = dr.rasterize(CONTEXT, pos, tri, (4, 8), exact_legacy=exact_legacy)
    mask = (rast[..., 3:] > 0).double()
    image = dr.antialias(mask, rast, pos, tri, exact_legacy=exact_legacy)
    torch.testing.assert_close(image[0, :, :, 0], torch.tensor([[1, 1, 1, 1, 1, 0.3, 0, 0]], dtype=F64).expand(4, 8))
    # One unit of x is 4 pixels of 4 rows; the two corners of the edge share them.
    (grad,) = torch.autograd.grad(image.sum(), pos)
    tolerance = 1e-9 if not exact_legacy else 1e-3
    assert grad[0, 1:3, 0].sum().item() == pytest.approx(16, rel=tolerance)
    assert grad[0, [0, 3]].abs().max() < 1e-12


@MODES
def test_up_is_up(exact_legacy):
    """A half-plane below y: raising it brightens rows above, which are rows of higher index."""
    y = 2 * 3.7 / 8 - 1
    pos = torch.tensor([[[-3, -3, 0, 1], [3, -3, 0, 1], [3, y, 0, 1], [-3, y, 0, 1]]], dtype=F64, requires_grad=True)
    tri = torch.tensor([[0, 1, 2], [0, 2, 3]])
    rast, _ = dr.rasterize(CONTEXT, pos, tri, (8, 3), exact_legacy=exact_legacy)
    image = dr.antialias((rast[..., 3:] > 0).double(), rast, pos, tri, exact_legacy=exact_legacy)
    torch.testing.assert_close(image[0, :, 1, 0], torch.tensor([1, 1, 1, 0.7, 0, 0, 0, 0], dtype=F64))
    (grad,) = torch.autograd.grad(image[0, 3].sum(), pos)
    assert (grad[0, 2:, 1] > 0).all()


@MODES
@pytest.mark.parametrize("kind", ["loose", "sphere"])
def test_a_given_topology_changes_nothing(exact_legacy, kind):
    color, rast, pos, tri = pictures(0, kind, exact_legacy=exact_legacy)
    topology_hash = dr.antialias_construct_topology_hash(tri)
    image = dr.antialias(color, rast, pos, tri, exact_legacy=exact_legacy)
    for _ in range(2):
        assert torch.equal(image, dr.antialias(color, rast, pos, tri, topology_hash, exact_legacy=exact_legacy))
    assert not torch.equal(image, color)


@MODES
def test_a_topology_of_another_mesh_is_not_noticed_but_harmless(exact_legacy):
    """There, a cached hash is not validated. Same number of rows, other neighbours: another picture, no crash."""
    color, rast, pos, tri = pictures(1, "sphere", exact_legacy=exact_legacy)
    other = dr.antialias_construct_topology_hash(tri[torch.randperm(len(tri))])
    image = dr.antialias(color, rast, pos, tri, other, exact_legacy=exact_legacy)
    assert torch.isfinite(image).all()


@MODES
def test_boost_scales_the_gradient_of_positions_only(exact_legacy):
    color, rast, pos, tri = pictures(2, "sphere", exact_legacy=exact_legacy)
    color.requires_grad_(), pos.requires_grad_()
    weights = rnd(*color.shape, dtype=F64)

    def run(*boost):
        image = dr.antialias(color, rast, pos, tri, None, *boost, exact_legacy=exact_legacy)
        return image, torch.autograd.grad(image, (color, pos), weights)

    (image, (to_color, to_pos)), (boosted, (to_color_too, to_pos_too)) = run(), run(3.0)
    assert torch.equal(image, boosted)
    assert torch.equal(to_color, to_color_too)
    torch.testing.assert_close(to_pos_too, 3 * to_pos, rtol=1e-14, atol=0)
    assert to_pos.any()
    assert not run(0.0)[1][1].any()


@MODES
def test_rast_has_no_gradient_and_z_none(exact_legacy):
    color, rast, pos, tri = pictures(3, exact_legacy=exact_legacy)
    rast.requires_grad_(), pos.requires_grad_()
    image = dr.antialias(color, rast, pos, tri, exact_legacy=exact_legacy)
    to_rast, to_pos = torch.autograd.grad(image.sum(), (rast, pos), allow_unused=True)
    assert to_rast is None or not to_rast.any()
    assert not to_pos[..., 2].any()
    assert to_pos[..., 3].any()


@MODES
def test_a_vertex_split_is_a_silhouette_and_a_shared_edge_none(exact_legacy):
    """A flat sheet of two triangles, with two colours. As the cube of the pose sample relies on."""
    x = 2 * 4.2 / 8 - 1
    corners = [[-3, -3, 0, 1], [x, -3, 0, 1], [x, 3, 0, 1], [-3, 3, 0, 1], [3, -3, 0, 1], [3, 3, 0, 1]]
    pos = torch.tensor([corners], dtype=F64)
    tri = torch.tensor([[0, 1, 2], [0, 2, 3], [1, 4, 5], [1, 5, 2]])
    split = torch.cat([pos, pos[:, 1:3]], 1)
    split_tri = tri.clone()
    split_tri[2:] = torch.tensor([[6, 4, 5], [6, 5, 7]])
    for p, t, blends in ((pos, tri, False), (split, split_tri, True)):
        rast, _ = dr.rasterize(CONTEXT, p, t, (4, 8), exact_legacy=exact_legacy)
        color = (rast[..., 3:] > 2).double()
        assert color[0, 0, :, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
        image = dr.antialias(color, rast, p, t, exact_legacy=exact_legacy)
        assert torch.equal(image, color) != blends
        if blends:
            torch.testing.assert_close(image[0, 1, 4, 0].item(), 0.8)


@MODES
@pytest.mark.parametrize("channels", [1, 2, 7, 70])
def test_any_number_of_channels(exact_legacy, channels):
    color, rast, pos, tri = pictures(4, channels=channels, exact_legacy=exact_legacy)
    image = dr.antialias(color, rast, pos, tri, exact_legacy=exact_legacy)
    first = dr.antialias(color[..., :1], rast, pos, tri, exact_legacy=exact_legacy)
    assert torch.equal(image[..., :1], first)


@MODES
def test_range_mode_and_shared_positions(exact_legacy):
    pos, tri = loose_triangles(5, batch=1)
    ranges = torch.tensor([[0, 6], [4, 6]], dtype=torch.int32)
    rast, _ = dr.rasterize(CONTEXT, pos[0], tri, (9, 9), ranges, exact_legacy=exact_legacy)
    color = uniform(2, 9, 9, 3, dtype=F64)
    leaf = pos[0].clone().requires_grad_()
    image = dr.antialias(color, rast, leaf, tri, exact_legacy=exact_legacy)
    grad = torch.autograd.grad(image.sum(), leaf)[0]
    total = 0
    for item in range(2):
        alone = pos.clone().requires_grad_()
        part = dr.antialias(color[item : item + 1], rast[item : item + 1], alone, tri, exact_legacy=exact_legacy)
        assert torch.equal(part[0], image[item])
        total = total + torch.autograd.grad(part.sum(), alone)[0][0]
    torch.testing.assert_close(grad, total, rtol=1e-12, atol=1e-12)


@MODES
def test_strided_arrays_and_int64(exact_legacy):
    color, rast, pos, tri = pictures(6, exact_legacy=exact_legacy)
    truth = dr.antialias(color, rast, pos, tri, exact_legacy=exact_legacy)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (color, rast, pos)]
    assert torch.equal(dr.antialias(*strided, tri.long(), exact_legacy=exact_legacy), truth)


@MODES
def test_errors_name_the_argument(exact_legacy):
    color, rast, pos, tri = pictures(7)
    options = {"exact_legacy": exact_legacy}
    with pytest.raises(TypeError, match="topology_hash must be made by antialias_construct_topology_hash"):
        dr.antialias(color, rast, pos, tri, tri, **options)
    with pytest.raises(ValueError, match=r"must have shape \(2, 11, 12, C\)"):
        dr.antialias(color[:, 1:], rast, pos, tri, **options)
    with pytest.raises(ValueError, match="rast must have shape"):
        dr.antialias(color, rast[..., 0], pos, tri, **options)
    with pytest.raises(ValueError, match="pos must have shape"):
        dr.antialias(color, rast, pos[..., :3], tri, **options)
    with pytest.raises(ValueError, match="must have the batch size of"):
        dr.antialias(color, rast, pos.expand(2, 2, -1, 4).reshape(4, -1, 4)[:3], tri, **options)
    with pytest.raises(TypeError, match="tri must be int32 or int64"):
        dr.antialias_construct_topology_hash(tri.float())


# --- ours ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["loose", "sphere"])
def test_results_stay_between_the_colours_here_and_are_our_op_turned_over(kind):
    color, rast, pos, tri = pictures(8, kind)
    image = dr.antialias(color, rast, pos, tri)
    assert color.min() <= image.min()
    assert image.max() <= color.max()
    # The same scene with y up and row 0 on top.
    fragments = diffrender.rasterize(pos, tri, (11, 12))
    topology = diffrender.edge_topology(tri)
    same = (fragments.triangle_id.flip(1) == dr.triangle_ids(rast)).all()
    truth = diffrender.antialias(color.flip(1), fragments, pos, tri, method="pairs", topology=topology).flip(1)
    assert same
    torch.testing.assert_close(image, truth, rtol=1e-12, atol=1e-12)


def test_gradcheck():
    color, rast, pos, tri = pictures(9, "sphere", size=(5, 6), channels=2)

    def blend(c, p):
        return dr.antialias(c, rast, p, tri)

    assert torch.autograd.gradcheck(blend, (color.requires_grad_(), pos.requires_grad_()))


# --- legacy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["loose", "sphere", "half pixels", "sixteenths"])
@pytest.mark.parametrize("seed", range(4))
def test_legacy_values_and_gradients_follow_the_specification(seed, kind):
    size = (11, 12) if kind in ("loose", "sphere") else (8, 16)  # on grids, coordinates without rounding
    color, rast, pos, tri = pictures(60 + seed, kind, size, exact_legacy=True)
    leaves = [x.clone().requires_grad_() for x in (color, pos)]
    image = dr.antialias(leaves[0], rast, leaves[1], tri, exact_legacy=True)
    arrays = [x.numpy() for x in (color, rast, pos, tri)]
    truth = torch.from_numpy(specification.antialias(*arrays))
    torch.testing.assert_close(image, truth, rtol=1e-10, atol=1e-12)
    assert (truth - color).abs().max() > 0.1
    weights = rnd(*color.shape, dtype=F64)
    grads = torch.autograd.grad(image, leaves, weights)
    truths = specification.antialias_backward(*arrays, weights.numpy())
    for value, expected in zip(grads, truths, strict=True):
        assert relative_error(value, torch.from_numpy(expected)) < 1e-9
        assert expected.any()
    if kind == "half pixels":
        return  # crossings lie on the limits, where float32 falls to either side
    single = dr.antialias(color.float(), rast.float(), pos.float(), tri, exact_legacy=True)
    # A pair next to one of the limits may fall on the other side of it in float32.
    off = ((single - truth).abs() > 1e-5).any(-1)
    assert off.sum() <= 2


def test_legacy_neighbours_are_the_first_two_different_vertices():
    """An edge of three triangles, a triangle listed twice, one that uses a vertex twice."""
    tri = torch.tensor([[0, 1, 2], [1, 0, 3], [0, 1, 4], [5, 6, 7], [5, 6, 7], [8, 8, 9], [9, 8, 3], [6, 5, 2]])
    opposite = opposite_vertices(tri)
    table = specification.topology(tri.numpy())
    for t, row in enumerate(tri.numpy()):
        for k in range(3):
            edge = (int(row[(k + 1) % 3]), int(row[(k + 2) % 3]))
            expected = specification.neighbour(table, edge, int(row[k])) if len(set(row.tolist())) == 3 else None
            assert opposite[t, k] == (-1 if expected is None else expected)
    assert opposite[0, 2] == 3
    assert opposite[1, 2] == 2
    assert opposite[2, 2] == -1
    assert opposite[3, 2] == 2  # the copy in row 4 does not hide the neighbour
    assert opposite[4, 2] == 2
    assert opposite_vertices(tri[5:6]).tolist() == [[-1, -1, -1]]
    assert opposite_vertices(tri[:0]).shape == (0, 3)


def test_legacy_overshoots_where_four_pairs_meet_and_ours_does_not():
    """A pixel whose four neighbours are covered by more than half takes up to four halves of them."""
    color = torch.ones(1, 3, 3, 1, dtype=F64)
    color[0, 1, 1] = 0
    # Four half-planes that leave a hole 0.2 pixels wide around the centre.
    e = 0.2 / 3
    corners, rows = [], []
    for k in range(4):
        turn = torch.tensor(
            [[np.cos(k * np.pi / 2), -np.sin(k * np.pi / 2)], [np.sin(k * np.pi / 2), np.cos(k * np.pi / 2)]]
        )
        xy = torch.tensor([[e, -9], [9, -9], [9, 9], [e, 9]], dtype=F64) @ turn.T
        corners.append(torch.cat([xy, torch.full((4, 1), 0.1 * k, dtype=F64), torch.ones(4, 1, dtype=F64)], 1))
        rows += [[4 * k, 4 * k + 1, 4 * k + 2], [4 * k, 4 * k + 2, 4 * k + 3]]
    pos, tri = torch.cat(corners)[None], torch.tensor(rows)
    rast, _ = dr.rasterize(CONTEXT, pos, tri, (3, 3), exact_legacy=True)
    assert rast[0, 1, 1, 3] == 0
    legacy = dr.antialias(color, rast, pos, tri, exact_legacy=True)
    assert legacy[0, 1, 1].item() == pytest.approx(4 * 0.4)
    assert dr.antialias(color, rast, pos, tri)[0, 1, 1].item() == pytest.approx(1.0)


@MODES
def test_hostile_scenes_stay_finite(exact_legacy):
    for seed in range(60):
        pos, tri, size = random_scene(seed, F64)
        pos = pos[None].clone().requires_grad_()
        rast, _ = dr.rasterize(CONTEXT, pos, tri, size, exact_legacy=exact_legacy)
        color = uniform(1, *size, 2, seed=seed, dtype=F64).requires_grad_()
        image = dr.antialias(color, rast, pos, tri, exact_legacy=exact_legacy)
        assert torch.isfinite(image).all(), seed
        for grad in torch.autograd.grad(image, (color, pos), rnd(*image.shape, dtype=F64)):
            assert torch.isfinite(grad).all(), seed
