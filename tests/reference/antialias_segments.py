"""Reference of antialias(method="segments"): the pieces are found with NumPy in float64, pixel by pixel and without
any economy; the blend and the motion of the pieces are plain torch, so autograd of it is the truth for the kernels.

Points that the definition leaves open, as decided here:
  * A pixel is sampled at its centre plus (1e-7, 1e-11): what the rasterizer's top-left rule amounts to, for an
    edge that is not level, however flat, belongs to the triangle on its right. Within 1/256 pixel of an edge, and not
    within 1/128 of one of its ends, a pixel that shows a triangle of the edge is on the inner side, and one that shows
    what is behind is on the outer side. Only ends of pieces within 1e-3 of the centre are seen from that point, others
    from the centre.
  * A piece next to which one of its two colours shows in none of the 3 x 3 pixels around is left out. Where a surface
    behind it shows nowhere, another one on the outer side stands in for it, never the background.
  * A point is on the outline of a triangle if its smallest weight is within 1e-9 of zero. Such a triangle hides an
    edge there if it is nearer, and is not behind it otherwise. Depths closer than 1e-9 are equal; pieces shorter than
    1e-9 pixels are left out.
  * The nearest sample on the outer side stands for what is behind only if its surface goes on to the edge.
  * Visibility "exact" asks all triangles what hides the middle of a piece, and those that contain the point 1e-9 pixels
    further out what is behind: no sample stands for anything then. Parts beyond the near and far planes do not count.
  * Edges are cut by the view volume, the sides of the frame included. What a triangle has beyond the near or far plane
    neither hides anything nor is behind.
  * Besides the triangles that show in the 3 x 3 pixels, those around the edge in the mesh count: the neighbours of
    the edge's own two, and theirs. If one of them is behind a piece and shows nowhere, a pixel that shows a triangle
    with a common corner has its colour.
  * The pixel nearest to a point m of an edge is the one nearest to m + 1e-6 towards the side that is looked for
    + 1e-9 (1, 0.618): an edge that runs through a pixel from side to side has its middle between two neighbours.
"""

import itertools

import numpy as np
import torch

from tests.support.device import to_numpy

SAMPLE, NEAR_SAMPLE = np.array([1e-7, 1e-11]), 1e-3
DEPTH_SLACK = INSIDE_SLACK = SHORTEST = 1e-9
SNAP = 1 / 256
TO_ITS_SIDE, ON_A_LINE = 1e-6, np.array([1e-9, 0.618e-9])


def antialias(image, triangle_id, clip_positions, triangles, *, forward="area", found=None, **options):
    """Blended image (B, H, W, C) in float64; image and clip_positions (B, V, 4) or (V, 4) may require grad. `options`
    are those of find_pieces, `found` is what it gave for the same arguments."""
    if found is None:
        found = find_pieces(triangle_id, clip_positions, triangles, **options)
    positions = clip_positions.double().expand(len(found), *clip_positions.shape[-2:])
    results = [compose(*item, *f, forward) for *item, f in zip(image.double(), positions, found, strict=True)]
    return torch.stack(results)


def find_pieces(triangle_id, clip_positions, triangles, *, seams=None, ranges=None, cull=None, visibility="window"):
    """What is frozen in the derivative: of each item the scene and its visible pieces."""
    batch = triangle_id.shape[0]
    positions = clip_positions.detach().double().expand(batch, *clip_positions.shape[-2:])
    found = []
    for item in range(batch):
        first, count = (0, len(triangles)) if ranges is None else (int(x) for x in ranges[item])
        shape, ids = to_numpy(positions[item]), to_numpy(triangle_id[item])
        corners = None if seams is None else to_numpy(seams)
        scene = Scene(shape, to_numpy(triangles), ids, first, count, cull, corners)
        scene.exact = visibility == "exact"
        found.append((scene, [*edge_pieces(scene), *crossing_pieces(scene)]))
    return found


def compose(image, positions, scene, pieces, forward):
    """The picture with the areas of the pieces, plus their motion, which is zero in value."""
    if not pieces:
        return image
    at = torch.tensor([piece["pixel"] for piece in pieces])
    front, back = (torch.tensor([piece[side] for piece in pieces]) for side in ("front", "back"))
    result = image
    if forward == "area":
        areas = torch.tensor([piece["area"] for piece in pieces], dtype=torch.float64)[:, None]
        result = result.index_put(at.unbind(1), areas * (image[back.unbind(1)] - image[front.unbind(1)]), True)
    jumps = torch.tensor(color_jumps(to_numpy(image), scene, pieces))
    return result.index_put(at.unbind(1), jumps * motion(positions, scene, pieces)[:, None], True)


