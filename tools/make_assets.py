"""Makes the meshes in assets/. Deterministic: no random numbers.

    python tools/make_assets.py [FOLDER]

star_knot.obj, the shape that `make demo` recovers from pictures: a ball with seven arms like fingers, wound up around
an axis and bent, then remeshed to even triangles. Genus 0, so that a sphere can reach it, but with hollows and
overlapping arms in every view. docs/images/fit_star_knot.png is progress.png of `make demo`, which works on this asset.

bird_cage.obj, thin structures for `benchmarks/fits.py`: a cage of height 1 with a swing and a hook, of wires 0.005
thick, which is about one pixel where the whole cage fills a picture of 256 x 256. Every wire is a closed tube of its
own; where wires are joined, their tubes pass through each other. Vertices come in rings of WIRE_SIDES around the wires.
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

WIRE_RADIUS = 0.0025
WIRE_SIDES = 6
WIRE_STEP = 0.04  # between rings of vertices along a wire


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


def bird_cage() -> geometry.Mesh:
    """y is up; ribs around a cylinder with a dome, four hoops, a hook, and a swing on two wires."""
    radius, floor, shoulder, top = 0.28, -0.5, 0.08, 0.40
    hoops = [(radius, floor), (radius, -0.21), (radius, shoulder), (0.03, top)]

    wires = [_tube(_hoop(hoop_radius, height), [0.0, 1.0, 0.0], is_loop=True) for hoop_radius, height in hoops]
    # From the floor straight up, then a quarter of an ellipse that ends in the uppermost hoop.
    last = math.acos(0.03 / radius)
    angle = torch.linspace(0, last, 200, dtype=torch.float64)
    dome = torch.stack([radius * angle.cos(), shoulder + (top - shoulder) * angle.sin() / math.sin(last)], -1)
    profile = torch.cat([torch.tensor([[radius, floor]], dtype=torch.float64), dome])
    for k in range(10):
        around = 2 * math.pi * (k + 0.25) / 10
        away, height = profile.unbind(-1)
        rib = torch.stack([away * math.cos(around), height, away * math.sin(around)], -1)
        wires.append(_tube(_evenly(rib), [-math.sin(around), 0.0, math.cos(around)], is_loop=False))

    turn = torch.arange(20, dtype=torch.float64) * (2 * math.pi / 20)
    hook = torch.stack([0.05 * turn.cos(), top + 0.05 + 0.05 * turn.sin(), 0 * turn], -1)
    wires.append(_tube(hook, [0.0, 0.0, 1.0], is_loop=True))
    for ends in (
        [[-0.13, -0.2, 0.04], [0.13, -0.2, -0.04]],
        [[-0.12, -0.2, 0.037], [-0.028, top, 0.009]],
        [[0.12, -0.2, -0.037], [0.028, top, -0.009]],
    ):
        wires.append(_tube(_evenly(torch.tensor(ends, dtype=torch.float64)), [0.04, 0.0, 0.13], is_loop=False))

    starts = [0]
    for vertices, _ in wires:
        starts.append(starts[-1] + len(vertices))
    triangles = torch.cat([wire[1] + start for wire, start in zip(wires, starts, strict=False)])
    return geometry.Mesh(torch.cat([wire[0] for wire in wires]).float(), triangles)


def _hoop(radius: float, height: float) -> Tensor:
    """(N, 3) points around the y axis, at least 12."""
    count = max(12, round(2 * math.pi * radius / WIRE_STEP))
    angle = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
    return torch.stack([radius * angle.cos(), torch.full_like(angle, height), radius * angle.sin()], -1)


def _evenly(points: Tensor) -> Tensor:
    """Points at even distances of about WIRE_STEP along a polyline (N, 3), its ends among them."""
    steps = (points[1:] - points[:-1]).norm(dim=-1)
    at = torch.cat([steps.new_zeros(1), steps.cumsum(0)])
    count = max(2, round(float(at[-1]) / WIRE_STEP) + 1)
    wanted = torch.linspace(0, float(at[-1]), count, dtype=at.dtype)
    segment = (torch.searchsorted(at, wanted, right=True) - 1).clamp(max=len(steps) - 1)
    share = ((wanted - at[segment]) / steps[segment]).unsqueeze(-1)
    return points[segment] * (1 - share) + points[segment + 1] * share


def _tube(centers: Tensor, plane_normal: list[float], *, is_loop: bool) -> tuple[Tensor, Tensor]:
    """A closed tube around the points (N, 3) of a plane curve: rings of vertices, and triangles that face outwards.

    The normal of the curve's plane is across the wire everywhere. An open curve gets flat caps at its ends.
    """
    if is_loop:
        tangents = geometry.safe_normalize(centers.roll(-1, 0) - centers.roll(1, 0))
    else:
        padded = torch.cat([centers[:1] * 2 - centers[1:2], centers, centers[-1:] * 2 - centers[-2:-1]])
        tangents = geometry.safe_normalize(padded[2:] - padded[:-2])
    normal = geometry.safe_normalize(torch.tensor(plane_normal, dtype=centers.dtype))
    across = torch.linalg.cross(tangents, normal.expand_as(tangents))
    angle = (torch.arange(WIRE_SIDES, dtype=centers.dtype) * (2 * math.pi / WIRE_SIDES)).view(1, -1, 1)
    rings = centers[:, None] + WIRE_RADIUS * (normal * angle.cos() + across[:, None] * angle.sin())

    count, sides = len(centers), WIRE_SIDES
    ring, side = torch.meshgrid(torch.arange(count if is_loop else count - 1), torch.arange(sides), indexing="ij")
    a, b = ring * sides + side, ring * sides + (side + 1) % sides
    c, d = ((ring + 1) % count) * sides + (side + 1) % sides, ((ring + 1) % count) * sides + side
    walls = torch.stack([torch.stack([a, b, c], -1), torch.stack([a, c, d], -1)], 2).reshape(-1, 3)
    if not is_loop:
        fan = torch.stack([torch.zeros(sides - 2), torch.arange(2, sides), torch.arange(1, sides - 1)], -1).long()
        walls = torch.cat([walls, fan, (count - 1) * sides + fan.flip(-1)])
    return rings.reshape(-1, 3), walls


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "assets"
    folder.mkdir(parents=True, exist_ok=True)
    for name, mesh in (("star_knot", star_knot()), ("bird_cage", bird_cage())):
        path = folder / f"{name}.obj"
        # Five decimals are plenty and keep the file small.
        save_mesh(path, mesh.with_vertices((mesh.vertices.double() * 1e5).round().div(1e5).float()))
        size = path.stat().st_size / 1000
        print(f"{path}: {mesh.vertex_count} vertices, {mesh.triangle_count} triangles, {size:.0f} kB")


if __name__ == "__main__":
    main()
