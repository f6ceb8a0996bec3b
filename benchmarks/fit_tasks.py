"""The two tasks of fits.py: closed shapes from a sphere, and thin wires from bent ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffrender as dr
from diffrender import fit, geometry, metrics
from diffrender.optim import AdamUniform, LaplacianPreconditioner

CAGE = Path(__file__).resolve().parents[1] / "assets" / "bird_cage.obj"
WIRE_SIDES = 6  # vertices around a wire of the cage, in their order

VIEWS, WIRE_VIEWS, UNSEEN_VIEWS = 16, 8, 4
TARGET_SAMPLES = 8
IOU_SCALE = 4  # pictures for the overlap of masks are so many times finer than those of the fit
CURVE_POINTS = 40
CURVE_SAMPLES, FINAL_SAMPLES = 20_000, 100_000

WIRE_BEND = 4.0  # pixels, root mean square
WIRE_WAVELENGTH = 0.5  # of the bending waves; the cage is 1 high
WIRE_BATCH = 4
WIRE_STEP = 1.0  # pixels, of the fastest vertex in the smoothed variables
WIRE_SMOOTHING = 5.0


def run_closed(path: Path, mode: dict[str, Any], steps: int, size: int, seed: int) -> tuple[dict[str, Any], dr.Mesh]:
    """From a sphere to the shape in a file; a record without the names, and the mesh."""
    source, _ = fit.normalize(dr.load_mesh(path))
    radius = float(source.vertices.norm(dim=-1).max())
    cameras = fit.cameras_around(fit.spread_directions(VIEWS), size, radius)
    pictures = target_pictures(source, cameras, radius)
    curve = Curve(
        steps, lambda mesh: metrics.surface_distance(mesh, source, threshold=0.01, samples=CURVE_SAMPLES).chamfer
    )
    settings = replace(fit.FitSettings(), steps=steps, seed=seed, **mode)
    recovery = fit.recover(pictures, settings, on_shape=curve.add)
    record = {"steps": steps, "size": size, "start": measure(recovery.snapshots[0], source, size, radius)}
    return {**record, **measure(recovery.mesh, source, size, radius), **curve.record()}, recovery.mesh


def run_wires(mode: dict[str, Any], steps: int, size: int, seed: int) -> tuple[dict[str, Any], dr.Mesh]:
    """From bent wires to straight ones; a record without the names, and the mesh.

    The loss compares colour and coverage, averaged over blocks of 1, 2, 4, 8 and 16 pixels: a wire that is several
    pixels off overlaps its picture in the coarse ones only.
    """
    cage = dr.load_mesh(CAGE)
    cage = cage.replace(colors=paint(cage.vertices))
    radius = float(cage.vertices.norm(dim=-1).max())
    cameras = fit.cameras_around(fit.spread_directions(WIRE_VIEWS), size, radius)
    pixel = pixel_size(cameras)
    start = bent(cage, WIRE_BEND * pixel, seed)
    target = wire_target(cage, cameras)

    curve = Curve(steps, lambda mesh: pixels_off(mesh, cage, pixel))
    renderer = dr.Renderer((size, size), outputs=("color", "alpha"), recompute=False, **mode)
    preconditioner = LaplacianPreconditioner(cage.triangles, cage.vertex_count, strength=WIRE_SMOOTHING)
    parameters = preconditioner.to_parameters(start.vertices).requires_grad_()
    optimizer = AdamUniform([parameters], lr=WIRE_STEP * pixel)
    generator = torch.Generator().manual_seed(seed)
    mesh = start
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = WIRE_STEP * pixel * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        views = torch.randperm(len(cameras), generator=generator)[:WIRE_BATCH]
        mesh = cage.with_vertices(preconditioner.to_vertices(parameters))
        loss = pyramid_mse(wire_picture(renderer, mesh, cameras[views]), target[views])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.add(step + 1, mesh.with_vertices(mesh.vertices.detach()))
    mesh = cage.with_vertices(preconditioner.to_vertices(parameters).detach())
    record = {"steps": steps, "size": size, "start": measure_wires(start, cage, size, radius, pixel)}
    return {**record, **measure_wires(mesh, cage, size, radius, pixel), **curve.record()}, mesh


def paint(vertices: Tensor) -> Tensor:
    """(V, 3) colours that change slowly along the wires, so that sliding along itself shows too."""
    return 0.6 + 0.35 * torch.sin(9.0 * vertices + torch.tensor([0.0, 2.0, 4.0]))


def pixel_size(cameras: dr.Camera) -> float:
    """What a pixel covers at the distance of the origin."""
    height = 2 * math.tan(math.radians(fit.FIELD_OF_VIEW_DEG / 2)) * float(cameras.eye[0].norm())
    return height / cameras.height


def bent(mesh: dr.Mesh, distance: float, seed: int) -> dr.Mesh:
    """The wires moved by smooth waves, `distance` in the root mean square; each ring of vertices moves as a whole."""
    generator = torch.Generator().manual_seed(seed)
    rings = mesh.vertices.reshape(-1, WIRE_SIDES, 3)
    shift = torch.zeros(len(rings), 3)
    for _ in range(6):
        across, along = torch.randn(2, 3, generator=generator)
        phase = float(torch.rand(1, generator=generator)) * 2 * math.pi
        wave = torch.sin(rings.mean(1) @ (along / along.norm()) * (2 * math.pi / WIRE_WAVELENGTH) + phase)
        shift += wave[:, None] * across
    shift *= distance / shift.square().sum(-1).mean().sqrt()
    return mesh.with_vertices((rings + shift[:, None]).reshape(-1, 3))


def wire_picture(renderer: dr.Renderer, mesh: dr.Mesh, cameras: dr.Camera) -> Tensor:
    """(B, H, W, 4) premultiplied colour and coverage."""
    result = renderer(mesh, cameras)
    assert result.color is not None
    assert result.alpha is not None
    return torch.cat([result.color, result.alpha], -1)


def wire_target(cage: dr.Mesh, cameras: dr.Camera) -> Tensor:
    renderer = dr.Renderer(
        (cameras.height, cameras.width), edges=None, samples=TARGET_SAMPLES, outputs=("color", "alpha")
    )
    with torch.no_grad():
        return torch.cat([wire_picture(renderer, cage, cameras[k : k + 1]) for k in range(len(cameras))])


def pyramid_mse(image: Tensor, target: Tensor) -> Tensor:
    """Sum of mean squared differences at five scales.

    At each coarser one a thin line weighs half as much as at the one before; the factors undo that.
    """
    difference = (image - target).permute(0, 3, 1, 2)
    total = difference.square().mean()
    for level in range(1, 5):
        difference = torch.nn.functional.avg_pool2d(difference, 2)
        total = total + 2**level * difference.square().mean()
    return total


def pixels_off(mesh: dr.Mesh, cage: dr.Mesh, pixel: float) -> float:
    """Mean distance of the wires' centre lines from where they belong, across the wire, in pixels."""
    rings = cage.vertices.reshape(-1, WIRE_SIDES, 3)
    # A ring lies in the plane across its wire.
    along = geometry.safe_normalize(torch.linalg.cross(rings[:, 2] - rings[:, 0], rings[:, 4] - rings[:, 0]))
    shift = mesh.vertices.reshape(-1, WIRE_SIDES, 3).mean(1) - rings.mean(1)
    across = shift - (shift * along).sum(-1, keepdim=True) * along
    return float(across.norm(dim=-1).mean()) / pixel


