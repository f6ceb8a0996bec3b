"""Cutting polygons into triangles without changing their area: fans for convex ones, ears for the rest."""

import numpy as np


def triangulate_polygons(positions: np.ndarray, corners: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Triangles of planar polygons, in their order and winding.

    Args:
        positions: (V, 3) float64.
        corners: (N,) vertex indices of all polygons, one after the other.
        sizes: (P,) number of corners of each polygon, at least 3.

    Returns:
        (T, 3) rows of `corners`; a polygon of n corners gives n - 2 triangles. Polygons whose corners lie in no plane
        are cut as their projection along their mean normal; ones that cross themselves get a plain fan.
    """
    starts = sizes.cumsum() - sizes
    first_triangle = (sizes - 2).cumsum() - (sizes - 2)
    result = np.empty((int((sizes - 2).sum()), 3), dtype=np.int64)
    for size in np.unique(sizes):
        group = np.flatnonzero(sizes == size)
        rows = starts[group, None] + np.arange(size)
        fan = np.stack([np.zeros(size - 2, int), np.arange(1, size - 1), np.arange(2, size)], -1)
        result[first_triangle[group, None] + np.arange(size - 2)] = rows[:, fan]
        if size == 3:
            continue
        for polygon in np.flatnonzero(~_is_convex(positions[corners[rows]])):
            cut = _cut_ears(positions[corners[rows[polygon]]])
            at = first_triangle[group[polygon]]
            result[at : at + size - 2] = rows[polygon][cut]
    return result


def _is_convex(points: np.ndarray) -> np.ndarray:
    """(P, n, 3) polygons -> (P,): every corner turns the way the whole polygon does, or not at all."""
    normal = _newell_normals(points)
    before, after = points - np.roll(points, 1, axis=1), np.roll(points, -1, axis=1) - points
    turn = np.einsum("pnk,pk->pn", np.cross(before, after), normal)
    return (turn >= 0).all(-1)


def _newell_normals(points: np.ndarray) -> np.ndarray:
    """Twice the vector area of (P, n, 3) polygons, from the first corner so that large offsets cost no digits."""
    local = points - points[:, :1]
    return np.cross(local, np.roll(local, -1, axis=1)).sum(1)


def _cut_ears(points: np.ndarray) -> np.ndarray:
    """(n, 3) -> (n - 2, 3) corner numbers: cuts off corners whose triangle turns right and holds no other corner."""
    normal = _newell_normals(points[None])[0]
    drop = int(np.abs(normal).argmax())
    plane = np.delete(points, drop, axis=1) * (1 if normal[drop] * (-1) ** drop > 0 else np.array([1, -1]))
    left = list(range(len(points)))
    triangles = []
    while len(left) > 3:
        for i in range(len(left)):
            a, b, c = left[i - 1], left[i], left[(i + 1) % len(left)]
            others = [p for p in left if p not in (a, b, c)]
            if _turn(plane[a], plane[b], plane[c]) > 0 and not _any_inside(plane[a], plane[b], plane[c], plane[others]):
                break
        else:
            i = 1  # crosses itself or has no area left: any cut is as good as another
        triangles.append((left[i - 1], left[i], left[(i + 1) % len(left)]))
        del left[i]
    triangles.append(tuple(left))
    return np.array(triangles)


def _turn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])


def _any_inside(a: np.ndarray, b: np.ndarray, c: np.ndarray, points: np.ndarray) -> bool:
    inside = (_turn(a, b, points) >= 0) & (_turn(b, c, points) >= 0) & (_turn(c, a, points) >= 0)
    # A repeated corner (a bridge to a hole) lies on a, b or c and does not count.
    repeated = (points == a).all(-1) | (points == b).all(-1) | (points == c).all(-1)
    return bool((inside & ~repeated).any())
