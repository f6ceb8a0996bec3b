"""Cutting the edges of a mesh until a rasterizer's straight lines follow a projection that is none.

Each round samples every edge at a quarter, a half and three quarters of its length, compares where the exact projection
puts the sample with where linear interpolation in clip space puts it, and cuts the edges that are off. An edge has one
middle for both of its triangles, so no cracks open. A triangle with one, two or three cut edges becomes two, three or
four; the rounds end when nothing is off. An S-shaped edge through the optical centre has a good middle: hence three
samples. Triangles that lie beyond one and the same plane of the (widened) view volume are left alone.

Which edges are cut is decided without gradients; the positions of new vertices are means of old ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from diffrender.geometry.mesh import Mesh
from diffrender.geometry.topology import Edges, unique_edges

_MARGIN = 1.05  # of the half frame: triangles outside of it may be as wrong as they like


def split_edges(
    mesh: Mesh,
    clip_positions: Callable[[Tensor], Tensor],
    is_unseen: Callable[[Tensor], Tensor],
    half_size_px: Tensor,
    *,
    tolerance_px: float,
    max_rounds: int,
) -> tuple[Mesh, Tensor]:
    """The refined mesh and (T',) int32 rows of the triangles that the new ones came from.

    Args:
        clip_positions: (..., N, 3) world points to (..., N, 4) clip positions.
        is_unseen: (..., N, 3) world points to (..., N) bool: where the projection means nothing.
        half_size_px: (2,) half width and half height of the frame.
        tolerance_px: how far from its exact place a sample may be.
        max_rounds: each halves the edges that are off. What is a pixel off even then surrounds a direction where the
            projection is singular, and is dropped.
    """
    vertices, colors, triangles = mesh.vertices, mesh.colors, mesh.triangles.long()
    source = torch.arange(len(triangles), device=mesh.device)
    corners = torch.eye(3, dtype=mesh.dtype, device=mesh.device).repeat(len(triangles), 1, 1)  # in the source triangle
    for _ in range(max_rounds):
        edges = unique_edges(triangles)
        is_cut = _is_off(vertices.detach(), edges, clip_positions, half_size_px, tolerance_px)
        if not bool(is_cut.any()):
            break
        new_index = torch.cumsum(is_cut, 0) - 1 + vertices.shape[-2]
        ends = edges.vertices[is_cut]
        vertices = _with_middles(vertices, ends)
        colors = None if colors is None else _with_middles(colors, ends)
        middle = torch.where(is_cut[edges.of_triangle], new_index[edges.of_triangle], -1)
        triangles, parent, weights = _cut_triangles(triangles, middle)
        source = source[parent]
        with torch.autocast(corners.device.type, enabled=False):
            corners = weights.to(corners.dtype) @ corners[parent]
    with torch.no_grad():
        unseen = is_unseen(vertices).reshape(-1, vertices.shape[-2]).all(0)
        edges = unique_edges(triangles)
        off = _is_off(vertices.detach(), edges, clip_positions, half_size_px, max(1.0, tolerance_px))
        kept = ~(unseen[triangles].all(-1) | off[edges.of_triangle].any(-1))
    triangles, source, corners = triangles[kept], source[kept], corners[kept]
    own_rows = torch.arange(3 * len(triangles), device=mesh.device).reshape(-1, 3)

    def per_corner(name: str) -> dict[str, Tensor]:
        """Attributes with a table of their own get a row per corner, mixed from the corners of the source triangle."""
        attribute, table = getattr(mesh, f"{name}s"), getattr(mesh, f"{name}_triangles")
        if attribute is None:
            return {}
        old = attribute.index_select(-2, table[source].reshape(-1).long()).unflatten(-2, (-1, 1, 3))
        new = (corners.unsqueeze(-1) * old).sum(-2).flatten(-3, -2)
        return {f"{name}s": new, f"{name}_triangles": own_rows}

    fields = {**mesh.fields_per_triangle(source), "colors": colors}
    for name in ("texcoord", "normal", "tangent"):
        fields |= per_corner(name)
    return Mesh(vertices, triangles, **fields), source.to(torch.int32)


def _with_middles(values: Tensor, ends: Tensor) -> Tensor:
    middles = (values.index_select(-2, ends[:, 0]) + values.index_select(-2, ends[:, 1])) / 2
    return torch.cat([values, middles], -2)


def _is_off(
    vertices: Tensor,
    edges: Edges,
    clip_positions: Callable[[Tensor], Tensor],
    half_size_px: Tensor,
    tolerance: float,
) -> Tensor:
    """(E,) whether an edge leaves its curve by more than the tolerance in any camera or shape of the batch."""
    with torch.no_grad():
        start, end = (vertices.index_select(-2, edges.vertices[:, k]) for k in (0, 1))
        first, last = clip_positions(start), clip_positions(end)
        outside = _beyond(first) & _beyond(last)
        off = torch.zeros(first.shape[:-1], dtype=torch.bool, device=first.device)
        for share in (0.25, 0.5, 0.75):
            exact = clip_positions(start + share * (end - start))
            outside &= _beyond(exact)
            straight = first + share * (last - first)
            in_front = (exact[..., 3] > 0) & (straight[..., 3] > 0)
            safe_exact, safe_straight = (torch.where(in_front, p[..., 3], 1).unsqueeze(-1) for p in (exact, straight))
            error = (exact[..., :2] / safe_exact - straight[..., :2] / safe_straight) * half_size_px
            off |= ~in_front | ((error * error).sum(-1) > tolerance * tolerance)
        off &= first.isfinite().all(-1) & last.isfinite().all(-1)

        # An edge outside of the frame bends what its triangle shows inside: only whole triangles may be ignored.
        of_triangle = edges.of_triangle.reshape(-1)
        is_seen = ~outside.index_select(-2, of_triangle).unflatten(-2, (-1, 3)).all(-2).any(-1)  # (..., T)
        seen_sides = is_seen.unsqueeze(-1).expand(*is_seen.shape, 3).flatten(-2)
        is_needed = torch.zeros_like(off, dtype=torch.int32).index_add(-1, of_triangle, seen_sides.int())
        off &= is_needed > 0
        return off.reshape(-1, off.shape[-1]).any(0)


def _beyond(clip: Tensor) -> Tensor:
    """(..., 5) whether clip positions lie beyond the left, right, lower, upper or near border of the view."""
    x, y, z, w = clip.unbind(-1)
    return torch.stack([x < -_MARGIN * w, x > _MARGIN * w, y < -_MARGIN * w, y > _MARGIN * w, z < -w], -1)


def _cut_triangles(triangles: Tensor, middle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Triangles (T, 3) whose edge opposite to corner k is cut at vertex middle[:, k] (-1: not cut).

    Returns:
        (T', 3) triangles, (T',) the row each came from, and (T', 3, 3) its corners as weights of that row's corners.
    """
    eye = torch.eye(3, device=triangles.device)
    names = torch.cat([triangles, middle], 1)  # columns 0..2 corners, 3..5 the middles opposite to them
    weights = torch.cat([eye, (1 - eye) / 2])  # of those six points
    count = (middle >= 0).sum(1)
    rows, parents, picks = [], [], []

    def add(which: Tensor, first: Tensor, local: list[tuple[int, int, int]]) -> None:
        # `local` is written for first = 0; other triangles are turned so that the same pattern fits.
        for points in local:
            turned = torch.stack([(k % 3 + first) % 3 + (3 if k > 2 else 0) for k in points], 1)
            rows.append(torch.take_along_dim(names[which], turned, 1))
            parents.append(which)
            picks.append(weights[turned])

    def rows_with(number: int) -> Tensor:
        return torch.nonzero(count == number)[:, 0]

    whole = rows_with(0)
    add(whole, torch.zeros_like(whole), [(0, 1, 2)])
    one = rows_with(1)  # `first`: the corner opposite to the cut
    add(one, (middle[one] >= 0).long().argmax(1), [(0, 1, 3), (0, 3, 2)])
    two = rows_with(2)  # `first`: the corner opposite to the edge that stays, so the corner between both cuts
    add(two, (middle[two] < 0).long().argmax(1), [(0, 5, 4), (5, 1, 4), (1, 2, 4)])
    three = rows_with(3)
    add(three, torch.zeros_like(three), [(0, 5, 4), (5, 1, 3), (4, 3, 2), (3, 4, 5)])
    return torch.cat(rows), torch.cat(parents), torch.cat(picks)
