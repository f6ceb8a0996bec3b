"""Reference of interpolate: a gather and a weighted sum in plain torch float64; autograd of it is the truth.

Background pixels are cut out before any arithmetic, so nothing that stands there can reach a value or a gradient.
"""

import torch


def interpolate(attributes, triangles, fragments, *, derivatives=None):
    """Attributes (B, V, C) or (V, C) at the pixels; with derivatives ("all" or channels) also (B, H, W, 2 * len)."""
    triangle_id = fragments.triangle_id
    batch, height, width = triangle_id.shape
    attributes = attributes.double().expand(batch, *attributes.shape[-2:])
    item, row, column = torch.nonzero(triangle_id >= 0, as_tuple=True)
    corners = attributes[item[:, None], triangles.long()[triangle_id[item, row, column].long()]]  # (P, 3, C)

    b0, b1 = fragments.barycentrics.double()[item, row, column].unsqueeze(-1).unbind(-2)
    values = b0 * corners[:, 0] + b1 * corners[:, 1] + (1 - b0 - b1) * corners[:, 2]
    image = values.new_zeros(batch, height, width, values.shape[-1]).index_put((item, row, column), values)
    if derivatives is None:
        return image

    channels = range(attributes.shape[-1]) if derivatives == "all" else derivatives
    # Of b2 = 1 - b0 - b1 the derivative is -(db0 + db1).
    b0_x, b0_y, b1_x, b1_y = fragments.derivatives.double()[item, row, column].unbind(-1)
    columns = []
    for c in channels:
        for b0_step, b1_step in ((b0_x, b1_x), (b0_y, b1_y)):
            b2_step = -(b0_step + b1_step)
            columns.append(b0_step * corners[:, 0, c] + b1_step * corners[:, 1, c] + b2_step * corners[:, 2, c])
    steps = torch.stack(columns, -1) if columns else values.new_zeros(len(item), 0)
    step_image = values.new_zeros(batch, height, width, len(columns)).index_put((item, row, column), steps)
    return image, step_image
