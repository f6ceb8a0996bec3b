"""perturb_normals in plain torch, float64, on the pixels of the mask only."""

import torch

from tests.reference.shade_common import dot, picture, unit


def perturb_normals(
    normals, tangents, normal_map, scale=1.0, *, geometric_normals=None, view_directions=None, convention="opengl",
    grazing=0.1, mask=None,
):  # fmt: skip
    scale = torch.as_tensor(scale, dtype=torch.float64)
    scale = scale.expand(1) if scale.dim() == 0 else scale
    if view_directions is not None and geometric_normals is None:
        geometric_normals = normals
    maps = [picture(x) for x in (normals, tangents, normal_map, scale, geometric_normals, view_directions)]
    sizes = [x.shape[:3] for x in maps if x is not None]
    if mask is not None:
        sizes.append(mask.shape)
    batch, height, width = torch.broadcast_shapes(*sizes)
    inside = torch.ones(batch, height, width, dtype=torch.bool) if mask is None else mask.expand(batch, height, width)
    item, row, column = torch.nonzero(inside, as_tuple=True)

    def cut(x):
        return None if x is None else x.double().expand(batch, height, width, -1)[item, row, column]

    n, tangent, texel, strength, geometric, view = (cut(x) for x in maps)
    t, side = tangent[:, :3], torch.where(tangent[:, 3:] < 0, -1.0, 1.0)
    bitangent = side * torch.linalg.cross(n, t)
    x, y, z = (2 * texel - 1).unbind(-1)
    y = -y if convention == "directx" else y
    xy = strength * torch.stack([x, y], -1)
    bent = unit(xy[:, :1] * t + xy[:, 1:] * bitangent + z.clamp(min=0)[:, None] * n)
    if view is not None and grazing > 0:
        g, v = unit(geometric), unit(view)
        facing = torch.where(dot(g, v) < 0, -1.0, 1.0).detach()
        q = (facing * dot(bent, v) / grazing).clamp(0, 1)
        k = q * q * (3 - 2 * q)
        bent = torch.where(q < 1, unit(torch.lerp(g, bent, k)), bent)
    return bent.new_zeros(batch, height, width, 3).index_put((item, row, column), bent)
