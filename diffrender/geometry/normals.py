"""Unit vectors and normals that stay finite, with gradients, on degenerate input.

`torch.nn.functional.normalize` divides by max(|v|, 1e-12): at v = 0 its gradient is 1e12. Here a vector without a
direction has the value 0 and the gradient 0, and everything else is the plain textbook formula: plain torch ops, so
autograd derives them and second derivatives are right.

Not handled: normals that are smooth across vertices which merely lie at the same place (weld the mesh for that).
"""

import torch
from torch import Tensor

from .._autograd import nests_forward_mode


def safe_normalize(vectors: Tensor, dim: int = -1) -> Tensor:
    """Divides vectors by their length; the zero vector stays zero.

    Args:
        vectors: any shape, the components along `dim`.
        dim: the axis of the components.

    Returns:
        Unit vectors of the same shape; exact zeros where the length is zero or not finite.

    Gradients:
        Exact; zero (not infinite) where the result is zero.

    Example:
        >>> safe_normalize(torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.0, 0.800000011920929], [0.0, 0.0, 0.0]]
    """
    # Scaling by the largest component keeps the squares of very short and very long vectors in range. The scale cancels
    # out of the result, so it may be a constant for autograd.
    scale = vectors.detach().abs().amax(dim, keepdim=True)
    has_direction = (scale > 0) & scale.isfinite()
    scaled = torch.where(has_direction, vectors / torch.where(has_direction, scale, 1), 0)
    # The inner where gives the square root a harmless input, so that its backward never sees 0 * inf.
    squared_length = torch.where(has_direction, (scaled * scaled).sum(dim, keepdim=True), 1)
    return scaled / squared_length.sqrt()


