"""Reference composite: the weighted values added up in the pixels that they belong to, plain torch in float64."""

import torch


def composite(values, coverage, *, background=None):
    """(B, H, W, C) float64; values (N, C) or (1, 1, N, C), background anything that broadcasts."""
    offsets = coverage.offsets
    rows = values.double().reshape(-1, values.shape[-1])[: int(offsets[-1])]
    weight = coverage.weight.double()[: int(offsets[-1]), None]
    pixel = torch.repeat_interleave(offsets.diff())
    empty = torch.zeros(len(offsets) - 1, rows.shape[-1], dtype=torch.float64)
    shape = (*coverage.size, rows.shape[-1])
    image = empty.index_add(0, pixel, rows * weight).view(shape)
    if background is None:
        return image
    covered = empty[:, :0].new_zeros(len(empty), 1).index_add(0, pixel, weight).view(*shape[:3], 1)
    behind = background.double() if isinstance(background, torch.Tensor) else background
    return image + (1 - covered) * behind
