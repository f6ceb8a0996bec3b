"""edge_topology: against the reference, closed meshes, welding."""

import pytest
import torch

import diffrender as dr
from tests.reference import topology as reference
from tests.support.scenes import cube, icosphere

F64 = torch.float64


def soup(triangles, vertices, seed):
    """Every triangle with its own three vertices, in random order of triangles and corners."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(triangles), generator=generator)
    corners = torch.rand(len(triangles), 3, generator=generator).argsort(1)
    shuffled = triangles.long()[order].gather(1, corners)
    return vertices[shuffled.reshape(-1)], torch.arange(3 * len(triangles)).reshape(-1, 3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_topology_equals_the_reference(dtype):
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        count = int(torch.randint(1, 40, (1,), generator=generator))
        triangles = torch.randint(0, 14, (count, 3), generator=generator).to(dtype)  # borders, books, repeated corners
        assert torch.equal(dr.edge_topology(triangles), reference.edge_topology(triangles)), seed
        positions = torch.randint(0, 2, (14, 3), generator=generator).double()  # many vertices coincide
        assert torch.equal(dr.edge_topology(triangles, positions), reference.edge_topology(triangles, positions)), seed
        batch = torch.stack([positions, torch.randint(0, 2, (14, 3), generator=generator) - 0.5])
        assert torch.equal(dr.edge_topology(triangles, batch), reference.edge_topology(triangles, batch)), seed


def test_topology_of_closed_meshes_has_no_border():
    for vertices, triangles in (cube(dtype=F64), icosphere(2, dtype=F64)):
        topology = dr.edge_topology(triangles)
        assert topology.dtype == torch.int32
        assert (topology >= 0).all()
        # Symmetric: the twin of the twin is the corner itself, and both see the same two ends of the edge.
        corner = torch.arange(3 * len(triangles)).reshape(-1, 3)
        assert torch.equal(topology.flatten()[topology.long()].long(), corner)
        ends = torch.stack([triangles[:, [1, 2, 0]], triangles[:, [2, 0, 1]]], -1).sort(-1).values
        assert torch.equal(ends.reshape(-1, 2)[topology.long()], ends)
        split, split_triangles = soup(triangles, vertices, 1)
        assert (dr.edge_topology(split_triangles) == -1).all()
        assert (dr.edge_topology(split_triangles, split) >= 0).all()


def test_topology_welds_only_what_coincides_in_every_item():
    triangles = torch.tensor([[0, 1, 2], [3, 4, 5]])
    flat = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 1], [1, 0], [1, 1]], dtype=F64)
    moved = flat.clone()
    moved[3, 1] += 1e-9
    assert dr.edge_topology(triangles, torch.stack([flat, flat])).tolist() == [[5, -1, -1], [-1, -1, 0]]
    assert (dr.edge_topology(triangles, torch.stack([flat, moved])) == -1).all()
    signed = flat.clone()
    signed[signed == 0] = -0.0
    mixed = torch.where(torch.arange(6)[:, None] < 3, flat, signed)
    assert dr.edge_topology(triangles, mixed)[0].tolist() == [5, -1, -1]
