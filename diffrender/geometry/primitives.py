"""Simple shapes to start from, to test with and to show: icosphere, torus, cube, quad.

All are centred at the origin, counter-clockwise seen from outside, float32 on the CPU; `.to()` changes that.
"""

import math

import torch
from torch import Tensor

from diffrender.geometry.mesh import Mesh
from diffrender.geometry.subdivide import subdivide_triangles


def icosphere(subdivisions: int = 3, radius: float = 1.0) -> Mesh:
    """A sphere of 20 * 4^subdivisions nearly equal triangles (10 * 4^subdivisions + 2 vertices), no texcoords.

    Example:
        >>> icosphere(2).triangle_count
        320
    """
    if subdivisions < 0:
        raise ValueError(f"icosphere: subdivisions must be at least 0, got {subdivisions}.")
    golden = (1 + math.sqrt(5)) / 2
    corners = [(-1, golden, 0), (1, golden, 0), (-1, -golden, 0), (1, -golden, 0)]
    vertices = torch.tensor([c[shift:] + c[:shift] for shift in (0, 2, 1) for c in corners], dtype=torch.float64)
    triangles = torch.tensor(
        [
            [0, 11, 5], [0, 5, 1], [0, 1, 7], [0, 7, 10], [0, 10, 11],
            [1, 5, 9], [5, 11, 4], [11, 10, 2], [10, 7, 6], [7, 1, 8],
            [3, 9, 4], [3, 4, 2], [3, 2, 6], [3, 6, 8], [3, 8, 9],
            [4, 9, 5], [2, 4, 11], [6, 2, 10], [8, 6, 7], [9, 8, 1],
        ]
    )  # fmt: skip
    vertices = vertices / vertices.norm(dim=-1, keepdim=True)
    for _ in range(subdivisions):
        vertices, triangles = subdivide_triangles(vertices, triangles)
        vertices = vertices / vertices.norm(dim=-1, keepdim=True)
    return Mesh((vertices * radius).float(), triangles)


def torus(radius: float = 0.75, tube_radius: float = 0.25, *, segments: int = 48, tube_segments: int = 24) -> Mesh:
    """A ring around the y axis with texcoords: u once around the ring, v once around the tube.

    Args:
        radius: distance of the tube's centre from the axis.
        tube_radius: radius of the tube.
        segments, tube_segments: divisions around the ring and around the tube, at least 3 each.
    """
    if segments < 3 or tube_segments < 3:
        raise ValueError(f"torus: segments must be at least 3, got {segments} and {tube_segments}.")
    around = torch.arange(segments, dtype=torch.float64) * (2 * math.pi / segments)
    tube = torch.arange(tube_segments, dtype=torch.float64) * (2 * math.pi / tube_segments)
    distance = (radius + tube_radius * tube.cos()).expand(segments, -1)
    height = (tube_radius * tube.sin()).expand(segments, -1)
    vertices = torch.stack([distance * around.sin()[:, None], height, distance * around.cos()[:, None]], -1)

    # Positions wrap around; texcoords need one more row and column, where u and v are 1.
    triangles = _grid_triangles(
        segments, tube_segments, lambda i, j: (i % segments) * tube_segments + j % tube_segments
    )
    texcoord_triangles = _grid_triangles(segments, tube_segments, lambda i, j: i * (tube_segments + 1) + j)
    u = torch.arange(segments + 1, dtype=torch.float32) / segments
    v = 1 - torch.arange(tube_segments + 1, dtype=torch.float32) / tube_segments
    texcoords = torch.stack(torch.meshgrid(u, v, indexing="ij"), -1).reshape(-1, 2)
    return Mesh(vertices.reshape(-1, 3).float(), triangles, texcoords=texcoords, texcoord_triangles=texcoord_triangles)


def cube(size: float = 2.0) -> Mesh:
    """A cube of 8 vertices and 12 triangles with edges of length `size`; each face shows the whole texture upright."""
    half = size / 2
    vertices = torch.tensor(
        [[x, y, z] for z in (-half, half) for y in (-half, half) for x in (-half, half)], dtype=torch.float32
    )
    # Each face as bottom left, bottom right, top right, top left seen from outside, world y up where possible.
    faces = [[4, 5, 7, 6], [1, 0, 2, 3], [5, 1, 3, 7], [0, 4, 6, 2], [6, 7, 3, 2], [0, 1, 5, 4]]
    triangles = [[f[a] for a in corners] for f in faces for corners in ((0, 1, 2), (0, 2, 3))]
    texcoords = torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float32)
    texcoord_triangles = torch.tensor([[0, 1, 2], [0, 2, 3]]).repeat(6, 1)
    return Mesh(vertices, torch.tensor(triangles), texcoords=texcoords, texcoord_triangles=texcoord_triangles)


def quad(width: float = 2.0, height: float = 2.0) -> Mesh:
    """A rectangle in the plane z = 0 that faces +z, of two triangles, with texcoords (0, 0) at its top left corner."""
    x, y = width / 2, height / 2
    vertices = torch.tensor([[-x, -y, 0], [x, -y, 0], [x, y, 0], [-x, y, 0]], dtype=torch.float32)
    texcoords = torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float32)
    return Mesh(vertices, torch.tensor([[0, 1, 2], [0, 2, 3]]), texcoords=texcoords)


def _grid_triangles(rows: int, columns: int, index) -> Tensor:
    """Two triangles per cell of a grid; `index(i, j)` numbers its points."""
    i, j = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    a, b, c, d = index(i, j), index(i + 1, j), index(i + 1, j + 1), index(i, j + 1)
    return torch.stack([torch.stack([a, b, c], -1), torch.stack([a, c, d], -1)], 2).reshape(-1, 3)
