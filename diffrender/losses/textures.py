"""Losses of textures and material maps: how rough they are."""

from __future__ import annotations

import torch
from torch import Tensor

from diffrender.losses.images import weighted_mean


def total_variation(texture: Tensor, *, power: int = 1, wrap: bool = False) -> Tensor:
    """Mean of |difference|^power of neighbouring texels, along both axes.

    Args:
        texture: (..., H, W, C).
        power: 1 keeps steps and removes noise, 2 blurs.
        wrap: the last row and column are neighbours of the first, as for textures that repeat.

    Example:
        >>> float(total_variation(torch.tensor([[[0.0], [1.0]], [[0.0], [1.0]]])))
        1.0
    """
    if power not in (1, 2):
        raise ValueError(f"total_variation: power must be 1 or 2, got {power}.")
    rows, columns = (_mean_or_zero(_differences(texture, axis, wrap).abs() ** power) for axis in (-3, -2))
    return rows + columns


def edge_aware_smoothness(
    values: Tensor, guide: Tensor, *, sharpness: float = 10.0, mask: Tensor | None = None
) -> Tensor:
    """Mean of |difference of values| * exp(-sharpness * |difference of guide|) of neighbours, along both axes.

    Smooths material maps where a picture of the same place (albedo, the photo) is smooth too, and lets them jump where
    it jumps.

    Args:
        values: (..., H, W, C), for example roughness and metallic, as textures or as pictures.
        guide: (..., H, W, G), the mean over its channels counts; a constant for the gradient.
        sharpness: 0 is plain total variation.
        mask: (..., H, W, 1) bool: pairs of which one pixel is outside do not count.

    Example:
        >>> step = torch.tensor([[[0.0], [1.0]], [[0.0], [1.0]]])
        >>> round(float(edge_aware_smoothness(step, step, sharpness=2.0)), 4)
        0.1353
    """
    if values.shape[:-1] != guide.shape[:-1]:
        shapes = f"{tuple(values.shape[:-1])}, got {tuple(guide.shape[:-1])}"
        raise ValueError(f"edge_aware_smoothness: guide must have the size of values {shapes}.")
    total = values.new_zeros(())
    for axis in (-3, -2):
        jump = _differences(guide.detach(), axis, False).abs().mean(-1, keepdim=True)
        change = _differences(values, axis, False).abs() * torch.exp(-sharpness * jump)
        weight = None
        if mask is not None:
            count = mask.shape[axis] - 1
            weight = mask.narrow(axis, 0, count) & mask.narrow(axis, 1, count)
        total = total + _mean_or_zero(change, weight)
    return total


def _mean_or_zero(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """A picture of one row or column has no differences."""
    return weighted_mean(values, weight) if values.numel() else values.sum()


def _differences(picture: Tensor, axis: int, wrap: bool) -> Tensor:
    if wrap:
        return picture.roll(-1, axis) - picture
    count = picture.shape[axis] - 1
    return picture.narrow(axis, 1, count) - picture.narrow(axis, 0, count)
