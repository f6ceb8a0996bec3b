"""rasterize: layout, modes, gradients, what is refused and what is not."""

import numpy as np
import pytest
import torch

import diffrender
from diffrender.compat import nvdiffrast as dr
from tests.compat import specification
from tests.compat.scenes import fan, loose_triangles, on_grid
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64
CONTEXT = dr.RasterizeCudaContext()
MODES = pytest.mark.parametrize("exact_legacy", [False, True], ids=["ours", "legacy"])


def raster(pos, tri, size, **options):
    return dr.rasterize(CONTEXT, pos, tri, size, **options)


# --- layout ----------------------------------------------------------------------------------------


@MODES
def test_triangle_of_the_sample_covers_20706_pixels(exact_legacy):
    """20910 if edges belonged to both sides: the long one passes through 204 pixel centres."""
    pos = torch.tensor([[[-0.8, -0.8, 0, 1], [0.8, -0.8, 0, 1], [-0.8, 0.8, 0, 1]]])
    rast, _ = raster(pos, torch.tensor([[0, 1, 2]], dtype=torch.int32), [256, 256], exact_legacy=exact_legacy)
    assert int((rast[..., 3] > 0).sum()) == 20706


@MODES
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_row_0_is_the_bottom_and_column_0_the_left(exact_legacy, dtype):
    """A small triangle in the lower right corner, wider than high."""
    pos = torch.tensor([[[0.4, -1, 0.5, 1], [1, -1, 0.5, 1], [1, -0.7, 0.5, 1]]], dtype=dtype)
    rast, rast_db = raster(pos, torch.tensor([[0, 1, 2]]), (10, 20), exact_legacy=exact_legacy)
    assert rast.shape == rast_db.shape == (1, 10, 20, 4)
    assert rast.dtype == rast_db.dtype == dtype
    rows, columns = torch.nonzero(rast[0, :, :, 3], as_tuple=True)
    assert rows.max() <= 1
    assert columns.min() >= 14
    assert rast[0, 0, 19].tolist()[2:] == pytest.approx([0.5, 1.0], rel=1e-6)
    # (u, v) weigh corners 0 and 1; pixel (0, 19) has its centre at (0.95, -0.9).
    corners = pos[0, :, :2].double()
    u, v = rast[0, 0, 19, :2].double()
    point = u * corners[0] + v * corners[1] + (1 - u - v) * corners[2]
    torch.testing.assert_close(point, torch.tensor([0.95, -0.9], dtype=F64), rtol=1e-5, atol=1e-6)


@MODES
def test_derivatives_are_per_pixel_with_y_up(exact_legacy):
    """(du/dX, du/dY, dv/dX, dv/dY): differences of neighbouring columns and rows. Exact where w is constant."""
    pos = torch.tensor([[[-0.9, -0.8, 0, 1], [0.9, -0.5, 0, 1], [-0.3, 0.9, 0, 1]]], dtype=F64)
    rast, rast_db = raster(pos, torch.tensor([[0, 1, 2]]), (12, 17), exact_legacy=exact_legacy)
    hit = rast[0, :, :, 3] > 0
    for axis, channels in ((1, [0, 2]), (0, [1, 3])):
        both = hit & hit.roll(-1, axis)
        both[:, -1] = both[-1, :] = False
        difference = rast[0, :, :, :2].roll(-1, axis) - rast[0, :, :, :2]
        inner = (rast[0, :, :, :2] > 0).all(-1) & (rast[0, :, :, :2].sum(-1) < 1 - 1e-9)
        inner = both & inner & inner.roll(-1, axis)
        assert inner.sum() > 20
        torch.testing.assert_close(difference[inner], rast_db[0][inner][:, channels], rtol=1e-9, atol=1e-12)


@MODES
def test_background_is_zero_in_all_channels(exact_legacy):
    pos, tri = loose_triangles(0, count=2)
    rast, rast_db = raster(pos, tri, (9, 9), exact_legacy=exact_legacy)
    empty = rast[..., 3] == 0
    assert empty.any()
    assert not rast[empty].any()
    assert not rast_db[empty].any()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_weights_and_depth_are_cut_to_the_triangle(dtype):
    """Our own barycentrics may leave the triangle by what rounding moves an edge; scripts expect [0, 1]."""
    pos, tri = loose_triangles(3, count=40, dtype=dtype)
    pos[..., 2] *= 1.05
    rast, _ = raster(pos, tri, (40, 40))
    flipped = pos * torch.tensor([1, -1, 1, 1], dtype=dtype)
    raw = diffrender.rasterize(flipped, tri, (40, 40)).barycentrics
    eps = torch.finfo(dtype).eps
    assert (raw.min() < 0) | (raw.sum(-1).max() > 1 + eps)
    assert rast[..., :2].min() >= 0
    assert rast[..., :2].sum(-1).max() <= 1 + eps
    assert rast[..., 2].abs().max() <= 1
    assert (rast[..., :2] - raw).abs().max() < 0.1


