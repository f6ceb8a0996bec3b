"""Vocabulary of the case catalogue: thin adapters over the public functions, so that a case reads in one line.

P(H, W)(px, py)   pixel coordinates (first pixel spans 0..1) -> one clip-space position
ras, itp, aa      rasterize, interpolate, antialias(method="pairs") on tensors or lists
render            the three in a row
cov               float64 NumPy coverage, independent of the kernels and of tests.reference
fd, rnd, g        central difference along a direction, seeded normal numbers, one gradient
"""

from typing import NamedTuple

import numpy as np
import torch

import diffrender as dr
from tests.support.device import from_numpy, here


class Raster(NamedTuple):
    """Fragments plus int64 ids: `id` is (B, H, W), -1 on background."""

    id: torch.Tensor
    fragments: dr.Fragments


def P(height, width):
    """Function that turns pixel coordinates, w and NDC depth z into clip-space [x, y, z, w] for this frame."""

    def clip_position(px, py, w=1.0, z=0.0):
        return [(2 * px / width - 1) * w, (1 - 2 * py / height) * w, z * w, w]

    return clip_position


def as_float(values, dtype=torch.float32):
    return values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=dtype)


def as_index(values):
    return values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=torch.int32).reshape(-1, 3)


def ras(pos, tri, H, W, **options):
    fragments = dr.rasterize(as_float(pos), as_index(tri), (H, W), **options)
    return Raster(fragments.triangle_id.long(), fragments)


def itp(attr, r, tri, **options):
    return dr.interpolate(as_float(attr), as_index(tri), r.fragments, **options)


def aa(img, r, pos, tri, **options):
    return dr.antialias(img, r.fragments, as_float(pos), as_index(tri), method="pairs", **options)


def mask(r, dtype=torch.float32):
    """Coverage of point samples, (B, H, W, 1): 1 where a triangle is."""
    return (r.id >= 0).to(dtype)[..., None]


def render(pos, tri, attr, H, W, **options):
    """rasterize, interpolate and antialias in a row: image (B, H, W, C)."""
    r = ras(pos, tri, H, W, **options)
    return aa(itp(attr, r, tri), r, pos, tri)


def cov(tris_px, H, W):
    """Union coverage (H, W) bool of triangles (N, 3, 2) in pixel coordinates, and distance to the nearest edge line.

    A pixel is covered when its centre is inside; centres exactly on an edge count for one half-open side. The distance
    (in pixels, to the nearest edge segment of any triangle) tells where a rounding of the corners cannot matter.
    """
    y, x = np.meshgrid(np.arange(H) + 0.5, np.arange(W) + 0.5, indexing="ij")
    covered = np.zeros((H, W), dtype=bool)
    distance = np.full((H, W), np.inf)
    for triangle in np.asarray(tris_px, dtype=np.float64):
        sides = []
        for a, b in zip(triangle, np.roll(triangle, -1, axis=0), strict=True):
            d = b - a
            length = max(d @ d, 1e-300)
            sides.append(d[0] * (y - a[1]) - d[1] * (x - a[0]))
            t = np.clip(((x - a[0]) * d[0] + (y - a[1]) * d[1]) / length, 0, 1)
            distance = np.minimum(distance, np.hypot(x - a[0] - t * d[0], y - a[1] - t * d[1]))
        inside = np.logical_and.reduce([s >= 0 for s in sides]) | np.logical_and.reduce([s < 0 for s in sides])
        covered |= inside
    return from_numpy(covered), from_numpy(distance)


def fd(f, x, d, eps=1e-3):
    return (f(x + eps * d) - f(x - eps * d)) / (2 * eps)


def rnd(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator("cpu").manual_seed(seed)
    return here(torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu").to(dtype))


def uniform(*shape, seed=0, low=0.0, high=1.0, dtype=torch.float32):
    generator = torch.Generator("cpu").manual_seed(seed)
    values = torch.rand(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return here((low + (high - low) * values).to(dtype))


def g(f, x):
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf)[0]


def relative_error(value, truth):
    """Largest difference relative to the largest true value: entries that cancel to nothing do not count more."""
    value, truth = value.detach().double(), truth.detach().double()
    assert value.shape == truth.shape, f"{tuple(value.shape)} against {tuple(truth.shape)}"
    if truth.numel() == 0:
        return 0.0
    return ((value - truth).abs().max() / truth.abs().max().clamp(min=1e-30)).item()
