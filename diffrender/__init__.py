"""Differentiable rendering of triangle meshes for PyTorch, on CPU and CUDA."""

__version__ = "0.1.0"
