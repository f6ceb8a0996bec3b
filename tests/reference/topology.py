"""Reference of edge_topology: a dictionary from the two ends of an edge to all corners that lie opposite to it."""

import torch


def edge_topology(triangles, positions=None):
    """Twin corner 3 t + k across each edge (T, 3) int32, -1 = border, -2 - twin where there are several; see
    diffrender.edge_topology. Positions (V, D) or (B, V, D) stand for the vertices: the same in every item is one."""
    triangles = triangles.tolist()
    if positions is None:
        name = {v: v for triangle in triangles for v in triangle}
    else:
        items = positions.detach()[None] if positions.dim() == 2 else positions.detach()
        # -0.0 and 0.0 are equal keys in Python, too.
        name = {v: tuple(x for p in places for x in p) for v, places in enumerate(items.transpose(0, 1).tolist())}

    corners_of_edge: dict[frozenset, list[tuple[int, int]]] = {}
    for t, triangle in enumerate(triangles):
        welded = [name[v] for v in triangle]
        if len(set(welded)) == 3:
            for k in range(3):
                edge = frozenset((welded[(k + 1) % 3], welded[(k + 2) % 3]))
                corners_of_edge.setdefault(edge, []).append((t, k))

    topology = torch.full((len(triangles), 3), -1, dtype=torch.int32)
    for corners in corners_of_edge.values():
        for (t, k), (u, m) in zip(corners, corners[1:] + corners[:1], strict=True):
            if len(corners) > 1:
                topology[t, k] = 3 * u + m if len(corners) == 2 else -2 - (3 * u + m)
    return topology
