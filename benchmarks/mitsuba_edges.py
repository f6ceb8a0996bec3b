"""Gradient of a picture to the vertices next to Mitsuba 3: error against seconds, on one CPU thread.

    python -m benchmarks.mitsuba_edges --json mitsuba.json --plot docs/images/mitsuba_edges.png

A ring before a ball, surfaces that glow in their vertex colors, so that both renderers make the same picture: the mean
over each pixel of what shows there. The loss is linear in the picture, with the weights of a squared difference to the
scene with ring and ball elsewhere. Mitsuba's `prb_projective` samples the interior and the silhouettes (Zhang et al.
2023); its depth is 1, so no path goes on from a surface. The truth are `coverage` in float64 and, independently, what
the mean of all of Mitsuba's gradients comes to.

Mitsuba compiles to vector code for the CPU through LLVM, 16 or newer (`apt-get install libllvm19`); DRJIT_LIBLLVM_PATH
names the library.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffrender as dr
from diffrender import geometry

MODES: dict[str, dict[str, Any]] = {
    'edges="pairs"': {"edges": "pairs"},
    'edges="segments"': {},
    '"segments", interior="flow"': {"interior": "flow"},
    'edges="coverage"': {"edges": "coverage"},
}
OLDEST_LLVM = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both renderers; returns the exit code."""
    parser = argparse.ArgumentParser(description="Gradient to the vertices next to Mitsuba 3.")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--detail", type=int, default=3, help="level of the ball; the ring has as fine triangles")
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 4, 16, 64, 256], help="of Mitsuba, per pixel")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="draw error against seconds; needs matplotlib")
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = measure(options)
    finally:
        torch.set_num_threads(before)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.plot:
        draw(results, options.plot)
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Errors and seconds of all modes and sample counts, and how far Mitsuba's mean is from the truth."""
    mesh, target, camera = scene(options.size, options.detail)
    exact = {"edges": "coverage"}
    double_mesh, double_camera = mesh.to(torch.float64), camera.to(torch.float64)
    with torch.no_grad():
        weight = picture(double_mesh, double_camera, exact) - picture(target.to(torch.float64), double_camera, exact)
    true_image, truth = step_of_ours(double_mesh, double_camera, weight, exact)()
    rows, mean = [], torch.zeros_like(truth)
    print(f"{mesh.triangle_count} triangles, {options.size} squared, one thread, shortest of {options.repeat}")
    for label, settings in MODES.items():
        step = step_of_ours(mesh, camera, weight.float(), settings)
        rows.append(timed("diffrender", label, lambda _, step=step: step(), true_image, truth, options.repeat)[0])
    total = 0
    for count in options.samples:
        step = step_of_mitsuba(mesh, camera, weight, count)
        row, gradients = timed("mitsuba", f"{count} samples", step, true_image, truth, options.repeat)
        rows.append(row)
        mean += count * sum(gradients, torch.zeros_like(truth))
        total += count * len(gradients)
    of_mean = relative(mean / total, truth)
    print(f"mean of all {total} samples of Mitsuba against the truth: {of_mean:.4f}")
    return {"size": options.size, "triangles": mesh.triangle_count, "rows": rows, "mean_of_mitsuba": of_mean}


def timed(renderer: str, label: str, step: Callable, true_image: Tensor, truth: Tensor, repeat: int) -> tuple:
    """The row of one contestant, errors as root mean squares over the repeats, and its gradients."""
    step(0)
    seconds, errors, image_errors, gradients = [], [], [], []
    for seed in range(1, repeat + 1):
        start = time.perf_counter()
        image, gradient = step(seed)
        seconds.append(time.perf_counter() - start)
        errors.append(relative(gradient.double(), truth) ** 2)
        image_errors.append(float((image.double() - true_image).square().mean()))
        gradients.append(gradient.double())
    row = {
        "renderer": renderer,
        "label": label,
        "seconds": min(seconds),
        "gradient_error": (sum(errors) / repeat) ** 0.5,
        "image_rmse": (sum(image_errors) / repeat) ** 0.5,
    }
    print(
        f"  {label:40s} {row['gradient_error']:.4f} of the gradient, rmse {row['image_rmse']:.5f}, {min(seconds):.4f} s"
    )
    return row, gradients


