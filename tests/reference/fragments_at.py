"""Reference of fragments_at: where the ray of a pixel's centre meets the plane of its triangle, as linear equations.

The point with the weights b of the corners is seen at (fx, fy) if sum_i b_i (x_i, y_i, w_i) = s (fx, fy, 1) for some s.
So b is the solution for s = 1, divided by its sum; depth is sum_i b_i z_i over sum_i b_i w_i, and the derivatives are
those that autograd finds with respect to the centre. Nothing of the cross products of the kernels is in it.

Not handled: triangles whose equations are singular, those without area and those that are seen exactly on edge.
"""

import torch

from tests.reference.rasterize import Fragments


def fragments_at(clip_positions, triangles, triangle_id, *, height=None, first_row=0, derivatives=False):
    """Floats in float64; arguments as of diffrender.fragments_at, positions (V, 4) or (B, V, 4)."""
    batch, rows, width = triangle_id.shape
    height = rows if height is None else height
    positions = clip_positions.double()
    positions = positions.expand(batch, *positions.shape[-2:])
    item, row, column = torch.nonzero((triangle_id >= 0) & (triangle_id < len(triangles)), as_tuple=True)
    corners = positions[item[:, None], triangles.long()[triangle_id[item, row, column].long()]]  # (P, 3, 4)
    x, y, z, w = corners.unbind(-1)
    equations = torch.stack([x, y, w], 1)  # (P, 3, 3), a column for each corner

    with torch.enable_grad():
        fx = ((2 * column.double() + 1) / width - 1).requires_grad_(derivatives)
        fy = (1 - (2 * (row + first_row).double() + 1) / height).requires_grad_(derivatives)
        weights = torch.linalg.solve(equations, torch.stack([fx, fy, torch.ones_like(fx)], -1))
        weights = weights / weights.sum(-1, keepdim=True)
        depth = (weights * z).sum(-1) / (weights * w).sum(-1)
        slopes = []
        if derivatives:
            for weight in weights[:, :2].unbind(-1):
                per_fx, per_fy = torch.autograd.grad(weight.sum(), (fx, fy), create_graph=True)
                slopes += [per_fx * (2 / width), per_fy * (-2 / height)]  # one pixel to the right, one down

    def image(background, values):
        values = values if clip_positions.requires_grad else values.detach()
        empty = torch.full((batch, rows, width, values.shape[-1]), background, dtype=torch.float64)
        return empty.index_put((item, row, column), values)

    return Fragments(
        triangle_id,
        image(0.0, weights[:, :2]),
        image(1.0, depth[:, None])[..., 0],
        image(0.0, torch.stack(slopes, -1)) if derivatives else None,
    )
