"""Shape, colors, roughness and light together, from photographs alone; then the object under another light.

    python examples/inverse_rendering.py [--steps 800] [--views 24] [--size 128] [--seed 0] [--out DIRECTORY]

A star with bent arms (assets/star_knot.obj), painted and glossy, stands in a room that nobody measured: all that is
known are pictures of it (linear radiance and coverage) from known cameras. The work begins with a grey sphere in grey
light. One gradient per step goes through renderer, shading and environment to

- the vertices, in smoothed variables; the mesh is made finer twice on the way,
- the albedo, a grid of colors in space: it outlives the changes of the mesh,
- the roughness, one number,
- the light from all around, the logarithm of a cube map.

Pictures alone do not tell bright paint in dim light from dim paint in bright light. What is found is therefore compared
after one factor per color channel. Results in `--out`:

  views.png        held-out views: photograph, start, result
  relit.png        the same views in a light that was never seen: truth, result
  environments.png the light as a panorama: truth, result
  mesh.glb         the shape with its colors

Needs the extra `fit` (scipy, imageio).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import diffrender as dr
from diffrender import fit, geometry, losses, metrics
from diffrender.optim import AdamUniform, LaplacianPreconditioner

ROOT = Path(__file__).resolve().parents[1]
SCENE_RADIUS = 0.65
HELD_OUT = 3
# share of the steps, edge length (None: as it is), pictures shrunk by, views per step, smoothing of the shape
STAGES = ((0.25, None, 2, 6, 20.0), (0.25, 0.04, 2, 6, 20.0), (0.5, 0.025, 1, 3, 14.0))


# --- the world that is photographed -----------------------------------------------------------------------------


def paint(positions: Tensor) -> Tensor:
    """(V, 3) albedo: bands of ochre, teal and brick."""
    x, y, z = positions.unbind(-1)
    wave = torch.sin(14 * (x + 0.4 * y)) + torch.sin(11 * (y - 0.6 * z) + 1)
    palette = torch.tensor([[0.75, 0.52, 0.18], [0.12, 0.48, 0.50], [0.62, 0.16, 0.10]])
    weights = torch.softmax(torch.stack([3 * wave, -3 * wave, 4 * torch.sin(9 * z)], -1), -1)
    return weights @ palette


def panorama_directions(height: int) -> Tensor:
    """(H, 2 H, 3)"""
    theta = math.pi * (torch.arange(height) + 0.5) / height
    phi = 2 * math.pi * ((torch.arange(2 * height) + 0.5) / (2 * height) - 0.5)
    theta, phi = torch.meshgrid(theta, phi, indexing="ij")
    return torch.stack([theta.sin() * phi.sin(), theta.cos(), -theta.sin() * phi.cos()], -1)


def room(seed: int) -> dr.EnvironmentLight:
    """A dim room with a few large lamps of different colors."""
    generator = torch.Generator().manual_seed(seed)
    directions = panorama_directions(64)
    radiance = (0.15 + 0.25 * directions[..., 1:2].clamp(min=0)).expand(64, 128, 3)
    for _ in range(5):
        towards = torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
        color = 0.4 + torch.rand(3, generator=generator)
        radiance = radiance + 4 * color * torch.exp(14 * (directions @ towards - 1)).unsqueeze(-1)
    return dr.EnvironmentLight(radiance, size=32)


def truth() -> dr.Mesh:
    mesh, _ = fit.normalize(dr.load_mesh(ROOT / "assets" / "star_knot.obj"))
    return mesh.replace(colors=paint(mesh.vertices), material=dr.Material(roughness=0.35))


# --- what is sought -----------------------------------------------------------------------------------------------


@dataclass
class Unknowns:
    """Everything but the shape. Parameters are free numbers; the properties hold what they mean."""

    paint: Tensor  # (1, 3, N, N, N) before the sigmoid, over the cube of side 1.2 around the origin
    gloss: Tensor  # () before the sigmoid
    light: Tensor  # (6, S, S, 3) logarithm of radiance

    @staticmethod
    def grey(cells: int = 40, side: int = 16) -> Unknowns:
        tensors = torch.zeros(1, 3, cells, cells, cells), torch.tensor(0.0), torch.zeros(6, side, side, 3)
        return Unknowns(*(tensor.requires_grad_() for tensor in tensors))

    def environment(self) -> dr.EnvironmentLight:
        return dr.EnvironmentLight(self.light.exp())

    def dressed(self, mesh: dr.Mesh) -> dr.Mesh:
        """A shape with the colors of the grid at its vertices."""
        at = (mesh.vertices / 0.6)[None, None, None]
        colors = torch.nn.functional.grid_sample(self.paint, at, align_corners=False, padding_mode="border")
        # Between 0.02 and 0.9, as of real surfaces.
        colors = 0.02 + 0.88 * torch.sigmoid(colors[0, :, 0, 0].T)
        return mesh.replace(colors=colors, material=dr.Material(roughness=0.1 + 0.9 * torch.sigmoid(self.gloss)))


def photograph(mesh: dr.Mesh, cameras: dr.Camera, light: dr.EnvironmentLight, samples: int = 1) -> Tensor:
    """(B, H, W, 4) linear radiance, times coverage, and coverage."""
    interior = "flow" if samples == 1 else "exact"
    renderer = dr.Renderer(
        (cameras.height, cameras.width), outputs=("color", "alpha"), interior=interior, samples=samples
    )
    result = renderer(mesh, cameras, light)
    return torch.cat([result.color, result.alpha], -1)


def shrunk(pictures: Tensor, factor: int) -> Tensor:
    return torch.nn.functional.avg_pool2d(pictures.permute(0, 3, 1, 2), factor).permute(0, 2, 3, 1)


def recover(pictures: Tensor, cameras: dr.Camera, steps: int, seed: int) -> tuple[dr.Mesh, Unknowns]:
    generator = torch.Generator().manual_seed(seed)
    unknowns = Unknowns.grey()
    appearance = torch.optim.Adam(
        [
            {"params": [unknowns.paint], "lr": 0.06},
            {"params": [unknowns.gloss], "lr": 0.05},
            {"params": [unknowns.light], "lr": 0.1},
        ]
    )
    mesh, done = geometry.icosphere(3, radius=0.5), 0
    for share, edge_length, factor, batch, smoothing in STAGES:
        if edge_length is not None:
            mesh = geometry.remesh(mesh, edge_length)
        smoothed = LaplacianPreconditioner(mesh.triangles, mesh.vertex_count, strength=smoothing)
        parameters = smoothed.to_parameters(mesh.vertices).requires_grad_()
        shape = AdamUniform([parameters], lr=0.01)
        targets, lenses, count = shrunk(pictures, factor), cameras.scaled(1 / factor), round(share * steps)
        for step in range(count):
            if share == STAGES[-1][0]:  # settle
                shape.param_groups[0]["lr"] = 0.01 * (0.1 + 0.45 * (1 + math.cos(math.pi * step / count)))
            views = torch.randperm(len(lenses), generator=generator)[:batch]
            current = unknowns.dressed(mesh.with_vertices(smoothed.to_vertices(parameters)))
            ours, target = photograph(current, lenses[views], unknowns.environment()), targets[views]
            radiance = unknowns.light.exp()
            loss = (
                losses.log_srgb_l1(ours[..., :3], target[..., :3])
                + 4 * losses.l1(ours[..., 3:], target[..., 3:])
                # Of all explanations the plainest: white light, paint without noise.
                + 0.001 * (radiance - radiance.mean(-1, keepdim=True)).abs().mean()
                + 0.001 * sum(unknowns.paint.diff(dim=axis).abs().mean() for axis in (2, 3, 4))
            )
            for optimizer in (shape, appearance):
                optimizer.zero_grad()
            loss.backward()
            for optimizer in (shape, appearance):
                optimizer.step()
            done += 1
            if done % 50 == 0:
                print(f"step {done:4d}  loss {loss.item():.4f}  roughness {current.material.roughness.item():.2f}")
        mesh = mesh.with_vertices(smoothed.to_vertices(parameters).detach())
    return mesh, unknowns


# --- the whole ------------------------------------------------------------------------------------------------------


def scaled_like(colors: Tensor, reference: Tensor) -> Tensor:
    """(3,) factor per channel that brings colors nearest to a reference, both (..., 3)."""
    ours, theirs = colors.reshape(-1, 3), reference.reshape(-1, 3)
    return (ours * theirs).sum(0) / (ours * ours).sum(0)


def decibels(pictures: Tensor, reference: Tensor) -> float:
    """As seen on a screen."""
    return metrics.psnr(*(dr.linear_to_srgb(p[..., :3].clamp(0, 1)) for p in (pictures, reference)))


def main(
    steps: int = 800, views: int = 24, size: int = 128, seed: int = 0, out: Path = Path("out")
) -> dict[str, float]:
    source, light, other_light = truth(), room(3), room(8)
    directions = fit.spread_directions(views), fit.spread_directions(HELD_OUT, turn_rad=1.0)
    cameras, unseen = (fit.cameras_around(d, size, SCENE_RADIUS) for d in directions)
    with torch.no_grad():
        pictures = photograph(source, cameras, light, samples=2)
        photographs = photograph(source, unseen, light, samples=2)
        relit_truth = photograph(source, unseen, other_light, samples=2)
        grey = Unknowns.grey()
        start = photograph(grey.dressed(geometry.icosphere(3, radius=0.5)), unseen, grey.environment())

    mesh, unknowns = recover(pictures, cameras, steps, seed)

    with torch.no_grad():
        found = unknowns.dressed(mesh)
        result = photograph(found, unseen, unknowns.environment(), samples=2)
        relit = photograph(found, unseen, other_light, samples=2)
        factor = scaled_like(relit[..., :3], relit_truth[..., :3])
        relit[..., :3] *= factor
    distance = metrics.surface_distance(found, source, threshold=0.01, samples=20_000)
    quality = {
        "Chamfer distance": distance.chamfer,
        "start, held-out views, dB": decibels(start, photographs),
        "result, held-out views, dB": decibels(result, photographs),
        "result, other light, dB": decibels(relit, relit_truth),
        "roughness": found.material.roughness.item(),
    }
    out.mkdir(parents=True, exist_ok=True)
    dr.save_image(out / "views.png", tiled([photographs, start, result]))
    dr.save_image(out / "relit.png", tiled([relit_truth, relit]))
    panoramas = [environment.radiance(panorama_directions(96)[None]) for environment in (light, unknowns.environment())]
    panoramas[1] = panoramas[1] / factor
    dr.save_image(out / "environments.png", dr.tonemap(torch.cat(panoramas, 1)[0], "reinhard").detach())
    dr.save_mesh(out / "mesh.glb", found)
    for name, value in quality.items():
        print(f"{name:28s} {value:.4g}")
    print(f"The results lie in {out}")
    return quality


def tiled(rows: list[Tensor]) -> Tensor:
    """Each (B, H, W, 4) a row of pictures on white paper."""
    paper = [pictures[..., :3] + 1 - pictures[..., 3:] for pictures in rows]
    return torch.cat([torch.cat(list(row), 1) for row in paper], 0).clamp(0, 1)


def command_line(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--views", type=int, default=24)
    parser.add_argument("--size", type=int, default=128, help="pixels a side, even")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/inverse_rendering"))
    options = parser.parse_args(arguments)
    if options.size < 2 or options.size % 2:
        parser.error(f"--size must be even, got {options.size}")
    main(**vars(options))
    return 0


if __name__ == "__main__":
    raise SystemExit(command_line())