def relative(value: Tensor, truth: Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


def scene(size: int, detail: int) -> tuple[dr.Mesh, dr.Mesh, dr.Camera]:
    """Ring and ball, the same elsewhere, and a camera that sees all of both."""
    ball = geometry.icosphere(detail, radius=0.9)
    ring = geometry.torus(segments=8 * 2**detail, tube_segments=4 * 2**detail)
    turned = geometry.transform_points(geometry.rotation([1.0, 0.2, 0.0], 0.9), ring.vertices)
    vertices = torch.cat([ball.vertices, turned + torch.tensor([0.2, 0.1, 0.9])])
    triangles = torch.cat([ball.triangles, ring.triangles + ball.vertex_count])
    colors = 0.5 + 0.4 * torch.sin(3 * vertices + torch.tensor([0.0, 1.0, 2.0]))
    mesh = dr.Mesh(vertices, triangles, colors=colors)
    is_ball = (torch.arange(mesh.vertex_count) < ball.vertex_count).unsqueeze(-1)
    moved = vertices + torch.where(is_ball, torch.tensor([-0.05, 0.03, 0.0]), torch.tensor([0.06, 0.04, 0.0]))
    camera = dr.Camera.perspective(fov_y_deg=40, width=size, height=size).look_at([0.3, 0.4, 4.0])
    return mesh, mesh.with_vertices(moved), camera


def picture(mesh: dr.Mesh, camera: dr.Camera, settings: dict[str, Any]) -> Tensor:
    """(H, W, 3)."""
    color = dr.Renderer((camera.height, camera.width), background=0.0, **settings)(mesh, camera).color
    assert color is not None
    return color[0]


def step_of_ours(mesh: dr.Mesh, camera: dr.Camera, weight: Tensor, settings: dict[str, Any]) -> Callable:
    """A function that makes the picture and the gradient to the vertices."""

    def step() -> tuple[Tensor, Tensor]:
        vertices = mesh.vertices.clone().requires_grad_()
        image = picture(mesh.with_vertices(vertices), camera, settings)
        return image.detach(), torch.autograd.grad(image, vertices, weight.to(image.dtype))[0]

    mesh.edge_topology()  # once per mesh, and not part of a step
    return step


def step_of_mitsuba(mesh: dr.Mesh, camera: dr.Camera, weight: Tensor, count: int) -> Callable:
    """The same by Mitsuba with `count` samples per pixel for picture, interior and silhouettes each."""
    mi, drjit = load_mitsuba()
    emitter = {"type": "area", "radiance": {"type": "mesh_attribute", "name": "vertex_color"}}
    properties = mi.Properties()
    properties["emitter"] = mi.load_dict(emitter)
    shape = mi.Mesh("mesh", mesh.vertex_count, mesh.triangle_count, props=properties)
    assert mesh.colors is not None
    shape.add_attribute("vertex_color", 3, mesh.colors.flatten().numpy())
    buffers = mi.traverse(shape)
    buffers["vertex_positions"] = mesh.vertices.flatten().numpy()
    buffers["faces"] = mesh.triangles.flatten().numpy().astype("uint32")
    buffers.update()
    # Mitsuba's cameras look along +z with x to the left.
    world_from_camera = torch.linalg.inv(camera.camera_from_world) @ torch.diag(torch.tensor([-1.0, 1.0, -1.0, 1.0]))
    film = {"type": "hdrfilm", "width": camera.width, "height": camera.height, "pixel_format": "rgb"}
    sensor = {
        "type": "perspective",
        "fov": float(2 * torch.atan(camera.height / 2 / camera.focal_px[1]).rad2deg()),
        "fov_axis": "y",
        "to_world": mi.ScalarTransform4f(world_from_camera.numpy()),
        "near_clip": float(camera.near),
        "far_clip": float(camera.far),
        "film": {**film, "rfilter": {"type": "box"}},
        "sampler": {"type": "independent"},
    }
    world = mi.load_dict({"type": "scene", "mesh": shape, "sensor": sensor})
    integrator = mi.load_dict({"type": "prb_projective", "max_depth": 1, "sppc": count, "sppp": count, "sppi": 0})
    parameters, name, weights = mi.traverse(world), "mesh.vertex_positions", mi.TensorXf(weight.float().numpy())

    def step(seed: int) -> tuple[Tensor, Tensor]:
        drjit.enable_grad(parameters[name])
        parameters.update()
        options = {"spp": count, "spp_grad": count, "seed": 2 * seed, "seed_grad": 2 * seed + 1}
        image = mi.render(world, parameters, integrator=integrator, **options)
        drjit.backward(drjit.sum(weights * image, axis=None))
        gradient = torch.tensor(drjit.grad(parameters[name]).numpy()).reshape(-1, 3)
        drjit.disable_grad(parameters[name])
        return torch.tensor(image.numpy()), gradient

    return step


def load_mitsuba() -> tuple[Any, Any]:
    """Mitsuba and Dr.Jit on one CPU thread."""
    if "DRJIT_LIBLLVM_PATH" not in os.environ:
        library = newest_llvm(Path("/usr/lib").glob("*/libLLVM*.so*"))
        if library is not None:
            os.environ["DRJIT_LIBLLVM_PATH"] = str(library)
    try:
        import drjit
        import mitsuba
    except ImportError as error:
        raise ImportError("mitsuba_edges: mitsuba must be installed. pip install mitsuba") from error
    mitsuba.set_variant("llvm_ad_rgb")
    mitsuba.set_log_level(mitsuba.LogLevel.Error)  # a warning per step of shapes that leave the picture; none does
    drjit.set_thread_count(1)
    return mitsuba, drjit


def newest_llvm(paths: Any) -> Path | None:
    """Of the libraries the one with the highest version that is new enough; None without one."""
    versions = {path: re.search(r"LLVM(?:\.so\.|-)(\d+)", path.name) for path in paths}
    known = {path: int(found.group(1)) for path, found in versions.items() if found}
    usable = [path for path, version in known.items() if version >= OLDEST_LLVM]
    return max(usable, key=lambda path: known[path], default=None)


def draw(results: dict[str, Any], path: Path) -> None:
    """Error of the gradient against seconds, both logarithmic."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("mitsuba_edges: matplotlib must be installed. pip install diffrender-torch[fit]") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.4), layout="constrained")
    for renderer, style in (("mitsuba", "o-"), ("diffrender", "D")):
        rows = [row for row in results["rows"] if row["renderer"] == renderer]
        name = "Mitsuba 3, prb_projective, samples per pixel" if renderer == "mitsuba" else "diffrender"
        points = [row["seconds"] for row in rows], [row["gradient_error"] for row in rows]
        axes.plot(*points, style, label=name)
        for row in rows:
            text = row["label"].replace(" samples", "")
            place, below = (row["seconds"], row["gradient_error"]), "flow" in text
            axes.annotate(text, place, xytext=(6, -10 if below else 4), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="seconds, forward and backward, one thread")
    axes.set_ylabel("relative error of the gradient to the vertices")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
