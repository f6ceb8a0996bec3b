"""What the gradient of edges is worth: the same fits with every way in which the renderer can treat edges.

    python -m benchmarks.fits --json fits.json --meshes fits/          # all shapes, all modes; goes on where it stopped
    python -m benchmarks.fits --shapes wires thin_wires --seeds 1 2 --json fits.json --meshes fits/
    python -m benchmarks.fits_report fits.json fits/ --markdown fits.md --figure fits.png

Two tasks, in which only the mode differs; views, steps, seeds, step sizes and targets are the same. The targets belong
to no mode: means of 8 x 8 point samples in every pixel, as near to a camera as samples come.

- *Closed shapes*: the job of `python -m diffrender fit`, from a sphere to spot, bunny and fandisk.
- *Wires*: assets/bird_cage.obj, from a start in which all wires are bent by four pixels. All vertices are free; only
  what is seen of the wires says where they belong. At 256 x 256 they are about one pixel wide, at 128 x 128
  ("thin_wires") half a pixel.

spot, bunny and fandisk are looked for in ../shared/data or $DIFFRENDER_TEST_DATA and skipped where they are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import diffrender as dr
from benchmarks import fit_tasks

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("DIFFRENDER_TEST_DATA", ROOT.parent / "shared" / "data"))
CLOSED_SHAPES = {"spot": "spot/spot.obj", "bunny": "bunny/bunny.ply", "fandisk": "fandisk/fandisk.obj"}
WIRES = {"wires": 256, "thin_wires": 128}
SHAPES = (*CLOSED_SHAPES, *WIRES)

# Name -> options of the renderer.
MODES: dict[str, dict[str, Any]] = {
    "none": {"edges": None},
    "pairs": {"edges": "pairs"},
    "segments": {"edges": "segments"},
    "segments+flow": {"edges": "segments", "interior": "flow"},
    "coverage": {"edges": "coverage"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not in the JSON file yet; returns the exit code."""
    parser = argparse.ArgumentParser(description="The same fits with every treatment of edges.")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=400, help="for closed shapes; wires take half as many")
    parser.add_argument("--size", type=int, default=128, help="sides of the pictures of closed shapes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, required=True, help="records; what is in it already is not run again")
    parser.add_argument("--meshes", type=Path, required=True, help="folder for the meshes that were found")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    options.meshes.mkdir(parents=True, exist_ok=True)
    records = json.loads(options.json.read_text()) if options.json.exists() else []
    done = {(r["shape"], r["mode"], r["seed"]) for r in records}
    for shape in options.shapes:
        if shape in CLOSED_SHAPES and not (DATA / CLOSED_SHAPES[shape]).is_file():
            print(f"{shape}: skipped, {DATA / CLOSED_SHAPES[shape]} is missing")
            continue
        for seed in options.seeds:
            for mode in options.modes:
                if (shape, mode, seed) in done:
                    continue
                if shape in WIRES:
                    record, mesh = fit_tasks.run_wires(MODES[mode], options.steps // 2, WIRES[shape], seed)
                else:
                    path = DATA / CLOSED_SHAPES[shape]
                    record, mesh = fit_tasks.run_closed(path, MODES[mode], options.steps, options.size, seed)
                records.append({"shape": shape, "mode": mode, "seed": seed, **record})
                dr.save_mesh(options.meshes / mesh_name(shape, mode, seed), mesh)
                options.json.write_text(json.dumps(records, indent=1) + "\n")
                print(f"{shape}, {mode}, seed {seed}: {summary(record)}", flush=True)
    return 0


def mesh_name(shape: str, mode: str, seed: int) -> str:
    return f"{shape}_{mode}_{seed}.obj"


def summary(record: dict[str, Any]) -> str:
    parts = [f"Chamfer {record['chamfer']:.5f}", f"overlap {record['iou']:.4f}", f"{record['seconds']:.0f} s"]
    return ", ".join(parts + [f"{name} {record[name]:.3f}" for name in ("pixels_off",) if name in record])


if __name__ == "__main__":
    sys.exit(main())
