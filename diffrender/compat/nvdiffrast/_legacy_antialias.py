"""`antialias` with `exact_legacy=True`: one edge per pixel pair, found at a triangle that shows at one of its centres.

Pixel coordinates relative to the owner's centre: X_i = x_i / w_i W/2 - (px + 1/2 - W/2), Y_i likewise; for vertical
pairs X and Y are exchanged. An edge from 1 to 2 crosses the row of centres at

    x_c = (X_1 Y_2 - X_2 Y_1) / (Y_2 - Y_1)        d = s x_c, from the owner's centre towards the other one

with s = +1 where the owner is the left (lower) pixel p0, -1 where it is p1. Then alpha = s (1/2 - d): for alpha > 0 the
pixel p0 receives alpha (c1 - c0), else p1 does.

Derivatives, with D = Y_2 - Y_1 moved away from 0 by 1e-3 pixels:

    d(x_c)/d(X_1) = Y_2 / D             d(x_c)/d(X_2) = -Y_1 / D
    d(x_c)/d(Y_1) = (x_c - X_2) / D     d(x_c)/d(Y_2) = (X_1 - x_c) / D

Not as the original: which two of more than two triangles at one edge count is left to chance there; here it is the
first two in the order of rows.
"""

from __future__ import annotations

import torch

from ... import _checks
from ._layout import decode_ids

_SLACK = 1 / 16  # pixels beyond either centre where a crossing still counts
_REGULARIZATION = 1e-3  # pixels


def antialias_legacy(
    color: torch.Tensor, rast: torch.Tensor, positions: torch.Tensor, triangles: torch.Tensor, opposites: torch.Tensor
) -> torch.Tensor:
    """Arguments as `antialias` has checked them; opposites of `opposite_vertices`."""
    if color.dim() != 4 or color.shape[:3] != rast.shape[:3]:
        expected = f"have shape {_checks.shape_text(rast)[:-2]}C)"
        _checks.fail(ValueError, "antialias", "color", expected, _checks.shape_text(color))
    if positions.dim() == 2:
        positions = positions.unsqueeze(0)
    if positions.shape[0] not in (1, rast.shape[0]):
        expected = f"have the batch size of rast ({rast.shape[0]}) or 1"
        _checks.fail(ValueError, "antialias", "pos", expected, str(positions.shape[0]))
    ids = decode_ids(rast[..., 3])
    result = color
    for axis in (0, 1):
        first, second, alpha = _pair_weights(ids, rast[..., 2], positions, triangles.long(), opposites, axis)
        difference = alpha.to(color.dtype).unsqueeze(1) * (color[second] - color[first])
        receiver = tuple(torch.where(alpha > 0, p, q) for p, q in zip(first, second, strict=True))
        result = result.index_put(receiver, difference, accumulate=True)
    return result


Pixels = tuple[torch.Tensor, ...]


def _pair_weights(
    ids: torch.Tensor,
    depth: torch.Tensor,
    positions: torch.Tensor,
    triangles: torch.Tensor,
    opposites: torch.Tensor,
    axis: int,
) -> tuple[Pixels, Pixels, torch.Tensor]:
    """Pixels p0 and p1 (item, row, column) of the pairs that blend, and their alpha, differentiable in positions."""
    height, width = ids.shape[1:]
    size = (width, height) if axis == 0 else (height, width)
    with torch.no_grad():
        first, second, from_first = _owners(ids, depth, axis)
        owner = tuple(torch.where(from_first, p, q) for p, q in zip(first, second, strict=True))
        sign = torch.where(from_first, 1.0, -1.0).double()
        known = ids[owner] <= len(triangles)
        triangle = torch.where(known, ids[owner] - 1, 0).long()
        corners = triangles[triangle]
        others = torch.where(opposites[triangle] < 0, corners, opposites[triangle].long())
        inside = ((corners >= 0) & (corners < positions.shape[1]) & (others < positions.shape[1])).all(1)
        corners, others = (torch.where(inside[:, None], x, 0) for x in (corners, others))
        along, across = _relative(positions, owner, corners, size, axis)
        other_along, other_across = _relative(positions, owner, others, size, axis)
        edge, silhouette = _crossed_edge(along, across, other_along, other_across, sign)
        ends = torch.stack([(edge + 1) % 3, (edge + 2) % 3], 1)
        x, y = along.gather(1, ends), across.gather(1, ends)
        crossing = (x[:, 0] * y[:, 1] - x[:, 1] * y[:, 0]) / (y[:, 1] - y[:, 0])
        distance = sign * crossing
        steep = (y[:, 1] - y[:, 0]).abs() >= (x[:, 1] - x[:, 0]).abs()
        chosen = silhouette & steep & (distance > -_SLACK) & (distance < 1 + _SLACK) & known & inside
        first, second, owner = (tuple(p[chosen] for p in pixels) for pixels in (first, second, owner))
        x, y, crossing, distance, sign = (v[chosen] for v in (x, y, crossing, distance, sign))
        vertices = corners.gather(1, ends)[chosen]
        alpha = sign * (0.5 - distance.clamp(0, 1))
    moving = _relative(positions, owner, vertices, size, axis)
    slope = -_crossing_change(moving, x, y, crossing)  # alpha = s / 2 - x_c
    # Clamped weights do not move, and pairs of weight 0 are left out.
    moves = (alpha.abs() < 0.5) & (alpha != 0)
    return first, second, alpha + torch.where(moves, slope, 0.0)


