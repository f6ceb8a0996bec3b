"""Tensor layouts: `rast` (N, H, W, 4) = (u, v, z/w, id + 1) with row 0 at the bottom, and our Fragments.

The vertical flip is made on the vertices, not on images: with y negated, row 0 of our pictures is y = -1, derivatives
per row point up, and our top-left rule reads "low columns and low rows belong to the triangle".
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

from ... import _checks
from ...ops.rasterize import Fragments

# A float32 counts up to 2^24. Ids above are stored as the float whose bits are the id plus an offset, with which floats
# go on from there.
_LARGEST_PLAIN_ID = 1 << 24
_BIT_OFFSET = 0x4A800000


def flip_rows(positions: torch.Tensor) -> torch.Tensor:
    """Clip positions with y negated."""
    sign = positions.new_ones(4)
    sign[1] = -1  # on the device, where a tensor made from a list would wait for a copy
    return positions * sign


def encode_ids(ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Integers id >= 0 (0 = background) as floating numbers. float64 holds all of them as they are."""
    plain = ids.to(dtype)
    if dtype != torch.float32:
        return plain
    coded = (ids.to(torch.int32) + _BIT_OFFSET).view(torch.float32)
    return torch.where(ids <= _LARGEST_PLAIN_ID, plain, coded)


def decode_ids(values: torch.Tensor) -> torch.Tensor:
    """int32 ids of what `encode_ids` made. Negative numbers and NaN are background."""
    values = values.detach().nan_to_num(0.0).clamp(min=0.0)
    if values.dtype != torch.float32:
        return values.to(torch.int32)
    coded = values.contiguous().view(torch.int32) - _BIT_OFFSET
    return torch.where(values <= _LARGEST_PLAIN_ID, values.clamp(max=_LARGEST_PLAIN_ID).to(torch.int32), coded)


def triangle_ids(rast: torch.Tensor) -> torch.Tensor:
    """Row of `tri` that each pixel shows, (N, H, W) int32, -1 on background: right beyond 2^24 triangles too.

    Not a function of nvdiffrast, where scripts write `rast[..., 3].long() - 1`, which is wrong from 2^24 on.

    Example:
        >>> from diffrender.compat import nvdiffrast as dr
        >>> dr.triangle_ids(torch.tensor([[[[0.0, 0.0, 0.0, 0.0], [0.2, 0.3, 0.1, 7.0]]]]))
        tensor([[[-1,  6]]], dtype=torch.int32)
    """
    return decode_ids(check_rast("triangle_ids", rast)[..., 3]) - 1


def check_rast(function: str, rast: object) -> torch.Tensor:
    values = _checks.check_floating(function, "rast", rast)
    if values.dim() != 4 or values.shape[3] != 4:
        _checks.fail(ValueError, function, "rast", "have shape (N, H, W, 4)", _checks.shape_text(values))
    return values


def to_fragments(function: str, rast: object, rast_db: object = None) -> Fragments:
    """Our Fragments of a `rast`, in its row order."""
    values = check_rast(function, rast)
    steps = None
    if rast_db is not None:
        steps = _checks.check_floating(function, "rast_db", rast_db)
        if steps.shape != values.shape:
            expected = f"have the shape of rast {_checks.shape_text(values)}"
            _checks.fail(ValueError, function, "rast_db", expected, _checks.shape_text(steps))
    return Fragments(triangle_ids(values), values[..., :2], values[..., 2], steps)


def clamp_weights(weights: torch.Tensor) -> torch.Tensor:
    """u and v (..., 2) cut to [0, 1], then scaled down where u + v > 1; NaN becomes 0."""
    cut = weights.nan_to_num(0.0).clamp(0.0, 1.0)
    return cut / (cut[..., :1] + cut[..., 1:]).clamp(min=1.0)


class PackRast(torch.autograd.Function):
    """(u, v, z/w, id) of barycentrics, depth and ids. Clamps pass gradients on as if they were not there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(barycentrics, depth, ids):
        cut = torch.where(ids > 0, depth, 0.0).nan_to_num(0.0).clamp(-1.0, 1.0)
        channels = [cut.unsqueeze(-1), encode_ids(ids, depth.dtype).unsqueeze(-1)]
        return torch.cat([clamp_weights(barycentrics), *channels], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        need_barycentrics, need_depth = ctx.needs_input_grad[:2]
        return grads[0][..., :2] if need_barycentrics else None, grads[0][..., 2] if need_depth else None, None


class ScaleGradient(torch.autograd.Function):
    """The value itself, with its gradient times a factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value, factor):
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        return grads[0] * ctx.factor, None


def skip_wrong_rows(triangles: torch.Tensor, vertex_count: int) -> torch.Tensor:
    """Rows with an index outside of the vertices made triangles without area, which draw nothing."""
    wrong = ((triangles < 0) | (triangles >= vertex_count)).any(1, keepdim=True)
    return torch.where(wrong, 0, triangles)


def is_pairs(ranges: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether `ranges` has the shape (N, 2). What has not is left to the check of `rasterize`."""
    return isinstance(ranges, torch.Tensor) and ranges.dim() == 2 and ranges.shape[1] == 2
