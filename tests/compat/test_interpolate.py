"""interpolate: layouts, derivative lists, other index arrays, edited rasts, gradients."""

import pytest
import torch

from diffrender.compat import nvdiffrast as dr
from tests.compat.scenes import loose_triangles
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64
CONTEXT = dr.RasterizeCudaContext()


def scene(seed=0, dtype=F64, **options):
    pos, tri = loose_triangles(seed, dtype=dtype, **options)
    rast, rast_db = dr.rasterize(CONTEXT, pos, tri, (9, 11))
    return pos, tri, rast, rast_db


def by_hand(attr, rast, tri, rast_db, channels=None):
    """The formulas, gathered pixel by pixel. attr (N, V, A)."""
    hit = rast[..., 3] > 0
    rows = tri.long()[(rast[..., 3].long() - 1).clamp(min=0)]  # (N, H, W, 3)
    item = torch.arange(len(rast))[:, None, None, None].expand_as(rows)
    a0, a1, a2 = attr.expand(len(rast), -1, -1)[item, rows].unbind(-2)
    u, v = rast[..., 0:1], rast[..., 1:2]
    values = (u * a0 + v * a1 + (1 - u - v) * a2) * hit[..., None]
    if channels is None:
        return values
    steps = [
        rast_db[..., axis : axis + 1] * (a0 - a2) + rast_db[..., axis + 2 : axis + 3] * (a1 - a2) for axis in (0, 1)
    ]
    return values, torch.stack([s[..., channels] for s in steps], -1).flatten(-2) * hit[..., None]


@pytest.mark.parametrize("shape", ["instanced", "one for all", "rank 2"])
def test_values_derivatives_and_gradients_are_those_of_the_formulas(shape):
    pos, tri, rast, rast_db = scene(1)
    attr = rnd(2, pos.shape[1], 3, seed=5, dtype=F64)
    attr = {"instanced": attr, "one for all": attr[:1], "rank 2": attr[0]}[shape]
    leaves = [x.clone().requires_grad_() for x in (attr, rast, rast_db)]
    results = dr.interpolate(leaves[0], leaves[1], tri, leaves[2], diff_attrs="all")
    copies = [x.clone().requires_grad_() for x in (attr, rast, rast_db)]
    truths = by_hand(copies[0].reshape(-1, *attr.shape[-2:]), copies[1], tri, copies[2], [0, 1, 2])
    weights = [rnd(*x.shape, seed=k, dtype=F64) for k, x in enumerate(truths)]
    for value, truth in zip(results, truths, strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)
    grads = torch.autograd.grad(results, leaves, weights)
    for value, truth in zip(grads, torch.autograd.grad(truths, copies, weights), strict=True):
        assert relative_error(value, truth) < 1e-12
    assert not grads[1][..., 2:].any()  # none to z/w and id


@pytest.mark.parametrize("channels", [[2], [0, 0, 1], [-1, 1], (1, -3)])
def test_derivatives_come_in_the_order_of_the_list(channels):
    pos, tri, rast, rast_db = scene(2)
    attr = rnd(pos.shape[1], 3, dtype=F64)
    _, everything = dr.interpolate(attr, rast, tri, rast_db, "all")
    _, steps = dr.interpolate(attr, rast, tri, rast_db, channels)
    assert steps.shape == (2, 9, 11, 2 * len(channels))
    expected = torch.cat([everything[..., 2 * (c % 3) : 2 * (c % 3) + 2] for c in channels], -1)
    torch.testing.assert_close(steps, expected, rtol=1e-13, atol=1e-13)


def test_attributes_that_do_not_exist_have_derivative_zero():
    pos, tri, rast, rast_db = scene(2)
    attr = rnd(pos.shape[1], 3, dtype=F64)
    _, everything = dr.interpolate(attr, rast, tri, rast_db, "all")
    _, steps = dr.interpolate(attr, rast, tri, rast_db, [3, 1, -4, 99])
    assert torch.equal(steps[..., 2:4], everything[..., 2:4])
    assert not steps[..., [0, 1, 4, 5, 6, 7]].any()
    _, steps = dr.interpolate(attr, rast, tri, rast_db, [7])
    assert steps.shape == (2, 9, 11, 2)
    assert not steps.any()


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_without_a_list_the_second_output_is_empty(nothing):
    pos, tri, rast, _ = scene(3)
    values, steps = dr.interpolate(rnd(pos.shape[1], 4, dtype=F64), rast, tri, diff_attrs=nothing)
    assert values.shape == (2, 9, 11, 4)
    assert steps.shape == (2, 9, 11, 0)
    assert steps.dtype == F64


