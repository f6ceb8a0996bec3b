"""Interior gradient of a picture from its own differences, instead of through the barycentrics.

What a covered pixel shows moves with the surface: dI = -grad I . (motion of the surface point on screen). grad I is the
difference of neighbouring pixels, of which only those count between whose centres no visible edge passes. On thin
structures and grazing faces this has the right scale where the derivative at one sample does not.

Plain torch around one kernel, which finds the parted pairs (csrc/segments*.h). The picture has to be made with detached
barycentrics, or its interior counts twice.
"""

from __future__ import annotations

import torch

from .._autograd import register_fake, register_vmap
from .interpolate import interpolate
from .rasterize import Fragments


def interior_flow(
    image: torch.Tensor,
    fragments: Fragments,
    clip_positions: torch.Tensor,
    triangles: torch.Tensor,
    topology: torch.Tensor,
    *,
    ranges: torch.Tensor | None = None,
    seams: torch.Tensor | None = None,
    cull: int = 0,
    visibility: str = "window",
) -> torch.Tensor:
    """`image` (B, H, W, C), unchanged in value, with the gradient of its interior to clip_positions, (B or 1, V, 4).

    `fragments`, `ranges`, `seams` and `cull` (as a number) are those of the image; `topology` is of `edge_topology`,
    `visibility` that of `antialias`.
    """
    height, width = fragments.triangle_id.shape[1:]
    covered = fragments.triangle_id >= 0
    positions = clip_positions.detach()
    parted = torch.ops.diffrender.segments_parted(
        fragments.triangle_id,
        positions if positions.dim() == 3 else positions.unsqueeze(0),
        triangles.to(torch.int32),
        topology.to(torch.int32),
        ranges,
        None if seams is None else seams.to(torch.int32),
        cull,
        visibility == "exact",
    )
    slope_x, slope_y = (_slope(image.detach(), covered, parted[..., axis] == 0, 2 - axis) for axis in (0, 1))
    frozen = fragments._replace(barycentrics=fragments.barycentrics.detach())
    point = interpolate(clip_positions, triangles, frozen)
    w = torch.where(covered, point[..., 3], 1)
    x, y = point[..., 0] / w * (width / 2), point[..., 1] / w * (-height / 2)
    motion_x, motion_y = ((value - value.detach()).unsqueeze(-1) for value in (x, y))
    return image - slope_x * motion_x - slope_y * motion_y


def _slope(image: torch.Tensor, covered: torch.Tensor, whole: torch.Tensor, dim: int) -> torch.Tensor:
    """Mean of the one or two differences per pixel along `dim` that lie on one surface; 0 where there is none."""
    count = image.shape[dim] - 1
    known = covered.narrow(dim, 0, count) & covered.narrow(dim, 1, count) & whole.narrow(dim, 0, count)
    known = known.unsqueeze(-1)
    difference = torch.where(known, torch.diff(image, dim=dim), 0)
    total, number = torch.zeros_like(image), torch.zeros_like(image[..., :1])
    for offset in (0, 1):
        total.narrow(dim, offset, count).add_(difference)
        number.narrow(dim, offset, count).add_(known)
    return total / number.clamp(min=1)


@register_fake("segments_parted")
def _(triangle_id, clip_positions, triangles, topology, ranges, seams, cull, exact, scatter=0):
    return triangle_id.new_empty((*triangle_id.shape, 2), dtype=torch.uint8)


register_vmap("segments_parted")
