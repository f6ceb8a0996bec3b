"""`rasterize` with `exact_legacy=True`: coverage of vertices rounded to 1/16 pixel, a depth buffer of 32 bits, and
gradients with the absolute epsilon.

Our kernel finds the triangles, in float64 on the rounded vertices; what it knows of a pixel is then computed again from
the unrounded vertices, in plain torch. At a pixel with NDC centre (fx, fy):

    q_i = (x_i - fx w_i, y_i - fy w_i)    a_i = q_j x q_k    S = a_0 + a_1 + a_2    (u, v) = (a_0, a_1) / S
    z/w = sum(a_i z_i) / sum(a_i w_i)
    n_i = d(a_i)/d(fx) = w_k y_j - w_j y_k    m_i = d(a_i)/d(fy) = w_j x_k - w_k x_j    N, M their sums
    du/dX = (2/W) (n_0 - u N) / S    du/dY = (2/H) (m_0 - u M) / S    v likewise

Backward, S is S + sign(S) 1e-6, and cuts of u and v are passed through.

Not as the original: triangles that reach out of the frustum are cut before they are rounded there; here only vertices
inside of the frustum are rounded, so that their coverage may differ by 1/16 pixel next to a cut.
"""

from __future__ import annotations

from typing import Any

import torch

from ...ops.rasterize import Fragments, rasterize
from ._layout import clamp_weights, encode_ids, flip_rows, is_pairs, skip_wrong_rows

_SUBPIXELS = 16
_EPSILON = 1e-6
# z/w in [-1, 1] is stored as an unsigned number of 32 bits that keeps this distance from both of its ends.
_DEPTH_MARGIN = 17600


class LegacyPeeler:
    """Layers of the legacy depth test: fragments of equal stored depth are one layer, and the latest of them shows."""

    def __init__(
        self,
        positions: torch.Tensor,
        triangles: torch.Tensor,
        resolution: tuple[int, int],
        ranges: torch.Tensor | None,
        grad_db: bool,
    ) -> None:
        self._positions = positions
        self._triangles = skip_wrong_rows(triangles, positions.shape[-2])
        self._resolution = resolution
        self._ranges = _skip_missing_rows(ranges, len(triangles)) if is_pairs(ranges) else ranges
        self._grad_db = grad_db
        self._rounded = flip_rows(_round_vertices(positions.detach(), resolution))
        self._above: Fragments | None = None

    def next_layer(self) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self._rasterize(self._above)
        stored, shown = _stored_depth(layer.depth), layer.triangle_id
        while True:
            deeper = self._rasterize(layer)
            ties = (deeper.triangle_id >= 0) & (_stored_depth(deeper.depth) <= stored)
            if not ties.any():
                break
            shown = torch.where(ties, torch.maximum(shown, deeper.triangle_id), shown)
            layer = layer._replace(triangle_id=torch.where(ties, deeper.triangle_id, layer.triangle_id))
        self._above = layer
        return self._values(shown)

    def _rasterize(self, above: Fragments | None) -> Fragments:
        return rasterize(self._rounded, self._triangles, self._resolution, ranges=self._ranges, beneath=above)

    def _values(self, triangle_id: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        height, width = self._resolution
        positions = self._positions if self._positions.dim() == 3 else self._positions.unsqueeze(0)
        pixel = torch.nonzero(triangle_id >= 0, as_tuple=True)
        item, row, column = pixel
        ids = triangle_id[pixel].long()
        corners = positions[0 if len(positions) == 1 else item[:, None], self._triangles[ids].long()].double()
        u_v, depth, steps = _pixel_values(corners, row, column, height, width)
        channels = [u_v, depth.unsqueeze(-1), encode_ids(ids + 1, positions.dtype).double().unsqueeze(-1)]
        empty = positions.new_zeros((*triangle_id.shape, 4))
        rast = empty.index_put(pixel, torch.cat(channels, -1).to(positions.dtype))
        rast_db = empty.index_put(pixel, (steps if self._grad_db else steps.detach()).to(positions.dtype))
        return rast, rast_db


def _round_vertices(positions: torch.Tensor, resolution: tuple[int, int]) -> torch.Tensor:
    """float64 positions, those inside of the frustum on the nearest 1/16 pixel, counted from the image's centre."""
    height, width = resolution
    w = positions[..., 3:]
    half = positions.new_tensor([width / 2, height / 2])
    steps = torch.round(positions[..., :2] / w * half * _SUBPIXELS).double()
    rounded = steps / _SUBPIXELS / half.double() * w.double()
    inside = (w > 0) & (positions[..., :3].abs() <= w).all(-1, keepdim=True)
    return torch.cat([torch.where(inside, rounded, positions[..., :2].double()), positions[..., 2:].double()], -1)


def _stored_depth(depth: torch.Tensor) -> torch.Tensor:
    span = (1 << 32) - 1 - 2 * _DEPTH_MARGIN
    return torch.round((depth.clamp(-1.0, 1.0) + 1) / 2 * span).long()


def _skip_missing_rows(ranges: torch.Tensor, count: int) -> torch.Tensor:
    begin = ranges[:, 0].clamp(0, count)
    end = torch.maximum(begin, (ranges[:, 0] + ranges[:, 1]).clamp(0, count))
    return torch.stack([begin, end - begin], 1)


def _pixel_values(
    corners: torch.Tensor, row: torch.Tensor, column: torch.Tensor, height: int, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """u and v (P, 2), z/w (P,) and rast_db (P, 4) of pixels that show triangles with these corners (P, 3, 4)."""
    x, y, z, w = corners.unbind(-1)
    center_x = ((2 * column + 1).double() / width - 1).unsqueeze(1)
    center_y = ((2 * row + 1).double() / height - 1).unsqueeze(1)
    q_x, q_y = x - center_x * w, y - center_y * w
    j, k = [1, 2, 0], [2, 0, 1]
    a = q_x[:, j] * q_y[:, k] - q_y[:, j] * q_x[:, k]
    total = a.sum(1, keepdim=True)
    n = w[:, k] * y[:, j] - w[:, j] * y[:, k]
    m = w[:, j] * x[:, k] - w[:, k] * x[:, j]

    # Values with S, derivatives with S'.
    shifted = total + torch.where(total < 0, -_EPSILON, _EPSILON)
    weights = _replace_value(a[:, :2] / shifted, clamp_weights(a[:, :2].detach() / total.detach()))
    steps = []
    for direction, scale in ((n, 2 / width), (m, 2 / height)):
        change = scale * (direction[:, :2] - weights * direction.sum(1, keepdim=True))
        steps.append(_replace_value(change / shifted, change.detach() / total.detach()))
    with torch.no_grad():
        depth = ((a * z).sum(1) / (a * w).sum(1)).nan_to_num(0.0).clamp(-1.0, 1.0)
    return weights, depth, torch.stack(steps, -1).flatten(1)


def _replace_value(differentiable: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`value` with the derivative of another tensor."""
    return _ReplaceValue.apply(differentiable, value)


class _ReplaceValue(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(differentiable, value):
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        return grads[0], None
