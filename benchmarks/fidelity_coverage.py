"""Adapter of `coverage` for the gradient fidelity benchmark.

`python -m fidelity.measure benchmarks.fidelity_coverage:render` measures it, and with
`--kw '{"merge_adjacent": true}'` the cheap path of pixels inside of a smooth surface.
"""

from __future__ import annotations

import torch

import diffrender as dr


def render(
    clip_positions: torch.Tensor,
    triangles: torch.Tensor,
    vertex_colors: torch.Tensor,
    height: int,
    width: int,
    background: torch.Tensor,
    color_faces: torch.Tensor | None = None,
    merge_adjacent: bool = False,
) -> torch.Tensor:
    """(H, W, 3) box-filtered picture of vertex colors, row 0 on top."""
    coverage = dr.coverage(clip_positions, triangles, (height, width), merge_adjacent=merge_adjacent)
    rows = triangles if color_faces is None else color_faces
    return dr.composite(dr.interpolate(vertex_colors, rows, coverage), coverage, background=background)[0]
