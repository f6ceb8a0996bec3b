"""How close a reconstruction is: sampled surface distances and mask overlap. For reports, without gradients.

The nearest-neighbour search needs scipy (extra `fit`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from diffrender import _checks
from diffrender._extras import require
from diffrender.geometry.mesh import Mesh
from diffrender.geometry.normals import triangle_area_vectors, triangle_corners


class SurfaceDistance(NamedTuple):
    """Distances between two sampled surfaces, in the units of the vertices.

    Attributes:
        chamfer: mean distance from a sample to the nearest sample of the other surface, averaged over both directions.
        f_score: harmonic mean of precision and recall, 0 to 1: the share of samples of one surface that have a sample
            of the other within `threshold`.
        threshold: the distance that f_score allows.
    """

    chamfer: float
    f_score: float
    threshold: float


def sample_surface(mesh: Mesh, count: int, *, seed: int = 0) -> Tensor:
    """(count, 3) points spread evenly at random over the area of a mesh with (V, 3) vertices, the same for one seed.

    Raises:
        ValueError: if the mesh has no area.
    """
    vertices = mesh.vertices.detach().cpu().double()
    triangles = mesh.triangles.cpu()
    areas = triangle_area_vectors(vertices, triangles).norm(dim=-1)
    if not bool(areas.sum() > 0):
        raise ValueError("sample_surface: mesh must have an area, got none.")
    generator = torch.Generator().manual_seed(seed)
    # Stratified along the cumulative area: evener than independent draws, so distances need fewer samples.
    at = (torch.arange(count) + torch.rand(count, generator=generator, dtype=torch.float64)) / count
    cumulative = areas.cumsum(0)
    picked = torch.searchsorted(cumulative / cumulative[-1], at).clamp(max=len(areas) - 1)
    # A square folded along its diagonal covers the triangle evenly.
    weights = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    weights = torch.where(weights.sum(-1, keepdim=True) > 1, 1 - weights, weights)
    corner0, corner1, corner2 = triangle_corners(vertices, triangles[picked])
    return corner0 + weights[:, :1] * (corner1 - corner0) + weights[:, 1:] * (corner2 - corner0)


def surface_distance(
    mesh: Mesh, reference: Mesh, *, threshold: float, samples: int = 100_000, seed: int = 0
) -> SurfaceDistance:
    """Symmetric Chamfer distance and F-score of two meshes from `samples` points on each.

    Two samplings of one surface are not at distance 0 but at about half their spacing, sqrt(area / samples) / 2. So
    that the F-score speaks of the surfaces and not of that, let `samples` be at least 2 area / threshold^2: the share
    of samples that would miss an equal surface is exp(-pi threshold^2 samples / area).

    Raises:
        ImportError: without scipy (extra `fit`).
    """
    spatial = require("scipy.spatial", "fit", used_by="surface_distance")
    points = sample_surface(mesh, samples, seed=seed).numpy()
    reference_points = sample_surface(reference, samples, seed=seed + 1).numpy()
    # Far from a sphere nearly all its points are equally near, and scipy's default trees search nearly all of them;
    # these are four times as fast there and no slower elsewhere.
    trees = [spatial.cKDTree(p, compact_nodes=False, balanced_tree=False) for p in (reference_points, points)]
    workers = torch.get_num_threads()
    to_reference, _ = trees[0].query(points, workers=workers)
    from_reference, _ = trees[1].query(reference_points, workers=workers)
    precision, recall = (to_reference <= threshold).mean(), (from_reference <= threshold).mean()
    f_score = 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    return SurfaceDistance(float((to_reference.mean() + from_reference.mean()) / 2), float(f_score), threshold)


def mask_iou(mask: Tensor, reference: Tensor) -> Tensor:
    """Intersection over union of boolean masks (..., H, W, 1), one value per picture; 1 where both are empty."""
    if mask.shape != reference.shape or mask.dtype != torch.bool or reference.dtype != torch.bool:
        raise ValueError(
            f"mask_iou: masks must be bool of one shape, got {mask.dtype} {tuple(mask.shape)} and "
            f"{reference.dtype} {tuple(reference.shape)}."
        )
    intersection = (mask & reference).sum((-3, -2, -1)).double()
    union = (mask | reference).sum((-3, -2, -1)).double()
    return torch.where(union > 0, intersection / union.clamp(min=1), 1.0)


def psnr(image: Tensor, reference: Tensor, *, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio in decibels of two pictures of one shape; infinite for equal ones.

    Raises:
        TypeError, ValueError: on integers, whose differences wrap around, and on another shape.
    """
    for name, picture in (("image", image), ("reference", reference)):
        _checks.check_picture("psnr", name, picture)
    if image.shape != reference.shape:
        expected = f"have the shape of image {_checks.shape_text(image)}"
        _checks.fail(ValueError, "psnr", "reference", expected, _checks.shape_text(reference))
    error = (image - reference).double().square().mean()
    return float(10 * torch.log10(peak * peak / error)) if error > 0 else float("inf")
