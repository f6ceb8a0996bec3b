"""Midpoint subdivision: every triangle becomes four, every edge gets a vertex in its middle."""

import torch
from torch import Tensor

from diffrender.geometry.mesh import Mesh
from diffrender.geometry.topology import unique_edges


def subdivide_triangles(vertices: Tensor, triangles: Tensor) -> tuple[Tensor, Tensor]:
    """Splits (T, 3) triangles over (..., V, C) values of any kind into (4 T, 3) over (..., V + E, C).

    Vertices 0 to V-1 stay; the new ones follow in the order of `unique_edges`. Triangle t becomes rows 4t to 4t+3: the
    three at its corners, then the middle one. Exact gradient to `vertices`.
    """
    edges = unique_edges(triangles)
    ends = vertices.index_select(-2, edges.vertices.reshape(-1)).unflatten(-2, (-1, 2))
    midpoints = ends.mean(-2)
    corner = triangles.long()
    middle = vertices.shape[-2] + edges.of_triangle  # column k lies opposite to corner k
    (a, b, c), (ma, mb, mc) = corner.unbind(-1), middle.unbind(-1)
    rows = [(a, mc, mb), (b, ma, mc), (c, mb, ma), (ma, mb, mc)]
    children = torch.stack([torch.stack(row, -1) for row in rows], 1).reshape(-1, 3)
    return torch.cat([vertices, midpoints], -2), children.to(triangles.dtype)


def subdivide(mesh: Mesh) -> Mesh:
    """`subdivide_triangles` of a whole mesh, texcoords and colors included; stored normals are dropped.

    Example:
        >>> from diffrender.geometry import quad
        >>> subdivide(quad())
        Mesh(vertices (9, 3), 8 triangles, with texcoords, torch.float32, cpu)
    """
    vertices, triangles = subdivide_triangles(mesh.vertices, mesh.triangles)
    texcoords = texcoord_triangles = colors = None
    if mesh.texcoords is not None and mesh.texcoord_triangles is not None:
        texcoords, texcoord_triangles = subdivide_triangles(mesh.texcoords, mesh.texcoord_triangles)
    if mesh.colors is not None:
        colors, _ = subdivide_triangles(mesh.colors, mesh.triangles)
    return Mesh(vertices, triangles, texcoords=texcoords, texcoord_triangles=texcoord_triangles, colors=colors)
