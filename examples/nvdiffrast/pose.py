"""Finds the orientation of a cube with six colors from one picture.

    python examples/nvdiffrast/pose.py [--steps 1000] [--seed 0] [--output pose.png]

The first half of the steps tries random turns, smaller and smaller ones, and keeps the best; the second half descends
the gradient of the antialiased picture.
"""

import argparse
import itertools
import math

import torch
from scenes import cube, projection, save_pictures, to_clip, translation

import diffrender.compat.nvdiffrast as dr

# --- quaternions (w, x, y, z) ----------------------------------------------------------------------


def multiply(p, q):
    (a, b), (c, d) = (p[0], p[1:]), (q[0], q[1:])
    return torch.cat([(a * c - b @ d)[None], a * d + c * b + torch.linalg.cross(b, d)])


def rotation(q):
    """4 x 4 matrix; differentiable."""
    w, x, y, z = q
    zero, one = torch.zeros_like(w), torch.ones_like(w)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), zero],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x), zero],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y), zero],
        [zero, zero, zero, one],
    ]
    return torch.stack([torch.stack(row) for row in rows])


def random_quaternion(generator):
    return torch.nn.functional.normalize(torch.randn(4, generator=generator), dim=0)


def part_of(q, share):
    """The turn by `share` of the angle of q, on the shorter way."""
    q = q * torch.sign(q[0])
    half = torch.acos(q[0].clamp(-1, 1))
    axis = torch.nn.functional.normalize(q[1:], dim=0)
    return torch.cat([torch.cos(share * half)[None], torch.sin(share * half) * axis])


def angle_deg(p, q):
    return math.degrees(2 * math.acos(min(1.0, abs((p.double() @ q.double()).item()))))


def symmetries():
    """The 24 turns of a cube."""
    found = []
    for entries in itertools.product((-1, 0, 1), repeat=4):
        if sum(map(abs, entries)) in (1, 2, 4) and next(e for e in entries if e) > 0:
            found.append(torch.nn.functional.normalize(torch.tensor(entries, dtype=torch.float32), dim=0))
    return found


def main(steps=1000, seed=0, output="pose.png", size=256):
    """Angle between the best orientation and the true one, in degrees."""
    generator = torch.Generator().manual_seed(seed)
    glctx = dr.RasterizeCudaContext()
    tri, positions, color_tri, colors = cube("p")
    camera = projection(0.4) @ translation(0, 0, -3.5)
    topology = dr.antialias_construct_topology_hash(tri)

    def render(quaternion):
        pos = to_clip(camera @ rotation(quaternion), positions)
        rast, _ = dr.rasterize(glctx, pos, tri, resolution=[size, size])
        color, _ = dr.interpolate(colors[None], rast, color_tri)
        return dr.antialias(color, rast, pos, tri, topology)

    true, turns = random_quaternion(generator), symmetries()
    target = render(true)
    pose = random_quaternion(generator).requires_grad_()
    start = pose.detach().clone()
    best, best_loss = start, math.inf
    optimizer = torch.optim.Adam([pose], lr=0.01)

    for step in range(steps):
        descending = step >= steps // 2
        if descending:
            if step == steps // 2:
                with torch.no_grad():
                    pose.copy_(best)
            candidate = pose
        else:
            noise = part_of(random_quaternion(generator), 1e-4 ** (step / steps))
            turn = turns[int(torch.randint(len(turns), (), generator=generator))]
            candidate = multiply(multiply(best, noise), turn)
        with torch.set_grad_enabled(descending):
            difference = ((render(candidate) - target) ** 2).amax(-1)
            loss = torch.tanh(5 * difference).mean()
        if loss.item() < best_loss:
            best, best_loss = candidate.detach().clone(), loss.item()
        if descending:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                pose /= pose.norm()
        if step % 100 == 99:
            now = angle_deg(candidate.detach(), true)
            print(
                f"step {step + 1:4d}  loss {loss.item():.5f}  error {now:7.3f}  best {angle_deg(best, true):7.3f} deg"
            )

    if output:
        save_pictures(output, target[0], render(start)[0], render(best)[0])
        print(f"wrote {output}: the target, the start, the best pose")
    return angle_deg(best, true)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="pose.png")
    options = parser.parse_args()
    main(options.steps, options.seed, options.output)
