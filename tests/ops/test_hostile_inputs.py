"""Inputs that once broke the ops: edges on pixel boundaries and centres, empty batches, ids and types out of range."""

import pytest
import torch

import diffrender as dr

TRIANGLES = torch.tensor([[0, 1, 2], [0, 2, 3]])


def square(half: float) -> torch.Tensor:
    return torch.tensor(
        [[-half, -half, 0, 1], [half, -half, 0, 1], [half, half, 0, 1], [-half, half, 0, 1]], requires_grad=True
    )


@pytest.mark.parametrize("half", [0.5, 33 / 64, 33 / 64 * (1 + 1e-6), 33 / 64 * (1 - 1e-6), 33 / 64 * (1 + 1e-4), 0.47])
def test_edge_on_a_pixel_boundary_or_centre_keeps_its_gradient(half):
    """d(area)/d(half side) of a square of 2 * half * 32 pixels: 8 * half * 32^2, wherever its edges lie.

    Blending row by row loses or gains half a row at each corner, two at most of about 30.
    """
    corners = square(half)
    fragments = dr.rasterize(corners, TRIANGLES, (64, 64))
    mask = (fragments.triangle_id >= 0).float().unsqueeze(-1)
    dr.antialias(mask, fragments, corners, TRIANGLES, method="pairs").sum().backward()
    grad = corners.grad[:, :2]
    outwards = (grad * corners.detach()[:, :2].sign()).sum()
    assert outwards.item() == pytest.approx(8 * half * 32**2, rel=0.07)
    # All four sides push outwards, and alike.
    for axis in (0, 1):
        low = grad[corners.detach()[:, axis] < 0, axis].sum()
        high = grad[corners.detach()[:, axis] > 0, axis].sum()
        assert low < 0 < high
        assert -low.item() == pytest.approx(high.item(), rel=0.07)


@pytest.mark.parametrize("derivatives", [False, True])
def test_backward_of_an_empty_batch_is_empty(derivatives):
    positions = torch.zeros(0, 4, 4, requires_grad=True)
    fragments = dr.rasterize(positions, TRIANGLES, (4, 5), derivatives=derivatives)
    fragments.depth.sum().backward()
    assert positions.grad.shape == (0, 4, 4)


def test_every_negative_id_is_background():
    corners = square(0.4).detach()
    fragments = dr.rasterize(corners, TRIANGLES, (20, 30))
    wild = torch.where(torch.arange(30) % 2 == 0, -3, -900000).expand(1, 20, 30).int().contiguous()
    image = torch.rand(1, 20, 30, 3)
    strange = fragments._replace(triangle_id=wild)
    assert torch.equal(dr.antialias(image, strange, corners, TRIANGLES, method="pairs"), image)
    assert not dr.interpolate(torch.rand(4, 2), TRIANGLES, strange).any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.float32])
def test_ids_of_another_type_are_refused(dtype):
    corners = square(0.4).detach()
    fragments = dr.rasterize(corners, TRIANGLES, (20, 30))
    other = fragments._replace(triangle_id=fragments.triangle_id.to(dtype))
    with pytest.raises(TypeError, match="beneath.triangle_id must be int32"):
        dr.rasterize(corners, TRIANGLES, (20, 30), beneath=other)
    with pytest.raises(TypeError, match="fragments.triangle_id must be int32"):
        dr.interpolate(torch.rand(4, 2), TRIANGLES, other)
    with pytest.raises(TypeError, match="fragments.triangle_id must be int32"):
        dr.antialias(torch.rand(1, 20, 30, 3), other, corners, TRIANGLES, method="pairs")


def test_topology_refuses_negative_and_huge_indices():
    for wrong in ([[0, 1, -2]], [[0, 1, 2**33]]):
        with pytest.raises(ValueError, match="edge_topology: triangles refers to vertex"):
            dr.edge_topology(torch.tensor(wrong))


def test_topology_refuses_more_corners_than_int32_counts():
    many = torch.zeros(1, 3, dtype=torch.int32).expand(2**31 // 3 + 1, 3)  # of twelve bytes
    with pytest.raises(ValueError, match="edge_topology: triangles must have at most 715827882 rows"):
        dr.edge_topology(many)


@pytest.mark.parametrize(
    ("derivatives", "error"),
    [(0, TypeError), (["x"], TypeError), ([0.7], TypeError), ([True], TypeError), ([5], ValueError)],
)
def test_channels_of_derivatives_are_checked(derivatives, error):
    fragments = dr.rasterize(square(0.4).detach(), TRIANGLES, (8, 8), derivatives=True)
    with pytest.raises(error, match="interpolate: derivatives must"):
        dr.interpolate(torch.rand(4, 2), TRIANGLES, fragments, derivatives=derivatives)


def test_fragments_of_the_wrong_size_are_named():
    fragments = dr.rasterize(square(0.4).detach(), TRIANGLES, (8, 8))
    with pytest.raises(ValueError, match="fragments.barycentrics must have shape"):
        dr.interpolate(torch.rand(4, 2), TRIANGLES, fragments._replace(barycentrics=fragments.barycentrics[:, 1:]))


def test_index_arrays_changed_in_place_are_checked_again():
    """Ranges of indices are remembered from op to op."""
    positions, triangles = square(0.4).detach(), TRIANGLES.clone()
    fragments = dr.rasterize(positions, triangles, (8, 8))
    attributes = torch.rand(4, 2)
    dr.interpolate(attributes, triangles, fragments)
    fragments.triangle_id[0, 4, 4] = 9
    with pytest.raises(ValueError, match="triangles has 2 rows but fragments show triangle 9"):
        dr.interpolate(attributes, triangles, fragments)
    fragments.triangle_id[0, 4, 4] = 1
    dr.interpolate(attributes, triangles, fragments)
    triangles[1, 2] = 7
    for _ in range(2):
        with pytest.raises(ValueError, match="triangles refers to vertex 7"):
            dr.rasterize(positions, triangles, (8, 8))


def test_index_arrays_with_other_memory_are_checked_again():
    """`tensor.data = other` leaves torch's count of changes as it is."""
    positions, triangles = square(0.4).detach(), TRIANGLES.clone()
    dr.rasterize(positions, triangles, (8, 8))
    triangles.data = TRIANGLES + 5
    with pytest.raises(ValueError, match="triangles refers to vertex"):
        dr.rasterize(positions, triangles, (8, 8))
    triangles.data = TRIANGLES[:1].clone()
    assert (dr.rasterize(positions, triangles, (8, 8)).triangle_id <= 0).all()
