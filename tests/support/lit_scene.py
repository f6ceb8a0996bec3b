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


def several_materials(
    first: str = "OPAQUE", second: str = "OPAQUE", *, textured: bool = True, dtype: torch.dtype = torch.float64
) -> dr.Mesh:
    """A ball of three materials: textures of two sizes with a normal map, one texture with alpha, and constants.

    `first` and `second` are the alpha modes of the last two.
    """
    generator = torch.Generator().manual_seed(4)

    def texture(size: int, channels: int) -> Tensor:
        values = (0.3 + 0.6 * torch.rand(size, size, channels, generator=generator, dtype=torch.float64)).to(dtype)
        return values if textured else values.mean((0, 1))

    normal = texture(8, 3) if textured else None
    if normal is not None:
        normal[..., 2] = 0.95
    constant = torch.tensor([0.9, 0.4, 0.2, 0.7], dtype=dtype)
    materials = [
        dr.Material(texture(8, 3), roughness=texture(16, 1), normal=normal, emissive=0.1, occlusion=texture(8, 1)),
        dr.Material(texture(8, 4), 0.2, 0.5, alpha_mode=first, alpha_cutoff=0.6, albedo_factor=(1.0, 0.9, 0.8, 0.9)),
        dr.Material(constant, 0.9, 0.3, alpha_mode=second),
    ]
    ball = geometry.icosphere(2).to(dtype)
    texcoords = torch.rand((ball.vertex_count, 2), generator=generator, dtype=torch.float64).to(dtype)
    ids = torch.randint(3, (ball.triangle_count,), generator=generator)
    return ball.replace(texcoords=texcoords, material=materials, material_ids=ids.int())


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
