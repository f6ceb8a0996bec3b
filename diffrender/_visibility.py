"""Which surface each pixel of a renderer's call shows, one layer at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from diffrender._autograd import can_decide
from diffrender._scene import Frame
from diffrender.ops.rasterize import Fragments, rasterize


def rasterized(
    frame: Frame,
    positions: Tensor,
    behind: Fragments | None,
    cull: str | None,
    derivatives: bool,
    least_width: float = 0.0,
) -> Fragments:
    """The nearest surfaces, or those beneath `behind`; of all materials alike."""
    scene, camera = frame.scene, frame.surface.camera
    return rasterize(
        positions, scene.mesh.triangles, (camera.height, camera.width), ranges=scene.ranges, cull=cull, beneath=behind,
        derivatives=derivatives, least_width=least_width,
    )  # fmt: skip


@torch.no_grad()
def kept_ids(frame: Frame, behind: Fragments | None, cull: str | None, most_rounds: int) -> Tensor:
    """(B, H, W) triangle_id of the nearest surfaces beneath `behind` that alpha mode "MASK" does not discard.

    Where a surface is discarded, the one beneath it takes its place, until no pixel shows a discarded one. Where values
    cannot be read (compiled, under vmap, in a CUDA graph) that is done `most_rounds` times, and what is left then is
    background.
    """
    scene, surface = frame.scene, frame.surface
    positions, derivatives = scene.clip_positions.detach(), surface.needs_derivatives_of_cutouts()
    shown = rasterized(frame, positions, behind, cull, derivatives)
    discarded = surface.discarded(shown)
    is_readable = can_decide(discarded)
    rounds = 0
    while bool(discarded.any()) if is_readable else rounds < most_rounds:
        beneath = rasterized(frame, positions, shown, cull, derivatives)
        shown = _merged(discarded, beneath, shown)
        discarded = discarded & surface.discarded(shown)
        rounds += 1
    return torch.where(discarded, -1, shown.triangle_id)


def only_ids(triangle_id: Tensor, like: Tensor) -> Fragments:
    """Fragments of which nothing but the ids is to be read, without memory for the rest."""
    nothing = like.new_zeros(()).expand(triangle_id.shape)
    return Fragments(triangle_id, nothing.unsqueeze(-1).expand(*triangle_id.shape, 2), nothing, None)


def _merged(mask: Tensor, new: Fragments, old: Fragments) -> Fragments:
    """`new` where the mask (B, H, W) says so, else `old`."""
    wide, slopes = mask.unsqueeze(-1), None
    if new.derivatives is not None and old.derivatives is not None:
        slopes = torch.where(wide, new.derivatives, old.derivatives)
    return Fragments(
        torch.where(mask, new.triangle_id, old.triangle_id),
        torch.where(wide, new.barycentrics, old.barycentrics),
        torch.where(mask, new.depth, old.depth),
        slopes,
    )
