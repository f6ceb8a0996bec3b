"""Differentiable rendering of triangle meshes for PyTorch, on CPU and CUDA."""

from . import _library

_library.load()

from ._checks import set_checks  # noqa: E402
from .ops.antialias import antialias  # noqa: E402
from .ops.interpolate import interpolate  # noqa: E402
from .ops.rasterize import Fragments, rasterize  # noqa: E402
from .ops.topology import edge_topology  # noqa: E402

__all__ = ["Fragments", "antialias", "edge_topology", "interpolate", "rasterize", "set_checks"]

__version__ = "0.1.0"
