"""Geometry of cube maps in plain torch: directions and solid angles of texels, neighbours across the edges.

Faces +X -X +Y -Y +Z -Z in OpenGL's orientation, (6, S, S, C), row 0 on top: see `texture_cube`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._constants import table


def face_vectors(s: Tensor, t: Tensor, depth: Tensor) -> Tensor:
    """(6, ..., 3): world vectors of points at s to the right, t down and `depth` ahead of each face."""
    faces = [(depth, -t, -s), (-depth, -t, s), (s, depth, t), (s, -depth, -t), (s, -t, depth), (-s, -t, -depth)]
    return torch.stack([torch.stack(face, -1) for face in faces])


def cube_texels(size: int) -> tuple[Tensor, Tensor]:
    """Unit directions (6, S, S, 3) of the texel centres, and solid angles (6, S, S), float64."""
    edges = torch.linspace(-1, 1, size + 1, dtype=torch.float64)
    center = (edges[:-1] + edges[1:]) / 2
    t, s = torch.meshgrid(center, center, indexing="ij")
    vectors = face_vectors(s, t, torch.ones_like(s))
    # Solid angle of the corner rectangle (0, 0) to (x, y); differences of it are exact for every texel.
    x, y = edges[:, None], edges[None, :]
    corner = torch.atan2(x * y, (x * x + y * y + 1).sqrt())
    solid = corner[1:, 1:] - corner[:-1, 1:] - corner[1:, :-1] + corner[:-1, :-1]
    return vectors / vectors.norm(dim=-1, keepdim=True), solid.expand(6, size, size)


def texels_across(size: int) -> Tensor:
    """(6, 4, S) int64: flat index (face S + row) S + column of the texel beyond each side of each face.

    Sides are left, right, top, bottom; the last axis counts rows or columns along the side. What sticks out over the
    edge goes down along the next face.
    """
    along = (2 * torch.arange(size, dtype=torch.float64) + 1) / size - 1
    one, depth = torch.ones_like(along), torch.full_like(along, 1 - 1 / size)
    sides = [(-one, along), (one, along), (along, -one), (along, one)]
    points = torch.stack([face_vectors(s, t, depth) for s, t in sides], 1)  # (6, 4, S, 3)
    axis = points.abs().argmax(-1, keepdim=True)  # the component of size 1
    face = 2 * axis[..., 0] + (points.gather(-1, axis)[..., 0] < 0)
    # Coordinates of a world point on a face: its frame is orthonormal, rows are the axes to the right and down.
    unit = torch.eye(3, dtype=torch.float64)
    to_world = torch.stack([face_vectors(*axis_vector.unbind()) for axis_vector in unit], 1)  # (6, 3 of face, 3)
    s, t, _ = (to_world[face] @ points[..., None])[..., 0].unbind(-1)
    column, row = (((x + 1) / 2 * size).floor().long().clamp(0, size - 1) for x in (s, t))
    return (face * size + row) * size + column


def pad_faces(texels: Tensor) -> Tensor:
    """(B, 6, S, S, C) -> (B, 6, S + 2, S + 2, C): one texel of the neighbouring faces around each face.

    Beyond a corner of the cube there is no texel: the mean of the three around it takes its place.
    """
    batch, _, size, _, channels = texels.shape
    at = table(texels_across, size, like=texels, dtype=torch.int64)
    beyond = texels.reshape(batch, 6 * size * size, channels)[:, at.flatten()]
    left, right, top, bottom = beyond.view(batch, 6, 4, size, channels).unbind(2)

    def corner(row: int, column: int) -> Tensor:
        column_side, row_side = (left, top) if column == 0 else (right, top)
        if row != 0:
            row_side = bottom
        return (texels[:, :, row, column] + column_side[:, :, row] + row_side[:, :, column]) / 3

    middle = torch.cat([left.unsqueeze(3), texels, right.unsqueeze(3)], 3)
    rows = []
    for row, side in ((0, top), (-1, bottom)):
        ends = [corner(row, column).unsqueeze(2) for column in (0, -1)]
        rows.append(torch.cat([ends[0], side, ends[1]], 2).unsqueeze(2))
    return torch.cat([rows[0], middle, rows[1]], 2)


def halve_sums(texels: Tensor) -> Tensor:
    """(B, 6, S, S, C) -> (B, 6, S / 2, S / 2, C): every texel is shared out between the four coarser ones around it.

    Shares are linear in the distance (3/4 and 1/4 along an axis), so that sums and, within a face, centres of mass stay
    what they are: the transpose of a linear interpolation, across the seams as well.
    """
    size = texels.shape[2]
    rows = pad_faces(texels)
    a, b, c, d = (rows[:, :, k : k + size - 1 : 2] for k in range(4))
    columns = 0.25 * (a + d) + 0.75 * (b + c)
    a, b, c, d = (columns[:, :, :, k : k + size - 1 : 2] for k in range(4))
    return 0.25 * (a + d) + 0.75 * (b + c)
