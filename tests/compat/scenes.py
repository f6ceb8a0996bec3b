"""Scenes for the tests of this folder."""

import torch

from tests.support.scenes import icosphere, perspective, rigid, to_clip
from tests.support.vocabulary import rnd, uniform

F64 = torch.float64


def loose_triangles(seed, count=10, batch=2, dtype=F64):
    """Positions (batch, 3 count, 4) inside of the frustum with different w, and (count, 3) int32 rows."""
    centre = uniform(batch, count, 1, 3, seed=seed, low=-0.6, high=0.6, dtype=F64)
    xyz = (centre + 0.5 * rnd(batch, count, 3, 3, seed=seed + 1, dtype=F64)).clamp(-0.95, 0.95)
    w = uniform(batch, count, 3, 1, seed=seed + 2, low=0.5, high=2.0, dtype=F64)
    pos = torch.cat([xyz * w, w], -1).reshape(batch, 3 * count, 4)
    return pos.to(dtype), torch.arange(3 * count, dtype=torch.int32).view(count, 3)


def sphere(seed, levels=1, dtype=F64, size=(1, 1)):
    """A sphere from a random side, (1, V, 4), and its triangles."""
    vertices, triangles = icosphere(levels, F64)
    pose = rnd(6, seed=seed, dtype=F64) * torch.tensor([0.2, 0.2, 0.2, 1, 1, 1]) + torch.tensor([0, 0, -3.5, 0, 0, 0])
    clip = to_clip(vertices, perspective(50, *size, near=1, far=10) @ rigid(pose))
    return clip[None].to(dtype), triangles


def on_grid(seed, size, step, count=6, dtype=F64):
    """Triangles with corners on multiples of `step` pixels, all at one depth: edges pass through pixel centres."""
    height, width = size
    generator = torch.Generator().manual_seed(seed)
    places = [torch.randint(0, int(n / step) + 1, (3 * count,), generator=generator) * step for n in (width, height)]
    x, y = (2 * p.to(F64) / n - 1 for p, n in zip(places, (width, height), strict=True))
    pos = torch.stack([x, y, torch.full_like(x, 0.25), torch.ones_like(x)], 1)[None]
    return pos.to(dtype), torch.arange(3 * count, dtype=torch.int32).view(count, 3)


def fan(radius, dtype=F64):
    """Nine triangles around a point off the centre, with their outer corners far away and at depths of their own."""
    angle = torch.arange(9, dtype=F64) * (2 * torch.pi / 9) + 0.1
    outer = torch.stack([radius * angle.cos(), radius * angle.sin(), 0.3 * (3 * angle).sin()], 1)
    xyz = torch.cat([torch.tensor([[0.13, -0.07, 0.1]], dtype=F64), outer])
    rows = [[0, 1 + k, 1 + (k + 1) % 9] for k in range(9)]
    return torch.cat([xyz, torch.ones(10, 1, dtype=F64)], 1)[None].to(dtype), torch.tensor(rows, dtype=torch.int32)


def shared_plane(dtype=F64):
    """Three coplanar triangles that overlap, tilted, of different corners, behind each other in order only."""
    xy = torch.tensor([[-0.8, -0.8], [0.8, -0.7], [-0.6, 0.8], [-0.9, 0.2], [0.7, -0.9], [0.5, 0.9]], dtype=F64)
    z = 0.1 + 0.3 * xy[:, :1] - 0.2 * xy[:, 1:]
    pos = torch.cat([xy, z, torch.ones(6, 1, dtype=F64)], 1)[None]
    return pos.to(dtype), torch.tensor([[0, 1, 2], [3, 4, 5], [0, 4, 5]], dtype=torch.int32)
