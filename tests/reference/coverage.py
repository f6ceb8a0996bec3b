"""Reference coverage: exact areas and centroids by slabs between vertical lines, plain torch in float64.

A pixel is cut by vertical lines through every point where two lines of its arrangement meet: edges of triangles, near
and far planes, lines of equal depth of two triangles, pixel sides. Between two such lines the arrangement is the same
at every u, and what the pixel shows of a triangle is a set of trapezoids, each between two lines of the arrangement.
Their moments are integrals over u of polynomials of degree at most 2, so the two-point Gauss rule is exact, and at a
node u everything is a sorted list of crossings v and one visible triangle between each two of them. Autograd of the
sums is the truth for the hand-written derivative: it shares no step with the kernels' clipping of polygons.

As in the kernels the lines between pixels lie 1e-11 of a pixel further right and down, so that edges of whole pixel
coordinates are inside of one pixel; the border of the frame does not.

Not handled: speed, `merge_adjacent`.
"""

import torch

import diffrender as dr

GRID_SHIFT = 1e-11
TIE = 1e-12  # depths closer than this are equal: the lowest index wins


def coverage(clip_positions, triangles, size, *, ranges=None, cull=None):
    """dr.Coverage in float64."""
    positions = clip_positions.double()
    positions = positions if positions.dim() == 3 else positions[None]
    height, width = size
    batch = len(positions) if ranges is None else len(ranges)
    parts, counts = [], torch.zeros(batch * height * width, dtype=torch.int64)
    for item in range(batch):
        first, count = (0, len(triangles)) if ranges is None else (int(k) for k in ranges[item])
        ids = torch.arange(first, first + count)
        vertices = positions[item % len(positions)][triangles.long()[ids]]
        flat = vertices[..., [0, 1, 3]]
        determinant = torch.det(flat).detach()
        keep = torch.isfinite(vertices).all(-1).all(-1) & (determinant != 0)
        if cull is not None:
            keep &= determinant > 0 if cull == "back" else determinant < 0
        ids, vertices = ids[keep], vertices[keep]
        for row in range(height):
            for column in range(width):
                found = pixel_fragments(ids, vertices, size, row, column)
                counts[(item * height + row) * width + column] = len(found[0])
                parts.append(found)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    triangle_id, weight, barycentrics, depth = (torch.cat(x) for x in zip(*parts, strict=True))
    return dr.Coverage(triangle_id.int(), weight, barycentrics, depth, offsets, (batch, height, width))


def pixel_fragments(ids, vertices, size, row, column):
    """(ids, weights, barycentrics, depths) of the triangles that one pixel shows. vertices: (T, 3, 4)."""
    height, width = size
    x, y, z, w = vertices.unbind(-1)
    q = torch.stack(
        [x * width / 2 + (width / 2 - column - 0.5) * w, -y * height / 2 + (height / 2 - row - 0.5) * w, w], -1
    )
    edges = torch.cross(q.roll(-1, 1), q.roll(-2, 1), dim=-1)  # (T, 3, 3): line i through the other two corners
    determinant = (q[:, 0] * edges[:, 0]).sum(-1)
    edges = edges / determinant[:, None, None]
    depth = (z[..., None] * edges).sum(1)  # (T, 3)
    one = torch.tensor([0.0, 0.0, 1.0], dtype=q.dtype)
    sides = torch.cat([edges, (depth + one)[:, None], (one - depth)[:, None]], 1)  # (T, 5, 3), >= 0 inside
    with torch.no_grad():
        reach = sides[..., 2] + 0.5 * (sides[..., 0].abs() + sides[..., 1].abs())
        near = (reach > 0).all(-1)
    ids, sides, depth, edges = ids[near], sides[near], depth[near], edges[near]
    count = len(ids)
    if count == 0:
        return ids, q.new_zeros(0), q.new_zeros(0, 2), q.new_zeros(0)
    left, top = (-0.5 + GRID_SHIFT * (k > 0) for k in (column, row))
    right, bottom = (0.5 + GRID_SHIFT * (k + 1 < n) for k, n in ((column, width), (row, height)))
    area, first = slab_moments(sides, depth, left, right, top, bottom)
    seen = area.detach() > 1e-14
    ids, area, first, edges, depth = ids[seen], area[seen], first[seen], edges[seen], depth[seen]
    middle = torch.cat([first / area[:, None], torch.ones_like(area)[:, None]], 1)
    e = (edges * middle[:, None]).sum(-1)
    return ids, area / ((right - left) * (bottom - top)), (e / e.sum(-1, keepdim=True))[:, :2], (depth * middle).sum(-1)


