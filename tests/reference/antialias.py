"""Reference of antialias(method="pairs"): the owner and the edge of a pair are constants, its weight
is plain torch in float64, so autograd of it is the truth for the hand-written backward.

The edge is found by walking from the owner's centre to the other centre over the mesh: out of the owner through its
exit edge; if that is an inner edge, into the triangle across and out of that one, until a silhouette is reached.

Points that the definition leaves open, as decided here:
  * With f_k = s e_k (positive inside, whatever the winding) edge k can be the exit where f_k falls along u; it is
    crossed at t_k = f_k(0) / (f_k(0) - f_k(u)). Of those with t_k >= -1/16 the smallest is the exit, of equal ones the
    lowest k. Snapping moves coverage by up to 1/256 pixel, so t_k may lie a hair outside of [0, 1]: the weight goes on
    growing there. Further behind lie edges that run along the pair; beyond 1 + 1/16 the other centre is inside of
    the triangle: the pair is inactive.
  * A walk that comes to the other pixel's triangle, or looks at more than 16 triangles, is inactive.
  * An edge that projects to no line (l_x = l_y = 0) gives weight 0.
  * sign(0) is 0, so an opposite vertex exactly in the plane of eye and edge makes no silhouette.
"""

import numpy as np
import torch

from tests.reference.rasterize import visibility_key
from tests.support.device import from_numpy, to_numpy

CROSSING_SLACK = 1 / 16  # pixels
WALK_LIMIT = 16  # triangles


def antialias(image, fragments, clip_positions, triangles, topology):
    """Blended image (B, H, W, C) in float64; image and clip_positions (B, V, 4) or (V, 4) may require grad."""
    triangle_id = fragments.triangle_id
    batch, height, width = triangle_id.shape
    scalar = {torch.float32: np.float32, torch.float64: np.float64}[clip_positions.dtype]
    positions = clip_positions.double().expand(batch, *clip_positions.shape[-2:])
    image = image.double()

    receiver, giver, weight = [], [], []
    for axis in (0, 1):
        pairs = neighbour_pairs(triangle_id, axis)
        owner, other, direction = choose_owner(pairs, triangle_id, positions, triangles, scalar)
        alpha = pair_weight(owner, other, direction, axis, triangle_id, positions, triangles, topology)
        to_owner = (alpha >= 0)[:, None]
        receiver.append(torch.where(to_owner, owner, other))
        giver.append(torch.where(to_owner, other, owner))
        # Not abs(): an edge half way between the centres has weight 0 but moves.
        weight.append(torch.where(alpha >= 0, alpha, -alpha))
    receiver, giver, weight = torch.cat(receiver), torch.cat(giver), torch.cat(weight)

    # Convex mix: the weights that a pixel receives are scaled down where they add up to more than one.
    total = torch.zeros(batch, height, width, dtype=torch.float64).index_put(index(receiver), weight, accumulate=True)
    share = weight / total.clamp(min=1)[index(receiver)]
    difference = image[index(giver)] - image[index(receiver)]
    return image.index_put(index(receiver), share[:, None] * difference, accumulate=True)


def index(pixels):
    """Columns of an (N, 3) list of pixels (item, row, column), to index images with."""
    return tuple(pixels.unbind(-1))


def neighbour_pairs(triangle_id, axis):
    """Pixels (N, 2, 3) of all neighbours with different ids; axis 0 = left and right, axis 1 = upper and lower."""
    step = torch.tensor([0, 0, 1] if axis == 0 else [0, 1, 0])
    a, b = (triangle_id[:, :, :-1], triangle_id[:, :, 1:]) if axis == 0 else (triangle_id[:, :-1], triangle_id[:, 1:])
    first = torch.nonzero(a != b)
    return torch.stack([first, first + step], 1)


def choose_owner(pairs, triangle_id, positions, triangles, scalar):
    """Owner and other pixel (N, 3) of each pair, and +1 where the owner is the first (left, upper) one, else -1."""
    height, width = triangle_id.shape[1:]
    ids = triangle_id[index(pairs.flatten(0, 1))].reshape(-1, 2)
    item, row, column = (to_numpy(n) for n in index(pairs))
    corners = to_numpy(positions)[item[..., None], to_numpy(triangles)[to_numpy(ids.clamp(min=0))]]
    fx, fy = (2 * column + 1) / width - 1, 1 - (2 * row + 1) / height
    key = from_numpy(visibility_key(corners, fx, fy, height, width, scalar))
    key = torch.where(ids >= 0, key, torch.inf)
    first_owns = (key[:, 0] < key[:, 1]) | ((key[:, 0] == key[:, 1]) & (ids[:, 0] < ids[:, 1]))
    chosen = torch.where(first_owns[:, None, None], pairs, pairs.flip(1))
    return chosen[:, 0], chosen[:, 1], torch.where(first_owns, 1.0, -1.0).double()


