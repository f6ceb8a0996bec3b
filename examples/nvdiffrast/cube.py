"""Learns the corners and colors of a cube from tiny pictures of it, a new random view in every step.

    python examples/nvdiffrast/cube.py [--resolution 16] [--steps 1000] [--seed 0] [--no-antialias] [--output cube.png]

A picture of 8 x 8 pixels says where an edge is by how much it blends the pixels at it. Without antialiasing corners
have no gradient but that of the colors inside, and the fit does not converge.
"""

import argparse

import torch
from scenes import cube, projection, random_pose, save_pictures, to_clip, translation

import diffrender.compat.nvdiffrast as dr


def render(glctx, clip_from_object, positions, tri, colors, color_tri, size, antialias):
    pos = to_clip(clip_from_object, positions)
    rast, _ = dr.rasterize(glctx, pos, tri, resolution=[size, size])
    color, _ = dr.interpolate(colors[None], rast, color_tri)
    return dr.antialias(color, rast, pos, tri) if antialias else color


def main(resolution=16, steps=1000, seed=0, antialias=True, output="cube.png", kind="c"):
    """Mean distance of the corners from their true absolute place, over the last ten steps."""
    generator = torch.Generator().manual_seed(seed)
    glctx = dr.RasterizeCudaContext()
    tri, positions, color_tri, colors = cube(kind)
    positions_fit = (positions + torch.rand(positions.shape, generator=generator) - 0.5).requires_grad_()
    colors_fit = torch.rand(colors.shape, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([positions_fit, colors_fit], lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.01, 10 ** (-0.0005 * step)))
    camera = projection(0.4) @ translation(0, 0, -3.5)

    errors = []
    for step in range(steps + 1):
        # A mirrored cube looks the same from somewhere else, so signs do not count.
        errors.append((positions_fit.detach().abs() - 0.5).norm(dim=1).mean().item())
        error = sum(errors[-10:]) / len(errors[-10:])
        if step % 100 == 0:
            print(f"step {step:4d}  error {error:.6f}")
        if step == steps:
            break
        view = camera @ random_pose(0.25, generator)
        with torch.no_grad():
            target = render(glctx, view, positions, tri, colors, color_tri, resolution, antialias)
        picture = render(glctx, view, positions_fit, tri, colors_fit, color_tri, resolution, antialias)
        loss = ((target - picture) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    if output:
        view = camera @ random_pose(0.0, generator)
        small = render(glctx, view, positions, tri, colors, color_tri, resolution, antialias)[0]
        scale = -(-192 // resolution)
        shown = [small.repeat_interleave(scale, 0).repeat_interleave(scale, 1)]
        for p, c in ((positions, colors), (positions_fit, colors_fit)):
            shown.append(render(glctx, view, p, tri, c, color_tri, scale * resolution, True)[0])
        save_pictures(output, *shown)
        print(f"wrote {output}: what a step sees, the target, the fit")
    return error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resolution", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-antialias", action="store_true")
    parser.add_argument("--output", default="cube.png")
    options = parser.parse_args()
    main(options.resolution, options.steps, options.seed, not options.no_antialias, options.output)
