"""Calibrates a lens from eight pictures of a known model: focal length, principal point, radial distortion.

    python examples/fit_camera.py [--model spot] [--steps 36] [--out DIRECTORY]

The poses are known, as on a measured rig; the model appears all over the frame, since only its corners tell the two
coefficients of distortion apart. The five unknowns are scaled so that a unit of each moves the picture by about one
pixel, and L-BFGS follows their gradient through the lens model and the renderer. Silhouettes and colors are compared
on all levels of a pyramid, as in fit_pose.py, which also says where the models come from.

Prints the errors of start and result, and writes one row per view: target, start and result minus target. Needs the
extra `io`.
"""

import argparse
import time
from pathlib import Path

import torch
from fit_pose import FILES, load_model, pyramid
from torch import Tensor

import diffrender as dr

SIZE = 192
TRUTH = (115.0, 99.5, 92.0, -0.22, 0.06)  # focal length, principal point (pixels), k1 and k2 (as in OpenCV)
START = (121.0, 96.0, 96.0, 0.0, 0.0)
PIXEL = torch.tensor([1.6, 1.0, 1.0, 0.025, 0.025])  # how much of each moves the picture by about a pixel
# What the eight views look past the model: to the right and up, in units of its radius.
ASIDE = [(-0.8, -0.6), (-0.8, 0.6), (0.8, -0.6), (0.8, 0.6), (-0.8, 0.0), (0.8, 0.0), (0.0, 0.0), (0.0, -0.6)]


def main(model: str = "spot", steps: int = 36, out: Path | str = ".") -> dict[str, float]:
    """Calibrates; returns the errors of focal length (share), principal point (pixels), k1 and k2 (shares)."""
    mesh, truth, start = load_model(FILES[model]), torch.tensor(TRUTH), torch.tensor(START)
    with torch.no_grad():
        targets = render(mesh, truth, samples=4)
    began = time.perf_counter()
    result = fit(mesh, start, targets, steps)
    seconds = time.perf_counter() - began
    line = "{}: focal length {focal:.3%}, principal point {center:.3f} px, k1 {k1:.2%}, k2 {k2:.2%}"
    print(line.format("start", **errors(start, truth)))
    print(line.format("result", **errors(result, truth)), f"after {seconds:.0f} s")
    with torch.no_grad():
        pictures = [targets, *((render(mesh, found) - targets).abs() for found in (start, result))]
    path = Path(out) / f"fit_camera_{model}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    dr.save_image(path, torch.cat([torch.cat(list(p[..., :3]), 1) for p in pictures]))
    print(f"wrote {path}: targets, and differences of start and result from them")
    return errors(result, truth)


def fit(mesh: dr.Mesh, start: Tensor, targets: Tensor, steps: int) -> Tensor:
    """The five numbers whose pictures are most like the targets."""
    change = torch.zeros(5, requires_grad=True)
    goals = pyramid(targets)
    # One sample a pixel leads there, four remove what bias that has.
    for samples, count in ((1, steps - steps // 3), (2, steps // 3)):
        optimizer = torch.optim.LBFGS([change], max_iter=count, line_search_fn="strong_wolfe")

        def loss(samples: int = samples) -> Tensor:
            levels = pyramid(render(mesh, start + change * PIXEL, samples))
            value = torch.stack([dr.losses.mse(a, b) for a, b in zip(levels, goals, strict=True)]).sum()
            value = 1e4 * value  # the optimizer's first step is as long as the gradient
            change.grad = None
            value.backward()
            return value

        optimizer.step(loss)
    return start + change.detach() * PIXEL


def cameras(lens: Tensor) -> dr.Camera:
    """The rig: eight eyes around the model, each looking past it to another side."""
    turn = 2.4 * torch.arange(8)
    eyes = 1.9 * torch.stack([turn.cos(), 0.5 * (0.7 * turn).sin(), turn.sin()], -1)
    right, up, _ = dr.geometry.look_at(eyes, torch.zeros(8, 3))[:, :3, :3].unbind(1)
    aside = torch.tensor(ASIDE)
    pose = dr.geometry.look_at(eyes, aside[:, :1] * right + aside[:, 1:] * up)
    return dr.Camera(
        focal_px=lens[:1].expand(2), principal_px=lens[1:3], distortion=torch.cat([lens[3:], torch.zeros(2)]),
        near=torch.tensor(0.1), far=torch.tensor(10.0), camera_from_world=pose, width=SIZE, height=SIZE,
    )  # fmt: skip


def render(mesh: dr.Mesh, lens: Tensor, samples: int = 1) -> Tensor:
    """Premultiplied RGBA (8, H, W, 4), without light."""
    renderer = dr.Renderer((SIZE, SIZE), outputs=("color", "alpha"), samples=samples, recompute=False)
    result = renderer(mesh, cameras(lens))
    return torch.cat([result.color, result.alpha], -1)


def errors(found: Tensor, truth: Tensor) -> dict[str, float]:
    relative = ((found - truth) / truth).abs().tolist()
    return {"focal": relative[0], "center": float((found - truth)[1:3].norm()), "k1": relative[3], "k2": relative[4]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=FILES, default="spot" if FILES["spot"].is_file() else "knot")
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument("--out", default=".")
    main(**vars(parser.parse_args()))
