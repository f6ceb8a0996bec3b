"""Reference of area-weighted vertex normals: sums of cross products over their length. No rule for noise."""

import torch


def vertex_normals(vertices, triangles):
    """(..., V, 3) unit normals from vertices (..., V, 3) and triangles (T, 3)."""
    corners = vertices.double()[..., triangles.long(), :]
    edges = corners[..., 1:, :] - corners[..., :1, :]
    area_vectors = torch.linalg.cross(edges[..., 0, :], edges[..., 1, :])
    sums = torch.zeros_like(vertices, dtype=torch.float64)
    for k in range(3):
        sums = sums.index_add(-2, triangles[:, k].long(), area_vectors)
    return sums / sums.norm(dim=-1, keepdim=True)