def measure_wires(mesh: dr.Mesh, cage: dr.Mesh, size: int, radius: float, pixel: float) -> dict[str, Any]:
    return {**measure(mesh, cage, size, radius), "pixels_off": pixels_off(mesh, cage, pixel)}


def target_pictures(source: dr.Mesh, cameras: dr.Camera, radius: float) -> fit.Pictures:
    """Means of point samples, one view at a time, since all samples of all views are many."""
    with torch.no_grad():
        views = [
            fit.photograph(source, cameras[k : k + 1], radius, edges=None, samples=TARGET_SAMPLES)
            for k in range(len(cameras))
        ]
    silhouette, depth, shading, mask = (
        torch.cat([getattr(view, name) for view in views]) for name in ("silhouette", "depth", "shading", "mask")
    )
    return fit.Pictures(cameras, radius, silhouette, depth, shading, mask)


def measure(mesh: dr.Mesh, source: dr.Mesh, size: int, radius: float) -> dict[str, Any]:
    """Chamfer distance, and overlap of the masks on views that were not fitted."""
    cameras = fit.cameras_around(fit.spread_directions(UNSEEN_VIEWS, turn_rad=1.0), size * IOU_SCALE, radius)
    renderer = dr.Renderer((cameras.height, cameras.width), edges=None, outputs=("mask",))
    overlaps = []
    for k in range(UNSEEN_VIEWS):
        ours, theirs = (renderer(shape, cameras[k : k + 1]).mask for shape in (mesh, source))
        assert ours is not None
        assert theirs is not None
        overlaps.append(float(metrics.mask_iou(ours, theirs)))
    distance = metrics.surface_distance(mesh, source, threshold=0.01, samples=FINAL_SAMPLES)
    return {"chamfer": distance.chamfer, "iou": sum(overlaps) / len(overlaps), "iou_min": min(overlaps)}


class Curve:
    """The error of a fit at `CURVE_POINTS` of its steps, and the processor time of all that is not this measuring.

    Args:
        steps: of the whole fit.
        error: of a mesh.
    """

    def __init__(self, steps: int, error: Callable[[dr.Mesh], float]):
        self._every = max(1, steps // CURVE_POINTS)
        self._error = error
        self._points: list[tuple[int, float]] = []
        self._started = time.process_time()
        self._own = 0.0

    def add(self, step: int, mesh: dr.Mesh) -> None:
        began = time.process_time()
        if step % self._every == 0:
            self._points.append((step, self._error(mesh)))
        self._own += time.process_time() - began

    def record(self) -> dict[str, Any]:
        return {"curve": self._points, "seconds": time.process_time() - self._started - self._own}
