"""Small scenes of cases D: a rectangle in pixels, a coarse sphere before several cameras."""

import torch

from tests.support.scenes import icosphere, perspective, rigid, to_clip
from tests.support.vocabulary import P, render, rnd, uniform

F64 = torch.float64
SQUARE = [(0, 1, 2), (0, 2, 3)]


def square(height, width, left, top, right, bottom, z=0.0, dtype=torch.float32):
    """Corners of a screen-aligned rectangle in pixels: left top, right top, right bottom, left bottom."""
    p = P(height, width)
    corners = [p(left, top, z=z), p(right, top, z=z), p(right, bottom, z=z), p(left, bottom, z=z)]
    return torch.tensor(corners, dtype=dtype)


def small_scene(dtype=F64, batch=1, seed=0):
    """Clip positions (B, V, 4), triangles, attributes (B, V, 3) of a coarse sphere, one camera each, 22 x 26."""
    vertices, triangles = icosphere(0, dtype=F64)
    poses = rnd(batch, 6, seed=seed, dtype=F64) * 0.3 + torch.tensor([0, 0, -3.2, 0, 0, 0], dtype=F64)
    camera = perspective(50, 22, 26)
    clip = torch.stack([to_clip(vertices, camera @ rigid(pose)) for pose in poses]).to(dtype)
    return clip, triangles, uniform(batch, len(vertices), 3, seed=seed + 1, dtype=dtype)


def small_render(clip, attributes):
    return render(clip, icosphere(0)[1], attributes, 22, 26)


def layouts(x):
    """The same values as permuted, sliced, offset views of other storage."""
    yield x.transpose(-1, -2).contiguous().transpose(-1, -2)
    yield torch.stack([x, x * 0 + 9], -1)[..., 0]
    yield torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view(x.shape)
