"""rasterize and antialias of nvdiffrast, pixel by pixel in NumPy float64, from a description of their behaviour.

Slow on purpose: every rule stands where it applies, and nothing is shared with the code under test. Triangles have to
lie inside of the frustum. Derivatives use that a_i, n_i and m_i are linear in every single vertex, so that a unit step
gives them exactly.
"""

import numpy as np

EPSILON = 1e-6


# --- rasterize ---------------------------------------------------------------------------------------


def snapped(corners, height, width):
    """Corners (3, 4) in 1/16 pixels from the centre of the image, as Python integers; rounds half to even."""
    return [(int(np.rint(x / w * width / 2 * 16)), int(np.rint(y / w * height / 2 * 16))) for x, y, _, w in corners]


def area(a, b, c):
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def covers(points, px, py, height, width):
    """Whether the centre of pixel (px, py) lies in the snapped triangle: edges by the half-open rule."""
    if area(*points) < 0:
        points = [points[0], points[2], points[1]]
    centre = (8 * (2 * px + 1 - width), 8 * (2 * py + 1 - height))
    for (ax, ay), (bx, by) in zip(points, points[1:] + points[:1], strict=True):
        dx, dy = bx - ax, by - ay
        side = dx * (centre[1] - ay) - dy * (centre[0] - ax)
        if side < 0 or (side == 0 and not (dy < 0 or (dy == 0 and dx > 0))):
            return False
    return area(*points) != 0


def stored_depth(corners, points, px, py, height, width):
    """32-bit depth from the plane through the snapped corners."""
    centre = (8 * (2 * px + 1 - width), 8 * (2 * py + 1 - height))
    parts = [area(centre, points[1], points[2]), area(points[0], centre, points[2]), area(points[0], points[1], centre)]
    depth = sum(part * z / w for part, (_, _, z, w) in zip(parts, corners, strict=True)) / area(*points)
    return round((min(max(depth, -1.0), 1.0) + 1) / 2 * (2**32 - 1 - 2 * 17600))


def edge_areas(corners, fx, fy):
    """a_i, n_i and m_i, each (3,)."""
    q = [(x - fx * w, y - fy * w) for x, y, _, w in corners]
    a, n, m = np.zeros(3), np.zeros(3), np.zeros(3)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        a[i] = q[j][0] * q[k][1] - q[j][1] * q[k][0]
        n[i] = corners[k][3] * corners[j][1] - corners[j][3] * corners[k][1]
        m[i] = corners[j][3] * corners[k][0] - corners[k][3] * corners[j][0]
    return a, n, m


def clamped(u, v):
    u, v = min(max(u, 0.0), 1.0), min(max(v, 0.0), 1.0)
    return (u / (u + v), v / (u + v)) if u + v > 1 else (u, v)


def ids(pos, tri, height, width, ranges=None, beneath=None):
    """(N, H, W) row + 1 that each pixel shows, and its stored depth; beneath = depths of the layer above."""
    count = len(pos) if ranges is None else len(ranges)
    shown = np.zeros((count, height, width), dtype=np.int64)
    depths = np.full((count, height, width), 1 << 40)
    for item in range(count):
        first, size = (0, len(tri)) if ranges is None else ranges[item]
        for t in range(first, first + size):
            corners = (pos[item] if ranges is None else pos)[tri[t]]
            points = snapped(corners, height, width)
            for py in range(height):
                for px in range(width):
                    if not covers(points, px, py, height, width):
                        continue
                    depth = stored_depth(corners, points, px, py, height, width)
                    if beneath is not None and depth <= beneath[item, py, px]:
                        continue
                    if depth <= depths[item, py, px]:
                        depths[item, py, px], shown[item, py, px] = depth, t + 1
    return shown, depths


def values(pos, tri, shown):
    """rast and rast_db (N, H, W, 4) of given ids; pos (N, V, 4) or (V, 4)."""
    count, height, width = shown.shape
    rast, rast_db = np.zeros((count, height, width, 4)), np.zeros((count, height, width, 4))
    for item, py, px in np.argwhere(shown > 0):
        corners = (pos[item] if pos.ndim == 3 else pos)[tri[shown[item, py, px] - 1]]
        a, n, m = edge_areas(corners, (2 * px + 1) / width - 1, (2 * py + 1) / height - 1)
        total = a.sum()
        u, v = clamped(a[0] / total, a[1] / total)
        depth = a @ corners[:, 2] / (a @ corners[:, 3])
        rast[item, py, px] = u, v, min(max(depth, -1.0), 1.0), shown[item, py, px]
        rast_db[item, py, px] = [
            2 / size * (d[k] - weight * d.sum()) / total
            for k, weight in enumerate((u, v))
            for d, size in ((n, width), (m, height))
        ]
    return rast, rast_db


