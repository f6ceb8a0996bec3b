"""What the shading references share: pixels cut out before any arithmetic, the frame of a point, light by light.

Every formula is the textbook one, on the pixels that are shaded only, so nothing that stands on the background can
reach a value or a gradient.
"""

import torch

AMBIENT, DIRECTIONAL, POINT, SPOT = 0, 1, 2, 3


def unit(x):
    return x / x.square().sum(-1, keepdim=True).sqrt()


def dot(a, b):
    return (a * b).sum(-1, keepdim=True)


def arriving(light_type, row, position):
    """Unit vector to the light and irradiance of a facing surface, for rows (P, 12) of the table and points (P, 3)."""
    color = row[:, 0:3]
    if light_type == DIRECTIONAL:
        return -row[:, 6:9], color
    offset = row[:, 3:6] - position
    to_light = unit(offset)
    squared = torch.where(dot(offset, offset) < row[:, 9:10] ** 2, row[:, 9:10] ** 2, dot(offset, offset))
    irradiance = color / squared
    if light_type == SPOT:
        cosine, inner, outer = -dot(to_light, row[:, 6:9]), row[:, 10:11], row[:, 11:12]
        x = ((cosine - outer) / (inner - outer)).clamp(0, 1)
        irradiance = irradiance * x * x * (3 - 2 * x)
    return to_light, irradiance


def shade(
    model, positions, normals, material, types, values, *,
    camera_position=None, view_directions=None, geometric_normals=None, mask=None, two_sided=True,
):  # fmt: skip
    """Radiance (B, H, W, 3).

    `model(n, v, l, material)` gives what a surface reflects of unit irradiance from l, the cosine included, and for l =
    None what it reflects of ambient radiance; (P, 3) each.
    """
    maps = [picture(x) for x in (positions, normals, camera_position, view_directions, geometric_normals, *material)]
    sizes = [x.shape[:3] for x in maps if x is not None] + [(values.shape[0], 1, 1)]
    if mask is not None:
        sizes.append(mask.shape)
    batch, height, width = torch.broadcast_shapes(*sizes)
    inside = torch.ones(batch, height, width, dtype=torch.bool) if mask is None else mask.expand(batch, height, width)
    item, row, column = torch.nonzero(inside, as_tuple=True)

    def cut(x):
        return None if x is None else x.double().expand(batch, height, width, -1)[item, row, column]

    position, normal, camera, view, geometric, *surface = (cut(x) for x in maps)
    n = unit(normal)
    v = None
    if camera is not None or view is not None:
        v = unit(camera - position if view is None else view)
    if two_sided:
        facing = dot(normal if geometric is None else geometric, v).detach()
        n = torch.where(facing < 0, -n, n)
    total = torch.zeros_like(position)
    table = values.double().expand(batch, -1, -1)
    for k, light_type in enumerate(types.tolist()):
        rows = table[item, k]
        if light_type == AMBIENT:
            total = total + model(n, v, None, surface) * rows[:, 0:3]
            continue
        to_light, irradiance = arriving(light_type, rows, position)
        total = total + model(n, v, to_light, surface) * irradiance
    return total.new_zeros(batch, height, width, 3).index_put((item, row, column), total)


def picture(x):
    """(C,), (B, C), (H, W, C) and (B, H, W, C) as (B or 1, H or 1, W or 1, C)."""
    if x is None or x.dim() == 4:
        return x
    return {1: lambda: x[None, None, None], 2: lambda: x[:, None, None], 3: lambda: x[None]}[x.dim()]()
