"""Learns the texture of a sphere from pictures near and far, with mips and without.

    python examples/nvdiffrast/texture.py [--steps 1000] [--resolution 256] [--output texture.png]

Targets are drawn four times as large in each direction and filtered down. From far away a pixel covers many texels: a
bilinear lookup fits one of them to the mean of all, and the next picture another one; with mips all of them take part.
Both textures are learned in one run from the same pictures.
"""

import argparse
import math

import torch
from scenes import projection, random_pose, save_pictures, to_clip, translation, uv_sphere

import diffrender.compat.nvdiffrast as dr

LEVELS = 9  # mip levels beyond the base
OVERSAMPLING = 4


def true_texture(height, width, generator):
    """Noise of all sizes with hard edges, (1, height, width, 3) in [0, 1]."""
    total = torch.zeros(1, 3, height, width)
    rows = 4
    while rows <= height:
        noise = torch.rand(1, 3, rows, 2 * rows, generator=generator) - 0.5
        total += torch.nn.functional.interpolate(noise, (height, width), mode="nearest") * (4 / rows) ** 0.25
        rows *= 2
    return (0.5 + 0.5 * total).clamp(0, 1).permute(0, 2, 3, 1).contiguous()


def halve(picture):
    """Half the size by the separable filter (1, 3, 3, 1) / 8."""
    taps = torch.tensor([1.0, 3, 3, 1]) / 8
    kernel = (taps[:, None] * taps).expand(3, 1, 4, 4)
    padded = torch.nn.functional.pad(picture.permute(0, 3, 1, 2), (1, 1, 1, 1), mode="replicate")
    return torch.nn.functional.conv2d(padded, kernel, stride=2, groups=3).permute(0, 2, 3, 1)


def main(steps=1000, resolution=256, texture_size=256, seed=0, output="texture.png"):
    """PSNR (dB) of the learned textures: with mips and without."""
    generator = torch.Generator().manual_seed(seed)
    glctx = dr.RasterizeCudaContext()
    tri, positions, uv = uv_sphere()
    truth = true_texture(texture_size, 2 * texture_size, generator)
    fits = {mips: torch.full_like(truth, 0.2).requires_grad_() for mips in (True, False)}
    optimizer = torch.optim.Adam(fits.values(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 ** (step / steps))

    def render(clip_from_object, texels, size, mips):
        rast, rast_db = dr.rasterize(glctx, to_clip(clip_from_object, positions), tri, (size, size))
        if mips:
            st, st_da = dr.interpolate(uv, rast, tri, rast_db, diff_attrs="all")
            color = dr.texture(texels, st, st_da, filter_mode="linear-mipmap-linear", max_mip_level=LEVELS)
        else:
            st, _ = dr.interpolate(uv, rast, tri)
            color = dr.texture(texels, st, filter_mode="linear")
        return color * (rast[..., 3:] > 0)

    def psnr(texels):
        return -10 * math.log10(((texels.detach() - truth) ** 2).mean().item())

    for step in range(steps):
        distance = 1.5 + 48.5 * torch.rand((), generator=generator).item()
        view = projection(0.4, far=200) @ translation(0, 0, -distance) @ random_pose(0.25, generator)
        target = render(view, truth, OVERSAMPLING * resolution, True)
        for _ in range(int(math.log2(OVERSAMPLING))):
            target = halve(target)
        loss = sum(((render(view, fits[mips], resolution, mips) - target) ** 2).mean() for mips in fits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1:4d}  with mips {psnr(fits[True]):.2f} dB  without {psnr(fits[False]):.2f} dB")

    if output:
        save_pictures(output, *(texels[0].flip(0) for texels in (truth, fits[True], fits[False])))
        print(f"wrote {output}: the texture, learned with mips, learned without")
    return psnr(fits[True]), psnr(fits[False])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--texture-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="texture.png")
    options = parser.parse_args()
    main(options.steps, options.resolution, options.texture_size, options.seed, options.output)