@MODES
def test_both_windings_and_pieces_behind_the_camera_are_drawn_without_culling(exact_legacy):
    pos = torch.tensor([[[-0.9, -0.9, 0, 1], [0.9, -0.9, 0, 1], [0, 0.9, 0, 1], [0, 9, 0, -1]]], dtype=F64)
    front, _ = raster(pos, torch.tensor([[0, 1, 2]]), (16, 16), exact_legacy=exact_legacy)
    back, _ = raster(pos, torch.tensor([[1, 0, 2]]), (16, 16), exact_legacy=exact_legacy)
    assert torch.equal(front[..., 3], back[..., 3])
    behind, _ = raster(pos, torch.tensor([[0, 1, 3]]), (16, 16), exact_legacy=exact_legacy)
    assert 0 < int((behind[..., 3] > 0).sum()) < 256


@MODES
@pytest.mark.parametrize("step", [0.5, 0.25])
def test_samples_on_edges_belong_to_low_columns_and_low_rows(exact_legacy, step):
    """Corners that both grids hold: coverage is that of the exact half-open rule, triangle by triangle."""
    size = (7, 9)
    on_edges = 0
    for seed in range(10):
        pos, tri = on_grid(seed, size, step)
        ranges = torch.stack([torch.arange(len(tri)), torch.ones(len(tri), dtype=torch.long)], 1)
        rast, _ = raster(pos[0], tri, size, ranges=ranges, exact_legacy=exact_legacy)
        for item in range(len(tri)):
            points = specification.snapped(pos[0, 3 * item : 3 * item + 3].numpy(), *size)
            for py in range(size[0]):
                for px in range(size[1]):
                    inside = specification.covers(points, px, py, *size)
                    assert (rast[item, py, px, 3] > 0) == inside
                    turned = specification.covers(
                        [(-x, -y) for x, y in points], size[1] - 1 - px, size[0] - 1 - py, *size
                    )
                    on_edges += inside != turned
    assert on_edges > (50 if step == 0.5 else 8)


@MODES
@pytest.mark.parametrize("radius", [3.0, 50.0, 4000.0])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_shared_edges_leave_no_gap_and_no_double_hit(exact_legacy, radius, dtype):
    """Triangles that reach far out of the frustum too: a cut may not move an edge in one of its triangles only."""
    pos, tri = fan(radius, dtype)
    ranges = torch.stack([torch.arange(9), torch.ones(9, dtype=torch.long)], 1)
    rast, _ = raster(pos[0], tri, (61, 83), ranges=ranges, exact_legacy=exact_legacy)
    assert ((rast[..., 3] > 0).sum(0) == 1).all()


@MODES
def test_values_of_cut_triangles_are_those_of_the_whole_triangle(exact_legacy):
    """Cut by every plane of the frustum, corners behind the camera: weights of the original corners."""
    seen = 0
    for seed in range(12):
        pos, tri = loose_triangles(seed, count=5, batch=1)
        pos[..., :3] *= 3
        pos[:, seed % 3 :: 3, 3] -= 0.8
        rast, rast_db = raster(pos, tri, (13, 12), exact_legacy=exact_legacy)
        ids = rast[..., 3].numpy().astype(np.int64)
        expected, expected_db = specification.values(pos.numpy(), tri.numpy(), ids)
        torch.testing.assert_close(rast, torch.from_numpy(expected), rtol=1e-9, atol=1e-9)
        if exact_legacy:
            assert relative_error(rast_db, torch.from_numpy(expected_db)) < 1e-9
        outside = (pos[..., :3].abs() > pos[..., 3:]).any(-1)[0][tri.long()].any(1)
        seen += int(outside[dr.triangle_ids(rast)[ids > 0].long()].sum())
    assert seen > 200


@MODES
def test_a_batch_of_more_than_65535_images(exact_legacy):
    pos = torch.tensor([[[-3.0, -3, 0, 1], [5, -3, 0, 1], [-3, 5, 0, 1]]]).expand(66000, -1, -1)
    rast, _ = raster(pos, torch.tensor([[0, 1, 2]]), (1, 1), exact_legacy=exact_legacy)
    assert (rast[..., 3] == 1).all()