def motion(positions, scene, pieces):
    """Length times the way that each piece moves towards its back side; 0 in value, its gradient is the motion's."""
    corners = to_pixels(positions, scene.width, scene.height)
    middle = torch.tensor(np.array([piece["middle"] for piece in pieces]))
    lengths = torch.tensor([piece["length"] for piece in pieces], dtype=torch.float64)
    is_edge = torch.tensor(["edge" in piece for piece in pieces])
    values = torch.zeros(len(pieces), dtype=torch.float64)
    if is_edge.any():
        ends = torch.tensor([piece["edge"] for piece in pieces if "edge" in piece])
        sides = torch.tensor([float(piece["side"]) for piece in pieces if "edge" in piece], dtype=torch.float64)
        line = torch.linalg.cross(corners[ends[:, 0]], corners[ends[:, 1]])
        value = line[:, 0] * middle[is_edge, 0] + line[:, 1] * middle[is_edge, 1] + line[:, 2]
        values = values.index_put((is_edge,), sides * value / torch.linalg.norm(line[:, :2].detach(), dim=1))
    if not is_edge.all():
        faces = torch.tensor([piece["faces"] for piece in pieces if "faces" in piece])
        slopes = torch.tensor([piece["slope"] for piece in pieces if "faces" in piece], dtype=torch.float64)
        triangles = torch.tensor(scene.triangles.astype(np.int64))[faces]
        f, g = (depth_at(positions, corners, triangles[:, k], middle[~is_edge]) for k in (0, 1))
        values = values.index_put((~is_edge,), -(f - g) / slopes)
    return lengths * (values - values.detach())


def depth_at(positions, corners, triangles, points):
    """z/w of the planes of triangles (N, 3) at screen points (N, 2), by sum(a_i z_i) / sum(a_i w_i)."""
    v, p = positions[triangles], corners[triangles]
    q = p[..., :2] - p[..., 2:] * points[:, None]
    j, k = q[:, [1, 2, 0]], q[:, [2, 0, 1]]
    a = j[..., 0] * k[..., 1] - j[..., 1] * k[..., 0]
    return (a * v[..., 2]).sum(1) / (a * v[..., 3]).sum(1)


def to_pixels(positions, width, height):
    """Homogeneous pixel coordinates (x w, y w, w); torch or NumPy."""
    x, y, w = positions[..., 0], positions[..., 1], positions[..., 3]
    stack = torch.stack if isinstance(positions, torch.Tensor) else np.stack
    return stack([(x + w) * width / 2, (w - y) * height / 2, w], -1)


class Scene:
    """One item: what NumPy has to know of mesh and picture."""

    def __init__(self, positions, triangles, ids, first, count, cull, seams):
        self.positions, self.triangles, self.ids, self.seams = positions, triangles, ids, seams
        self.exact = False
        self.height, self.width = ids.shape
        self.corners = to_pixels(positions, self.width, self.height)
        self.faces = [self.face(t) for t in range(len(triangles))]
        nothing = {"weights": np.full((3, 3), np.nan), "depth": np.full(3, np.nan)}
        self.weights, self.depths = (
            np.array([(face or nothing)[key] for face in [*self.faces, nothing]]) for key in ("weights", "depth")
        )
        self.padded = np.pad(ids, 1, constant_values=-1)
        self.places = {}
        self.place = [self.places.setdefault(tuple(p + 0.0), len(self.places)) for p in positions]
        self.drawn = [first <= t < first + count for t in range(len(triangles))]
        for t, face in enumerate(self.faces):
            front = face is not None and face["side"] < 0  # counter-clockwise with y up
            self.drawn[t] &= face is not None and not (cull == "back" and not front) and not (cull == "front" and front)

        self.edges = {}
        for t, index in enumerate(triangles):
            for k, key in enumerate(self.edge_keys(t, index)):
                self.edges.setdefault(key, []).append((t, k))

    def edge_keys(self, triangle, index):
        """Edges that join the same places are one; those of a triangle with two corners in one place stand alone."""
        places = [self.place[v] for v in index]
        if len(set(places)) < 3:
            return [(triangle, k, "alone") for k in range(3)]
        return [tuple(sorted((places[(k + 1) % 3], places[(k + 2) % 3]))) for k in range(3)]

    def sides(self, corners):
        """Side of each drawn triangle at an edge, in the direction of the first one's edge, and those triangles."""
        (t, k), *_ = corners
        start = self.place[self.triangles[t][(k + 1) % 3]]
        drawn = [(u, m) for u, m in corners if self.drawn[u]]
        same = [self.place[self.triangles[u][(m + 1) % 3]] == start for u, m in drawn]
        return [self.faces[u]["side"] * (1 if s else -1) for (u, _), s in zip(drawn, same, strict=True)], drawn

    def face(self, triangle):
        """lambda_i and z/w as rows of functions of (x, y, 1), and the sign of the determinant; None without area."""
        index = self.triangles[triangle]
        p = self.corners[index]
        det = np.linalg.det(p)
        if not np.isfinite(det) or det == 0 or len({tuple(corner) for corner in p}) < 3:
            return None
        weights = np.stack([np.cross(p[(i + 1) % 3], p[(i + 2) % 3]) for i in range(3)]) / det
        return {"weights": weights, "depth": self.positions[index, 2] @ weights, "side": int(np.sign(det))}

    def window(self, pixel):
        """(row, column) of the pixels around one, those in the frame."""
        around = itertools.product((-1, 0, 1), repeat=2)
        cells = [(pixel[0] + i, pixel[1] + j) for i, j in around]
        return [(i, j) for i, j in cells if 0 <= i < self.height and 0 <= j < self.width]