def _owners(ids: torch.Tensor, depth: torch.Tensor, axis: int) -> tuple[Pixels, Pixels, torch.Tensor]:
    """p0 and p1 of all neighbours with different ids, and whether p0 owns the pair: is covered, or nearer of two."""
    if axis == 0:
        here, there = ids[:, :, :-1], ids[:, :, 1:]
    else:
        here, there = ids[:, :-1], ids[:, 1:]
    first = torch.nonzero(here != there, as_tuple=True)
    second = (first[0], first[1] + axis, first[2] + 1 - axis)
    nearer = depth[first] < depth[second]
    return first, second, (ids[first] > 0) & ((ids[second] <= 0) | nearer)


def _relative(
    positions: torch.Tensor, pixel: Pixels, vertices: torch.Tensor, size: tuple[int, int], axis: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Coordinates of vertices (P, K) along the pair's axis and across it, in pixels from the centres of `pixel`."""
    item, row, column = pixel
    corners = positions[0 if len(positions) == 1 else item[:, None], vertices].double()
    places = (column, row) if axis == 0 else (row, column)
    along, across = (
        corners[..., k] / corners[..., 3] * (n / 2) - (place.double() + 0.5 - n / 2).unsqueeze(1)
        for k, n, place in zip((axis, 1 - axis), size, places, strict=True)
    )
    return along, across


def _crossed_edge(
    along: torch.Tensor, across: torch.Tensor, other_along: torch.Tensor, other_across: torch.Tensor, sign: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the edges that straddle the row of centres the one crossed last on the way, and whether it is a silhouette."""
    j, k = [1, 2, 0], [2, 0, 1]
    x_1, x_2, y_1, y_2 = along[:, j], along[:, k], across[:, j], across[:, k]
    own, other = (
        (x_1 - x) * (y_2 - y) - (x_2 - x) * (y_1 - y) for x, y in ((along, across), (other_along, other_across))
    )
    outline = own.signbit() == other.signbit()
    straddles = y_1.signbit() != y_2.signbit()
    distance = sign[:, None] * (x_1 * y_2 - x_2 * y_1) / (y_2 - y_1)
    edge = torch.where(straddles, distance.nan_to_num(-torch.inf), -torch.inf).argmax(1, keepdim=True)
    return edge.squeeze(1), (outline & straddles).gather(1, edge).squeeze(1)


def _crossing_change(
    moving: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, y: torch.Tensor, crossing: torch.Tensor
) -> torch.Tensor:
    """0 with the derivative of the crossing with respect to the ends of its edge."""
    d_x, d_y = (now - now.detach() for now in moving)
    fall = y[:, 1] - y[:, 0]
    fall = fall + torch.where(fall < 0, -_REGULARIZATION, _REGULARIZATION)
    change = y[:, 1] * d_x[:, 0] - y[:, 0] * d_x[:, 1]
    change = change + (crossing - x[:, 1]) * d_y[:, 0] + (x[:, 0] - crossing) * d_y[:, 1]
    return change / fall


def opposite_vertices(triangles: torch.Tensor) -> torch.Tensor:
    """(T, 3): for the edge opposite corner k, the vertex that lies opposite to it in the neighbour; -1 without one.

    An edge knows the first two different opposite vertices of its triangles. Triangles that use a vertex twice do not
    count.
    """
    corners = triangles.long()
    first, second = corners[:, [1, 2, 0]], corners[:, [2, 0, 1]]
    proper = (first != second).all(1, keepdim=True).expand_as(corners).flatten()
    key = (torch.minimum(first, second) << 32 | torch.maximum(first, second)).flatten()
    mine = corners.flatten()
    result = torch.full_like(mine, -1)
    where = proper.nonzero().squeeze(1)
    if len(where) == 0:
        return result.view_as(corners).to(torch.int32)
    group = torch.unique(key[where], return_inverse=True)[1]
    mine = mine[where]
    count = int(group.max()) + 1
    nobody = len(where)
    rank = torch.arange(nobody, device=corners.device)

    def earliest(candidate: torch.Tensor) -> torch.Tensor:
        """First entry of each group among the candidates, `nobody` if there is none."""
        start = torch.full((count,), nobody, device=corners.device)
        return start.scatter_reduce(0, group[candidate], rank[candidate], "amin")

    padded = torch.cat([mine, mine.new_full((1,), -1)])
    one = padded[earliest(torch.ones_like(rank, dtype=torch.bool))][group]
    two = padded[earliest(mine != one)][group]
    result[where] = torch.where(mine == one, two, torch.where(mine == two, one, -1))
    return result.view_as(corners).to(torch.int32)
