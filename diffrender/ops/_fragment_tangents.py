"""Forward mode of barycentrics, depth and their screen derivatives, made of the ops themselves.

Corners p_k of a triangle, weights b_k that add to 1, and the surface point c = sum_k b_k p_k, which is seen at the
pixel centre (X, Y) in NDC: c_x = X c_w, c_y = Y c_w. With the weights held, the point moves by m = sum_k b_k p'_k,
which is in NDC the velocity

    V = ((m_x - X m_w) / c_w,  (m_y - Y m_w) / c_w).

What the pixel sees has come from where the surface point was before, so the weights at the pixel change by

    b' = -(db/dX V_X + db/dY V_Y),

and with all that moves, C' = m + sum_k b'_k p_k, the depth D = c_z / c_w changes by (C'_z - D C'_w) / c_w.

The slopes are g_x = db/dx, x in pixels (X = 2 x / W - 1, Y = 1 - 2 y / H, v = V in pixels). Weights at a pixel are
ratios of linear functions of x and y, the denominator a multiple of 1 / c_w, whence with r = (dc_w/dx, dc_w/dy) / c_w

    d2b/dx2 = 2 g_x r_x,    d2b/dxdy = g_x r_y + g_y r_x,    d2b/dy2 = 2 g_y r_y.

Differentiating b' = -(g_x v_x + g_y v_y) by x and y gives g', where m depends on x through the weights: dm/dx is the
interpolation of p' with the slopes as weights, and dX/dx = 2 / W.

With `least_width` all of it is multiplied by the share of its gradient that a pixel of a narrow triangle keeps
(csrc/rasterize.h), as in reverse mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._autograd import apply
from .._constants import constant
from .fragments_at import _FragmentsAt
from .interpolate import _Interpolate


def fragment_tangents(
    positions: Tensor,
    triangles: Tensor,
    triangle_id: Tensor,
    barycentrics: Tensor,
    to_positions: Tensor,
    height: int,
    first_row: int,
    with_derivatives: bool,
    least_width: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tangents of barycentrics (B, h, W, 2), depth (B, h, W) and derivatives (B, h, W, 4) of a band of an image."""
    rows, width = triangle_id.shape[1:]
    slopes = apply(_FragmentsAt, positions, triangles, triangle_id, height, first_row, True, 0.0)[2]
    slope_x, slope_y = slopes[..., 0::2], slopes[..., 1::2]

    def mixed(values: Tensor, weights: Tensor, total: float) -> Tensor:
        return apply(_Interpolate, values, triangles, triangle_id, weights, total)

    def moved(weights: Tensor, total: float) -> Tensor:
        motion = mixed(to_positions, weights, total)
        if not least_width > 0:
            return motion
        two = slopes.unflatten(-1, (2, 2))
        steepest = torch.cat([two, two.sum(-2, keepdim=True)], -2).norm(dim=-1).amax(-1)
        third = 1 - barycentrics.sum(-1, keepdim=True)
        steepest = steepest * torch.cat([barycentrics, third], -1).abs().amax(-1).clamp(min=1)
        return motion / (least_width * steepest).clamp(min=1)[..., None]

    point, motion = mixed(positions, barycentrics, 1.0), moved(barycentrics, 1.0)
    w = torch.where(triangle_id >= 0, point[..., 3], 1)
    # (X, Y) of the pixel centres, and pixels per unit of them.
    ndc = torch.stack(
        torch.broadcast_tensors(
            (torch.arange(width, device=w.device, dtype=w.dtype) * 2 + 1) / width - 1,
            1 - (torch.arange(first_row, first_row + rows, device=w.device, dtype=w.dtype) * 2 + 1)[:, None] / height,
        ),
        -1,
    )
    scale = constant([width / 2, -height / 2], w)
    velocity = scale * (motion[..., :2] - ndc * motion[..., 3:]) / w[..., None]
    v_x, v_y = velocity.unsqueeze(-2).unbind(-1)

    to_barycentrics = -(slope_x * v_x + slope_y * v_y)
    change = motion + mixed(positions, to_barycentrics, 0.0)
    to_depth = (change[..., 2] - point[..., 2] / w * change[..., 3]) / w
    if not with_derivatives:
        return to_barycentrics, to_depth, None

    results = []
    steps = [(mixed(positions, slope, 0.0), moved(slope, 0.0)) for slope in (slope_x, slope_y)]
    ratio_x, ratio_y = (point_step[..., 3:] / w[..., None] for point_step, _ in steps)
    curvature = slope_x * ratio_y + slope_y * ratio_x
    for axis, (bent_x, bent_y, ratio) in enumerate(
        ((2 * slope_x * ratio_x, curvature, ratio_x), (curvature, 2 * slope_y * ratio_y, ratio_y))
    ):
        motion_step = steps[axis][1]
        across = motion_step[..., :2] - ndc * motion_step[..., 3:]
        velocity_step = scale * across / w[..., None] - velocity * ratio
        # The pixel centre itself moves along its own axis, by one pixel.
        own_axis = torch.eye(2, dtype=w.dtype, device=w.device)[axis]
        velocity_step = velocity_step - own_axis * (motion[..., 3] / w)[..., None]
        u_x, u_y = velocity_step.unsqueeze(-2).unbind(-1)
        results.append(-(bent_x * v_x + bent_y * v_y + slope_x * u_x + slope_y * u_y))
    return to_barycentrics, to_depth, torch.stack(results, -1).flatten(-2)