def test_more_than_32_derivatives_and_many_channels():
    pos, tri, rast, rast_db = scene(4)
    attr = rnd(pos.shape[1], 50, dtype=F64)
    _, everything = dr.interpolate(attr, rast, tri, rast_db, "all")
    _, steps = dr.interpolate(attr, rast, tri, rast_db, list(range(49, -1, -1)))
    assert torch.equal(steps.unflatten(-1, (50, 2)).flip(-2).flatten(-2), everything)


def test_tri_may_index_other_vertices():
    """Corners of their own for every triangle, as texture coordinates have them."""
    _, tri, rast, rast_db = scene(5)
    corners = rnd(3 * len(tri), 2, dtype=F64)
    own = torch.randperm(3 * len(tri)).view(-1, 3)
    values, _ = dr.interpolate(corners, rast, own, rast_db, "all")
    torch.testing.assert_close(values, by_hand(corners[None], rast, own, rast_db), rtol=1e-12, atol=1e-12)


def test_a_cropped_turned_or_masked_rast_is_read_as_it_is():
    pos, tri, rast, rast_db = scene(6)
    attr = rnd(pos.shape[1], 2, dtype=F64)
    values, steps = dr.interpolate(attr, rast, tri, rast_db, "all")
    for change in (lambda x: x[:, 2:7, 3:], lambda x: x.flip(1), lambda x: x.transpose(1, 2)):
        got, got_steps = dr.interpolate(attr, change(rast), tri, change(rast_db), "all")
        assert torch.equal(got, change(values))
        assert torch.equal(got_steps, change(steps))
    mask = (torch.arange(11) < 5)[None, None, :, None]
    got, _ = dr.interpolate(attr, rast * mask, tri)
    assert torch.equal(got, values * mask)


def test_range_mode_reads_shared_attributes_by_absolute_row():
    pos, tri = loose_triangles(7, batch=1)
    ranges = torch.tensor([[0, 4], [6, 4]], dtype=torch.int32)
    rast, _ = dr.rasterize(CONTEXT, pos[0], tri, (9, 11), ranges)
    attr = rnd(pos.shape[1], 2, dtype=F64)
    values, _ = dr.interpolate(attr, rast, tri)
    torch.testing.assert_close(values, by_hand(attr[None], rast, tri, None), rtol=1e-12, atol=1e-12)
    assert (rast[1, ..., 3] > 6).any()


def test_float32_is_as_precise_as_its_type():
    pos, tri, rast, rast_db = scene(8, dtype=torch.float32)
    attr = rnd(pos.shape[1], 3)
    values, steps = dr.interpolate(attr, rast, tri, rast_db, "all")
    truth, true_steps = by_hand(attr[None].double(), rast.double(), tri, rast_db.double(), [0, 1, 2])
    assert values.dtype == steps.dtype == torch.float32
    assert relative_error(values, truth) < 1e-6
    assert relative_error(steps, true_steps) < 1e-6


def test_errors_name_the_argument():
    pos, tri, rast, rast_db = scene(9)
    attr = rnd(pos.shape[1], 2, dtype=F64)
    with pytest.raises(ValueError, match="rast_db must be given with diff_attrs"):
        dr.interpolate(attr, rast, tri, diff_attrs="all")
    with pytest.raises(ValueError, match="rast_db must have the shape of rast"):
        dr.interpolate(attr, rast, tri, rast_db[:, 1:], "all")
    with pytest.raises(ValueError, match="derivatives must be one of 'all'"):
        dr.interpolate(attr, rast, tri, rast_db, "some")
    with pytest.raises(ValueError, match=r"rast must have shape \(N, H, W, 4\)"):
        dr.interpolate(attr, rast[..., :3], tri)
    with pytest.raises(TypeError, match="rast must be a tensor"):
        dr.interpolate(attr, (rast, rast_db), tri)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="attr must have shape"):
        dr.interpolate(attr[0], rast, tri)
    with pytest.raises(ValueError, match="attributes must have the batch size"):
        dr.interpolate(attr.expand(3, -1, -1), rast, tri)
    with pytest.raises(TypeError, match=r"torch\.float32"):
        dr.interpolate(attr.float(), rast, tri)
    with pytest.raises(ValueError, match="refers to vertex"):
        dr.interpolate(attr[:5], rast, tri)


def test_wrong_rows_that_nobody_sees_are_skipped_with_exact_legacy():
    pos, tri, rast, _ = scene(10)
    attr = rnd(pos.shape[1], 2, dtype=F64)
    wrong = torch.cat([tri, torch.tensor([[0, -1, 2]], dtype=torch.int32)])
    values, _ = dr.interpolate(attr, rast, wrong, exact_legacy=True)
    assert torch.equal(values, dr.interpolate(attr, rast, tri)[0])
    with pytest.raises(ValueError, match="refers to vertex -1"):
        dr.interpolate(attr, rast, wrong)
