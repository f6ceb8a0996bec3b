"""Mesh losses: how rough a mesh is, as means over edges or vertices."""

from __future__ import annotations

import torch
from torch import Tensor

from diffrender import _checks
from diffrender.geometry.mesh import Mesh
from diffrender.geometry.normals import triangle_area_vectors, triangle_corners, triangle_normals


def laplacian(mesh: Mesh, *, weights: str = "uniform", reference: Mesh | None = None) -> Tensor:
    """Mean squared distance of the vertices from the weighted mean of their neighbours.

    Args:
        weights: "uniform", which also evens out the triangles, or "cotangent", which sees the shape only: half the sum
            of the cotangents of the two angles opposite an edge, at least 0. They are constants for the gradient, and
            those of `reference` where one is given.
        reference: mesh of the same triangles, for example the start: what counts is the change of the vectors from the
            vertices to those means, so that details of the reference cost nothing.

    Vertices without an edge (or without a positive weight) count as 0.

    Example:
        >>> sphere = dr.geometry.icosphere(1)
        >>> float(laplacian(sphere, reference=sphere))
        0.0
    """
    if weights not in ("uniform", "cotangent"):
        raise ValueError(f'laplacian: weights must be "uniform" or "cotangent", got {weights!r}.')
    if reference is not None and not _same_triangles(reference.triangles, mesh.triangles):
        raise ValueError("laplacian: reference must have the triangles of mesh, got other ones.")
    edges = mesh.edges()
    shape = mesh if reference is None else reference
    values = _cotangent_weights(shape) if weights == "cotangent" else shape.vertices.new_ones(len(edges.vertices))
    offset = _laplacian_vectors(mesh.vertices, edges.vertices, values.to(mesh.vertices))
    if reference is not None:
        offset = offset - _laplacian_vectors(reference.vertices, edges.vertices, values).to(offset)
    return offset.square().sum(-1).mean()


def normal_consistency(mesh: Mesh) -> Tensor:
    """Mean of 1 - cos(angle between the normals) over pairs of triangles that share an edge: 0 flat, 2 folded over.

    Zero-area triangles have no normal; their pairs count as 1 and give no gradient. 0 for a mesh without such pairs.
    """
    pairs = mesh.adjacent_triangles()
    if pairs.shape[0] == 0:
        return mesh.vertices.sum() * 0
    normals = triangle_normals(mesh.vertices, mesh.triangles)
    ends = normals.index_select(-2, pairs.reshape(-1)).unflatten(-2, (-1, 2))
    return (1 - (ends[..., 0, :] * ends[..., 1, :]).sum(-1)).mean()


def edge_length(mesh: Mesh, *, target: float = 0.0) -> Tensor:
    """Mean of (length - target)^2 over the edges; with target 0, the mean squared length.

    Finite at zero length; 0 without edges.
    """
    squared = _squared_lengths(mesh)
    if squared.numel() == 0:
        return squared.sum()
    return squared.mean() if target == 0 else (_safe_root(squared) - target).square().mean()


def edge_length_variance(mesh: Mesh) -> Tensor:
    """Variance of the edge lengths of each shape, and the mean of that over the batch: 0 if all edges are equal.

    Example:
        >>> float(edge_length_variance(dr.geometry.icosphere(0))) < 1e-10
        True
    """
    length = _safe_root(_squared_lengths(mesh))
    if length.numel() == 0:
        return length.sum()
    return (length - length.mean(-1, keepdim=True)).square().mean()


def _squared_lengths(mesh: Mesh) -> Tensor:
    ends = mesh.vertices.index_select(-2, mesh.edges().vertices.reshape(-1)).unflatten(-2, (-1, 2))
    return (ends[..., 0, :] - ends[..., 1, :]).square().sum(-1)


def _safe_root(squared: Tensor) -> Tensor:
    # d sqrt(s) / ds is infinite at 0: edges without a direction keep their value and get no gradient.
    is_zero = squared == 0
    return torch.where(is_zero, 0, torch.where(is_zero, 1, squared).sqrt())


def _same_triangles(first: Tensor, second: Tensor) -> bool:
    """Compares values only where that waits for no device."""
    if first is second or first.shape != second.shape:
        return first is second
    return not _checks.can_read(first) or torch.equal(first, second)


def _laplacian_vectors(vertices: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
    """From each vertex to the mean of its neighbours, (..., V, 3), for weights (E,) or (..., E)."""
    i, j = edges.unbind(-1)
    ends = vertices.index_select(-2, edges.reshape(-1)).unflatten(-2, (-1, 2))
    weighted = weights[..., None, None] * ends
    lead = torch.broadcast_shapes(vertices.shape[:-2], weights.shape[:-1])
    sums = vertices.new_zeros(*lead, *vertices.shape[-2:])
    sums = sums.index_add(-2, i, weighted[..., 1, :]).index_add(-2, j, weighted[..., 0, :])
    total = weights.new_zeros(*weights.shape[:-1], vertices.shape[-2])
    total = total.index_add(-1, i, weights).index_add(-1, j, weights).unsqueeze(-1)
    return torch.where(total > 0, sums / torch.where(total > 0, total, 1) - vertices, 0)


@torch.no_grad()
def _cotangent_weights(mesh: Mesh) -> Tensor:
    """(..., E): half the sum of the cotangents opposite an edge, at least 0; degenerate triangles give none."""
    corners = triangle_corners(mesh.vertices, mesh.triangles)
    double_area = triangle_area_vectors(mesh.vertices, mesh.triangles).norm(dim=-1)
    cotangents = []
    for k in range(3):
        edge1, edge2 = corners[(k + 1) % 3] - corners[k], corners[(k + 2) % 3] - corners[k]
        cosine = (edge1 * edge2).sum(-1)
        cotangents.append(torch.where(double_area > 0, cosine / torch.where(double_area > 0, double_area, 1), 0))
    opposite = torch.stack(cotangents, -1).flatten(-2)  # edge k of a triangle lies opposite to corner k
    edges = mesh.edges()
    sums = opposite.new_zeros(*opposite.shape[:-1], len(edges.vertices))
    return (sums.index_add(-1, edges.of_triangle.reshape(-1), opposite) / 2).clamp(min=0)