def at(function, point):
    return function.dot((point[0], point[1], 1.0))


def inside(face, point):
    """Smallest of the three weights."""
    return at(face["weights"], point).min()


def centre(pixel):
    return np.array([pixel[1] + 0.5, pixel[0] + 0.5])


# --- edges ----------------------------------------------------------------------------------------


def edge_pieces(scene):
    for corners in scene.edges.values():
        edge = make_edge(scene, corners)
        if edge is not None:
            yield from walk(scene, edge)


def make_edge(scene, corners):
    """The part of an edge that is on screen, if the picture may change across it."""
    (t, k), *_ = corners
    a, b = scene.triangles[t][(k + 1) % 3], scene.triangles[t][(k + 2) % 3]
    sides, drawn = scene.sides(corners)
    if not sides:
        return None
    seam = -1
    if len(set(sides)) == 2:
        if scene.seams is None or len(corners) != 2:
            return None
        u, m = corners[1]
        same = scene.place[scene.triangles[u][(m + 1) % 3]] == scene.place[a]
        ends = [scene.seams[u][(m + 1) % 3], scene.seams[u][(m + 2) % 3]]
        if [scene.seams[t][(k + 1) % 3], scene.seams[t][(k + 2) % 3]] == (ends if same else ends[::-1]):
            return None
        seam = drawn[1][0]
    p, q = scene.positions[a], scene.positions[b]
    planes = [(0, 0, 1, 1), (0, 0, -1, 1), (1, 0, 0, 1), (-1, 0, 0, 1), (0, 1, 0, 1), (0, -1, 0, 1)]
    low, high = 0.0, 1.0
    for plane in planes:
        d, e = np.dot(plane, p), np.dot(plane, q)
        if not (np.isfinite(d) and np.isfinite(e)) or (d < 0 and e < 0):
            return None
        if d < 0:
            low = max(low, d / (d - e))
        elif e < 0:
            high = min(high, d / (d - e))
    if low >= high:
        return None
    ends = [p + s * (q - p) for s in (low, high)]
    on_screen = [to_pixels(v, scene.width, scene.height) for v in ends]
    start, stop = (v[:2] / v[2] for v in on_screen)
    if np.linalg.norm(stop - start) < 1e-12:
        return None
    direction = stop - start
    normal = sides[0] * np.array([direction[1], -direction[0]]) / np.linalg.norm(direction)
    depths = [v[2] / v[3] for v in ends]
    return {"start": start, "stop": stop, "depths": depths, "normal": normal, "vertices": (int(a), int(b)),
            "side": sides[0], "own": [u for u, _ in corners], "seam": seam,
            "around": triangles_around(scene, corners)}  # fmt: skip


