"""Losses: how far pictures are apart, and how rough a mesh or a material map is.

Image losses take (..., H, W, C) pictures of equal shape and return their mean; `weight` (broadcastable, for example a
(H, W, 1) mask) turns it into a weighted mean. Mesh losses take a `Mesh` and use its cached edges; they are means over
edges or vertices, so that their size does not change with the number of triangles. Texture losses take maps
(..., H, W, C). Plain torch: autograd is right here.
"""

from diffrender.losses.images import (
    l1,
    log_srgb_l1,
    lpips,
    mask_bce,
    mask_iou,
    mse,
    relative_mse,
    smape,
    smooth_l1,
    ssim,
)
from diffrender.losses.meshes import edge_length, edge_length_variance, laplacian, normal_consistency
from diffrender.losses.textures import edge_aware_smoothness, total_variation

__all__ = [
    "edge_aware_smoothness",
    "edge_length",
    "edge_length_variance",
    "l1",
    "laplacian",
    "log_srgb_l1",
    "lpips",
    "mask_bce",
    "mask_iou",
    "mse",
    "normal_consistency",
    "relative_mse",
    "smape",
    "smooth_l1",
    "ssim",
    "total_variation",
]
