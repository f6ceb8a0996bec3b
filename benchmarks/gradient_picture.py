"""Where each treatment of edges pushes the vertices of a small scene, next to the truth: docs/images/gradients.png.

    python -m benchmarks.gradient_picture docs/images/gradients.png [--json gradients.json]

The scene is a ring with facets of a few pixels before a ball, 48 x 48 pixels. The loss is linear in the picture, with
weights that are the same for all: the derivative of the squared difference to the scene with ring and ball elsewhere.
The gradient is that of the vertices' motion on the screen, in pixels.

The truth are central differences of the mean of 128 x 128 point samples in every pixel around the moving vertex, which
takes a minute: no edge op has part in it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffrender as dr
from benchmarks.fits import MODES
from diffrender import geometry

SIZE = 48
FOV_DEG = 40.0
TARGET_SAMPLES, TRUTH_SAMPLES = 16, 128
STEP = 1 / 16  # pixels, of the differences
BACKGROUND = (0.15, 0.2, 0.3)
LABELS = {
    "none": "no edge op",
    "pairs": 'edges="pairs"',
    "segments": 'edges="segments"',
    "segments+flow": '"segments", interior="flow"',
    "coverage": 'edges="coverage"',
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all modes and draw them; returns the exit code."""
    parser = argparse.ArgumentParser(description="Gradients to the vertices next to the truth.")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--json", type=Path, help="relative errors by mode")
    options = parser.parse_args(arguments)
    mesh, camera = scene()
    image = sampled_picture(mesh, camera)
    weight = cotangent(mesh, camera, image)
    truth = true_gradient(mesh, camera, weight)
    gradients = {mode: gradient(mesh, camera, weight, MODES[mode]) for mode in MODES}
    errors = {mode: float((value - truth).norm() / truth.norm()) for mode, value in gradients.items()}
    for mode, error in errors.items():
        print(f"{mode:15s} relative error {error:.3f}")
    if options.json:
        options.json.write_text(json.dumps(errors, indent=1) + "\n")
    draw(options.picture, image, screen_positions(mesh, camera), truth, gradients, errors)
    return 0


def scene() -> tuple[dr.Mesh, dr.Camera]:
    """A ring before a ball, with colours that change over them."""
    ring = geometry.torus(0.62, 0.2, segments=18, tube_segments=8)
    ball = geometry.icosphere(2, radius=0.62)
    ring_vertices = geometry.transform_points(geometry.rotation([1.0, 0.3, 0.5], 1.0), ring.vertices)
    vertices = torch.cat(
        [ring_vertices + torch.tensor([-0.18, -0.1, 0.4]), ball.vertices + torch.tensor([0.3, 0.28, -0.5])]
    )
    triangles = torch.cat([ring.triangles.long(), ball.triangles.long() + ring.vertex_count])
    waves = torch.sin(3.0 * vertices + torch.tensor([0.0, 2.0, 4.0]))
    is_ball = (torch.arange(len(vertices)) >= ring.vertex_count).unsqueeze(-1)
    colors = (
        0.5 + 0.3 * waves + torch.where(is_ball, torch.tensor([-0.1, 0.05, 0.15]), torch.tensor([0.15, 0.0, -0.15]))
    )
    camera = dr.Camera.perspective(fov_y_deg=FOV_DEG, width=SIZE, height=SIZE).look_at([0.0, 0.0, 3.6])
    return dr.Mesh(vertices, triangles, colors=colors), camera


def moved(mesh: dr.Mesh, camera: dr.Camera, pixels: Tensor) -> dr.Mesh:
    """The mesh after a motion of its vertices on the screen, (V, 2) in pixels, x right and y down."""
    depth = camera.depth(mesh.vertices)
    unit = (depth * (2 * math.tan(math.radians(FOV_DEG / 2)) / SIZE)).unsqueeze(-1)
    right, up, _ = camera.camera_from_world[:3, :3]
    return mesh.with_vertices(mesh.vertices + unit * (pixels[:, :1] * right - pixels[:, 1:] * up))


def screen_positions(mesh: dr.Mesh, camera: dr.Camera) -> Tensor:
    return camera.project(mesh.vertices)