def slab_moments(sides, depth, left, right, top, bottom):
    """Visible area (N,) and first moments (N, 2) of N triangles in a rectangle."""
    count = len(depth)
    i, j = torch.triu_indices(count, count, 1)
    frame = torch.tensor([[0, 1, -top], [0, 1, -bottom]], dtype=depth.dtype)
    lines = torch.cat([sides.reshape(-1, 3), depth[i] - depth[j], frame])
    own = torch.arange(count).repeat_interleave(5)
    first_owner = torch.cat([own, i, torch.tensor([-1, -1])])  # a line matters where it lies in its owners
    second_owner = torch.cat([own, j, torch.tensor([-1, -1])])
    margin = torch.cat([torch.full((5 * count,), -1e-9), torch.full((len(i),), 1e-9), torch.zeros(2)])
    with torch.no_grad():  # lines that miss the pixel cross nothing in it
        reach = 0.5 * (lines[:, 0].abs() + lines[:, 1].abs())
        flat = torch.zeros(len(lines), dtype=torch.bool)  # depths that agree everywhere have no line of equal depth
        terms = depth.abs().sum(-1)
        flat[5 * count : -2] = reach[5 * count : -2] < 1e-9 * (terms[i] + terms[j])
        lines_kept = (lines[:, 2].abs() <= reach * (1 + 1e-9)) & ~flat
    lines, first_owner, second_owner = lines[lines_kept], first_owner[lines_kept], second_owner[lines_kept]
    margin = margin[lines_kept].to(depth.dtype)
    a, b, c = lines.unbind(-1)
    k, m = torch.triu_indices(len(lines), len(lines), 1)
    cross = a[k] * b[m] - a[m] * b[k]
    length = lines[:, :2].detach().norm(dim=-1)
    meets = cross.detach().abs() > 1e-9 * length[k] * length[m]  # neighbours see the same line twice, up to rounding
    k, m, cross = k[meets], m[meets], cross[meets]
    u = (b[k] * c[m] - b[m] * c[k]) / cross
    # Lines that meet in one point may part when a corner moves: one breakpoint for all of them, so that the end of one
    # slab is the beginning of the next in the derivative too.
    u = u[(u.detach() > left + 1e-12) & (u.detach() < right - 1e-12)].sort().values
    u = u[torch.cat([u.new_ones(1), u.detach().diff()])[: len(u)] > 1e-12]
    ends = torch.tensor([left, right], dtype=depth.dtype)
    u = torch.cat([ends[:1], u, ends[1:]])
    half, centre = (u[1:] - u[:-1]) / 2, (u[1:] + u[:-1]) / 2
    nodes = torch.cat([centre - half / 3**0.5, centre + half / 3**0.5])
    weights = torch.cat([half, half])

    steep = b.detach().abs() <= 1e-14 * a.detach().abs()
    slope = torch.where(steep, torch.ones_like(b), b)
    v = torch.where(steep, torch.full_like(b, 9.0), -(a * nodes[:, None] + c) / slope)
    with torch.no_grad():
        points = torch.stack([nodes[:, None].expand_as(v), v, torch.ones_like(v)], -1)
        matters = torch.ones_like(v, dtype=torch.bool)
        for owner in (first_owner, second_owner):
            lies_in = torch.einsum("glk,lsk->gls", points, sides[owner]).amin(-1) >= margin
            matters &= lies_in | (owner < 0)
    v = torch.where(matters, v, 9.0)
    v = v.clamp(top, bottom)
    v = v.sort(-1).values
    low, high = v[:, :-1], v[:, 1:]
    with torch.no_grad():
        points = torch.stack([nodes[:, None].expand_as(low), (low + high) / 2, torch.ones_like(low)], -1)
        inside = (torch.einsum("gik,tsk->gits", points, sides) >= 0).all(-1)
        at = torch.einsum("gik,tk->git", points, depth).masked_fill(~inside, torch.inf)
        nearest = at.min(-1, keepdim=True).values
        front = ((at <= nearest + TIE) & inside).int().argmax(-1)
        front = torch.where(inside.any(-1), front, count)
    shown = torch.nn.functional.one_hot(front, count + 1)[..., :count].to(depth.dtype)
    height = (high - low) * weights[:, None]
    area = torch.einsum("gi,git->t", height, shown)
    first_u = torch.einsum("gi,git->t", height * nodes[:, None], shown)
    first_v = torch.einsum("gi,git->t", height * (high + low) / 2, shown)
    return area, torch.stack([first_u, first_v], -1)