def rasterize_backward(pos, tri, shown, grad_rast, grad_db):
    """Gradient of pos (N, V, 4): z/w and id ignored, the epsilon in every division, cuts passed through."""
    height, width = shown.shape[1:]
    grad = np.zeros_like(pos)
    for item, py, px in np.argwhere(shown > 0):
        index = tri[shown[item, py, px] - 1]
        corners = pos[item][index]
        fx, fy = (2 * px + 1) / width - 1, (2 * py + 1) / height - 1
        a, n, m = edge_areas(corners, fx, fy)
        total = a.sum()
        shifted = total + np.sign(total) * EPSILON
        raw = a[:2] / shifted
        cut = clamped(*(a[:2] / total))
        for corner in range(3):
            for axis in (0, 1, 3):
                step = np.zeros((3, 4))
                step[corner, axis] = 1
                da, dn, dm = (b - c for b, c in zip(edge_areas(corners + step, fx, fy), (a, n, m), strict=True))
                change = 0.0
                for k in range(2):
                    du = (da[k] - raw[k] * da.sum()) / shifted
                    change += grad_rast[item, py, px, k] * du
                    for column, (d, dd, size) in enumerate(((n, dn, width), (m, dm, height))):
                        slope = 2 / size * (d[k] - cut[k] * d.sum()) / shifted
                        d_slope = 2 / size * (dd[k] - cut[k] * dd.sum() - d.sum() * du) / shifted
                        d_slope -= slope * da.sum() / shifted
                        change += grad_db[item, py, px, 2 * k + column] * d_slope
                grad[item, index[corner], axis] += change
    return grad


# --- antialias ---------------------------------------------------------------------------------------


def topology(tri):
    """Edge (low, high) -> the first two different opposite vertices."""
    table = {}
    for row in tri:
        if len(set(row.tolist())) < 3:
            continue
        for i in range(3):
            edge = tuple(sorted((int(row[(i + 1) % 3]), int(row[(i + 2) % 3]))))
            known = table.setdefault(edge, [])
            if len(known) < 2 and int(row[i]) not in known:
                known.append(int(row[i]))
    return table


def neighbour(table, edge, mine):
    known = table.get(tuple(sorted(edge)), [])
    if mine not in known:
        return None
    return next((other for other in known if other != mine), None)


def pairs(rast, pos, tri):
    """All pairs that blend: (p0, p1, alpha, edge vertices, d(x_c)/d(X_1, Y_1, X_2, Y_2), axis)."""
    count, height, width = rast.shape[:3]
    table = topology(tri)
    found = []
    for item in range(count):
        for axis in (0, 1):
            for py in range(height - axis):
                for px in range(width - 1 + axis):
                    p0, p1 = (item, py, px), (item, py + axis, px + 1 - axis)
                    entry = blend(rast, pos[item], tri, table, p0, p1, axis)
                    if entry is not None:
                        found.append((p0, p1, *entry, axis))
    return found


def blend(rast, pos, tri, table, p0, p1, axis):
    height, width = rast.shape[1:3]
    id0, id1 = int(rast[p0][3]), int(rast[p1][3])
    if id0 == id1:
        return None
    first = id1 == 0 or (id0 != 0 and rast[p0][2] < rast[p1][2])
    (_, py, px), row, sigma = (p0, tri[id0 - 1], 1) if first else (p1, tri[id1 - 1], -1)

    def place(vertex):
        x, y, _, w = pos[vertex]
        point = x / w * width / 2 - (px + 0.5 - width / 2), y / w * height / 2 - (py + 0.5 - height / 2)
        return point if axis == 0 else point[::-1]

    best = None
    for i in range(3):
        ends = int(row[(i + 1) % 3]), int(row[(i + 2) % 3])
        (x1, y1), (x2, y2) = place(ends[0]), place(ends[1])
        opposite = neighbour(table, ends, int(row[i]))
        own = area(place(int(row[i])), (x1, y1), (x2, y2))
        other = own if opposite is None else area(place(opposite), (x1, y1), (x2, y2))
        outline = np.signbit(own) == np.signbit(other)
        if np.signbit(y1) == np.signbit(y2):
            continue
        crossing = (x1 * y2 - x2 * y1) / (y2 - y1)
        if best is None or sigma * crossing > best[0]:
            best = sigma * crossing, outline, crossing, ends, (x1, y1, x2, y2)
    if best is None:
        return None
    distance, outline, crossing, ends, (x1, y1, x2, y2) = best
    if not outline or abs(y2 - y1) < abs(x2 - x1) or not -1 / 16 < distance < 1 + 1 / 16:
        return None
    alpha = sigma * (0.5 - min(max(distance, 0.0), 1.0))
    fall = y2 - y1
    fall += np.sign(fall) * 1e-3
    return alpha, ends, np.array([y2, crossing - x2, -y1, x1 - crossing]) / fall


def antialias(color, rast, pos, tri):
    result = color.copy()
    for p0, p1, alpha, *_ in pairs(rast, pos, tri):
        result[p0 if alpha > 0 else p1] += alpha * (color[p1] - color[p0])
    return result


def antialias_backward(color, rast, pos, tri, grad):
    """Gradients of color and pos (N, V, 4)."""
    height, width = rast.shape[1:3]
    grad_color, grad_pos = grad.copy(), np.zeros_like(pos)
    for p0, p1, alpha, ends, slopes, axis in pairs(rast, pos, tri):
        received = grad[p0 if alpha > 0 else p1]
        grad_color[p0] -= alpha * received
        grad_color[p1] += alpha * received
        if alpha == 0 or abs(alpha) >= 0.5:
            continue
        along, across = (0, 1) if axis == 0 else (1, 0)
        for vertex, to_along, to_across in ((ends[0], *slopes[:2]), (ends[1], *slopes[2:])):
            clip = pos[p0[0]][vertex]
            weight = -(received @ (color[p1] - color[p0])) / clip[3]
            half = (width / 2, height / 2)
            delta = np.zeros(4)
            delta[along] = weight * to_along * half[along]
            delta[across] = weight * to_across * half[across]
            delta[3] = -(clip[0] * delta[0] + clip[1] * delta[1]) / clip[3]
            grad_pos[p0[0]][vertex] += delta
    return grad_color, grad_pos
