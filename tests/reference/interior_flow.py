"""Reference of interior_flow: pixel by pixel over the pieces that the reference of the edge walk finds."""

import itertools

import numpy as np
import torch

from tests.reference.antialias_segments import centre, find_pieces
from tests.reference.interpolate import interpolate


def parted_pairs(triangle_id, clip_positions, triangles, **options):
    """(B, H, W, 2) bool: whether a visible piece runs between a centre and the next one to the right, and below."""
    result = np.zeros((*triangle_id.shape, 2), bool)
    height, width = triangle_id.shape[1:]
    for item, (_, pieces) in enumerate(find_pieces(triangle_id, clip_positions, triangles, **options)):
        for piece, axis in itertools.product(pieces, (0, 1)):
            p, q = (end - centre(piece["pixel"]) for end in piece["ends"])
            along, across = axis, 1 - axis
            if p[across] * q[across] > 0 or p[across] == q[across]:
                continue
            i, j = piece["pixel"]
            reach = p[along] + (q[along] - p[along]) * p[across] / (p[across] - q[across])
            if reach >= 0 and (i, j)[1 - axis] + 1 < (height, width)[1 - axis]:
                result[item, i, j, axis] = True
            if reach <= 0 and (i, j)[1 - axis] > 0:
                result[item, i - axis, j - (1 - axis), axis] = True
    return torch.from_numpy(result)


def slopes(image, covered, parted):
    """(B, H, W, C, 2): change of the colour per pixel along x and y, the mean over the neighbours that count."""
    result = torch.zeros(*image.shape, 2, dtype=image.dtype)
    batch, height, width = covered.shape
    for b, i, j, axis in itertools.product(range(batch), range(height), range(width), (0, 1)):
        found = []
        for step in (0, -1):  # the pair that begins here, and the one that ends here
            first = (b, i + step * axis, j + step * (1 - axis))
            second = (b, first[1] + axis, first[2] + 1 - axis)
            if min(first) < 0 or second[1] >= height or second[2] >= width:
                continue
            if covered[first] and covered[second] and not parted[(*first, axis)]:
                found.append(image[second] - image[first])
        if found:
            result[b, i, j, :, axis] = sum(found) / len(found)
    return result


def interior_flow(image, fragments, clip_positions, triangles, parted):
    """The image, with a motion of the surface points on screen that is zero in value."""
    covered = fragments.triangle_id >= 0
    change = slopes(image.detach(), covered, parted)
    height, width = covered.shape[1:]
    point = interpolate(clip_positions, triangles, fragments._replace(barycentrics=fragments.barycentrics.detach()))
    w = torch.where(covered, point[..., 3], 1)
    x = torch.where(covered, (point[..., 0] / w + 1) * width / 2, 0)
    y = torch.where(covered, (1 - point[..., 1] / w) * height / 2, 0)
    moved = torch.stack([x - x.detach(), y - y.detach()], -1)
    return image - (change * moved[..., None, :]).sum(-1)