def pair_weight(owner, other, direction, axis, triangle_id, positions, triangles, topology):
    """Signed weight alpha (N,) of each pair: differentiable, 0 where the pair is inactive."""
    size = triangle_id.shape[1:]
    with torch.no_grad():
        ids = triangle_id[index(owner)].long(), triangle_id[index(other)].long()
        start, end, sign, active = find_edge(owner, *ids, direction, axis, size, positions, triangles, topology)

    line = torch.linalg.cross(
        homogeneous_pixel(positions, owner, start, size), homogeneous_pixel(positions, owner, end, size)
    )
    at_owner, fall = sign * line[:, 2], -sign * direction * line[:, axis]
    distance = torch.where(active, at_owner, 0.0) / torch.where(active, fall, 1.0)
    squared = line[:, 0] ** 2 + line[:, 1] ** 2
    usable = active & (squared > 0)
    normal = torch.where(usable, line[:, axis] ** 2, 0.0) / torch.where(usable, squared, 1.0)
    return normal * (0.5 - distance)


def homogeneous_pixel(positions, owner, vertex, size):
    """(N, 3): x, y, w of a vertex in pixels relative to the owner's pixel centre, x right and y down, still times w."""
    height, width = size
    item, row, column = index(owner)
    x, y, _, w = positions[item, vertex].unbind(-1)
    fx, fy = (2 * column.double() + 1) / width - 1, 1 - (2 * row.double() + 1) / height
    return torch.stack([(x - fx * w) * (width / 2), -(y - fy * w) * (height / 2), w], -1)


def find_edge(owner, owner_id, other_id, direction, axis, size, positions, triangles, topology):
    """Silhouette edge between the centres of each pair: its two vertices, the sign s of its triangle, and if any."""
    corners = triangles.long()
    pairs = torch.arange(len(owner))
    current, walking = owner_id.clone(), torch.ones(len(owner), dtype=torch.bool)
    start, end = torch.zeros(len(owner), dtype=torch.long), torch.zeros(len(owner), dtype=torch.long)
    sign, found = torch.ones(len(owner), dtype=torch.float64), torch.zeros(len(owner), dtype=torch.bool)
    for _ in range(WALK_LIMIT):
        vertex = corners[current]  # (N, 3)
        p = torch.stack([homogeneous_pixel(positions, owner, vertex[:, k], size) for k in range(3)], 1)
        line = torch.linalg.cross(p[:, [1, 2, 0]], p[:, [2, 0, 1]])  # (N, 3 edges, 3), edge k opposite corner k
        orientation = (p * line).sum(-1)[:, 0].sign()

        # The exit edge.
        at_owner = orientation[:, None] * line[..., 2]
        slope = (orientation * direction)[:, None] * line[..., axis]  # f_k(u) - f_k(0)
        nearest, edge = torch.full((len(owner),), torch.inf, dtype=torch.float64), torch.zeros_like(current)
        for k in range(3):
            falls = slope[:, k] < 0
            crossing = at_owner[:, k] / torch.where(falls, -slope[:, k], 1.0)
            closer = falls & (crossing >= -CROSSING_SLACK) & (crossing < nearest)
            nearest, edge = torch.where(closer, crossing, nearest), torch.where(closer, k, edge)
        walking = walking & (nearest <= 1 + CROSSING_SLACK)

        # A silhouette: a border, or the vertex across lies on the triangle's own side of the plane of eye and edge.
        twin = topology.long()[current, edge]
        across = corners.flatten()[twin.clamp(min=0)]
        side = (homogeneous_pixel(positions, owner, across, size) * line[pairs, edge]).sum(-1).sign()
        is_silhouette = (twin < 0) | (side == orientation)

        here = walking & is_silhouette
        start = torch.where(here, vertex[pairs, (edge + 1) % 3], start)
        end = torch.where(here, vertex[pairs, (edge + 2) % 3], end)
        sign, found = torch.where(here, orientation, sign), found | here
        walking = walking & ~is_silhouette
        current = torch.where(walking, twin // 3, current)
        walking = walking & (current != other_id)
        if not walking.any():
            break
    return start, end, sign, found