def picture(mesh: dr.Mesh, camera: dr.Camera, **options: Any) -> Tensor:
    """(H, W, 3)."""
    renderer = dr.Renderer((camera.height, camera.width), background=BACKGROUND, **options)
    color = renderer(mesh, camera).color
    assert color is not None
    return color[0]


def sampled_picture(mesh: dr.Mesh, camera: dr.Camera, samples: int = TARGET_SAMPLES) -> Tensor:
    with torch.no_grad():
        return picture(mesh, camera, edges=None, samples=samples).double()


def cotangent(mesh: dr.Mesh, camera: dr.Camera, image: Tensor) -> Tensor:
    """(H, W, 3) derivative of the summed squared difference to the scene with ring and ball moved, each its own way."""
    is_ball = torch.arange(mesh.vertex_count) >= geometry.torus(segments=18, tube_segments=8).vertex_count
    shift = torch.where(is_ball.unsqueeze(-1), torch.tensor([-1.2, 0.7]), torch.tensor([1.5, 1.0]))
    return 2 * (image - sampled_picture(moved(mesh, camera, shift), camera))


def true_gradient(mesh: dr.Mesh, camera: dr.Camera, weight: Tensor) -> Tensor:
    """(V, 2) by central differences, of the part of the picture that the vertex's triangles reach."""
    truth = torch.zeros(mesh.vertex_count, 2, dtype=torch.float64)
    at = screen_positions(mesh, camera)
    for vertex in range(mesh.vertex_count):
        reached = at[mesh.triangles[(mesh.triangles == vertex).any(-1)].long().unique()]
        left, top = (reached.amin(0) - 1).floor().int().tolist()
        right, bottom = (reached.amax(0) + 1).ceil().int().tolist()
        window = camera.cropped((left, top, right, bottom))
        for axis in range(2):
            values = []
            for sign in (1, -1):
                shift = torch.zeros(mesh.vertex_count, 2)
                shift[vertex, axis] = sign * STEP
                seen = sampled_picture(moved(mesh, camera, shift), window, TRUTH_SAMPLES)
                values.append((seen * weight[top:bottom, left:right]).sum())
            truth[vertex, axis] = (values[0] - values[1]) / (2 * STEP)
    return truth


def gradient(mesh: dr.Mesh, camera: dr.Camera, weight: Tensor, mode: dict[str, Any]) -> Tensor:
    """(V, 2) of one mode."""
    shift = torch.zeros(mesh.vertex_count, 2, requires_grad=True)
    loss = (picture(moved(mesh, camera, shift), camera, **mode) * weight.float()).sum()
    (grad_shift,) = torch.autograd.grad(loss, shift)
    return grad_shift.double()


def draw(
    path: Path, image: Tensor, at: Tensor, truth: Tensor, gradients: dict[str, Tensor], errors: dict[str, float]
) -> None:
    """Arrows against the gradient: where a step of descent would go. Red ends where the truth's arrow would."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "gradient_picture: matplotlib must be installed. pip install diffrender-torch[fit]"
        ) from error
    figure = Figure(figsize=(12.6, 8.8), layout="constrained")
    panels = figure.subplots(2, 3).reshape(-1)
    grey = (0.55 + 0.45 * dr.linear_to_srgb(image.mean(-1))).clamp(0, 1).numpy()
    scale = 4.0 / float(truth.norm(dim=-1).quantile(0.98))
    shown = {"the truth": truth, **{LABELS[mode]: value for mode, value in gradients.items()}}
    for panel, (label, value) in zip(panels, shown.items(), strict=True):
        panel.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=(0, SIZE, SIZE, 0), interpolation="nearest")
        arrows = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 0.004, "headwidth": 3.5, "headlength": 4}
        step, missing = -scale * value, -scale * (truth - value)
        for tail, arrow, color in ((at, step, "tab:blue"), (at + step, missing, "tab:red")):
            long = arrow.norm(dim=-1) > 0.1  # shorter ones would be dots
            panel.quiver(*tail[long].T, *arrow[long].T, color=color, **arrows)
        panel.set(xlim=(2, SIZE), ylim=(SIZE - 1, 7), xticks=[], yticks=[])
        panel.set_title(label)
    for panel, mode in zip(panels[1:], gradients, strict=True):
        panel.set_xlabel(f"relative error {errors[mode]:.3f}")
    panels[0].set_xlabel("blue: step against the gradient; red: missing")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    sys.exit(main())
