"""Reference rasterizer: visibility in NumPy, then barycentrics, depth and derivatives as plain torch in float64.

Visibility is decided triangle by triangle in the steps that docs/conventions.md fixes: clip, project, snap to 1/256
pixel, exact integer edge functions with the top-left rule, smallest key wins. Cuts are made in float64 and rounded to
the scalar type of the input (`scalar`), and corners are snapped in that type, so that coverage can be compared bit for
bit; keys are always float64.
The differentiable part takes the triangle ids as given and follows the homogeneous formula, so autograd of it is the
truth for the hand-written backward.

Points that the definition leaves open, as decided here:
  * Sutherland-Hodgman visits the edges (a, b) of the polygon in order; it emits a if a is inside (distance >= 0), then
    the cut point if exactly one of a, b is inside. The fan is taken from the first emitted vertex.
  * A triangle of which the clipping leaves a corner that cannot be projected (w = 0, or overflow on the way) draws
    nothing.
  * `cull` looks at the snapped orientation of each fan triangle on its own.
Not handled: speed.
"""

from typing import NamedTuple

import numpy as np
import torch

from tests.support.device import from_numpy, to_numpy

SUBPIXELS = 256


class Fragments(NamedTuple):
    """Same fields as diffrender.Fragments, floats in float64."""

    triangle_id: torch.Tensor
    barycentrics: torch.Tensor
    depth: torch.Tensor
    derivatives: torch.Tensor | None


# --- projection, clipping, coverage ---------------------------------------------------------------


def guard_factor(height, width, scalar):
    """Factor G: x and y beyond G w are clipped, so that snapped coordinates stay below about 2^30."""
    return scalar(2**22) / scalar(max(height, width))


def is_inside(corner, guard):
    """True where a corner (x, y, z, w) can be projected as it is: between near and far, and in the guard band."""
    x, y, z, w = corner
    return w > 0 and abs(z) <= w and abs(x) <= guard * w and abs(y) <= guard * w


def clip_polygon(corners, guard):
    """Sutherland-Hodgman against near, far and the four guard planes; corners are 4-vectors of float64."""
    planes = (
        lambda p: p[2] + p[3],
        lambda p: p[3] - p[2],
        lambda p: guard * p[3] + p[0],
        lambda p: guard * p[3] - p[0],
        lambda p: guard * p[3] + p[1],
        lambda p: guard * p[3] - p[1],
    )
    polygon = list(corners)
    for distance in planes:
        clipped = []
        for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            distance_a, distance_b = distance(a), distance(b)
            if distance_a >= 0:
                clipped.append(a)
            if (distance_a >= 0) != (distance_b >= 0):
                # Always from the inside end, so that both triangles of an edge get the same point.
                if distance_a >= 0:
                    clipped.append(a + distance_a / (distance_a - distance_b) * (b - a))
                else:
                    clipped.append(b + distance_b / (distance_b - distance_a) * (a - b))
        polygon = clipped
    return polygon


def can_be_projected(corner, guard):
    """Rounding may leave a cut point a hair outside of the guard band, hence the factor two."""
    x, y, _, w = corner
    return np.isfinite(corner).all() and w > 0 and abs(x) <= 2 * guard * w and abs(y) <= 2 * guard * w


def snap(corner, height, width, scalar):
    """Position in 1/256 pixels (X right, Y down) as Python integers."""
    x, y, _, w = corner
    half_width, half_height = scalar(width) / scalar(2), scalar(height) / scalar(2)
    snapped_x = np.rint((x / w * half_width + half_width) * scalar(SUBPIXELS))
    snapped_y = np.rint((half_height - y / w * half_height) * scalar(SUBPIXELS))
    return int(snapped_x), int(snapped_y)


