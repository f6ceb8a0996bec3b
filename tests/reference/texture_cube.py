"""Reference of texture_cube in plain torch float64; autograd of it is the truth.

Neighbours across seams come from geometry here (a texel beyond the side of a face is folded over the edge onto the next
one), from a table in the kernels.
"""

import torch

from tests.reference.build_mips import build_mips
from tests.reference.texture import batched, blend_levels, footprint

# Rows: which world axis, with which sign, is a (right), b (down) and the major axis of a face, +X -X +Y -Y +Z -Z.
FRAMES = torch.zeros(6, 3, 3, dtype=torch.float64)
for _face, _rows in enumerate(("-z -y +x", "+z -y -x", "+x +z +y", "+x -z -y", "+x -y +z", "-x -y -z")):
    for _row, _name in enumerate(_rows.split()):
        FRAMES[_face, _row, "xyz".index(_name[1])] = 1.0 if _name[0] == "+" else -1.0


def texture_cube(
    texture, directions, *, direction_derivatives=None, level=None, level_bias=None, mips=None, filter="auto",
    max_level=None,
):  # fmt: skip
    """Same arguments and result as diffrender.texture_cube, in float64."""
    base, d = batched(texture, 5).double(), directions.double()
    has_level = any(x is not None for x in (direction_derivatives, level, level_bias))
    if filter == "auto":
        filter = "mip_linear" if has_level else "linear"
    good = torch.isfinite(d).all(-1) & (d != 0).any(-1)
    d = torch.where(good[..., None], d, torch.ones_like(d))
    face = face_of(d.detach())
    frames = FRAMES[face]  # (B, H, W, 3, 3)
    st = project(frames, d)
    if not filter.startswith("mip"):
        return torch.where(good[..., None], sample(base, face, st, filter), 0.0)

    given = build_mips(base) if mips is None else [batched(x, 5).double() for x in mips]
    levels = [base, *given]
    levels = levels[: len(levels) if max_level is None else max_level + 1]
    chosen = torch.zeros(face.shape, dtype=torch.float64)
    if direction_derivatives is not None:
        steps = direction_derivatives.double().unflatten(-1, (3, 2))
        along_x, along_y = (project_step(frames, d, steps[..., k]) for k in (0, 1))
        jacobian = torch.stack([along_x[..., 0], along_y[..., 0], along_x[..., 1], along_y[..., 1]], -1)
        chosen = footprint(jacobian * base.shape[2], 1)[0]
    for extra in (level, level_bias):
        if extra is not None:
            chosen = chosen + extra.double()
    value = blend_levels([sample(x, face, st, "linear") for x in levels], chosen, filter)
    return torch.where(good[..., None], value, 0.0)


def face_of(d):
    size = d.abs()
    axis = torch.where(size[..., 2] > size[..., :2].amax(-1), 2, torch.where(size[..., 1] > size[..., 0], 1, 0))
    return 2 * axis + (d.gather(-1, axis[..., None])[..., 0] < 0)


def project(frames, d):
    """(s, t) in [0, 1] on the face with the given frame."""
    a, b, along = (frames @ d[..., None])[..., 0].unbind(-1)
    return 0.5 + 0.5 * torch.stack([a / along, b / along], -1)


def project_step(frames, d, step):
    """Change of (s, t) with the direction, by the rule for quotients."""
    a, b, along = (frames @ d[..., None])[..., 0].unbind(-1)
    da, db, dalong = (frames @ step[..., None])[..., 0].unbind(-1)
    return 0.5 * torch.stack([da * along - a * dalong, db * along - b * dalong], -1) / along[..., None] ** 2


def sample(texels, face, st, filter):
    """Texels (B or 1, 6, S, S, C) at (s, t) of a face each (B, H, W)."""
    size = texels.shape[2]
    item = torch.arange(face.shape[0])[:, None, None].clamp(max=texels.shape[0] - 1)
    if filter == "nearest":
        at = (st.detach() * size).floor().long().clamp(0, size - 1)
        return texels[item, face, at[..., 1], at[..., 0]]
    x = st * size - 0.5
    corner = x.detach().floor()
    fraction = x - corner
    values, missing, weights = [], [], []
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        column, row = corner[..., 0].long() + dx, corner[..., 1].long() + dy
        other, column, row, off_corner = fold(face, column, row, size)
        values.append(texels[item, other, row, column])
        missing.append(off_corner)
        fx, fy = fraction.unbind(-1)
        weights.append((fx if dx else 1 - fx) * (fy if dy else 1 - fy))
    values, missing, weights = torch.stack(values), torch.stack(missing)[..., None], torch.stack(weights)[..., None]
    mean = (values * ~missing).sum(0) / 3
    return (weights * torch.where(missing, mean, values)).sum(0)


def fold(face, column, row, size):
    """Face, column and row of a texel that may lie beyond one side; and whether it lies beyond two (then any texel)."""
    off_x, off_y = (column < 0) | (column >= size), (row < 0) | (row >= size)
    a, b = (2 * column + 1) / size - 1, (2 * row + 1) / size - 1  # texel centres, the face spans -1 ... 1
    depth = torch.ones_like(a, dtype=torch.float64)
    # What sticks out over the edge goes down along the next face.
    depth = torch.where(off_x | off_y, 1 - 1 / size, depth)
    point = torch.stack([a.clamp(-1, 1).double(), b.clamp(-1, 1).double(), depth], -1)
    world = (FRAMES[face].transpose(-1, -2) @ point[..., None])[..., 0]
    beyond = off_x ^ off_y
    other = torch.where(beyond, face_of(world), face)
    st = project(FRAMES[other], world)
    at = (st * size).floor().long().clamp(0, size - 1)
    column = torch.where(beyond, at[..., 0], column.clamp(0, size - 1))
    row = torch.where(beyond, at[..., 1], row.clamp(0, size - 1))
    return other, column, row, off_x & off_y
