"""Reference of prefilter_environment in plain torch float64: one dense matrix of weights per level, nothing skipped.

Shares of a texel in the four coarser ones around it follow from geometry (a coarse texel beyond the side of a face is
folded onto the next face); in the op they are a padded convolution.
"""

import math

import torch

from tests.reference.texture_cube import FRAMES, fold


def prefilter_environment(environment, roughness, size, *, tolerance):
    """(B, 6, S, S, C) or (6, S, S, C) -> (..., 6, size, size, C)."""
    batch = environment.double()
    shared = batch.dim() == 4
    batch = batch[None] if shared else batch
    normals = texel_directions(size).reshape(-1, 3)
    side, levels = batch.shape[2], 1
    while side % 2**levels == 0:
        levels += 1
    energy = solid_angles(side)[..., None] * batch
    angle = solid_angles(side)[None, ..., None]
    alpha_squared = roughness**4
    bands = ramps(side, levels, alpha_squared, tolerance)
    sums, total = 0.0, 0.0
    for level in range(levels):
        squared = (normals[:, None] - texel_directions(side >> level).reshape(1, -1, 3)).square().sum(-1)
        cosine = (1 - squared / 2).clamp(min=0)
        lobe = cosine * (alpha_squared / (alpha_squared + squared * (1 - alpha_squared) / 4)) ** 2
        weight = lobe * (bands[level](squared) - bands[level + 1](squared))
        sums = sums + weight @ energy.flatten(1, 3)
        total = total + weight @ angle.flatten(1, 3)
        if level + 1 < levels:
            energy, angle = coarser(energy), coarser(angle)
    result = (sums / total).unflatten(1, (6, size, size))
    return result[0] if shared else result


def ramps(side, levels, alpha_squared, tolerance):
    """One function of the squared chord per level: how far texels of that level are small enough."""
    width = min(1.0, 4 * alpha_squared / (1 - alpha_squared)) if alpha_squared < 1 else 1.0
    needed = [(math.sqrt(2) / (side >> level) / tolerance) ** 2 for level in range(levels)]
    finest = max([0] + [level for level in range(levels) if needed[level] <= width])

    def ramp(level):
        if level <= finest:
            return torch.ones_like
        if level == levels or needed[level] - width >= 2:
            return torch.zeros_like
        return lambda q: ((q + width - needed[level]) / (0.3 * needed[level])).clamp(0, 1)

    return [ramp(level) for level in range(levels + 1)]


def texel_directions(size):
    """(6, S, S, 3) unit vectors."""
    center = (torch.arange(size, dtype=torch.float64) + 0.5) * 2 / size - 1
    b, a = torch.meshgrid(center, center, indexing="ij")
    points = torch.stack([a, b, torch.ones_like(a)], -1)
    points = points / points.norm(dim=-1, keepdim=True)
    return torch.einsum("rcf,kfw->krcw", points, FRAMES)


def solid_angles(size):
    """(6, S, S): four corners of Girard's theorem, as two spherical triangles per texel."""
    edge = torch.linspace(-1, 1, size + 1, dtype=torch.float64)
    b, a = torch.meshgrid(edge, edge, indexing="ij")
    corner = torch.nn.functional.normalize(torch.stack([a, b, torch.ones_like(a)], -1), dim=-1)
    p, q, r, s = corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]
    return (triangle(p, q, r) + triangle(p, r, s)).expand(6, size, size)


def triangle(a, b, c):
    """Solid angle of a spherical triangle (Van Oosterom and Strackee)."""
    volume = (a * torch.linalg.cross(b, c)).sum(-1).abs()
    return 2 * torch.atan2(volume, 1 + (a * b).sum(-1) + (b * c).sum(-1) + (a * c).sum(-1))


def coarser(texels):
    """Every texel gives 9/16, 3/16, 3/16, 1/16 to the coarse texels around it, a missing one's share to all three."""
    size = texels.shape[2]
    matrix = torch.zeros(6 * (size // 2) ** 2, 6 * size**2, dtype=torch.float64)
    half = size // 2
    face, row, column = (x.flatten() for x in torch.meshgrid(*map(torch.arange, (6, size, size)), indexing="ij"))
    source = torch.arange(6 * size * size)
    away = [torch.where(x % 2 == 0, x // 2 - 1, x // 2 + 1) for x in (row, column)]
    for far_row in (False, True):
        for far_column in (False, True):
            r = away[0] if far_row else row // 2
            c = away[1] if far_column else column // 2
            share = (0.25 if far_row else 0.75) * (0.25 if far_column else 0.75)
            other, to_column, to_row, off_corner = fold(face, c, r, half)
            target = (other * half + to_row) * half + to_column
            matrix.index_put_((target[~off_corner], source[~off_corner]), torch.tensor(share).double(), accumulate=True)
            for at in source[off_corner].tolist():
                around = {(int(face[at]), int(row[at]) // 2, int(column[at]) // 2)}
                for r2, c2 in ((int(away[0][at]), int(column[at]) // 2), (int(row[at]) // 2, int(away[1][at]))):
                    f, cc, rr, _ = fold(face[at : at + 1], torch.tensor([c2]), torch.tensor([r2]), half)
                    around.add((int(f), int(rr), int(cc)))
                for f, rr, cc in around:
                    matrix[(f * half + rr) * half + cc, at] += share / 3
    return torch.einsum("ij,bjc->bic", matrix, texels.flatten(1, 3)).unflatten(1, (6, half, half))
