"""Reference of antialias(method="pairs") and edge_topology: owner, exit edge and silhouette test are constants, the
weights are plain torch in float64, so autograd of them is the truth for the hand-written backward.

Points that the definition leaves open, as decided here:
  * With f_k = s e_k (positive inside, whatever the winding) edge k can be the exit where f_k falls along u; it is
    crossed at t_k = f_k(0) / (f_k(0) - f_k(u)). The smallest t_k is the exit, of equal ones the lowest k. Snapping
    moves coverage by up to 1/256 pixel, so t_k may lie a hair outside of [0, 1]: it is clamped, and then does not move.
    Beyond 1 + 1/16 the other centre is inside of the owner and faces cross between the two: the pair is inactive.
  * An edge that projects to no line (l_x = l_y = 0) gives weight 0.
  * sign(0) is 0, so an opposite vertex exactly in the plane of eye and edge makes no silhouette.
"""

import numpy as np
import torch

from tests.reference.rasterize import visibility_key

CROSSING_SLACK = 1 / 16  # pixels


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
        alpha = pair_weight(owner, direction, axis, triangle_id, positions, triangles, topology)
        to_owner = (alpha > 0)[:, None]
        receiver.append(torch.where(to_owner, owner, other))
        giver.append(torch.where(to_owner, other, owner))
        weight.append(alpha.abs())
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
    item, row, column = (n.numpy() for n in index(pairs))
    corners = positions.detach()[item[..., None], triangles.long()[ids.clamp(min=0).long()]].numpy()
    fx, fy = (2 * column + 1) / width - 1, 1 - (2 * row + 1) / height
    key = torch.from_numpy(visibility_key(corners, fx, fy, height, width, scalar))
    key = torch.where(ids >= 0, key, torch.inf)
    first_owns = (key[:, 0] < key[:, 1]) | ((key[:, 0] == key[:, 1]) & (ids[:, 0] < ids[:, 1]))
    chosen = torch.where(first_owns[:, None, None], pairs, pairs.flip(1))
    return chosen[:, 0], chosen[:, 1], torch.where(first_owns, 1.0, -1.0).double()


def pair_weight(owner, direction, axis, triangle_id, positions, triangles, topology):
    """Signed weight alpha (N,) of each pair: differentiable, 0 where the pair is inactive."""
    height, width = triangle_id.shape[1:]
    item, row, column = index(owner)
    owner_id = triangle_id[index(owner)].long()
    vertex = triangles.long()[owner_id]  # (N, 3)

    def homogeneous_pixel(vertex_index):
        """(x, y, w) in pixels relative to the owner's pixel centre, x right and y down, still times w."""
        x, y, _, w = positions[item, vertex_index].unbind(-1)
        fx, fy = (2 * column.double() + 1) / width - 1, 1 - (2 * row.double() + 1) / height
        return torch.stack([(x - fx * w) * (width / 2), -(y - fy * w) * (height / 2), w], -1)

    corner = torch.stack([homogeneous_pixel(vertex[:, k]) for k in range(3)], 1)  # (N, 3 corners, 3)
    line = torch.linalg.cross(corner[:, [1, 2, 0]], corner[:, [2, 0, 1]])  # (N, 3 edges, 3), edge k opposite corner k
    determinant = (corner * line).sum(-1)[:, 0]
    sign = determinant.sign()[:, None]

    at_owner = sign * line[..., 2]
    slope = sign * direction[:, None] * line[..., axis]  # f_k(u) - f_k(0)
    rows = torch.arange(len(owner))
    nearest, edge = torch.full((len(owner),), torch.inf, dtype=torch.float64), torch.zeros(len(owner), dtype=torch.long)
    for k in range(3):
        falls = slope[:, k] < 0
        crossing = (at_owner[:, k] / torch.where(falls, -slope[:, k], 1.0)).detach()
        closer = falls & (crossing < nearest)
        nearest, edge = torch.where(closer, crossing, nearest), torch.where(closer, k, edge)

    opposite = topology.long()[owner_id, edge]
    side = (homogeneous_pixel(opposite.clamp(min=0)) * line[rows, edge]).sum(-1).sign()
    is_silhouette = (opposite < 0) | (side == sign[:, 0])
    active = (nearest <= 1 + CROSSING_SLACK) & is_silhouette

    a, fall = at_owner[rows, edge], -slope[rows, edge]
    distance = (torch.where(active, a, 0.0) / torch.where(active, fall, 1.0)).clamp(0, 1)
    line_x, line_y = line[rows, edge, 0], line[rows, edge, 1]
    squared = line_x**2 + line_y**2
    usable = active & (squared > 0)
    normal = torch.where(usable, (line_x, line_y)[axis] ** 2, 0.0) / torch.where(usable, squared, 1.0)
    return normal * (0.5 - distance)


def edge_topology(triangles, positions=None):
    """Opposite vertex of the neighbour across each edge (T, 3) int32, -1 = border; see diffrender.edge_topology."""
    triangles = triangles.tolist()
    if positions is None:
        name = {v: v for triangle in triangles for v in triangle}
    else:
        name = {v: tuple(p) for v, p in enumerate(positions.detach().tolist())}

    corners_of_edge: dict[frozenset, list[tuple[int, int]]] = {}
    for t, triangle in enumerate(triangles):
        welded = [name[v] for v in triangle]
        if len(set(welded)) == 3:
            for k in range(3):
                edge = frozenset((welded[(k + 1) % 3], welded[(k + 2) % 3]))
                corners_of_edge.setdefault(edge, []).append((t, k))

    topology = torch.full((len(triangles), 3), -1, dtype=torch.int32)
    for corners in corners_of_edge.values():
        if len(corners) == 2:
            (t0, k0), (t1, k1) = corners
            topology[t0, k0], topology[t1, k1] = triangles[t1][k1], triangles[t0][k0]
    return topology
