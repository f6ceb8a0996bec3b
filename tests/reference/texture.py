"""Reference of texture: gathers and weighted sums in plain torch float64; autograd of it is the truth.

Wrapping is done on integer texel indices here, on coordinates in the kernels.
"""

import math

import torch

from tests.reference.build_mips import build_mips


def texture(
    texture,
    texcoords,
    *,
    texcoord_derivatives=None,
    level=None,
    level_bias=None,
    mips=None,
    filter="auto",
    wrap="repeat",
    max_level=None,
    max_anisotropy=1,
):
    """Same arguments and result as diffrender.texture, in float64."""
    base = batched(texture, 4).double()
    uv = texcoords.double()
    has_level = any(x is not None for x in (texcoord_derivatives, level, level_bias))
    if filter == "auto":
        filter = "mip_linear" if has_level else "linear"
    wraps = (wrap, wrap) if isinstance(wrap, str) else wrap
    good = torch.isfinite(uv).all(-1, keepdim=True)
    uv = torch.where(good, uv, torch.zeros_like(uv))
    if not filter.startswith("mip"):
        return torch.where(good, sample(base, uv, wraps, filter), 0.0)

    if mips is None:
        levels = [base, *build_mips(base)]
    else:
        levels = [base, *(batched(x, 4).double() for x in mips)]
    levels = levels[: len(levels) if max_level is None else max_level + 1]
    height, width = base.shape[1:3]
    chosen = torch.zeros(uv.shape[:3], dtype=torch.float64)
    axis = None
    if texcoord_derivatives is not None:
        size = torch.tensor([width, width, height, height], dtype=torch.float64)
        chosen, axis = footprint(texcoord_derivatives.double() * size, max_anisotropy)
        axis = axis / size[::2]
    for extra in (level, level_bias):
        if extra is not None:
            chosen = chosen + extra.double()
    total = 0.0
    for tap in range(max_anisotropy):
        at = uv if max_anisotropy == 1 else uv + (tap / (max_anisotropy - 1) - 0.5) * axis
        total = total + blend_levels([sample(x, at, wraps, "linear") for x in levels], chosen, filter)
    return torch.where(good, total / max_anisotropy, 0.0)


def batched(x, dims):
    return x if x.dim() == dims else x[None]


def blend_levels(values, level, filter):
    """Between (or below) the levels, from the values (B, H, W, C) of all of them."""
    values = torch.stack(values)
    level = level.nan_to_num(nan=0.0, posinf=1e9, neginf=-1e9).clamp(0, len(values) - 1)[..., None]
    fine = level.detach().floor().long()
    low = values.gather(0, fine.expand(values.shape[1:])[None])[0]
    if filter == "mip_nearest":
        return low
    high = values.gather(0, (fine + 1).clamp(max=len(values) - 1).expand(values.shape[1:])[None])[0]
    return low + (level - fine) * (high - low)


def sample(texels, uv, wraps, filter):
    """Texels (B or 1, h, w, C) at uv (B, H, W, 2)."""
    height, width = texels.shape[1:3]
    x, y = uv[..., 0] * width, uv[..., 1] * height
    if filter == "nearest":
        return fetch(texels, x.detach().floor().long(), y.detach().floor().long(), wraps)
    x, y = x - 0.5, y - 0.5
    x0, y0 = x.detach().floor(), y.detach().floor()
    value = 0.0
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        weight = (x - x0 if dx else 1 - (x - x0)) * (y - y0 if dy else 1 - (y - y0))
        value = value + weight[..., None] * fetch(texels, x0.long() + dx, y0.long() + dy, wraps)
    return value


def fetch(texels, x, y, wraps):
    x, ok_x = wrap_index(x, texels.shape[2], wraps[0])
    y, ok_y = wrap_index(y, texels.shape[1], wraps[1])
    item = torch.arange(x.shape[0])[:, None, None].clamp(max=texels.shape[0] - 1)
    return texels[item, y, x] * (ok_x & ok_y)[..., None]


def wrap_index(index, size, wrap):
    inside = (index >= 0) & (index < size)
    if wrap == "repeat":
        return index % size, torch.ones_like(inside)
    if wrap == "mirror":
        turn = index % (2 * size)
        return torch.where(turn < size, turn, 2 * size - 1 - turn), torch.ones_like(inside)
    return index.clamp(0, size - 1), inside if wrap == "zero" else torch.ones_like(inside)


def footprint(jacobian, taps):
    """Level, and vector between the outer taps, of Jacobians (..., 4) = (x_X, x_Y, y_X, y_Y) in texels per pixel."""
    x_x, x_y, y_x, y_y = jacobian.unbind(-1)
    a, b, c = x_x**2 + x_y**2, y_x**2 + y_y**2, x_x * y_x + x_y * y_y
    major = ((a + b) / 2 + (((a - b) / 2) ** 2 + c**2).sqrt()).sqrt()
    minor = (x_x * y_y - x_y * y_x).abs() / major
    length = torch.maximum(minor, major / taps)
    angle = torch.atan2(2 * c, a - b) / 2
    axis = torch.stack([angle.cos(), angle.sin()], -1) * (major - length)[..., None]
    return length.log() / math.log(2), axis
