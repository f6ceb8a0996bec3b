"""Differentiable rendering of triangle meshes for PyTorch, on CPU and CUDA."""

from . import _library

_library.load()

from ._checks import set_checks  # noqa: E402
from .ops.rasterize import Fragments, rasterize  # noqa: E402

__all__ = ["Fragments", "rasterize", "set_checks"]

__version__ = "0.1.0"