@MODES
def test_near_and_far_planes_cut(exact_legacy):
    """z/w runs from -2 to 2 over the image: half of it is inside."""
    z = torch.tensor([[-2.0, 2.0, -2.0, 2.0]], dtype=F64)[..., None]
    xy = torch.tensor([[[-1.0, -1], [1, -1], [-1, 1], [1, 1]]], dtype=F64)
    pos = torch.cat([xy, z, torch.ones_like(z)], -1)
    rast, _ = raster(pos, torch.tensor([[0, 1, 2], [1, 3, 2]]), (8, 32), exact_legacy=exact_legacy)
    hit = rast[0, :, :, 3] > 0
    assert hit[:, 8:24].all()
    assert hit.sum() == 8 * 16


# --- modes -----------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_range_mode_draws_rows_and_reports_absolute_ids(exact_legacy, index):
    pos, tri = loose_triangles(5, count=6, batch=1)
    ranges = torch.tensor([[0, 2], [4, 2], [1, 4], [3, 0]], dtype=index)  # overlapping, and an empty one
    rast, rast_db = raster(pos[0], tri, (12, 14), ranges=ranges, exact_legacy=exact_legacy)
    assert rast.shape == (4, 12, 14, 4)
    for item, (first, count) in enumerate(ranges.tolist()):
        alone, alone_db = raster(pos, tri[first : first + count], (12, 14), exact_legacy=exact_legacy)
        alone[..., 3] += first * (alone[..., 3] > 0)
        assert torch.equal(rast[item : item + 1], alone)
        assert torch.equal(rast_db[item : item + 1], alone_db)
    assert set(rast[1, ..., 3].unique().tolist()) <= {0.0, 5.0, 6.0}
    assert rast[2].any()


@MODES
def test_ranges_are_ignored_in_instanced_mode(exact_legacy):
    pos, tri = loose_triangles(6)
    ranges = torch.tensor([[0, 1], [0, 1]], dtype=torch.int32)
    a, b = (raster(pos, tri, (9, 9), ranges=r, exact_legacy=exact_legacy)[0] for r in (None, ranges))
    assert torch.equal(a, b)


@MODES
def test_what_is_refused_there_works_here(exact_legacy):
    """int64 and non-contiguous arrays, float64, (V, 4) without ranges, sizes of numpy, empty meshes and batches."""
    pos, tri = loose_triangles(7, batch=1)
    truth, truth_db = raster(pos, tri, (7, 9), exact_legacy=exact_legacy)
    strided = torch.empty(1, 4, pos.shape[1], dtype=F64).transpose(1, 2).copy_(pos)
    assert not strided.is_contiguous()
    wide = torch.zeros(len(tri), 6, dtype=torch.int64)
    wide[:, ::2] = tri
    for p, t, size in [(strided, wide[:, ::2], [np.int64(7), np.int32(9)]), (pos[0], tri, torch.Size([7, 9]))]:
        rast, rast_db = raster(p, t, size, exact_legacy=exact_legacy)
        assert torch.equal(rast, truth)
        assert torch.equal(rast_db, truth_db)
    for p, t in [(pos[:0], tri), (pos, tri[:0]), (pos[:, :0], tri[:0])]:
        rast, rast_db = raster(p, t, (7, 9), exact_legacy=exact_legacy)
        assert rast.shape == rast_db.shape == (len(p), 7, 9, 4)
        assert not rast.any()


@MODES
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (17, 2050)])
def test_any_size_is_legal(exact_legacy, size):
    pos = torch.tensor([[[-3.0, -3, 0, 1], [5, -3, 0, 1], [-3, 5, 0, 1]]])
    rast, _ = raster(pos, torch.tensor([[0, 1, 2]]), size, exact_legacy=exact_legacy)
    assert (rast[..., 3] == 1).all()


def test_wrong_rows_are_refused_and_skipped_with_exact_legacy():
    """Rows of tri with an index outside of pos, and ranges outside of tri."""
    pos, tri = loose_triangles(8, count=4)
    wrong = torch.cat([tri, torch.tensor([[0, 1, -1], [0, 1, 99]], dtype=torch.int32)])
    with pytest.raises(ValueError, match="refers to vertex"):
        raster(pos, wrong, (8, 8))
    truth = raster(pos, tri, (8, 8), exact_legacy=True)
    for value, expected in zip(raster(pos, wrong, (8, 8), exact_legacy=True), truth, strict=True):
        assert torch.equal(value, expected)
    ranges = torch.tensor([[0, 9], [-2, 4], [7, 1]])
    with pytest.raises(ValueError, match="ranges must lie within"):
        raster(pos[0], tri, (8, 8), ranges=ranges)
    rast, _ = raster(pos[0], tri, (8, 8), ranges=ranges, exact_legacy=True)
    expected, _ = raster(pos[0], tri, (8, 8), ranges=torch.tensor([[0, 4], [0, 2], [0, 0]]), exact_legacy=True)
    assert torch.equal(rast, expected)
    assert rast[0].any()


