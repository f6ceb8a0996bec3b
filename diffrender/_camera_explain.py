"""Why a picture is empty: where points lie as a camera sees them, in words."""

from __future__ import annotations

import torch
from torch import Tensor


def explained(clip: Tensor, near: Tensor, far: Tensor, is_perspective: bool, is_fisheye: bool) -> str:
    """One sentence, or one line for each camera; `clip` (N, 4) or (B, N, 4)."""
    if clip.dim() == 2 and near.dim() == 0:
        return _of_one(clip, float(near), float(far), is_perspective, is_fisheye)
    count = max(clip.shape[0] if clip.dim() == 3 else 1, near.shape[0] if near.dim() else 1)
    clips, planes = clip.expand(count, *clip.shape[-2:]), (near.expand(count).tolist(), far.expand(count).tolist())
    lines = [
        f"{k}: {_of_one(*one, is_perspective, is_fisheye)}" for k, one in enumerate(zip(clips, *planes, strict=True))
    ]
    return "\n".join(lines)


def _of_one(clip: Tensor, near: float, far: float, is_perspective: bool, is_fisheye: bool) -> str:
    x, y, z, w = clip.unbind(-1)
    finite = clip.isfinite().all(-1)
    # z/w is affine in 1 / depth (perspective) or depth: inverted, it says how far along the view a point is.
    along = w if is_perspective else ((far + near) + z * (far - near)) / 2
    left = torch.ones_like(finite)
    reasons = []
    for text, applies in (
        ("not finite", ~finite),
        ("behind the camera", (along <= 0) if is_perspective and not is_fisheye else torch.zeros_like(finite)),
        (f"nearer than near={near:g}", z < -w),
        (f"beyond far={far:g}", z > w),
        ("beside the picture", (x.abs() > w) | (y.abs() > w)),
    ):
        number = int((left & applies).sum())
        left = left & ~applies
        if number:
            reasons.append(f"{number} {text}")
    text = f"{int(left.sum())} of {len(clip)} points are in view"
    text += f"; {', '.join(reasons)}." if reasons else "."
    if bool(finite.any()):
        low, high = (float(bound) for bound in along[finite].aminmax())
        text += f" They lie at {'distances' if is_fisheye else 'depths'} from {low:.4g} to {high:.4g}."
    return text
