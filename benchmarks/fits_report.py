"""The table and the figure of what fits.py found.

    python -m benchmarks.fits_report fits.json fits/ --markdown fits.md --figure docs/images/fits.png

Needs matplotlib: pip install diffrender-torch[fit]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diffrender as dr
from benchmarks import fit_tasks
from benchmarks.fits import CLOSED_SHAPES, DATA, MODES, SHAPES, WIRES, mesh_name
from diffrender import fit, fit_report, geometry

# How near counts as there: Chamfer distance of closed shapes of size 1, pixels across for wires.
THRESHOLDS = {**dict.fromkeys(CLOSED_SHAPES, 0.01), "wires": 0.25, "thin_wires": 2.0}
NAMES = {"wires": "bird cage, wires of 1 pixel", "thin_wires": "bird cage, wires of 1/2 pixel"}
FIGURE_SHAPES = ("bunny", "wires", "thin_wires")
CLOSE_UP = (0.33, 0.17, 0.65, 0.49)  # left, top, right, bottom, as parts of the picture
WIRES_SIDE = 750  # of the whole of that picture
_ORANGE, _BLUE = (0.95, 0.45, 0.10), (0.45, 0.58, 0.75)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description="Table and figure of fits.py.")
    parser.add_argument("json", type=Path)
    parser.add_argument("meshes", type=Path, help="folder of the meshes that were found")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args(arguments)
    records = json.loads(options.json.read_text())
    text = table(records)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.figure:
        draw(records, options.meshes, options.figure)
    return 0


def table(records: list[dict[str, Any]]) -> str:
    """A row for each shape and mode: medians over the seeds, and from where to where they go."""
    lines = [
        "| shape | mode | Chamfer distance x 1000 | overlap of masks | pixels off | steps to threshold | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape in SHAPES:
        for mode in MODES:
            found = [r for r in records if (r["shape"], r["mode"]) == (shape, mode)]
            if not found:
                continue
            cells = [
                NAMES.get(shape, shape),
                mode,
                _spread([1e3 * r["chamfer"] for r in found], 2),
                _spread([r["iou"] for r in found], 3),
                _spread([r["pixels_off"] for r in found], 3) if shape in WIRES else "",
                _steps([steps_to(r["curve"], THRESHOLDS[shape]) for r in found]),
                f"{statistics.median(r['seconds'] for r in found):.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def steps_to(curve: list[list[float]], threshold: float) -> int | None:
    """The first measured step at which the error is below the threshold."""
    return next((int(step) for step, error in curve if error < threshold), None)


def draw(records: list[dict[str, Any]], meshes: Path, path: Path) -> None:
    """Reference, start and the result of every mode; wires from near, with the reference in blue."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("fits_report: matplotlib must be installed. pip install diffrender-torch[fit]") from error
    rows = [shape for shape in FIGURE_SHAPES if any(r["shape"] == shape for r in records)]
    modes = [mode for mode in MODES if any(r["mode"] == mode for r in records)]
    figure = Figure(figsize=(2.0 * (2 + len(modes)), 2.25 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 2 + len(modes), squeeze=False)
    for row, shape in enumerate(rows):
        found = {r["mode"]: r for r in records if r["shape"] == shape and r["seed"] == 0}
        reference, start = _reference_and_start(shape)
        pictures = [_picture(shape, reference, None), _picture(shape, start, reference)]
        labels = ["reference", "start"]
        for mode in modes:
            if mode in found:
                mesh = dr.load_mesh(meshes / mesh_name(shape, mode, 0))
                pictures.append(_picture(shape, mesh, reference))
                labels.append(mode)
        for panel in panels[row]:
            panel.axis("off")
        for column, (image, label) in enumerate(zip(pictures, labels, strict=True)):
            panel = panels[row, column]
            panel.imshow(image, interpolation="nearest")
            error = _error(found.get(label))
            panel.set_title(f"{label}\n{error}" if error else label, fontsize=9)
    figure.savefig(path, dpi=90)


def _error(record: dict[str, Any] | None) -> str:
    if record is None:
        return ""
    return f"off by {record['pixels_off']:.2f} px" if "pixels_off" in record else f"{record['chamfer']:.4f}"


def _reference_and_start(shape: str) -> tuple[dr.Mesh, dr.Mesh]:
    if shape in CLOSED_SHAPES:
        source, _ = fit.normalize(dr.load_mesh(DATA / CLOSED_SHAPES[shape]))
        return source, geometry.icosphere(3, radius=0.5)
    cage = dr.load_mesh(fit_tasks.CAGE)
    pixel = fit_tasks.pixel_size(_camera(cage, WIRES[shape]))
    return cage, fit_tasks.bent(cage, fit_tasks.WIRE_BEND * pixel, seed=0)


def _camera(mesh: dr.Mesh, size: int) -> dr.Camera:
    """One that was not fitted."""
    direction = fit.spread_directions(fit_tasks.UNSEEN_VIEWS, turn_rad=1.0)[1:2]
    return fit.cameras_around(direction, size, float(mesh.vertices.norm(dim=-1).max()))


def _picture(shape: str, mesh: dr.Mesh, reference: dr.Mesh | None) -> np.ndarray:
    """(H, W, 3) for people: the whole of a closed shape; of wires a part, over the reference."""
    with torch.no_grad():
        if shape in CLOSED_SHAPES:
            camera = _camera(mesh if reference is None else reference, 240)
            image = fit_report.clay_render(mesh, camera, _BLUE if reference is None else _ORANGE)
        else:
            camera = _camera(mesh if reference is None else reference, WIRES_SIDE)
            left, top, right, bottom = (round(WIRES_SIDE * part) for part in CLOSE_UP)
            camera = camera.cropped((left, top, right, bottom))
            image = fit_report.clay_render(reference or mesh, camera, _BLUE)
            if reference is not None:
                image = image * fit_report.clay_render(mesh, camera, _ORANGE)
    return dr.linear_to_srgb(image[0].clamp(0, 1)).numpy()


def _spread(values: list[float], digits: int) -> str:
    """The median; with several values also the lowest and the highest."""
    text = f"{statistics.median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _steps(values: list[int | None]) -> str:
    """The median, a run that never came so far counting as endless."""
    middle = sorted(values, key=lambda value: float("inf") if value is None else value)[(len(values) - 1) // 2]
    return "never" if middle is None else str(middle)


if __name__ == "__main__":
    sys.exit(main())