def walk(scene, edge):
    """Pieces in all pixels that the edge crosses."""
    low = np.floor(np.minimum(edge["start"], edge["stop"])).astype(int).clip(0)
    high = np.floor(np.maximum(edge["start"], edge["stop"])).astype(int)
    direction = edge["stop"] - edge["start"]
    length = np.linalg.norm(direction)
    rows = np.arange(low[1], min(high[1], scene.height - 1) + 1)
    columns = np.arange(low[0], min(high[0], scene.width - 1) + 1)
    intervals = []
    for axis, corners in ((0, columns), (1, rows)):
        if direction[axis] == 0:
            # An edge on the line between two pixels belongs to the right or lower one, at the frame to the last.
            size = (scene.width, scene.height)[axis]
            on = min(int(edge["start"][axis]), size - 1) == corners
            intervals.append((np.zeros(len(corners)), np.where(on, 1.0, -1.0)))
        else:
            bounds = (corners + np.array([[0], [1]]) - edge["start"][axis]) / direction[axis]
            intervals.append((bounds.min(0).clip(0, None), bounds.max(0).clip(None, 1)))
    (x0, x1), (y0, y1) = intervals
    t0, t1 = np.maximum(x0, y0[:, None]), np.minimum(x1, y1[:, None])
    i, j = np.nonzero((t1 - t0) * length > SHORTEST)
    t0, t1, i, j = t0[i, j], t1[i, j], i + low[1], j + low[0]
    for k in np.nonzero(~hidden(scene, edge, i, j, t0, t1))[0]:
        pixel = int(i[k]), int(j[k])
        cuts = find_cuts(scene, edge, pixel, t0[k], t1[k])
        for s0, s1 in itertools.pairwise(cuts):
            if (s1 - s0) * length > SHORTEST:
                piece = make_piece(scene, edge, pixel, s0, s1)
                if piece is not None:
                    yield piece


def hidden(scene, edge, i, j, t0, t1):
    """Whether one triangle of the window is in front at both ends, so of all between: spares a look at most pixels."""
    shown = np.stack([scene.padded[i + di, j + dj] for di, dj in itertools.product(range(3), repeat=2)], 1)
    shown[np.isin(shown, edge["own"])] = -1
    result = np.ones((len(i), 9), bool)
    for t in (t0, t1):
        points = edge["start"] + t[:, None] * (edge["stop"] - edge["start"])
        points = np.concatenate([points, np.ones((len(t), 1))], 1)
        z = edge["depths"][0] + t * (edge["depths"][1] - edge["depths"][0])
        result &= np.einsum("pcij,pj->pci", scene.weights[shown], points).min(2) >= 0
        result &= is_in_front(np.einsum("pcj,pj->pc", scene.depths[shown], points), z[:, None])
    return result.any(1)


def around(scene, edge, pixel):
    """The distinct triangles that show around a pixel, and those around the edge in the mesh, but for its own."""
    ids = {int(scene.ids[cell]) for cell in scene.window(pixel)} - {-1} | edge["around"]
    return {t: scene.faces[t] for t in ids - set(edge["own"]) if scene.faces[t] is not None}


def triangles_around(scene, corners):
    """Across the other edges of an edge's own two triangles, and across those of these; those that are drawn."""

    def across_others(t, k):
        for m, key in enumerate(scene.edge_keys(t, scene.triangles[t])):
            if m != k and len(scene.edges[key]) == 2:
                yield next(corner for corner in scene.edges[key] if corner[0] != t)

    near = [corner for t, k in corners[: 2 if len(corners) == 2 else 1] for corner in across_others(t, k)]
    far = [corner for t, k in near for corner in across_others(t, k)]
    return {t for t, _ in [*near, *far] if scene.drawn[t]}


def find_cuts(scene, edge, pixel, t0, t1):
    points = [edge["start"] + t * (edge["stop"] - edge["start"]) for t in (0, 1)]
    cuts = [t0, t1]
    for face in around(scene, edge, pixel).values():
        s0, s1 = t0, t1
        for weight in face["weights"]:
            a, b = at(weight, points[0]), at(weight, points[1])
            if a < b:
                s0 = max(s0, a / (a - b))
            elif a > b:
                s1 = min(s1, a / (a - b))
            elif a < 0:
                s1 = -1
        if s1 <= s0:
            continue
        cuts += [s0, s1]
        a, b = (edge["depths"][k] - at(face["depth"], points[k]) for k in (0, 1))
        if a != b and s0 < a / (a - b) < s1:
            cuts.append(a / (a - b))
    return sorted(c for c in cuts if t0 <= c <= t1)


