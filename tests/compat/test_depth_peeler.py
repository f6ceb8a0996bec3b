"""Ids in a float channel, the order of surfaces, and DepthPeeler."""

import numpy as np
import pytest
import torch

from diffrender.compat import nvdiffrast as dr
from diffrender.compat.nvdiffrast._layout import decode_ids, encode_ids
from tests.compat import specification
from tests.compat.scenes import loose_triangles, shared_plane
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64
CONTEXT = dr.RasterizeCudaContext()
MODES = pytest.mark.parametrize("exact_legacy", [False, True], ids=["ours", "legacy"])


def raster(pos, tri, size, **options):
    return dr.rasterize(CONTEXT, pos, tri, size, **options)


# --- ids -------------------------------------------------------------------------------------------


def test_ids_are_numbers_up_to_2_24_and_bit_patterns_above():
    """Bits of the float = id + 0x4A800000 above 2^24; unique, growing, finite up to the largest legal id."""
    ids = torch.tensor([0, 1, 2, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, (1 << 24) + 2, 1 << 28, 889192447])
    codes = encode_ids(ids, torch.float32)
    assert codes[:5].tolist() == ids[:5].tolist()
    assert codes[5:].view(torch.int32).tolist() == [n + 0x4A800000 for n in ids[5:].tolist()]
    assert torch.isfinite(codes).all()
    assert (codes.diff() > 0).all()
    assert torch.equal(decode_ids(codes).long(), ids)
    rast = torch.zeros(1, 1, len(ids), 4)
    rast[0, 0, :, 3] = codes
    assert torch.equal(dr.triangle_ids(rast).long()[0, 0], ids - 1)
    assert torch.equal(encode_ids(ids, F64), ids.double())
    assert torch.equal(decode_ids(ids.double()).long(), ids)


def test_values_that_are_no_ids_are_background():
    rast = torch.zeros(1, 1, 3, 4)
    rast[0, 0, :, 3] = torch.tensor([float("nan"), -2.0, 0.0])
    assert (dr.triangle_ids(rast) == -1).all()


@pytest.mark.slow
@MODES
def test_a_mesh_of_more_than_2_24_triangles_keeps_its_ids(exact_legacy):
    """Two last rows, one over the other half of the picture, behind 2^24 rows that draw nothing."""
    count = 1 << 24
    tri = torch.zeros(count + 2, 3, dtype=torch.int32)
    tri[count] = torch.tensor([0, 1, 2])
    tri[count + 1] = torch.tensor([0, 2, 3])
    pos = torch.tensor([[[-1.0, -1, 0, 1], [1, -1, 0, 1], [1, 1, 0, 1], [-1, 1, 0, 1]]])
    rast, _ = raster(pos, tri, (4, 6), exact_legacy=exact_legacy)
    ids = dr.triangle_ids(rast)
    assert ids.unique().tolist() == [count, count + 1]
    assert rast[..., 3].contiguous().view(torch.int32).unique().tolist() == [
        count + 1 + 0x4A800000,
        count + 2 + 0x4A800000,
    ]
    color, _ = dr.interpolate(pos[0, :, :1].contiguous(), rast, tri)
    torch.testing.assert_close(color[0, 1, :, 0], (2 * torch.arange(6.0) + 1) / 6 - 1)
    image = dr.antialias(color, rast, pos, tri, exact_legacy=exact_legacy)
    assert torch.equal(image, color)  # the diagonal is no silhouette


# --- depth order and peeling -----------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_at_equal_depth_the_later_triangle_wins(exact_legacy, dtype):
    pos = torch.tensor([[[-0.9, -0.9, 0.3, 1], [0.9, -0.9, 0.3, 1], [0, 0.9, 0.3, 1]]], dtype=dtype)
    tri = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    rast, _ = raster(pos, tri, (16, 16), exact_legacy=exact_legacy)
    assert rast[..., 3].unique().tolist() == [0, 3]
    rast, _ = raster(pos[0], tri, (16, 16), ranges=torch.tensor([[0, 2], [1, 1]]), exact_legacy=exact_legacy)
    assert rast[..., 3].unique().tolist() == [0, 2]


def test_depth_is_compared_in_32_bits_with_exact_legacy():
    """Coplanar triangles of different corners: equal but for rounding, so the later one wins everywhere."""
    pos, tri = shared_plane()
    rast, _ = raster(pos, tri, (24, 24), exact_legacy=True)
    shown, _ = specification.ids(pos.numpy(), tri.numpy(), 24, 24)
    assert np.array_equal(rast[..., 3].numpy(), shown)
    assert set(rast[..., 3].unique().tolist()) == {0.0, 1.0, 2.0, 3.0}


