"""Edges of triangle meshes as index tensors: which exist, and which triangles meet there.

Integer work without gradients, on any device, cached by `Mesh`. `diffrender.edge_topology` answers another question
(the vertex opposite each corner's edge, with vertices welded by position) for the silhouette test of the edge op.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Edges(NamedTuple):
    """The undirected edges of a mesh.

    Attributes:
        vertices: (E, 2) int64, smaller index first, in lexicographic order, each edge once.
        of_triangle: (T, 3) int64, the edge between corners k+1 and k+2 (opposite to corner k).
        triangle_count: (E,) int64, how many triangles meet: 1 on a border, 2 inside a manifold.
    """

    vertices: Tensor
    of_triangle: Tensor
    triangle_count: Tensor


def unique_edges(triangles: Tensor) -> Edges:
    """The edges of (T, 3) triangles.

    Example:
        >>> unique_edges(torch.tensor([[0, 1, 2], [2, 1, 3]])).vertices.tolist()
        [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]
    """
    triangles = triangles.long()
    half_edges = torch.stack([triangles[:, [1, 2]], triangles[:, [2, 0]], triangles[:, [0, 1]]], 1)
    low, high = half_edges.amin(-1), half_edges.amax(-1)
    # One int64 key per edge sorts many times faster than rows of two; indices are int32, so the product fits.
    vertex_count = int(triangles.max()) + 1 if triangles.numel() else 1
    keys, of_triangle, count = torch.unique(low * vertex_count + high, return_inverse=True, return_counts=True)
    vertices = torch.stack([torch.div(keys, vertex_count, rounding_mode="floor"), keys % vertex_count], -1)
    return Edges(vertices, of_triangle, count)


def adjacent_triangles(edges: Edges) -> Tensor:
    """(P, 2) int64 pairs of triangles that share an edge; edges of one or of more than two triangles give none."""
    # Sorting the three edge slots of all triangles by edge puts the two triangles of each inner edge side by side.
    flat = edges.of_triangle.reshape(-1)
    order = torch.argsort(flat, stable=True)
    first_slot = edges.triangle_count.cumsum(0) - edges.triangle_count
    start = first_slot[edges.triangle_count == 2]
    slots = torch.stack([order[start], order[start + 1]], -1)
    return torch.div(slots, 3, rounding_mode="floor")


def laplacian_matrix(edges: Edges, vertex_count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The combinatorial Laplacian, degree - adjacency, as a coalesced sparse (V, V) COO tensor; semi-definite."""
    i, j = edges.vertices.unbind(-1)
    degree = torch.bincount(edges.vertices.reshape(-1), minlength=vertex_count)
    diagonal = torch.arange(vertex_count, device=i.device)
    rows, columns = torch.cat([i, j, diagonal]), torch.cat([j, i, diagonal])
    values = torch.cat([torch.full((2 * len(i),), -1, device=i.device, dtype=dtype), degree.to(dtype)])
    indices, size = torch.stack([rows, columns]), (vertex_count, vertex_count)
    return torch.sparse_coo_tensor(indices, values, size, check_invariants=True).coalesce()
