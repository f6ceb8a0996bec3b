"""Reference of irradiance_sh: the textbook polynomial of Ramamoorthi and Hanrahan, plain torch float64.

Their constants c1 to c5 already hold the cosine kernel; signs of odd m are flipped for the Condon-Shortley convention.
"""

import math

import torch

C1, C2, C3, C4, C5 = (
    math.sqrt(15 * math.pi) / 16,  # 0.429043
    math.sqrt(math.pi / 3) / 2,  # 0.511664
    3 * math.sqrt(5 * math.pi) / 16,  # 0.743125
    math.sqrt(math.pi) / 2,  # 0.886227
    math.sqrt(5 * math.pi) / 16,  # 0.247708
)


def irradiance_sh(coefficients, normals, *, convention="unsigned", mask=None):
    table = coefficients.double()
    table = table if table.dim() == 3 else table[None]
    normals = normals.double()
    normals = {1: lambda n: n[None, None, None], 2: lambda n: n[:, None, None], 3: lambda n: n[None], 4: lambda n: n}[
        normals.dim()
    ](normals)
    shapes = [normals.shape[:3], (table.shape[0], 1, 1)]
    if mask is not None:
        shapes.append(mask.shape)
    batch, height, width = torch.broadcast_shapes(*shapes)
    inside = torch.ones(batch, height, width, dtype=torch.bool) if mask is None else mask.expand(batch, height, width)
    item, row, column = torch.nonzero(inside, as_tuple=True)
    n = normals.expand(batch, height, width, 3)[item, row, column]
    x, y, z = (n / n.square().sum(-1, keepdim=True).sqrt()).unbind(-1)
    signs = torch.ones(9, 1, dtype=torch.float64)
    if convention == "condon_shortley":
        signs[[1, 3, 5, 7]] = -1
    terms = (table * signs).expand(batch, 9, -1)[item]
    x, y, z = x[:, None], y[:, None], z[:, None]
    l00, l1m1, l10, l11, l2m2, l2m1, l20, l21, l22 = terms.unbind(1)
    total = (
        C1 * l22 * (x * x - y * y)
        + C3 * l20 * z * z
        + C4 * l00
        - C5 * l20
        + 2 * C1 * (l2m2 * x * y + l21 * x * z + l2m1 * y * z)
        + 2 * C2 * (l11 * x + l1m1 * y + l10 * z)
    )
    return total.new_zeros(batch, height, width, terms.shape[-1]).index_put((item, row, column), total)
