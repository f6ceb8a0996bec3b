"""Isotropic remeshing: triangles of even size and shape over the same surface, for optimisations that stretch a mesh.

M. Botsch, L. Kobbelt, "A Remeshing Approach to Multiresolution Modeling", SGP 2004: split long edges, collapse short
ones, flip edges towards six neighbours per vertex, relax vertices along the surface; repeat. Each step acts on many
edges at once, chosen so that their neighbourhoods do not touch, hence in array operations and in a fixed order.

A closed or bordered manifold keeps its handles and components. Vertices on borders and on edges of more than two
triangles stay. Not handled: sharp features (they are rounded by up to a fraction of the edge length), attributes,
gradients, and vertices where surfaces touch in a point.
"""

import numpy as np
import torch

from diffrender.geometry.mesh import Mesh

_MAX_NORMAL_TURN = 0.5  # cosine: no collapse or flip turns a triangle by more than 60 degrees


def remesh(mesh: Mesh, edge_length: float, *, iterations: int = 5) -> Mesh:
    """A mesh of the same surface whose edges are about `edge_length` long.

    Args:
        mesh: one shape, vertices (V, 3). Texcoords, normals and colors are not carried over.
        edge_length: aim, in the units of the vertices; lengths end up mostly within 4/5 and 4/3 of it.
        iterations: rounds of split, collapse, flip, relax.

    Returns:
        A new Mesh without autograd history, on the device and with the dtype of `mesh`; unused vertices are dropped.

    Raises:
        ValueError: on a batch of shapes or an edge_length that is not positive.

    Example:
        >>> from diffrender.geometry import icosphere
        >>> even = remesh(icosphere(3), 0.3)
        >>> int(even.edges().triangle_count.unique())
        2
    """
    if mesh.vertices.ndim != 2:
        raise ValueError(f"remesh: mesh must hold one shape (V, 3), got {tuple(mesh.vertices.shape)}.")
    if not edge_length > 0:
        raise ValueError(f"remesh: edge_length must be positive, got {edge_length}.")
    vertices = mesh.vertices.detach().cpu().double().numpy()
    triangles = mesh.triangles.cpu().long().numpy()
    longest, shortest = edge_length * 4 / 3, edge_length * 4 / 5
    for _ in range(iterations):
        vertices, triangles = _split_long_edges(vertices, triangles, longest)
        vertices, triangles = _collapse_short_edges(vertices, triangles, shortest, longest)
        triangles = _flip_edges(vertices, triangles)
        vertices = _relax(vertices, triangles)
    vertices, triangles = _drop_unused(vertices, triangles)
    return Mesh(torch.from_numpy(vertices), torch.from_numpy(triangles)).to(mesh.device).to(mesh.dtype)


