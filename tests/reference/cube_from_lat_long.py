"""Reference of cube_from_lat_long in plain torch float64: bilinear lookups at the parts of every texel.

Angles by acos and lookups one row after the other, where the kernels take atan2 and four taps.
"""

import math

import torch

from tests.reference.texture_cube import FRAMES


def cube_from_lat_long(panorama, size):
    picture = panorama.double()
    height, width = picture.shape[-3:-1]
    h = 2 / size
    face, row, column = (x.flatten() for x in torch.meshgrid(*map(torch.arange, (6, size, size)), indexing="ij"))
    u, v = ((k.double() + 0.5) * h - 1 for k in (column, row))
    length = (1 + u * u + v * v).sqrt()
    center = torch.stack([u, v, torch.ones_like(u)], -1)
    x, _, z = (center[:, None] @ FRAMES[face])[:, 0].unbind(-1)
    sine = (torch.hypot(x, z) / length - h / length * 0.70710678).clamp(min=0)
    widest = 0.5 * torch.minimum(torch.tensor(math.pi / height).double(), 2 * math.pi / width * sine)
    count = torch.where(h / length >= 32 * widest, 32, (h / length / widest).ceil()).long()
    result = picture.new_zeros(*picture.shape[:-3], 6 * size * size, picture.shape[-1])
    for n in count.unique().tolist():
        at = torch.nonzero(count == n)[:, 0]
        result = result.index_copy(
            -2, at, means(picture, face[at], row[at].double() * h - 1, column[at].double() * h - 1, h, n)
        )
    return result.unflatten(-2, (6, size, size))


def row_values(picture, row, x):
    """Linear in x around row `row` (N,) of (..., H, W, C); beyond a pole the same row half a round further."""
    height, width = picture.shape[-3:-1]
    x = torch.where((row < 0) | (row >= height), x + width / 2, x)
    row = row.clamp(0, height - 1)
    left = x.floor().long()
    part = (x - left)[:, None]
    return (1 - part) * picture[..., row, left % width, :] + part * picture[..., row, (left + 1) % width, :]


def means(picture, face, top, left, h, n):
    """Texels (N,) with their upper left corners, each cut into n x n parts: (..., N, C)."""
    height, width = picture.shape[-3:-1]
    steps = (torch.arange(n, dtype=torch.float64) + 0.5) * h / n
    b, a = torch.meshgrid(steps, steps, indexing="ij")
    points = torch.stack([left[:, None] + a.flatten(), top[:, None] + b.flatten()], -1)
    points = torch.nn.functional.pad(points, (0, 1), value=1.0)
    shares = points.norm(dim=-1) ** -3
    shares = shares / shares.sum(-1, keepdim=True)
    d = points @ FRAMES[face]
    theta = torch.acos(d[..., 1] / d.norm(dim=-1)).flatten()
    phi = torch.atan2(d[..., 0], -d[..., 2]).flatten()
    y = theta / math.pi * height - 0.5
    x = (phi / (2 * math.pi) + 0.5) * width - 0.5
    top = y.floor().long()
    below = (y - top)[:, None]
    values = (1 - below) * row_values(picture, top, x) + below * row_values(picture, top + 1, x)
    return (values.unflatten(-2, shares.shape) * shares[..., None]).sum(-2)