def triangle_corners(vertices: Tensor, triangles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The positions of the corners 0, 1 and 2 of every triangle: three (..., T, 3) tensors from (..., V, 3), (T, 3)."""
    # One index_select over a flat index is about three times as fast as vertices[triangles], backward included.
    flat_index = triangles.reshape(-1).long()
    corners = vertices.index_select(-2, flat_index).unflatten(-2, (triangles.shape[0], 3))
    return corners[..., 0, :], corners[..., 1, :], corners[..., 2, :]


def triangle_area_vectors(vertices: Tensor, triangles: Tensor) -> Tensor:
    """Normals of the triangles with the length 2 * area, counter-clockwise = towards the viewer.

    Args:
        vertices: (..., V, 3).
        triangles: (T, 3) integer indices.

    Returns:
        (..., T, 3). A triangle whose area is below the rounding error of its own coordinates counts as degenerate: its
        vector is exactly 0 and so is its gradient. Without that rule the direction would be noise with a huge gradient.
    """
    corner0, corner1, corner2 = triangle_corners(vertices, triangles)
    edge1, edge2 = corner1 - corner0, corner2 - corner0
    area_vectors = torch.linalg.cross(edge1, edge2)

    # A coordinate c is known to about eps * |c|, so a cross product of edges e is known to about eps * |c| * |e|.
    with torch.no_grad():
        epsilon = torch.finfo(vertices.dtype).eps
        coordinate = torch.maximum(torch.maximum(corner0.abs(), corner1.abs()), corner2.abs()).amax(-1, keepdim=True)
        edge = torch.maximum(edge1.abs(), edge2.abs()).amax(-1, keepdim=True)
        is_degenerate = area_vectors.abs().amax(-1, keepdim=True) <= 4 * epsilon * coordinate * edge
    return torch.where(is_degenerate, 0, area_vectors)


def triangle_normals(vertices: Tensor, triangles: Tensor) -> Tensor:
    """Unit normals (..., T, 3) of the triangles; zero, with zero gradient, for degenerate ones."""
    return safe_normalize(triangle_area_vectors(vertices, triangles))


def vertex_normals(vertices: Tensor, triangles: Tensor, *, weighting: str = "area") -> Tensor:
    """Smooth unit normals at the vertices: the weighted mean of the normals of the triangles around each.

    Args:
        vertices: (V, 3) or (B, V, 3).
        triangles: (T, 3) int32 or int64, shared by all items; counter-clockwise is the outside.
        weighting: "area" (by triangle area: the cheapest, and smooth in the positions) or "angle" (by the corner's
            angle: does not depend on how a flat polygon was cut into triangles).

    Returns:
        The shape of `vertices`. Zero for vertices without a triangle of non-zero area.

    Gradients:
        To vertices, exact, at any order; zero where the normal is zero, and degenerate triangles neither give nor
        receive any.
    Precision: weighted by area, under deterministic algorithms on CUDA, sums are multiples of 2^-61 times the number of
        triangles times the largest area of all: of a million triangles, one with edges a hundred thousandth as long as
        the longest has a normal that is off by about half a percent.
    Memory: weighted by area, kernels save the vertices and 16 bytes for each (float32). In torch.func.hessian, and
        wherever else forward mode is not alone, it is plain torch, which takes longer and saves more.

    Raises:
        ValueError: on an unknown weighting, or (by area, on the CPU) an index outside of the vertices.

    Example:
        >>> quad = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
        >>> vertex_normals(quad, torch.tensor([[0, 1, 2], [0, 2, 3]]))[2].tolist()
        [0.0, 0.0, 1.0]
    """
    if weighting not in ("area", "angle"):
        raise ValueError(f'vertex_normals: weighting must be "area" or "angle", got {weighting!r}.')
    if weighting == "area" and vertices.dtype in (torch.float32, torch.float64) and not nests_forward_mode():
        from ..ops.vertex_normals import area_weighted_normals  # not at the top: the ops import this module

        return area_weighted_normals(vertices, triangles)
    area_vectors = triangle_area_vectors(vertices, triangles)
    if weighting == "area":
        per_corner = area_vectors.unsqueeze(-2).expand(*area_vectors.shape[:-1], 3, 3)
    else:
        angles = corner_angles(vertices, triangles, area_vectors)
        per_corner = angles.unsqueeze(-1) * safe_normalize(area_vectors).unsqueeze(-2)

    return safe_normalize(sum_without_noise(per_corner.flatten(-3, -2), triangles.reshape(-1), vertices.shape[-2]))


def sum_without_noise(vectors: Tensor, rows: Tensor, count: int) -> Tensor:
    """Sums (..., count, 3) of the vectors (..., N, 3) of equal `rows` (N,).

    Where they cancel, what is left is rounding errors of the summands, and its direction would be noise with a huge
    gradient: such a sum is exactly 0, and so is its gradient.
    """
    rows = rows.long()
    sums = vectors.new_zeros(*vectors.shape[:-2], count, vectors.shape[-1]).index_add(-2, rows, vectors)
    with torch.no_grad():
        sizes = vectors.abs().amax(-1, keepdim=True)
        total = vectors.new_zeros(*vectors.shape[:-2], count, 1).index_add(-2, rows, sizes)
        is_noise = sums.abs().amax(-1, keepdim=True) <= 4 * torch.finfo(vectors.dtype).eps * total
    return torch.where(is_noise, 0, sums)


def corner_angles(vertices: Tensor, triangles: Tensor, area_vectors: Tensor) -> Tensor:
    """Inner angles (..., T, 3) in radians, atan2(|e1 x e2|, e1 . e2); 0 with zero gradient in degenerate triangles."""
    corners = triangle_corners(vertices, triangles)
    # Squares of the areas of a small mesh underflow; scaled by the largest component they do not.
    scale = area_vectors.detach().abs().amax(-1)
    is_degenerate = scale == 0
    scaled = torch.where(
        is_degenerate.unsqueeze(-1), 1, area_vectors / torch.where(is_degenerate, 1, scale).unsqueeze(-1)
    )
    double_area = scale * (scaled * scaled).sum(-1).sqrt()
    angles = []
    for k in range(3):
        edge1, edge2 = corners[(k + 1) % 3] - corners[k], corners[(k + 2) % 3] - corners[k]
        dot = torch.where(is_degenerate, 1, (edge1 * edge2).sum(-1))
        angles.append(torch.where(is_degenerate, 0, torch.atan2(double_area, dot)))
    return torch.stack(angles, -1)