class _Connectivity:
    """Edges of (T, 3) triangles and who is next to whom, rebuilt after every change."""

    def __init__(self, triangles: np.ndarray, vertex_count: int):
        self.triangles, self.vertex_count = triangles, vertex_count
        half_edges = triangles[:, [1, 2, 2, 0, 0, 1]].reshape(-1, 2)  # slot 3 t + k: the edge opposite to corner k of t
        keys = half_edges.min(1) * vertex_count + half_edges.max(1)
        self.keys, first, of_slot, self.count = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        self.edges = np.stack([self.keys // vertex_count, self.keys % vertex_count], 1)
        self.of_triangle = of_slot.reshape(-1, 3)
        # The first and the last slot of an edge: the two triangles of an inner one.
        last = np.empty(len(self.keys), dtype=np.int64)
        last[of_slot] = np.arange(len(of_slot))
        self.slots = np.stack([first, last], 1)
        self.opposite = triangles.reshape(-1)[self.slots]  # (E, 2) corners across the edge
        self.is_inner = (self.count == 2) & (self.opposite[:, 0] != self.opposite[:, 1])
        self.is_locked = np.zeros(vertex_count, dtype=bool)
        self.is_locked[self.edges[~self.is_inner]] = True
        self.valence = np.bincount(self.edges.reshape(-1), minlength=vertex_count)

    def is_edge(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        keys = np.minimum(i, j) * self.vertex_count + np.maximum(i, j)
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return self.keys[at] == keys

    def neighbours(self, vertices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All (row of `vertices`, neighbour) pairs."""
        ends, others = self.edges.reshape(-1), self.edges[:, ::-1].reshape(-1)
        return _grouped(ends, others, self.vertex_count, vertices)

    def incident_triangles(self, vertices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All (row of `vertices`, triangle) pairs."""
        return _grouped(self.triangles.reshape(-1), np.arange(self.triangles.size) // 3, self.vertex_count, vertices)


def _grouped(keys: np.ndarray, values: np.ndarray, key_count: int, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row of `wanted`, every value whose key it is: (row, value) pairs in the order of the rows."""
    order = np.argsort(keys, kind="stable")
    counts = np.bincount(keys, minlength=key_count)
    starts = counts.cumsum() - counts
    sizes = counts[wanted]
    rows = np.repeat(np.arange(len(wanted)), sizes)
    within = np.arange(len(rows)) - np.repeat(sizes.cumsum() - sizes, sizes)
    return rows, values[order[starts[wanted][rows] + within]]


def _area_vectors(vertices: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    a, b, c = (vertices[triangles[:, k]] for k in range(3))
    return np.cross(b - a, c - a)


def _lengths(vertices: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vertices[edges[:, 0]] - vertices[edges[:, 1]], axis=1)


def _split_long_edges(vertices: np.ndarray, triangles: np.ndarray, longest: float) -> tuple[np.ndarray, np.ndarray]:
    """Halves every edge longer than `longest` until there is none; triangles split to match on both sides."""
    while True:
        connectivity = _Connectivity(triangles, len(vertices))
        is_long = _lengths(vertices, connectivity.edges) > longest
        if not is_long.any():
            return vertices, triangles
        middle_of_edge = np.where(is_long, len(vertices) + is_long.cumsum() - 1, -1)
        vertices = np.concatenate([vertices, vertices[connectivity.edges[is_long]].mean(1)])
        middle = middle_of_edge[connectivity.of_triangle]
        split_count = (middle >= 0).sum(1)

        # Turned so that column 0 is the only split edge (one split) or the only whole one (two splits).
        first = np.where(
            split_count == 1, (middle >= 0).argmax(1), np.where(split_count == 2, (middle < 0).argmax(1), 0)
        )
        turn = (first[:, None] + np.arange(3)) % 3
        (a, b, c), (ma, mb, mc) = np.take_along_axis(triangles, turn, 1).T, np.take_along_axis(middle, turn, 1).T
        one, two, three = split_count == 1, split_count == 2, split_count == 3
        # The quadrilateral left by two splits is cut along its shorter diagonal.
        across_c = two & (
            np.linalg.norm(vertices[mc] - vertices[c], axis=1) < np.linalg.norm(vertices[b] - vertices[mb], axis=1)
        )
        across_b = two & ~across_c
        pieces = [
            (split_count == 0, (a, b, c)),
            (one, (a, b, ma)), (one, (a, ma, c)),
            (two, (a, mc, mb)),
            (across_c, (mc, b, c)), (across_c, (mc, c, mb)),
            (across_b, (mc, b, mb)), (across_b, (b, c, mb)),
            (three, (a, mc, mb)), (three, (b, ma, mc)), (three, (c, mb, ma)), (three, (ma, mb, mc)),
        ]  # fmt: skip
        triangles = np.concatenate([np.stack([corner[mask] for corner in corners], 1) for mask, corners in pieces])


def _collapse_short_edges(
    vertices: np.ndarray, triangles: np.ndarray, shortest: float, longest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Merges the ends of edges shorter than `shortest` in their middle, where the surface stays what it is.

    A pass merges what does not touch. Once it finds little to merge, the rest waits for the next round.
    """
    mixed = np.random.default_rng(0)
    merged_share = 1.0
    while merged_share > 0.01:
        c = _Connectivity(triangles, len(vertices))
        lengths = _lengths(vertices, c.edges)
        free = c.is_inner & ~c.is_locked[c.edges].any(1)
        # Merging takes one neighbour from each opposite vertex; below three the surface folds onto itself.
        candidates = np.flatnonzero(free & (lengths < shortest) & (c.valence[c.opposite] > 3).all(1))
        candidates = candidates[_may_collapse(vertices, c, candidates, longest)]
        if not len(candidates):
            break

        # None whose ring touches the ring of another, in mixed order: shortest first would leave only the local minima
        # of a smoothly varying length.
        ends = c.edges[mixed.permutation(candidates)]
        row_i, ring_i = c.neighbours(ends[:, 0])
        row_j, ring_j = c.neighbours(ends[:, 1])
        rows, ring = np.concatenate([row_i, row_j]), np.concatenate([ring_i, ring_j])
        ends = ends[_first_come(rows, ring, len(candidates), c.vertex_count)]

        vertices = vertices.copy()
        vertices[ends[:, 0]] = vertices[ends].mean(1)
        target = np.arange(len(vertices))
        target[ends[:, 1]] = ends[:, 0]
        triangles = target[triangles]
        merged_share = len(ends) / len(vertices)
        distinct = (triangles != np.roll(triangles, 1, axis=1)).all(1)
        vertices, triangles = _drop_unused(vertices, triangles[distinct])
    return vertices, triangles


def _may_collapse(vertices: np.ndarray, c: _Connectivity, candidates: np.ndarray, longest: float) -> np.ndarray:
    ends = c.edges[candidates]
    middle = vertices[ends].mean(1)
    allowed = np.ones(len(candidates), dtype=bool)

    # Link condition: the ends share exactly their two opposite vertices, else a handle would be pinched off.
    rows, ring = c.neighbours(ends[:, 0])
    shared = np.bincount(rows[c.is_edge(ring, ends[rows, 1])], minlength=len(candidates))
    allowed &= shared == 2

    for side in (0, 1):
        rows, ring = c.neighbours(ends[:, side])
        too_long = np.linalg.norm(vertices[ring] - middle[rows], axis=1) > longest
        allowed[rows[too_long]] = False

        rows, incident = c.incident_triangles(ends[:, side])
        corners = c.triangles[incident]
        stays = ~(corners == ends[rows, 1 - side][:, None]).any(1)
        rows, corners = rows[stays], corners[stays]
        points = vertices[corners]
        before = np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0])
        moved = np.where((corners == ends[rows, side][:, None])[..., None], middle[rows][:, None], points)
        after = np.cross(moved[:, 1] - moved[:, 0], moved[:, 2] - moved[:, 0])
        allowed[rows[_turns_too_far(before, after)]] = False
    return allowed


def _flip_edges(vertices: np.ndarray, triangles: np.ndarray, *, passes: int = 4) -> np.ndarray:
    """Flips edges where that brings the number of neighbours nearer to six (four on borders)."""
    for _ in range(passes):
        c = _Connectivity(triangles, len(vertices))
        ideal = np.where(c.is_locked, 4, 6)
        a, b = c.edges.T
        left, right = c.opposite.T
        excess = c.valence - ideal

        def cost(shift_ends: int, c: _Connectivity = c, excess: np.ndarray = excess) -> np.ndarray:
            ends = (excess[c.edges] + shift_ends) ** 2
            return ends.sum(1) + ((excess[c.opposite] - shift_ends) ** 2).sum(1)

        gain = cost(0) - cost(-1)
        candidates = np.flatnonzero(c.is_inner & (gain > 0) & ~c.is_edge(left, right))
        # Slot 3 t + k: in triangle t, the edge runs from corner k+1 to k+2; the new pair keeps that winding.
        slot = c.slots[candidates, 0]
        start = triangles[slot // 3, (slot % 3 + 1) % 3]
        end = triangles[slot // 3, (slot % 3 + 2) % 3]
        near, far = c.opposite[candidates].T
        new_first, new_second = np.stack([near, start, far], 1), np.stack([far, end, near], 1)
        old = _area_vectors(vertices, triangles[slot // 3])
        old_other = _area_vectors(vertices, triangles[c.slots[candidates, 1] // 3])
        ok = ~_turns_too_far(old, old_other)
        for new in (new_first, new_second):
            ok &= ~_turns_too_far(old + old_other, _area_vectors(vertices, new))
        keep = np.flatnonzero(ok)
        keep = keep[np.argsort(-gain[candidates[keep]], kind="stable")]
        corners = np.stack([a, b, left, right], 1)[candidates[keep]]
        rows = np.repeat(np.arange(len(keep)), 4)
        keep = keep[_first_come(rows, corners.reshape(-1), len(keep), c.vertex_count)]
        if not len(keep):
            break
        triangles = triangles.copy()
        triangles[slot[keep] // 3] = new_first[keep]
        triangles[c.slots[candidates[keep], 1] // 3] = new_second[keep]
    return triangles


def _relax(vertices: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """Moves free vertices halfway to the mean of their neighbours, along the surface only."""
    c = _Connectivity(triangles, len(vertices))
    sums = np.zeros_like(vertices)
    normals = np.zeros_like(vertices)
    area_vectors = _area_vectors(vertices, triangles)
    for axis in range(3):
        for end in (0, 1):
            sums[:, axis] += np.bincount(c.edges[:, end], vertices[c.edges[:, 1 - end], axis], minlength=len(vertices))
        normals[:, axis] = np.bincount(
            triangles.reshape(-1), np.repeat(area_vectors[:, axis], 3), minlength=len(vertices)
        )
    shift = sums / np.maximum(c.valence, 1)[:, None] - vertices
    squared = (normals * normals).sum(1, keepdims=True)
    normals /= np.sqrt(np.where(squared > 0, squared, 1))
    shift -= (shift * normals).sum(1, keepdims=True) * normals
    is_free = ~c.is_locked & (c.valence > 0)
    return vertices + 0.5 * shift * is_free[:, None]


def _turns_too_far(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    product = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    return (before * after).sum(1) <= _MAX_NORMAL_TURN * product


def _first_come(rows: np.ndarray, claimed: np.ndarray, row_count: int, vertex_count: int) -> np.ndarray:
    """Which rows hold, at each vertex they claim, the lowest row number of all that claim it: no two of them meet."""
    owner = np.full(vertex_count, row_count)
    np.minimum.at(owner, claimed, rows)
    lost = np.zeros(row_count, dtype=bool)
    lost[rows[owner[claimed] < rows]] = True
    return ~lost


def _drop_unused(vertices: np.ndarray, triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    is_used = np.zeros(len(vertices), dtype=bool)
    is_used[triangles] = True
    return vertices[is_used], (is_used.cumsum() - 1)[triangles]
