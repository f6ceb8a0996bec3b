"""A row of spheres from smooth to rough, metal above dielectric, lit by an environment alone.

    python examples/environment.py --map sunsky.exr --output spheres.png

Without `--map` a sky is made: a gradient, a ground and a small sun. Needs the extra `io`, an .exr map also `exr`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import diffrender as dr


def made_sky(height: int = 64) -> Tensor:
    """(H, 2 H, 3) panorama."""
    theta = math.pi * (torch.arange(height) + 0.5) / height
    phi = 2 * math.pi * ((torch.arange(2 * height) + 0.5) / (2 * height) - 0.5)
    theta, phi = torch.meshgrid(theta, phi, indexing="ij")
    up = theta.cos().unsqueeze(-1)
    sky = torch.lerp(torch.tensor([0.9, 0.9, 0.9]), torch.tensor([0.2, 0.4, 0.9]), up.clamp(0, 1) ** 0.6)
    direction = torch.stack([theta.sin() * phi.sin(), theta.cos(), -theta.sin() * phi.cos()], -1)
    sun = (direction @ torch.nn.functional.normalize(torch.tensor([0.6, 0.6, 0.5]), dim=0) > 0.995).unsqueeze(-1)
    return torch.where(up > 0, sky, torch.tensor([0.25, 0.2, 0.15])) + 60.0 * sun * torch.tensor([1.0, 0.9, 0.7])


def spheres(light: dr.EnvironmentLight, count: int, size: int) -> Tensor:
    """(2 size, count size, 3) linear radiance: every sphere seen from the front by a parallel view."""
    step = 2.3 / size
    x = (torch.arange(size) + 0.5) * step - 1.15
    y, x = torch.meshgrid(-x, x, indexing="ij")
    z = (1 - x * x - y * y).clamp(min=0).sqrt()
    mask = (x * x + y * y < 1)[None]
    normals = torch.stack([x, y, z], -1)[None]
    view = torch.tensor([0.0, 0.0, 1.0])
    # What is behind a pixel, as a camera of 60 degrees would see it.
    behind = light.radiance(torch.stack([0.5 * x, 0.5 * y, -torch.ones_like(x)], -1)[None])
    rows = []
    for metallic, albedo in ((1.0, (0.95, 0.75, 0.45)), (0.0, (0.6, 0.1, 0.1))):
        row = []
        for k in range(count):
            roughness = k / max(count - 1, 1)
            maps = (torch.zeros_like(normals), normals, torch.tensor(albedo), metallic, roughness)
            image = light.shade(*maps, view_directions=view, mask=mask)
            row.append(torch.where(mask[..., None], image, behind)[0])
        rows.append(torch.cat(row, 1))
    return torch.cat(rows, 0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--map", type=Path, help="panorama, .exr or .hdr")
    parser.add_argument("--output", type=Path, default=Path("environment.png"))
    parser.add_argument("--count", type=int, default=6, help="spheres in a row")
    parser.add_argument("--size", type=int, default=160, help="pixels of one sphere's square")
    parser.add_argument("--exposure", type=float, default=0.0, help="in stops")
    parser.add_argument("--cube", type=int, default=128, help="side of the cube map")
    options = parser.parse_args(arguments)
    intensity = 2.0**options.exposure
    if options.map is None:
        light = dr.EnvironmentLight(made_sky(), intensity=intensity, size=options.cube)
    else:
        light = dr.EnvironmentLight.from_file(options.map, intensity=intensity, size=options.cube)
    image = dr.tonemap(spheres(light, options.count, options.size), "aces")
    dr.save_image(options.output, image)
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