def snapped_triangles(corners, height, width, scalar):
    """The screen triangles, each three snapped points, that one clip-space triangle (3, 4) is drawn as."""
    corners = np.asarray(corners, dtype=scalar)
    if not np.isfinite(corners).all():
        return []
    guard = guard_factor(height, width, scalar)
    polygon = list(corners)
    with np.errstate(all="ignore"):  # overflow and 0/0 are told by their result
        if not all(is_inside(corner, guard) for corner in polygon):
            polygon = clip_polygon(corners.astype(np.float64), np.float64(guard))
            polygon = [corner.astype(scalar) for corner in polygon]
        if not all(can_be_projected(corner, guard) for corner in polygon):
            return []
        points = [snap(corner, height, width, scalar) for corner in polygon]
    return [(points[0], points[k], points[k + 1]) for k in range(1, len(points) - 1)]


def covered_pixels(points, height, width):
    """Bool (H, W): pixel centres inside one snapped triangle by exact edge functions and the top-left rule."""
    covered = np.zeros((height, width), dtype=bool)
    area = doubled_area(points)
    if area == 0:
        return covered
    if area < 0:
        points = (points[0], points[2], points[1])
    columns, rows = np.arange(width, dtype=np.int64), np.arange(height, dtype=np.int64)
    pixel_x = (SUBPIXELS * columns + SUBPIXELS // 2)[None, :]
    pixel_y = (SUBPIXELS * rows + SUBPIXELS // 2)[:, None]
    covered[:] = True
    for (ax, ay), (bx, by) in zip(points, (points[1], points[2], points[0]), strict=True):
        dx, dy = bx - ax, by - ay
        edge = dx * (pixel_y - ay) - dy * (pixel_x - ax)
        is_top_or_left = (dy == 0 and dx > 0) or dy < 0  # y is down and the interior is where the function is positive
        covered &= (edge >= 0) if is_top_or_left else (edge > 0)
    return covered


def doubled_area(points):
    """Twice the signed area with y down: positive is clockwise on screen."""
    (x0, y0), (x1, y1), (x2, y2) = points
    return (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)


def triangle_coverage(corners, height, width, scalar, cull=None):
    """Bool (H, W): pixels that one clip-space triangle (3, 4) may be visible at, before any depth test."""
    covered = np.zeros((height, width), dtype=bool)
    for points in snapped_triangles(corners, height, width, scalar):
        is_front = doubled_area(points) < 0
        if (cull == "back" and not is_front) or (cull == "front" and is_front):
            continue
        covered |= covered_pixels(points, height, width)
    return covered


# --- depth order ----------------------------------------------------------------------------------


def pixel_centres(height, width):
    """NDC coordinates of pixel centres: fx (W,) to the right, fy (H,) falling from the top row."""
    return (2 * np.arange(width) + 1) / width - 1, 1 - (2 * np.arange(height) + 1) / height


def visibility_key(corners, fx, fy, height, width, scalar):
    """Depth that orders surfaces, float64: corners (..., 3, 4), fx and fy broadcastable against the leading axes.

    The formula value of the depth, clamped to the depths of the corners where the triangle was not clipped: the plane
    of an almost edge-on sliver otherwise punches through everything in front of it.
    """
    native = np.asarray(corners, dtype=scalar)
    x, y, z, w = (native[..., i].astype(np.float64) for i in range(4))
    with np.errstate(all="ignore"):  # corners may be anything; a key of NaN is dropped by who asks
        qx, qy = x - np.asarray(fx)[..., None] * w, y - np.asarray(fy)[..., None] * w
        a = [qx[..., i] * qy[..., j] - qy[..., i] * qx[..., j] for i, j in ((1, 2), (2, 0), (0, 1))]
        denominator = a[0] * w[..., 0] + a[1] * w[..., 1] + a[2] * w[..., 2]
        usable = ~(np.abs(denominator) < np.finfo(scalar).tiny)
        key = (a[0] * z[..., 0] + a[1] * z[..., 1] + a[2] * z[..., 2]) / np.where(usable, denominator, 1.0)
        key = np.where(usable, key, 0.0)
        guard = guard_factor(height, width, scalar)
        nx, ny, nz, nw = (native[..., i] for i in range(4))
        inside = (nw > 0) & (np.abs(nz) <= nw) & (np.abs(nx) <= guard * nw) & (np.abs(ny) <= guard * nw)
        corner_depth = z / np.where(w == 0, 1.0, w)
        clamped = np.clip(key, corner_depth.min(-1), corner_depth.max(-1))
    return np.where(inside.all(-1), clamped, key)


def visible_triangles(clip_positions, triangles, resolution, *, ranges=None, cull=None, beneath=None, scalar=None):
    """Triangle per pixel and the lead of the winner: triangle_id (B, H, W) int32, margin (B, H, W) float64.

    `margin` is the key of the runner-up minus that of the winner, inf where nothing else covers the pixel.
    beneath is a triangle_id (B, H, W).
    """
    height, width = resolution
    scalar = scalar or {torch.float32: np.float32, torch.float64: np.float64}[clip_positions.dtype]
    positions = to_numpy(batched(clip_positions, ranges)).astype(scalar)
    triangles = to_numpy(triangles)
    batch = positions.shape[0]
    fx, fy = pixel_centres(height, width)
    fy, fx = np.meshgrid(fy, fx, indexing="ij")

    triangle_id = np.full((batch, height, width), -1, dtype=np.int32)
    margin = np.full((batch, height, width), np.inf)
    for item in range(batch):
        first, count = (0, len(triangles)) if ranges is None else (int(n) for n in ranges[item])
        best, second = np.full((height, width), np.inf), np.full((height, width), np.inf)
        if beneath is not None:
            over_id = to_numpy(beneath[item])
            over_corners = positions[item][triangles[np.maximum(over_id, 0)]]
            over_key = visibility_key(over_corners, fx, fy, height, width, scalar)
        for t in range(first, first + count):
            corners = positions[item][triangles[t]]
            covered = triangle_coverage(corners, height, width, scalar, cull)
            rows, columns = np.nonzero(covered)
            if len(rows) == 0:
                continue
            key = np.full((height, width), np.nan)
            key[rows, columns] = visibility_key(
                corners[None], fx[rows, columns], fy[rows, columns], height, width, scalar
            )
            visible = (key >= -1) & (key <= 1)
            if beneath is not None:
                visible &= (over_id >= 0) & ((key > over_key) | ((key == over_key) & (t > over_id)))
            wins = visible & (key < best)
            second = np.where(wins, best, np.where(visible & (key < second), key, second))
            best = np.where(wins, key, best)
            triangle_id[item][wins] = t
        hit = triangle_id[item] >= 0
        margin[item][hit] = second[hit] - best[hit]
    return from_numpy(triangle_id), from_numpy(margin)


# --- differentiable part --------------------------------------------------------------------------


def fragment_values(clip_positions, triangles, triangle_id, derivatives=False):
    """Barycentrics, depth and derivatives of given triangle ids as plain torch in float64.

    The derivatives come from autograd with respect to the pixel centre, not from a formula of their own.
    """
    dtype = clip_positions.dtype
    tiny = torch.finfo(dtype).tiny
    batch, height, width = triangle_id.shape
    positions = clip_positions.double()
    positions = positions.expand(batch, *positions.shape[-2:])
    item, row, column = torch.nonzero(triangle_id >= 0, as_tuple=True)
    corners = positions[item[:, None], triangles.long()[triangle_id[item, row, column].long()]]  # (P, 3, 4)
    x, y, z, w = corners.unbind(-1)

    with torch.enable_grad():
        fx = ((2 * column.double() + 1) / width - 1).requires_grad_(derivatives)
        fy = (1 - (2 * row.double() + 1) / height).requires_grad_(derivatives)
        qx, qy = x - fx[:, None] * w, y - fy[:, None] * w
        a = torch.stack([qx[:, i] * qy[:, j] - qy[:, i] * qx[:, j] for i, j in ((1, 2), (2, 0), (0, 1))], dim=-1)
        b0, b1 = safe_ratio(a[:, 0], a.sum(-1), tiny), safe_ratio(a[:, 1], a.sum(-1), tiny)
        depth = safe_ratio((a * z).sum(-1), (a * w).sum(-1), tiny)
        steps = []
        if derivatives:
            for b in (b0, b1):
                per_fx, per_fy = torch.autograd.grad(b.sum(), (fx, fy), create_graph=True)
                steps += [per_fx * (2 / width), per_fy * (-2 / height)]  # one pixel right, one pixel down

    def image(background, *channels):
        values = torch.stack(channels, -1)
        if not clip_positions.requires_grad:
            values = values.detach()
        empty = torch.full((batch, height, width, len(channels)), background, dtype=torch.float64)
        return empty.index_put((item, row, column), values)

    barycentrics, depth = image(0.0, b0, b1), image(1.0, depth)[..., 0]
    return Fragments(triangle_id, barycentrics, depth, image(0.0, *steps) if derivatives else None)


def gradient_share(fragments, least_width):
    """(B, H, W) factor of a pixel's gradient: a barycentric that goes from 0 to 1 over `width` pixels, the least one of
    the three, leaves width / least_width of it, at most all; less by the largest barycentric beyond 1 in magnitude."""
    if least_width == 0:
        return torch.ones_like(fragments.depth)
    slopes = fragments.derivatives.detach().unflatten(-1, (2, 2))
    slopes = torch.cat([slopes, -slopes.sum(-2, keepdim=True)], -2)
    width = 1 / slopes.norm(dim=-1).amax(-1)  # infinite on background
    weights = fragments.barycentrics.detach()
    weights = torch.cat([weights, 1 - weights.sum(-1, keepdim=True)], -1)
    width = width / weights.abs().amax(-1).clamp(min=1)
    return (width / least_width).clamp(max=1)


def slowed(values, positions, triangles, triangle_id, least_width):
    """A function of the floats of fragments whose derivative at `positions` is that of fragments with `least_width`.

    It moves away from `values`, the floats at `positions`, by shares of how far its argument does; the shares are
    constants. So finite differences and autograd of it have the derivative to compare with. Where the argument already
    has the gradient of `least_width` (`has_it`), its value is changed alone.
    """
    share = gradient_share(fragment_values(positions, triangles, triangle_id, True), least_width)
    shares = [share.reshape(*share.shape, *[1] * (x.dim() - 3)) for x in values]

    def take(floats, has_it, rows=slice(None)):
        results = []
        for x, whole_start, whole_part in zip(floats, values, shares, strict=True):
            start, part = whole_start[:, rows], whole_part[:, rows]
            slow = start.to(x) + part.to(x) * (x - start.to(x))
            results.append(x + (slow - x).detach() if has_it else slow)
        return tuple(results)

    return take


def safe_ratio(numerator, denominator, tiny):
    """numerator / denominator, and 0 with zero gradient where the denominator is below the smallest normal number."""
    usable = denominator.abs() >= tiny
    return torch.where(usable, numerator, 0.0) / torch.where(usable, denominator, 1.0)


def rasterize(clip_positions, triangles, resolution, *, ranges=None, cull=None, beneath=None, derivatives=False):
    """Reference of diffrender.rasterize: float64 results, `beneath` takes Fragments of either kind."""
    over_id = None if beneath is None else beneath.triangle_id
    triangle_id, _ = visible_triangles(clip_positions, triangles, resolution, ranges=ranges, cull=cull, beneath=over_id)
    return fragment_values(clip_positions, triangles, triangle_id, derivatives)


def batched(clip_positions, ranges):
    """(B, V, 4) view of positions that may be shared by all items."""
    if clip_positions.dim() == 3:
        return clip_positions
    return clip_positions.expand(1 if ranges is None else len(ranges), *clip_positions.shape)