@MODES
def test_layers_are_those_of_a_sorted_list_of_surfaces(exact_legacy):
    """Four parallel planes, in mixed order: layer k is the k-th nearest, then nothing."""
    z = [0.5, -0.5, 0.9, 0.1]
    corners = [[[-0.9, -0.9, d, 1], [0.9, -0.9, d, 1], [0, 0.9, d, 1]] for d in z]
    pos = torch.tensor(corners, dtype=F64).view(1, 12, 4).requires_grad_()
    tri = torch.arange(12, dtype=torch.int32).view(4, 3)
    with dr.DepthPeeler(CONTEXT, pos, tri, (10, 10), exact_legacy=exact_legacy) as peeler:
        layers = [peeler.rasterize_next_layer() for _ in range(6)]
    for (rast, _), expected in zip(layers, [2, 4, 1, 3, 0, 0], strict=True):
        assert set(rast[..., 3].unique().tolist()) <= {0.0, float(expected)}
        assert bool(rast[..., 3].any()) == (expected > 0)
    first, first_db = raster(pos, tri, (10, 10), exact_legacy=exact_legacy)
    assert torch.equal(layers[0][0], first)
    assert torch.equal(layers[0][1], first_db)
    # Every layer has its own gradient, to its own triangle only.
    (grad,) = torch.autograd.grad((layers[1][0][..., :2] * rnd(1, 10, 10, 2, dtype=F64)).sum(), pos)
    assert grad[0, 9:].any()
    assert not grad[0, :9].any()


def test_coincident_surfaces_are_layers_of_their_own_here_and_one_layer_there():
    corners = torch.tensor([[[-0.9, -0.9, 0.3, 1], [0.9, -0.9, 0.3, 1], [0, 0.9, 0.3, 1]]], dtype=F64)
    pos = torch.cat([corners, corners, corners + torch.tensor([0, 0, 0.1, 0])], 1)
    tri = torch.arange(9, dtype=torch.int32).view(3, 3)
    for exact_legacy, expected in ((False, [2, 1, 3, 0]), (True, [2, 3, 0])):
        with dr.DepthPeeler(CONTEXT, pos, tri, (8, 8), exact_legacy=exact_legacy) as peeler:
            ids = [int(peeler.rasterize_next_layer()[0][..., 3].max()) for _ in expected]
        assert ids == expected


@MODES
def test_peeling_in_range_mode(exact_legacy):
    pos, tri = loose_triangles(11, count=20, batch=1)
    ranges = torch.tensor([[0, 20], [5, 9]])
    with dr.DepthPeeler(CONTEXT, pos[0], tri, (9, 9), ranges, exact_legacy=exact_legacy) as peeler:
        packed = [peeler.rasterize_next_layer()[0] for _ in range(3)]
    for item, (first, count) in enumerate(ranges.tolist()):
        with dr.DepthPeeler(
            CONTEXT, pos, tri[first : first + count], (9, 9), None, False, exact_legacy=exact_legacy
        ) as peeler:
            for layer in packed:
                alone = peeler.rasterize_next_layer()[0]
                alone[..., 3] += first * (alone[..., 3] > 0)
                assert torch.equal(layer[item], alone[0])
    assert packed[2][0].any()


def test_legacy_layers_follow_the_specification():
    pos, tri = loose_triangles(12, count=12, batch=1)
    beneath = None
    with dr.DepthPeeler(CONTEXT, pos, tri, (11, 10), exact_legacy=True) as peeler:
        for _ in range(4):
            rast, rast_db = peeler.rasterize_next_layer()
            shown, depths = specification.ids(pos.numpy(), tri.numpy(), 11, 10, beneath=beneath)
            beneath = np.where(shown > 0, depths, 1 << 41)
            expected, expected_db = specification.values(pos.numpy(), tri.numpy(), shown)
            torch.testing.assert_close(rast, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
            assert relative_error(rast_db, torch.from_numpy(expected_db)) < 1e-9


def test_peelers_are_used_once_in_their_block_and_may_be_nested():
    pos, tri = loose_triangles(13)
    peeler = dr.DepthPeeler(CONTEXT, pos, tri, (6, 6))
    with pytest.raises(RuntimeError, match="inside of its with block"):
        peeler.rasterize_next_layer()
    with peeler as outer:
        first, _ = outer.rasterize_next_layer()
        with dr.DepthPeeler(CONTEXT, pos, tri, (6, 6)) as inner:
            assert torch.equal(inner.rasterize_next_layer()[0], first)
        rast, _ = raster(pos, tri, (6, 6))  # there: an exception, returned instead of raised
        assert torch.equal(rast, first)
        with pytest.raises(RuntimeError, match="entered twice"):
            outer.__enter__()
    with pytest.raises(RuntimeError, match="inside of its with block"):
        peeler.rasterize_next_layer()
    with pytest.raises(RuntimeError, match="entered twice"), peeler:
        pass
    with pytest.raises(TypeError, match="DepthPeeler: glctx must be"):
        dr.DepthPeeler("cuda", pos, tri, (6, 6))  # pyright: ignore[reportArgumentType]