def make_piece(scene, edge, pixel, s0, s1):
    p, q = (edge["start"] + s * (edge["stop"] - edge["start"]) for s in (s0, s1))
    m, n = (p + q) / 2, edge["normal"]
    z = edge["depths"][0] + (s0 + s1) / 2 * (edge["depths"][1] - edge["depths"][0])
    cells = scene.window(pixel)

    offsets = np.array(cells)[:, ::-1] + 0.5 - m
    ahead = dict(zip(cells, (offsets + SAMPLE) @ n > 0, strict=True))
    distance, distance_behind = (
        dict(zip(cells, ((offsets - side * TO_ITS_SIDE * n - ON_A_LINE) ** 2).sum(1), strict=True)) for side in (-1, 1)
    )

    near = {t: face for t, face in around(scene, edge, pixel).items() if inside(face, m) >= -INSIDE_SLACK}
    if any(is_in_front(at(face["depth"], m), z) for face in near.values()):
        return None
    if scene.exact and is_hidden_by_any(scene, m, z, edge["own"]):
        return None
    here = [(at(face["depth"], m), t) for t, face in near.items() if inside(face, m) > INSIDE_SLACK]
    here = [(depth, t) for depth, t in here if abs(depth) <= 1]
    outer = [c for c in cells if ahead[c] and scene.ids[c] not in edge["own"]]
    if edge["seam"] >= 0:
        back = edge["seam"]
    elif scene.exact:
        back = nearest_of_all(scene, m + SHORTEST * n, edge["own"])
    elif here:
        back = min(here)[1]
    else:
        back = -1
        for nearest in sorted(outer, key=distance_behind.get):
            back = int(scene.ids[nearest])
            face = scene.faces[back] if back >= 0 else None
            if face is None:
                break
            if not ends_before(scene, back, m):
                if at(face["depth"], centre(nearest)) < z:
                    return None
                break
        else:
            back = -1

    own = [c for c in cells if scene.ids[c] in edge["own"] and scene.ids[c] != edge["seam"]]
    inner = [c for c in cells if not ahead[c] and scene.ids[c] >= 0 and scene.ids[c] != edge["seam"]]
    ends = {scene.place[v] for v in edge["vertices"]}
    touching = [c for c in inner if ends & {scene.place[v] for v in scene.triangles[scene.ids[c]]}]
    fronts = own or touching or inner
    backs = [c for c in cells if scene.ids[c] == back]
    if not backs and back >= 0 and edge["seam"] < 0:
        backs = [c for c in cells if scene.ids[c] >= 0 and touch(scene, back, scene.ids[c])]
    backs = backs or [c for c in cells if ahead[c] and c not in own and (back < 0 or scene.ids[c] >= 0)]
    if not fronts or not backs:
        return None

    sample = centre(pixel) + SAMPLE
    offset = (sample - m) @ n
    in_front = offset < 0
    along = np.array([-n[1], n[0]])
    ends_along = sorted(((edge[e] - centre(pixel)) @ along) for e in ("start", "stop"))
    if abs(offset) <= SNAP and ends_along[0] <= -2 * SNAP and ends_along[1] >= 2 * SNAP:
        shown = scene.ids[pixel]
        is_own = shown in edge["own"] and shown != edge["seam"]
        in_front = is_own or (in_front and shown != back)
    area = hidden_area(p - centre(pixel), q - centre(pixel))
    return {"pixel": pixel, "ends": (p, q), "middle": m, "length": np.linalg.norm(q - p),
            "area": area if in_front else -area,
            "front": min(fronts, key=distance.get), "back": min(backs, key=distance_behind.get),
            "edge": edge["vertices"], "side": edge["side"]}  # fmt: skip


def is_in_front(depth, z):
    """What lies before the near plane hides nothing."""
    return (depth < z - DEPTH_SLACK) & (depth >= -1)


def is_hidden_by_any(scene, m, z, own):
    inside, depth = seen_at(scene, m, own)
    return bool(((inside >= -INSIDE_SLACK) & is_in_front(depth, z)).any())


def nearest_of_all(scene, m, own):
    inside, depth = seen_at(scene, m, own)
    depth = np.where((inside >= 0) & (np.abs(depth) <= 1), depth, np.inf)
    return int(depth.argmin()) if np.isfinite(depth.min(initial=np.inf)) else -1


