"""The two rasterizer algorithms as parameters of a test, and comparison of what they return."""

import pytest
import torch

import diffrender as dr
from diffrender.ops.rasterize import _rasterize_with_driver

DTYPES = [torch.float32, torch.float64]


def gpu_driver(positions, triangles, size, **options):
    """The algorithm made for GPUs, on the device of its input."""
    return _rasterize_with_driver(positions, triangles, size, **options)


DRIVERS = [pytest.param(dr.rasterize, id="native"), pytest.param(gpu_driver, id="gpu")]


def same(a, b):
    """Bit for bit the same fragments; NaN would fail."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True) if x is not None)
