"""Recovers a camera's pose from one picture of a textured model, from starts that are far off.

    python examples/fit_pose.py [--model avocado] [--starts 20] [--steps 160] [--out DIRECTORY]    some 4 s a start

Colors and silhouettes are compared on all levels of a pyramid at once: the coarse ones see from afar which way to go,
the fine ones settle the last hundredth of a degree. The unknowns are a turn about the model's middle, where that middle
appears, and the logarithm of its distance: six numbers of about the same effect, for which one step size of Adam does.

A start is turned by up to 30 degrees about the model's middle and shifted by up to 20% of the distance. Models are
`avocado` (glTF sample assets, CC0) and `spot` (Keenan Crane, public domain) of ../shared/data or DIFFRENDER_TEST_DATA,
and `knot`, the colored assets/star_knot.obj. Prints errors of the turn and of the eye's place. Needs the extra `io`.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import Tensor

import diffrender as dr
from diffrender import geometry

SIZE, DISTANCE = 128, 3.2  # of the picture in pixels, of the camera in units of the model's radius
ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("DIFFRENDER_TEST_DATA", ROOT.parent / "shared/data"))
FILES = {"knot": ROOT / "assets/star_knot.obj", "avocado": DATA / "gltf/avocado/avocado.gltf"}
FILES["spot"] = DATA / "spot/spot.obj"
LINE = "start {:2}: {:4.1f} deg {:5.1%} -> {:6.3f} deg {:7.3%}, {:.1f} s"
LENS = dr.Camera.perspective(fov_y_deg=40, width=SIZE, height=SIZE)


def main(model: str = "avocado", starts: int = 20, steps: int = 160, out: Path | str = ".") -> list[tuple[float, ...]]:
    """Fits from every start; returns (degrees, share of the distance, seconds) of each result."""
    mesh = load_model(FILES[model])
    true_pose = LENS.look_at([0.8 * DISTANCE, 0.35 * DISTANCE, 0.48 * DISTANCE]).camera_from_world
    target = render(mesh, true_pose, samples=4)
    generator, results, rows = torch.Generator().manual_seed(0), [], []
    for k in range(starts):
        start = random_start(true_pose, generator)
        began = time.perf_counter()
        pose = fit(mesh, start, target, steps)
        results.append((*errors(pose, true_pose), time.perf_counter() - began))
        print(LINE.format(k, *errors(start, true_pose), *results[-1]), flush=True)
        images = [target, render(mesh, start), render(mesh, pose)]
        rows.append(torch.cat([*images, (images[2] - target).abs()], 2)[0, ..., :3])
    good = sum(degrees < 1 and share < 0.01 for degrees, share, _ in results)
    print(f"{model}: {good} of {starts} end below 1 degree and 1% of the distance")
    Path(out).mkdir(parents=True, exist_ok=True)
    dr.save_image(f"{out}/fit_pose_{model}.png", torch.cat(rows[:4]))
    return results


def fit(mesh: dr.Mesh, start: Tensor, target: Tensor, steps: int) -> Tensor:
    """The pose (4, 4) whose picture is most like the target, from `start` on."""
    motion = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.Adam([motion], lr=0.04, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 0.01 ** (2 * step / steps - 1)))
    for step in range(steps):
        # One sample a pixel sees thin and far things with a small bias: the last steps take four.
        levels = pyramid(render(mesh, moved(start, motion), samples=1 if step < 0.75 * steps else 2))
        loss = torch.stack([dr.losses.mse(a, b) for a, b in zip(levels, pyramid(target), strict=True)]).sum()
        motion.grad = None
        loss.backward()
        optimizer.step()
        schedule.step()
    return moved(start, motion.detach())


def moved(pose: Tensor, motion: Tensor) -> Tensor:
    """A pose after a turn about the world's origin, a shift aside as a share of the distance, a change of its log."""
    middle = pose[:3, 3] + torch.cat([motion[3:5], torch.zeros(1)]) * pose[:3, 3].norm()
    return geometry.affine(geometry.so3_exp(motion[:3]) @ pose[:3, :3], middle * motion[5].exp())


def random_start(pose: Tensor, generator: torch.Generator) -> Tensor:
    axis, direction = geometry.safe_normalize(torch.randn(2, 3, generator=generator))
    angle, share = torch.rand(2, generator=generator) * torch.tensor([torch.pi / 6, 0.2])
    rotation = geometry.so3_exp(axis * angle) @ pose[:3, :3]
    return geometry.affine(rotation, pose[:3, 3] + direction * share * pose[:3, 3].norm())


def errors(pose: Tensor, truth: Tensor) -> tuple[float, float]:
    """Degrees between two poses, and the distance between their eyes as a share of that to the model."""
    degrees = torch.rad2deg(geometry.so3_log(pose[:3, :3] @ truth[:3, :3].T).norm())
    return float(degrees), float((LENS.with_pose(pose).eye - LENS.with_pose(truth).eye).norm() / truth[:3, 3].norm())


def render(mesh: dr.Mesh, pose: Tensor, samples: int = 1) -> Tensor:
    """Premultiplied RGBA (1, H, W, 4), without light."""
    renderer = dr.Renderer((SIZE, SIZE), outputs=("color", "alpha"), samples=samples, recompute=False)
    result = renderer(mesh, LENS.with_pose(pose))
    return torch.cat([result.color, result.alpha], -1)


def pyramid(image: Tensor) -> list[Tensor]:
    """Pictures (B, H, W, C) as (B, C, H, W), and halves of them down to 4 pixels."""
    whole = image.permute(0, 3, 1, 2)
    return [torch.nn.functional.avg_pool2d(whole, 2**k) for k in range(image.shape[2].bit_length() - 2)]


def load_model(path: Path) -> dr.Mesh:
    """Centred, of radius 1, with a texture of 256 texels a side or colors by position."""
    mesh = dr.load_mesh(path, recenter=True)
    vertices = mesh.vertices / mesh.vertices.norm(dim=-1).max()
    if mesh.texcoords is None:
        return mesh.with_vertices(vertices, colors=0.5 + 0.5 * torch.sin(5 * vertices + torch.arange(3)))
    albedo = mesh.materials[0].albedo[..., :3].permute(2, 0, 1)
    small = torch.nn.functional.adaptive_avg_pool2d(albedo, 256).permute(1, 2, 0)
    return mesh.with_vertices(vertices, material=dr.Material(small))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=FILES, default="avocado" if FILES["avocado"].is_file() else "knot")
    for name, value in (("--starts", 20), ("--steps", 160), ("--out", ".")):
        parser.add_argument(name, type=type(value), default=value)
    main(**vars(parser.parse_args()))
