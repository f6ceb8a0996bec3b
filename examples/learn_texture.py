"""Learns a texture from 32 pictures at mixed distances, with and without mip levels.

    python examples/learn_texture.py [--steps 400] [--out DIRECTORY]        about 40 s on two cores

The pictures are photographs of a known mesh: every pixel is the mean of 4 x 4 samples. From far away a pixel covers
many texels. Without mips it looks up four of them and makes those take the colour of all: the near views, which know
better, are pulled away from the truth, and texels between the lookups learn nothing. With mips a pixel's gradient goes
to all the texels that it covers.

The mesh and texture are those of `spot` (Keenan Crane, public domain) where ../shared/data/spot or the folder in
DIFFRENDER_TEST_DATA has them, otherwise a torus and a made pattern. Prints the PSNR over the texels that were seen, and
over those of them that are read without mips too; writes truth and results side by side. Needs the extra `io`.
"""

import argparse
import os
import time
from pathlib import Path

import torch

import diffrender as dr
from diffrender import geometry

TEXTURE_SIZE, IMAGE_SIZE, VIEWS, SAMPLES = 512, 160, 32, 4
NEAREST, FARTHEST = 1.6, 16.0  # distances of the views, for a mesh of about unit size
ROOT = Path(__file__).resolve().parents[1]


def main(steps: int = 400, out: Path | str = ".") -> dict[str, float]:
    """Runs both, writes the pictures; returns the PSNR of each in dB."""
    mesh, truth = load_scene()
    views = [make_view(mesh, truth, camera) for camera in random_cameras()]
    seen = observed_texels(views, "samples")
    read = seen & observed_texels(views, "uv")
    shares = [f"{texels.float().mean():.0%}" for texels in (seen, read)]
    print(f"{len(views)} views show {shares[0]} of the texels, {shares[1]} are read without mips")

    results, quality = {"truth": truth}, {}
    for name, filter in (("mips", "mip_linear"), ("no mips", "linear")):
        start = time.perf_counter()
        results[name] = fit(views, filter, steps)
        quality[name] = psnr(results[name], truth, seen)
        seconds, common = time.perf_counter() - start, psnr(results[name], truth, read)
        print(f"{name}: PSNR {quality[name]:.2f} dB ({common:.2f} dB where both read), {steps} steps, {seconds:.0f} s")
    print(f"mips are {quality['mips'] - quality['no mips']:.2f} dB better")

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("mips", "no mips"):
        pair = torch.cat([truth, torch.where(seen[..., None], results[name], 0.5)], 1)
        path = out / f"learned_texture_{name.replace(' ', '_')}.png"
        dr.save_image(path, pair.clamp(0, 1), encode="none")
        print(f"wrote {path}: truth, result")
    return quality


def load_scene() -> tuple[dr.Mesh, torch.Tensor]:
    """Mesh of about unit size with texcoords, and its texture (512, 512, 3) in [0, 1]."""
    data = Path(os.environ.get("DIFFRENDER_TEST_DATA", ROOT.parent / "shared" / "data"))
    if (data / "spot" / "spot.obj").is_file():
        from imageio.v3 import imread

        mesh = dr.load_mesh(data / "spot" / "spot.obj")
        pixels = torch.from_numpy(imread(data / "spot" / "spot_texture.png")).float() / 255
        image = pixels[..., :3].permute(2, 0, 1)[None]
        # The mean over areas, as for mips, at any size of the file.
        texture = torch.nn.functional.interpolate(image, (TEXTURE_SIZE, TEXTURE_SIZE), mode="area")[0].permute(1, 2, 0)
        return mesh, texture.contiguous()
    return geometry.torus(0.75, 0.35), made_texture()


def made_texture() -> torch.Tensor:
    """Stripes, dots and noise of several sizes."""
    generator = torch.Generator().manual_seed(0)
    v, u = torch.meshgrid(*[torch.arange(TEXTURE_SIZE) / TEXTURE_SIZE] * 2, indexing="ij")
    layers = [torch.sin(2 * torch.pi * 24 * (u + 0.3 * v)), torch.sin(2 * torch.pi * 60 * v), torch.sin(200 * u * v)]
    texture = 0.5 + 0.2 * torch.stack(layers, -1)
    for size in (8, 64, 256):
        noise = torch.rand(1, 3, size, size, generator=generator) - 0.5
        texture += 0.3 * torch.nn.functional.interpolate(noise, (TEXTURE_SIZE, TEXTURE_SIZE))[0].permute(1, 2, 0)
    return texture.clamp(0, 1)


