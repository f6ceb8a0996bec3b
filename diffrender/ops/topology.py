"""Edge topology: for every edge of every triangle, the same edge as its other triangle has it.

Plain torch, once per mesh. Edges are matched by vertex position where positions are given, so that vertices which a
loader split for texture seams do not turn the seam into an outline.
"""

from __future__ import annotations

import torch

from .. import _checks
from .._autograd import register_fake, register_vmap

_MOST_TRIANGLES = (2**31 - 1) // 3


def edge_topology(triangles: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
    """Twin of each edge, for `antialias`.

    Args:
        triangles: (T, 3) int32 or int64.
        positions: (V, D) or (B, V, D) of any space: vertices with positions equal bit for bit (in every item) count as
            one. None = vertices are what their index says.

    Returns:
        (T, 3) int32. Entry [t, k] belongs to the edge opposite corner k of triangle t, between corners k + 1 and k + 2.
        It is 3 * u + m, where u is the other triangle at that edge and m the corner of u that lies opposite to it; -1
        where there is none: borders, and all edges of a triangle that uses a vertex twice. At an edge of three or more
        triangles (thus at all edges of faces listed twice) it is -2 - (3 * u + m) with the next of them, the first
        after the last.

    Raises:
        TypeError, ValueError: a wrong type or shape, more than 715827882 triangles (int32 counts no more corners), or
            (on the CPU) an index outside of `positions`.

    Example:
        >>> dr.edge_topology(torch.tensor([[0, 1, 2], [1, 3, 2]]))
        tensor([[ 4, -1, -1],
                [-1,  0, -1]], dtype=torch.int32)
    """
    _checks.check_tensor("edge_topology", "triangles", triangles)
    if positions is not None:
        _checks.check_tensor("edge_topology", "positions", positions)
        if positions.dim() not in (2, 3):
            expected = "have shape (V, D) or (B, V, D)"
            _checks.fail(ValueError, "edge_topology", "positions", expected, _checks.shape_text(positions))
    indices = _checks.check_triangles("edge_topology", triangles, triangles if positions is None else positions)
    if indices.shape[0] > _MOST_TRIANGLES:
        expected = f"have at most {_MOST_TRIANGLES} rows, so that int32 counts their corners"
        _checks.fail(ValueError, "edge_topology", "triangles", expected, str(indices.shape[0]))
    _checks.check_vertex_range("edge_topology", indices, 2**31 - 1, "an index array of int32")
    if positions is not None:
        _checks.check_vertex_range("edge_topology", indices, positions.shape[-2], "positions")
        positions = positions.detach()
    return torch.ops.diffrender.edge_topology(indices.to(torch.int32), positions)


def _edge_topology(triangles: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    corners = triangles.long()
    count = len(corners)
    welded = corners if positions is None else equal_rows(positions)[corners]
    first, second = welded[:, [1, 2, 0]], welded[:, [2, 0, 1]]  # ends of the edge opposite to corner k
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    proper = ((first != second).all(dim=1, keepdim=True)).expand(count, 3)
    key = torch.where(proper, (low << 32) | high, -1).flatten()
    order = torch.argsort(key, stable=True)
    ordered = key[order]
    # Equal keys in a row are one edge: from each corner to the next one of the row, from the last to the first.
    same = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
    outside = same.new_zeros(min(1, count))
    after = torch.cat([same, outside])
    place = torch.arange(3 * count, device=triangles.device)
    first = torch.where(torch.cat([outside, same]), 0, place).cummax(0).values
    following = torch.where(after, place + 1, first)
    twin = order[following]
    twin = torch.where(following[following] == place, twin, -2 - twin)
    result = torch.empty(3 * count, dtype=torch.int32, device=triangles.device)
    result[order] = torch.where(following == place, -1, twin).to(torch.int32)
    return result.view(count, 3)


def equal_rows(values: torch.Tensor) -> torch.Tensor:
    """(V,) labels below V of (V, D) or (B, V, D), the same exactly for rows that are equal (in every item)."""
    columns = values.movedim(-2, 0).flatten(1) + 0  # -0 and +0 are equal
    label = torch.zeros(len(columns), dtype=torch.int64, device=values.device)
    for column in columns.unbind(1):
        value = torch.unique(column, return_inverse=True)[1]
        label = torch.unique((label << 32) | value, return_inverse=True)[1]
    return label


# Not torch.library.custom_op: its first call imports the compiler, which takes seconds.
_library = torch.library.Library("diffrender", "FRAGMENT")
_library.define("edge_topology(Tensor triangles, Tensor? positions) -> Tensor")
_library.impl("edge_topology", _edge_topology, "CompositeExplicitAutograd")


@register_fake("edge_topology")
def _(triangles, positions):
    return triangles.new_empty(triangles.shape, dtype=torch.int32)


register_vmap("edge_topology")
