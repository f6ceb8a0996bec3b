"""A small scene with everything in it that a renderer composes: textures, normal map, lights, background."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

import diffrender as dr
from diffrender import geometry

SIZE = (20, 24)


def lit_mesh(dtype: torch.dtype = torch.float64, *, texels: int = 16) -> dr.Mesh:
    """A torus with textured albedo and roughness and a normal map."""
    generator = torch.Generator().manual_seed(3)

    def texture(channels: int, low: float, high: float) -> Tensor:
        values = torch.rand(texels, texels, channels, generator=generator, dtype=torch.float64)
        return (low + (high - low) * values).to(dtype)

    normal = texture(3, 0.35, 0.65)
    normal[..., 2] = 0.95
    material = dr.Material(
        albedo=texture(3, 0.1, 0.9), roughness=texture(1, 0.3, 0.9), metallic=torch.tensor(0.3, dtype=dtype),
        normal=normal,
    )  # fmt: skip
    ring = geometry.torus(segments=16, tube_segments=10)
    return ring.to(dtype).replace(material=material)


def four_lights() -> list[dr.lights.Light]:
    return [
        dr.PointLight((2.0, 2.0, 3.0), 12.0),
        dr.DirectionalLight((0.2, -1.0, -0.7), 1.5),
        dr.SpotLight((-2.0, 3.0, 2.0), (0.5, -0.8, -0.5), 20.0),
        dr.AmbientLight(0.2),
    ]


def lit_camera(dtype: torch.dtype = torch.float64, *, scale: float = 1.0) -> dr.Camera:
    camera = dr.Camera.perspective(fov_y_deg=32, width=SIZE[1], height=SIZE[0], dtype=dtype)
    return camera.scaled(scale).look_at([0.7, 2.2, 3.0])


def poses(count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """(count, 6) small twists of a camera."""
    return 0.02 * torch.randn(count, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(dtype)


@functools.cache  # under vmap nothing random may be drawn
def weights(batch: int = 1, channels: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    shape = (batch, *SIZE, channels)
    return torch.rand(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)
