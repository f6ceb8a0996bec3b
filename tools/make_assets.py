"""Makes assets/star_knot.obj, the shape that `make demo` recovers from pictures.

    python tools/make_assets.py [FOLDER]

A ball with seven arms like fingers, wound up around an axis and bent, then remeshed to even triangles: genus 0, so that
a sphere can reach it, but with hollows and overlapping arms in every view. Deterministic: no random numbers.

docs/images/fit_star_knot.png is progress.png of `make demo`, which works on this asset.
"""

import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from diffrender import geometry, save_mesh

EDGE_LENGTH = 0.058
BLEND = 10.0  # per unit: how sharply arms join the ball

# Direction (longitude and latitude in degrees), length and radius: five around the axis and one along either end of it.
ARMS = [(72.0 * k, 14.0 * (-1) ** k, 1.0 + 0.09 * (k % 3), 0.19 - 0.01 * k) for k in range(5)]
ARMS += [(40.0, 84.0, 0.72, 0.17), (200.0, -80.0, 0.66, 0.19)]


def star_knot() -> geometry.Mesh:
    sphere = geometry.icosphere(6)
    directions = sphere.vertices.double()

    distances = [torch.full((len(directions),), 0.42, dtype=torch.float64)]
    for longitude, latitude, length, radius in ARMS:
        phi, theta = math.radians(longitude), math.radians(latitude)
        axis = torch.tensor(
            [math.cos(phi) * math.cos(theta), math.sin(phi) * math.cos(theta), math.sin(theta)], dtype=torch.float64
        )
        distances.append(_exit_distance(directions, axis, length, radius))
    # The smooth maximum of all exit distances joins the arms to the ball.
    distance = torch.logsumexp(BLEND * torch.stack(distances), 0) / BLEND
    distance = distance * (1 + 0.05 * torch.cos(14 * distance))
    x, y, z = (directions * distance.unsqueeze(-1)).unbind(-1)

    # Wind the arms up: the farther from the axis, the more they turn and the more they rise or sink.
    from_axis = (x * x + y * y).sqrt()
    angle = torch.atan2(y, x)
    turned = angle + 0.85 * from_axis
    height = z + 0.3 * from_axis**2 * torch.sin(2 * turned)
    wound = torch.stack([from_axis * torch.cos(turned), from_axis * torch.sin(turned), height], -1)
    tilted = geometry.transform_points(geometry.rotation([1.0, 0.0, 0.0], -0.35).double(), wound)
    return geometry.remesh(sphere.with_vertices(tilted.float()), EDGE_LENGTH, iterations=8)


def _exit_distance(directions: Tensor, axis: Tensor, length: float, radius: float) -> Tensor:
    """How far rays from the origin stay in a capsule that starts there along `axis`; `radius` for those going back."""
    cosine = (directions * axis).sum(-1)
    sine = (1 - cosine * cosine).clamp(min=1e-12).sqrt()
    through_side = radius / sine
    through_tip = length * cosine + (radius * radius - (length * sine) ** 2).clamp(min=0).sqrt()
    leaves_by_tip = through_side * cosine > length
    return torch.where(cosine <= 0, radius, torch.where(leaves_by_tip, through_tip, through_side))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "assets"
    folder.mkdir(parents=True, exist_ok=True)
    mesh = star_knot()
    path = folder / "star_knot.obj"
    # Five decimals are plenty for a demo and keep the file small.
    save_mesh(path, mesh.with_vertices((mesh.vertices.double() * 1e5).round().div(1e5).float()))
    print(f"{path}: {mesh.vertex_count} vertices, {mesh.triangle_count} triangles, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
