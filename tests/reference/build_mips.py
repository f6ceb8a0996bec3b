"""Reference of build_mips: a dense matrix of overlaps for each axis."""

import torch


def build_mips(texture):
    """Levels 1, 2, ... down to one texel of a texture (..., H, W, C)."""
    levels, level = [], texture.double()
    while max(level.shape[-3:-1]) > 1:
        rows, columns = (overlaps(size) for size in level.shape[-3:-1])
        level = torch.einsum("ij,...jlc->...ilc", rows, level)  # one axis after the other: far fewer products
        level = torch.einsum("kl,...jlc->...jkc", columns, level)
        levels.append(level)
    return levels


def overlaps(size):
    """(max(1, size // 2), size): the share of each finer texel in each coarser one."""
    count = max(1, size // 2)
    edges = torch.arange(count + 1, dtype=torch.float64) * size / count
    start = torch.arange(size, dtype=torch.float64)
    shared = torch.minimum(edges[1:, None], start + 1) - torch.maximum(edges[:-1, None], start)
    return shared.clamp(min=0) * count / size