def seen_at(scene, m, own):
    """Smallest weight and depth of every triangle at a point; NaN for those that are not drawn, and for `own`."""
    point = np.array([m[0], m[1], 1.0])
    inside, depth = (scene.weights[:-1] @ point).min(1), scene.depths[:-1] @ point
    gone = ~np.array(scene.drawn, bool)
    gone[list(own)] = True
    return np.where(gone, np.nan, inside), depth


def ends_before(scene, triangle, m):
    """Whether m lies beyond an edge of the triangle at which its surface ends: a border or a fold."""
    keys = scene.edge_keys(triangle, scene.triangles[triangle])
    for k, weight in enumerate(scene.faces[triangle]["weights"]):
        if at(weight, m) < -INSIDE_SLACK:
            corners = scene.edges[keys[k]]
            sides, _ = scene.sides(corners)
            if len(corners) <= 2 and len(set(sides)) == 1:
                return True
    return False


def hidden_area(p, q):
    """Area of the part of the pixel that is behind the segment, seen from the sample: a sector less a triangle."""
    a, b = ((v - SAMPLE if np.abs(v).max() < NEAR_SAMPLE else v).tolist() for v in (p, q))
    turn, double_triangle = a[0] * b[1] - a[1] * b[0], p[0] * q[1] - p[1] * q[0]
    if turn == 0 and a[0] * b[0] + a[1] * b[1] >= 0:
        return 0.0
    if turn < 0:
        a, b, double_triangle = b, a, -double_triangle
    sector = [(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)]
    for end, sign in ((a, 1), (b, -1)):
        sector = cut(sector, (0.0, 0.0), end, sign)
    edges = zip(sector, sector[1:] + sector[:1], strict=True)
    return max(0.0, (abs(sum(float(u[0] * v[1] - u[1] * v[0]) for u, v in edges)) - float(double_triangle)) / 2)


def cut(polygon, a, b, sign):
    """The part of a convex polygon on one side of the line through a and b."""
    x, y = b[0] - a[0], b[1] - a[1]
    values = [sign * (x * (w[1] - a[1]) - y * (w[0] - a[0])) for w in polygon]
    kept = []
    for i, u in enumerate(polygon):
        k = (i + 1) % len(polygon)
        v, d, e = polygon[k], values[i], values[k]
        if d >= 0:
            kept.append(u)
        if (d < 0) != (e < 0):
            t = d / (d - e)
            kept.append((u[0] + t * (v[0] - u[0]), u[1] + t * (v[1] - u[1])))
    return kept


# --- crossings ------------------------------------------------------------------------------------


def crossing_pieces(scene):
    marked = set()
    for axis in (0, 1):
        for pixel in zip(*(x.tolist() for x in np.nonzero(np.diff(scene.ids, axis=axis))), strict=True):
            other = (pixel[0] + 1, pixel[1]) if axis == 0 else (pixel[0], pixel[1] + 1)
            f, g = int(scene.ids[pixel]), int(scene.ids[other])
            if f < 0 or g < 0 or scene.faces[f] is None or scene.faces[g] is None or touch(scene, f, g):
                continue
            difference = scene.faces[f]["depth"] - scene.faces[g]["depth"]
            before, after = at(difference, centre(pixel)), at(difference, centre(other))
            if not (before <= 0 <= after and before < after):
                continue
            meeting = centre(pixel) + before / (before - after) * (centre(other) - centre(pixel))
            if all(inside(scene.faces[t], meeting) >= -INSIDE_SLACK for t in (f, g)):
                marked |= set(scene.window(pixel)) & set(scene.window(other))
    for pixel in sorted(marked):
        shown = list(dict.fromkeys(int(scene.ids[c]) for c in [pixel, *scene.window(pixel)] if scene.ids[c] >= 0))
        shown = [t for t in shown if scene.faces[t] is not None]
        for f, g in itertools.combinations(shown, 2):
            piece = None if touch(scene, f, g) else crossing(scene, pixel, f, g, shown)
            if piece is not None:
                yield piece


def touch(scene, f, g):
    return bool({scene.place[v] for v in scene.triangles[f]} & {scene.place[v] for v in scene.triangles[g]})