def random_cameras() -> list[dr.Camera]:
    """From all sides, distances evenly spread on a logarithmic scale."""
    generator = torch.Generator().manual_seed(1)
    directions = torch.nn.functional.normalize(torch.randn(VIEWS, 3, generator=generator), dim=-1)
    distances = NEAREST * (FARTHEST / NEAREST) ** torch.linspace(0, 1, VIEWS)
    lens = dr.Camera.perspective(fov_y_deg=50, width=IMAGE_SIZE, height=IMAGE_SIZE)
    return [lens.look_at(d * direction) for d, direction in zip(distances, directions, strict=True)]


def surface(mesh: dr.Mesh, camera: dr.Camera) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per pixel: whether the mesh covers it, texcoords (1, H, W, 2) and their derivatives (1, H, W, 4)."""
    clip = camera.clip_positions(mesh.vertices)
    fragments = dr.rasterize(clip, mesh.triangles, (camera.height, camera.width), derivatives=True)
    uv, steps = dr.interpolate(mesh.texcoords, mesh.texcoord_triangles, fragments, derivatives="all")
    return fragments.triangle_id >= 0, uv, steps


def make_view(mesh: dr.Mesh, truth: torch.Tensor, camera: dr.Camera) -> dict[str, torch.Tensor]:
    """The photograph and where it falls on the texture: only pixels that the mesh fills, as lists (1, 1, N, ...)."""
    fine_hit, fine_uv, fine_steps = surface(mesh, camera.scaled(SAMPLES))
    samples = dr.texture(truth, fine_uv, texcoord_derivatives=fine_steps, max_anisotropy=4)
    blocks = (1, IMAGE_SIZE, SAMPLES, IMAGE_SIZE, SAMPLES)
    photograph = samples.reshape(*blocks, 3).mean((2, 4))
    hit, uv, steps = surface(mesh, camera)
    filled = hit & fine_hit.reshape(blocks).all(4).all(2)
    view = {"color": photograph[filled], "uv": uv[filled], "steps": steps[filled]}
    view = {name: values[None, None] for name, values in view.items()}
    view["samples"] = fine_uv[fine_hit][None, None]
    return view


def observed_texels(views: list[dict[str, torch.Tensor]], lookups: str) -> torch.Tensor:
    """(512, 512) texels that the "samples" of the photographs touch, or the bilinear lookups at pixel centres, "uv"."""
    texels = torch.zeros(TEXTURE_SIZE, TEXTURE_SIZE, 1, requires_grad=True)
    total = torch.stack([dr.texture(texels, view[lookups], filter="linear").sum() for view in views]).sum()
    (weights,) = torch.autograd.grad(total, texels)
    return weights[..., 0] > 0.5


def fit(views: list[dict[str, torch.Tensor]], filter: str, steps: int) -> torch.Tensor:
    """The texture that explains the photographs, by Adam on one view after the other."""
    texture = torch.full((TEXTURE_SIZE, TEXTURE_SIZE, 3), 0.5, requires_grad=True)
    optimizer = torch.optim.Adam([texture], lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.03 ** (step / steps))
    order = torch.Generator().manual_seed(2)
    queue: list[int] = []
    for _ in range(steps):
        queue = queue or torch.randperm(len(views), generator=order).tolist()
        view = views[queue.pop()]
        options = {"texcoord_derivatives": view["steps"], "max_anisotropy": 4} if filter == "mip_linear" else {}
        loss = dr.losses.mse(dr.texture(texture, view["uv"], filter=filter, **options), view["color"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return texture.detach()


def psnr(result: torch.Tensor, truth: torch.Tensor, seen: torch.Tensor) -> float:
    """In dB, over the texels that were seen."""
    return -10 * (result - truth)[seen].square().mean().log10().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn a texture from pictures, with and without mips.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    main(options.steps, options.out)
