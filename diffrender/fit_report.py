"""What `python -m diffrender fit` leaves in its folder: figures, pictures, a turntable, a plot and the mesh."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffrender import metrics
from diffrender._extras import require
from diffrender.camera import Camera
from diffrender.fit import FitSettings, Pictures, Placement, Recovery, cameras_around, photograph
from diffrender.geometry import Mesh, orbit_eyes, safe_normalize
from diffrender.io import image_to_uint8, save_image, save_mesh, save_video, video_suffix
from diffrender.renderer import Renderer

F_SCORE_THRESHOLD = 0.01
SURFACE_SAMPLES = 100_000
_CLAY = (0.85, 0.60, 0.42)
_STEEL = (0.45, 0.58, 0.75)


def measure(mesh: Mesh, source: Mesh, fitted: Pictures, unseen: Pictures) -> dict[str, Any]:
    """Figures of one mesh against the source (both of size 1) and against the pictures."""
    with torch.no_grad():
        of_fitted = photograph(mesh, fitted.cameras, fitted.scene_radius)
        of_unseen = photograph(mesh, unseen.cameras, unseen.scene_radius)
        differences = of_fitted.difference(fitted).tolist()
        unseen_differences = of_unseen.difference(unseen).tolist()
    distance = _surface_distance(mesh, source)
    iou = metrics.mask_iou(of_unseen.mask, unseen.mask).tolist()
    names = ("silhouette", "depth", "shading")
    return {
        "chamfer": distance.chamfer,
        "f_score": distance.f_score,
        "image_error": dict(zip(names, differences, strict=True)),
        "image_error_unseen": dict(zip(names, unseen_differences, strict=True)),
        "silhouette_iou_unseen": iou,
        "vertices": mesh.vertex_count,
        "triangles": mesh.triangle_count,
    }


def chamfer_floor(source: Mesh) -> float:
    """The Chamfer distance that a perfect result would get: between two samplings of the source."""
    return _surface_distance(source, source).chamfer


def clay_render(mesh: Mesh, cameras: Camera, color: tuple[float, float, float] = _CLAY) -> Tensor:
    """(B, H, W, 3) linear pictures for people: matte, lit from the upper left of each camera, on white."""
    supersampled = cameras.scaled(2)
    renderer = Renderer((supersampled.height, supersampled.width), edges="pairs", outputs=("color",), background=1.0)
    # Camera axes in the world: rows of the rotation of camera_from_world.
    right, up, back = cameras.camera_from_world[:, :3, :3].unbind(1)
    key = safe_normalize(-0.5 * right + 0.8 * up + 0.7 * back).unsqueeze(1)
    normals = mesh.vertex_normals()
    from_key, from_camera = (normals * key).sum(-1), (normals * back.unsqueeze(1)).sum(-1)
    shade = 0.06 + 0.62 * from_key.clamp(min=0) + 0.32 * from_camera.clamp(min=0)
    colors = shade.unsqueeze(-1) * torch.tensor(color, dtype=mesh.dtype, device=mesh.device)
    image = renderer(mesh.replace(colors=colors), supersampled).color
    assert image is not None
    return torch.nn.functional.avg_pool2d(image.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)


def write_pictures(folder: Path, source: Mesh, recovery: Recovery, unseen: Camera) -> list[str]:
    """before.png and after.png (reference above, recovered below, from unseen cameras) and progress.png."""
    with torch.no_grad():
        reference = clay_render(source, unseen, _STEEL)
        for name, mesh in (("before.png", recovery.snapshots[0]), ("after.png", recovery.mesh)):
            save_image(folder / name, _grid([reference, clay_render(mesh, unseen)]))
        columns = [clay_render(mesh, unseen[:2]) for mesh in recovery.snapshots]
        save_image(folder / "progress.png", _grid(list(torch.stack([*columns, reference[:2]], 1))))
    return ["before.png", "after.png", "progress.png"]


def write_turntable(folder: Path, source: Mesh, recovery: Recovery, size: int, scene_radius: float) -> list[str]:
    """turntable.mp4 (or .gif without imageio-ffmpeg): the source on the left, the recovered mesh on the right."""
    suffix = video_suffix()
    count = 72 if suffix == ".mp4" else 36
    directions = safe_normalize(orbit_eyes(count, 1.0, elevation_deg=18)).to(source.vertices)
    cameras = cameras_around(directions, size, scene_radius)

    def frames() -> Iterator[np.ndarray]:
        for k in range(count):
            camera = cameras[k : k + 1]
            pair = [clay_render(source, camera, _STEEL), clay_render(recovery.mesh, camera)]
            yield image_to_uint8(torch.cat(pair, 2)[0])

    with torch.no_grad():
        save_video(folder / f"turntable{suffix}", frames(), fps=count / 3)
    return [f"turntable{suffix}"]


def write_loss_plot(folder: Path, recovery: Recovery) -> list[str]:
    """loss.png: the picture differences per step; stages are marked."""
    figure_module = require("matplotlib.figure", "fit", used_by="write_loss_plot")
    figure = figure_module.Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    if recovery.history:
        steps = np.arange(1, len(recovery.history) + 1)
        for name, values in zip(("silhouette", "depth", "shaded normals"), np.array(recovery.history).T, strict=True):
            axes.semilogy(steps, np.maximum(values, 1e-12), linewidth=0.8, label=name)
        axes.legend()
    for start in recovery.stage_starts[1:]:
        axes.axvline(start, color="0.8", linewidth=0.8, zorder=0)
    axes.set_xlabel("step (lines: remeshing)")
    axes.set_ylabel("mean absolute difference")
    figure.savefig(folder / "loss.png", dpi=110)
    return ["loss.png"]


def write_meshes(folder: Path, recovery: Recovery, placement: Placement) -> list[str]:
    """mesh.obj, .ply and .glb in the coordinates of the source."""
    recovered = recovery.mesh.to("cpu").to(torch.float64)
    mesh = recovered.with_vertices(recovered.vertices * placement.scale + placement.center)
    for suffix in (".obj", ".ply", ".glb"):
        save_mesh(folder / f"mesh{suffix}", mesh)
    return ["mesh.obj", "mesh.ply", "mesh.glb"]


def write_report(folder: Path, report: dict[str, Any]) -> list[str]:
    """report.json for programs and report.md for people."""
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(_markdown(report), encoding="utf-8")
    return ["report.json", "report.md"]


def build_report(
    source_path: str,
    settings: FitSettings,
    recovery: Recovery,
    start: dict[str, Any],
    final: dict[str, Any],
    *,
    chamfer_floor: float,
    views: int,
    size: int,
    interrupted: bool,
    seconds: dict[str, float],
) -> dict[str, Any]:
    return {
        "source": source_path,
        "interrupted": interrupted,
        "views": views,
        "size": size,
        "steps": recovery.steps,
        "settings": asdict(settings),
        "f_score_threshold": F_SCORE_THRESHOLD,
        "start": start,
        "final": final,
        "chamfer_floor": chamfer_floor,
        "chamfer_ratio": start["chamfer"] / final["chamfer"],
        "silhouette_iou_unseen_min": min(final["silhouette_iou_unseen"]),
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def _markdown(report: dict[str, Any]) -> str:
    start, final = report["start"], report["final"]
    rows = [
        ("symmetric Chamfer distance", f"{start['chamfer']:.5f}", f"{final['chamfer']:.5f}"),
        (f"F-score at {report['f_score_threshold']}", f"{start['f_score']:.4f}", f"{final['f_score']:.4f}"),
    ]
    for name, label in (("silhouette", "silhouette"), ("depth", "depth"), ("shading", "shaded normals")):
        for key, views in (("image_error", "fitted"), ("image_error_unseen", "unseen")):
            rows.append((f"{label} error, {views} views", f"{start[key][name]:.5f}", f"{final[key][name]:.5f}"))
    pairs = zip(start["silhouette_iou_unseen"], final["silhouette_iou_unseen"], strict=True)
    for number, (before, after) in enumerate(pairs, 1):
        rows.append((f"silhouette IoU, unseen view {number}", f"{before:.4f}", f"{after:.4f}"))
    rows.append(("vertices", f"{start['vertices']}", f"{final['vertices']}"))

    state = "stopped early" if report["interrupted"] else "complete"
    lines = [
        f"# Shape recovered from pictures: {Path(report['source']).name}",
        "",
        f"{report['views']} views of {report['size']} x {report['size']} pixels, {report['steps']} steps ({state}), "
        f"{report['seconds']['fit']:.0f} s on {report['threads']} threads. Lengths are relative to the longest side of "
        f"the source. The Chamfer distance fell by a factor of {report['chamfer_ratio']:.1f}; two samplings of the "
        f"source itself are {report['chamfer_floor']:.5f} apart.",
        "",
        "| | start (sphere) | recovered |",
        "|---|---|---|",
        *(f"| {label} | {before} | {after} |" for label, before, after in rows),
        "",
        "Reference above, start or result below, from views that were not fitted:",
        "",
        "![start](before.png)",
        "",
        "![result](after.png)",
        "",
        "The start, the end of each stage, and the reference:",
        "",
        "![progress](progress.png)",
        "",
        "![loss](loss.png)",
        "",
    ]
    return "\n".join(lines)


def _surface_distance(mesh: Mesh, source: Mesh) -> metrics.SurfaceDistance:
    return metrics.surface_distance(mesh, source, threshold=F_SCORE_THRESHOLD, samples=SURFACE_SAMPLES)


def _grid(rows: list[Tensor]) -> Tensor:
    """One picture of rows of (N, H, W, 3) pictures."""
    return torch.cat([torch.cat(list(row), 1) for row in rows], 0)
