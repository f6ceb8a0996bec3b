"""Adapters of diffrender for the gradient fidelity benchmark.

The benchmark is the package `fidelity`, in the folder `shared` next to this repository or in $DIFFRENDER_FIDELITY (the
folder that holds `fidelity/`). Run from the root of the repository:

    PYTHONPATH=../shared:. python -m fidelity.measure benchmarks.fidelity:render --name segments --out results.json
    PYTHONPATH=../shared:. python -m fidelity.table --summary results.json

or all variants and the table in one go:

    python -m benchmarks.fidelity --out results.json
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch

import diffrender as dr
from diffrender.ops.interior_flow import interior_flow

ROOT = Path(__file__).resolve().parents[1]

# Name -> options of `render`.
VARIANTS = {
    "pairs": {"method": "pairs"},
    "segments": {},
    "segments, exact interior": {"interior": "exact"},
    "segments, flow": {"interior": "flow"},
    "segments, identity": {"forward": "identity"},
    "segments, exact": {"visibility": "exact"},
    "segments, exact, flow": {"visibility": "exact", "interior": "flow"},
}


def render(
    clip_pos: torch.Tensor,
    faces: torch.Tensor,
    vertex_colors: torch.Tensor,
    height: int,
    width: int,
    background: torch.Tensor,
    color_faces: torch.Tensor | None = None,
    interior: str = "steady",
    **options: str,
) -> torch.Tensor:
    """The renderer under test, from the ops: (H, W, 3). `interior` as of `Renderer`; `options` go to `dr.antialias`."""
    least_width = 1 / 16 if interior == "steady" else 0.0
    fragments = dr.rasterize(clip_pos, faces, (height, width), least_width=least_width)
    samples = fragments
    if interior == "flow":
        samples = fragments._replace(barycentrics=fragments.barycentrics.detach())
    colors = dr.interpolate(vertex_colors, faces if color_faces is None else color_faces, samples)
    image = torch.where((fragments.triangle_id >= 0).unsqueeze(-1), colors, background)
    topology = dr.edge_topology(faces, clip_pos)
    if interior == "flow":
        visibility = options.get("visibility", "window")
        image = interior_flow(image, fragments, clip_pos, faces, topology, seams=color_faces, visibility=visibility)
    if options.get("method") != "pairs" and color_faces is not None:
        options = {**options, "seams": color_faces}
    return dr.antialias(image, fragments, clip_pos, faces, topology=topology, **options)[0]


def fidelity_folder() -> Path:
    """The folder that holds the package `fidelity`."""
    folder = Path(os.environ.get("DIFFRENDER_FIDELITY", ROOT.parent / "shared"))
    if not (folder / "fidelity" / "measure.py").is_file():
        raise FileNotFoundError(
            f"no fidelity benchmark in {folder}. Set DIFFRENDER_FIDELITY to the folder that holds it."
        )
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="fidelity.json")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("variants", nargs="*", help=f"of {', '.join(VARIANTS)}; all if none is named")
    arguments = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(fidelity_folder()), str(ROOT)])}
    for name in arguments.variants or VARIANTS:
        options = ", ".join(f'"{key}": "{value}"' for key, value in VARIANTS[name].items())
        command = [sys.executable, "-m", "fidelity.measure", "benchmarks.fidelity:render", "--name", name]
        command += ["--dtype", arguments.dtype, "--device", arguments.device, "--out", arguments.out]
        subprocess.run([*command, "--kw", "{" + options + "}"], env=environment, cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-m", "fidelity.table", "--summary", arguments.out], env=environment, check=True)


if __name__ == "__main__":
    main()