def crossing(scene, pixel, f, g, shown):
    difference = scene.faces[f]["depth"] - scene.faces[g]["depth"]
    slope = np.linalg.norm(difference[:2])
    value = at(difference, centre(pixel))
    if slope <= 1e-14 or abs(value) > 0.75 * slope:
        return None
    n = difference[:2] / slope
    foot, along = centre(pixel) - value / slope * n, np.array([-n[1], n[0]])
    i, j = pixel
    borders = [np.array(b, float) for b in ((1, 0, -j), (-1, 0, j + 1), (0, 1, -i), (0, -1, i + 1))]
    t0, t1 = -2.0, 2.0
    for function in [*borders, *scene.faces[f]["weights"], *scene.faces[g]["weights"]]:
        rate, start = function[:2] @ along, at(function, foot)
        if rate > 0:
            t0 = max(t0, -start / rate)
        elif rate < 0:
            t1 = min(t1, -start / rate)
        elif start < 0:
            return None
    if t1 - t0 <= SHORTEST:
        return None
    m = foot + (t0 + t1) / 2 * along
    z = at(scene.faces[f]["depth"], m)
    if scene.exact and is_hidden_by_any(scene, m, z, (f, g)):
        return None
    others = [scene.faces[t] for t in shown if t not in (f, g)]
    if any(inside(face, m) >= 0 and at(face["depth"], m) < z - DEPTH_SLACK for face in others):
        return None

    def nearest(t, side):
        cells = [c for c in scene.window(pixel) if scene.ids[c] == t]
        return min(cells, key=lambda c: np.sum((centre(c) - (m + side * TO_ITS_SIDE * n + ON_A_LINE)) ** 2))

    p, q = foot + t0 * along, foot + t1 * along
    area = hidden_area(p - centre(pixel), q - centre(pixel))
    in_front = scene.ids[pixel] == f if scene.ids[pixel] in (f, g) else value < 0
    return {"pixel": pixel, "ends": (p, q), "middle": m, "length": t1 - t0, "slope": slope,
            "area": area if in_front else -area,
            "front": nearest(f, -1), "back": nearest(g, 1), "faces": (f, g)}  # fmt: skip


# --- colours --------------------------------------------------------------------------------------


def color_jumps(image, scene, pieces):
    """(N, C) colour in front minus colour behind, both carried on to the middle of the piece."""
    middle = np.array([piece["middle"] for piece in pieces])
    front, back = (np.array([piece[side] for piece in pieces]) for side in ("front", "back"))
    jump = image[tuple(front.T)] - image[tuple(back.T)]
    for pixels, sign in ((front, 1), (back, -1)):
        change = carried(image, scene, pixels, middle)
        small = (
            np.linalg.norm(change, axis=1) <= np.linalg.norm(image[tuple(front.T)] - image[tuple(back.T)], axis=1) / 2
        )
        jump = jump + np.where(small[:, None], sign * change, 0)
    return jump


def carried(image, scene, pixels, m):
    """How the colours of pixels change from their centres to m, along the line through the next pixel away from m."""
    d = pixels[:, ::-1] + 0.5 - m
    longest = np.abs(d).max(1)
    step = np.where(np.abs(d) > 0.41 * longest[:, None], np.sign(d), 0).astype(int)
    far = pixels + step[:, ::-1]
    ok = (longest > 1e-6) & (far >= 0).all(1) & (far < image.shape[:2]).all(1)
    far = np.where(ok[:, None], far, pixels)
    f, g = scene.ids[tuple(pixels.T)], scene.ids[tuple(far.T)]
    ok &= (f >= 0) & (g >= 0)
    f, g = f.clip(0), g.clip(0)
    if scene.seams is not None:
        places = np.array(scene.place)[scene.triangles] * (int(scene.seams.max()) + 1) + scene.seams
        ok &= (f == g) | (places[f][:, :, None] == places[g][:, None]).any((1, 2))
    planes = scene.depths[f], scene.depths[g]
    slopes = sum(np.linalg.norm(plane[:, :2], axis=1) for plane in planes)
    far_depth, depth = (
        ((cells[:, ::-1] + 0.5) * plane[:, :2]).sum(1) + plane[:, 2]
        for cells, plane in ((far, planes[1]), (pixels, planes[0]))
    )
    rise = far_depth - depth
    ok &= (f == g) | (np.abs(rise) <= 1.5 * slopes + DEPTH_SLACK)
    weight = -(d * step).sum(1) / np.maximum((step * step).sum(1), 1)
    return np.where(ok[:, None], weight[:, None] * (image[tuple(far.T)] - image[tuple(pixels.T)]), 0)
