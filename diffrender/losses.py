"""Losses: how far pictures are apart, and how rough a mesh is.

Image losses take (..., H, W, C) pictures of equal shape and return their mean; `weight` (broadcastable, for example a
(H, W, 1) mask) turns it into a weighted mean. Mesh losses take a `Mesh` and use its cached edges; they are means over
edges or vertices, so that their size does not change with the number of triangles. Plain torch: autograd is right here.
"""

import torch
from torch import Tensor

from diffrender.geometry.mesh import Mesh
from diffrender.geometry.normals import triangle_normals


def l1(image: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Mean absolute difference.

    Example:
        >>> float(l1(torch.zeros(2, 2, 1), torch.full((2, 2, 1), 0.5)))
        0.5
    """
    return _mean((_check_images("l1", image, target)).abs(), weight)


def mse(image: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Mean squared difference."""
    return _mean(_check_images("mse", image, target).square(), weight)


def smooth_l1(image: Tensor, target: Tensor, *, width: float = 0.1, weight: Tensor | None = None) -> Tensor:
    """Mean of |d| - width / 2 beyond |d| = width and d^2 / (2 width) within: robust, and smooth at a perfect match."""
    difference = _check_images("smooth_l1", image, target).abs()
    if not width > 0:
        raise ValueError(f"smooth_l1: width must be positive, got {width}.")
    inner = difference.clamp(max=width)
    return _mean(inner * (difference - inner / 2) / width, weight)


def relative_mse(image: Tensor, target: Tensor, *, epsilon: float = 1e-2, weight: Tensor | None = None) -> Tensor:
    """Mean of d^2 / (target^2 + epsilon), for linear high-range pictures: bright spots do not outweigh the rest."""
    difference = _check_images("relative_mse", image, target)
    return _mean(difference.square() / (target.detach().square() + epsilon), weight)


def mask_iou(mask: Tensor, target: Tensor) -> Tensor:
    """1 - intersection over union of soft masks (..., H, W, 1) in [0, 1], each picture on its own, then the mean.

    Two empty masks agree: loss 0, gradient 0.
    """
    _check_images("mask_iou", mask, target)
    intersection = (mask * target).sum((-3, -2, -1))
    union = (mask + target - mask * target).sum((-3, -2, -1))
    is_empty = union <= 0
    return torch.where(is_empty, 0, 1 - intersection / torch.where(is_empty, 1, union)).mean()


def laplacian(mesh: Mesh) -> Tensor:
    """Mean squared distance of the vertices from the mean of their neighbours (uniform weights).

    Vertices without an edge count as 0.
    """
    edges = mesh.edges().vertices
    i, j = edges.unbind(-1)
    ends = mesh.vertices.index_select(-2, edges.reshape(-1)).unflatten(-2, (-1, 2))
    sums = torch.zeros_like(mesh.vertices)
    sums = sums.index_add(-2, i, ends[..., 1, :]).index_add(-2, j, ends[..., 0, :])
    degree = torch.bincount(edges.reshape(-1), minlength=mesh.vertex_count).unsqueeze(-1)
    offset = torch.where(degree > 0, sums / degree.clamp(min=1) - mesh.vertices, 0)
    return offset.square().sum(-1).mean()


def normal_consistency(mesh: Mesh) -> Tensor:
    """Mean of 1 - cos(angle between the normals) over pairs of triangles that share an edge: 0 flat, 2 folded over.

    Zero-area triangles have no normal; their pairs count as 1 and give no gradient. 0 for a mesh without such pairs.
    """
    pairs = mesh.adjacent_triangles()
    if pairs.shape[0] == 0:
        return mesh.vertices.sum() * 0
    normals = triangle_normals(mesh.vertices, mesh.triangles)
    ends = normals.index_select(-2, pairs.reshape(-1)).unflatten(-2, (-1, 2))
    return (1 - (ends[..., 0, :] * ends[..., 1, :]).sum(-1)).mean()


def edge_length(mesh: Mesh, *, target: float = 0.0) -> Tensor:
    """Mean of (length - target)^2 over the edges; with target 0, the mean squared length. Finite at zero length."""
    ends = mesh.vertices.index_select(-2, mesh.edges().vertices.reshape(-1)).unflatten(-2, (-1, 2))
    squared = (ends[..., 0, :] - ends[..., 1, :]).square().sum(-1)
    if target == 0:
        return squared.mean()
    # d sqrt(s) / ds is infinite at 0: edges without a direction keep their value and get no gradient.
    is_zero = squared == 0
    length = torch.where(is_zero, 0, torch.where(is_zero, 1, squared).sqrt())
    return (length - target).square().mean()


def _check_images(name: str, image: Tensor, target: Tensor) -> Tensor:
    # Broadcasting a (H, W, 1) target over a (B, H, W, 3) picture is nearly always a mistake, and a silent one.
    if image.shape != target.shape:
        raise ValueError(
            f"{name}: target must have the shape of image {tuple(image.shape)}, got {tuple(target.shape)}."
        )
    return image - target


def _mean(values: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return values.mean()
    weight = weight.to(values.dtype).expand_as(values)
    total = weight.sum()
    return torch.where(total == 0, 0, (values * weight).sum() / torch.where(total == 0, 1, total))