@MODES
def test_errors_name_the_argument(exact_legacy):
    pos, tri = loose_triangles(9)
    with pytest.raises(TypeError, match="rasterize: glctx must be a RasterizeCudaContext"):
        dr.rasterize(None, pos, tri, (4, 4), exact_legacy=exact_legacy)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="pos must have shape"):
        raster(pos[..., :3], tri, (4, 4), exact_legacy=exact_legacy)
    with pytest.raises(TypeError, match="pos must be float32 or float64"):
        raster(pos.half(), tri, (4, 4), exact_legacy=exact_legacy)
    with pytest.raises(ValueError, match=r"tri must have shape \(T, 3\)"):
        raster(pos, tri.T, (4, 4), exact_legacy=exact_legacy)
    with pytest.raises(TypeError, match="tri must be int32 or int64"):
        raster(pos, tri.float(), (4, 4), exact_legacy=exact_legacy)
    with pytest.raises(ValueError, match="resolution must be"):
        raster(pos, tri, 4, exact_legacy=exact_legacy)
    with pytest.raises(ValueError, match="height must be at least 1"):
        raster(pos, tri, (0, 4), exact_legacy=exact_legacy)
    with pytest.raises(ValueError, match="ranges must have shape"):
        raster(pos[0], tri, (4, 4), ranges=torch.tensor([0, 1]), exact_legacy=exact_legacy)
    with pytest.raises(TypeError, match="ranges must be a tensor"):
        raster(pos[0], tri, (4, 4), ranges=[(0, 1)], exact_legacy=exact_legacy)


# --- gradients -------------------------------------------------------------------------------------


def test_gradients_are_those_of_our_op_and_skip_the_clamps():
    """u, v, depth and derivatives reach pos; the id has none."""
    pos, tri = loose_triangles(14)
    leaf = pos.requires_grad_()
    flip = torch.tensor([1, -1, 1, 1], dtype=F64)
    rast, rast_db = raster(leaf, tri, (12, 13))
    rows = tri.flip(0)
    fragments = diffrender.rasterize(leaf * flip, rows, (12, 13), derivatives=True)
    weights = [rnd(*rast.shape, seed=k, dtype=F64) for k in (1, 2)]
    (grad,) = torch.autograd.grad([rast, rast_db], leaf, weights)
    outputs = [fragments.barycentrics, fragments.depth, fragments.derivatives]
    (truth,) = torch.autograd.grad(outputs, leaf, [weights[0][..., :2], weights[0][..., 2], weights[1]])
    torch.testing.assert_close(grad, truth, rtol=1e-12, atol=1e-12)
    assert truth[..., 2].any()


def test_gradcheck_through_rasterize_and_interpolate():
    pos, tri = loose_triangles(15, count=3, batch=1)
    attr = rnd(9, 2, dtype=F64)
    # Inside the triangles only: cut weights do not move, but their gradient passes on.
    with torch.no_grad():
        rast, _ = raster(pos, tri, (7, 8))
        inner = ((rast[..., :2] > 1e-3).all(-1) & (rast[..., :2].sum(-1) < 1 - 1e-3))[..., None]
    assert inner.sum() > 5

    def picture(p, a):
        rast, rast_db = raster(p, tri, (7, 8))
        value, steps = dr.interpolate(a, rast, tri, rast_db, "all")
        return value * inner, steps * inner, rast[..., 2:3] * inner

    assert torch.autograd.gradcheck(picture, (pos.requires_grad_(), attr.requires_grad_()))


@MODES
def test_grad_db_false_drops_the_gradient_of_derivatives(exact_legacy):
    pos, tri = loose_triangles(16)
    pos.requires_grad_()
    rast, rast_db = raster(pos, tri, (8, 8), grad_db=False, exact_legacy=exact_legacy)
    assert not rast_db.requires_grad
    full, full_db = raster(pos, tri, (8, 8), exact_legacy=exact_legacy)
    assert torch.equal(rast_db, full_db.detach())
    weights = rnd(*rast.shape, dtype=F64)
    truth = torch.autograd.grad(full, pos, weights)[0]
    assert torch.equal(torch.autograd.grad(rast, pos, weights)[0], truth)
