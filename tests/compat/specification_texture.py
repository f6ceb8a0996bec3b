"""texture of nvdiffrast in plain torch float64, written from a description of its behaviour; autograd gives gradients.

Nothing is shared with the code under test: mips are plain 2 x 2 means, seams of cubes come from a table of neighbours.
"""

import torch

# For each face (+X, -X, +Y, -Y, +Z, -Z): where s < 0, s > 1, t < 0 and t > 1 lead, as (face, column, row). "k" is the
# index along the edge, "r" the same from the other end, 0 and "e" the first and last texel.
SEAMS = [
    [(4, "e", "k"), (5, 0, "k"), (2, "e", "r"), (3, "e", "k")],
    [(5, "e", "k"), (4, 0, "k"), (2, 0, "k"), (3, 0, "r")],
    [(1, "k", 0), (0, "r", 0), (5, "r", 0), (4, "k", 0)],
    [(1, "r", "e"), (0, "k", "e"), (4, "k", "e"), (5, "r", "e")],
    [(1, "e", "k"), (0, 0, "k"), (2, "k", "e"), (3, "k", 0)],
    [(0, "e", "k"), (1, 0, "k"), (2, "r", 0), (3, "r", "e")],
]


def texture(tex, uv, uv_da=None, bias=None, mips=None, filter_mode="linear", boundary_mode="wrap", max_mip_level=None):
    """tex (1, H, W, C) or (1, 6, S, S, C); uv (1, H, W, 2 or 3). All float64. Modes are spelled out."""
    cube = boundary_mode == "cube"
    faces = tex if cube else tex[:, None]
    faces = faces[0]
    valid = torch.ones(uv.shape[:3], dtype=torch.bool)
    face = torch.zeros(uv.shape[:3], dtype=torch.long)
    st, st_da = uv, uv_da
    if cube:
        face, st, st_da, valid = project(uv, uv_da)
    if "mipmap" not in filter_mode:
        value = sample(faces, face, st, filter_mode, boundary_mode)
        return torch.where(valid[..., None], value, 0.0)
    levels = [faces]
    if mips is not None:
        levels += [level[0] if cube else level for level in mips]
    else:
        while max(levels[-1].shape[1:3]) > 1 and (max_mip_level is None or len(levels) <= max_mip_level):
            levels.append(halve(levels[-1]))
    level = torch.zeros(uv.shape[:3], dtype=torch.float64)
    if st_da is not None:
        height, width = faces.shape[1:3]
        s_x, s_y, t_x, t_y = (st_da * torch.tensor([width, width, height, height])).unbind(-1)
        a, b, c = s_x**2 + t_x**2, s_y**2 + t_y**2, s_x * s_y + t_x * t_y
        level = torch.log2((a + b) / 2 + (((a - b) / 2) ** 2 + c**2).sqrt()) / 2
    if bias is not None:
        level = level + bias
    level = level.clamp(0, len(levels) - 1)
    values = torch.stack([sample(x, face, st, "linear", boundary_mode) for x in levels])
    fine = level.detach().floor().long()
    coarse = (fine + 1).clamp(max=len(levels) - 1)

    def pick(index):
        return values.gather(0, index[None, ..., None].expand(1, *values.shape[1:]))[0]

    if filter_mode == "linear-mipmap-nearest":
        result = pick(fine)
    else:
        result = pick(fine) + (level - fine)[..., None] * (pick(coarse) - pick(fine))
    return torch.where(valid[..., None], result, 0.0)


def halve(faces):
    """2 x 2 means, or 2 x 1 where a side is 1 already."""
    for axis in (1, 2):
        if faces.shape[axis] > 1:
            assert faces.shape[axis] % 2 == 0
            faces = (faces.unflatten(axis, (-1, 2))).mean(axis + 1)
    return faces


def sample(faces, face, st, filter_mode, boundary_mode):
    """faces (F, H, W, C), face (1, H, W), st (1, H, W, 2)."""
    height, width = faces.shape[1:3]
    size = torch.tensor([width, height], dtype=torch.float64)
    if boundary_mode == "wrap":
        st = st - st.detach().floor()
    if filter_mode == "nearest":
        texel = (st.detach() * size).floor().long()
        outside = ((texel < 0) | (texel >= size)).any(-1, keepdim=True)
        texel = torch.minimum(texel.clamp(min=0), size.long() - 1)
        value = faces[face, texel[..., 1], texel[..., 0]]
        return torch.where(outside, 0.0, value) if boundary_mode == "zero" else value
    place = st * size - 0.5
    if boundary_mode == "clamp":
        place = torch.minimum(place.clamp(min=0), size - 1)
    low = place.detach().floor()
    a, b = (place - low).unbind(-1)
    low = low.long()
    corners = [(0, 0), (1, 0), (0, 1), (1, 1)]
    if boundary_mode == "cube":
        texels, exists = zip(
            *(cube_tap(faces, face, low[..., 0] + i, low[..., 1] + j) for i, j in corners), strict=True
        )
        texels, exists = torch.stack(texels), torch.stack(exists)[..., None]
        mean = (texels * exists).sum(0) / exists.sum(0)
        t00, t10, t01, t11 = torch.where(exists, texels, mean)
    else:
        t00, t10, t01, t11 = (plane_tap(faces[0], low[..., 0] + i, low[..., 1] + j, boundary_mode) for i, j in corners)
    a, b = a[..., None], b[..., None]
    return (1 - b) * ((1 - a) * t00 + a * t10) + b * ((1 - a) * t01 + a * t11)


def plane_tap(texels, i, j, boundary_mode):
    height, width = texels.shape[:2]
    if boundary_mode == "wrap":
        return texels[j % height, i % width]
    value = texels[j.clamp(0, height - 1), i.clamp(0, width - 1)]
    if boundary_mode == "zero":
        inside = (i >= 0) & (i < width) & (j >= 0) & (j < height)
        return torch.where(inside[..., None], value, 0.0)
    return value


def cube_tap(faces, face, i, j):
    """Texel (column i, row j) of a face, over its sides too; and whether it exists (not beyond a corner)."""
    size = faces.shape[1]
    table = torch.full((6, size + 2, size + 2, 3), -1, dtype=torch.long)
    for f in range(6):
        for k in range(size):
            for row in range(size):
                table[f, row + 1, k + 1] = torch.tensor([f, row, k])
            places = [(k + 1, 0), (k + 1, size + 1), (0, k + 1), (size + 1, k + 1)]  # (row, column) in the table
            for (row, column), (to, to_column, to_row) in zip(places, SEAMS[f], strict=True):
                names = {"k": k, "r": size - 1 - k, "e": size - 1, 0: 0}
                table[f, row, column] = torch.tensor([to, names[to_row], names[to_column]])
    target = table[face, j + 1, i + 1]
    exists = target[..., 0] >= 0
    f, row, column = target.clamp(min=0).unbind(-1)
    return faces[f, row, column], exists


def project(direction, derivatives):
    """Face, (s, t) on it, their derivatives (s_X, s_Y, t_X, t_Y), and whether the direction is one."""
    valid = torch.isfinite(direction).all(-1) & (direction.detach().abs().amax(-1) > 0)
    direction = torch.where(valid[..., None], direction, torch.ones_like(direction))
    x, y, z = direction.unbind(-1)
    ax, ay, az = x.abs(), y.abs(), z.abs()
    on_z = az > torch.maximum(ax, ay)
    on_y = ~on_z & (ay > ax)
    axis = torch.where(on_z, 2, torch.where(on_y, 1, 0))
    major = direction.gather(-1, axis[..., None])[..., 0]
    face = 2 * axis + (major < 0)
    sign = torch.where(major < 0, -1.0, 1.0)
    # s = 1/2 + p m and t = 1/2 + q m with m = 1 / (2 |major|)
    p = torch.where(axis == 0, -sign * z, torch.where(axis == 1, x, sign * x))
    q = torch.where(axis == 1, sign * z, -y)
    m = 1 / (2 * major.abs())
    st = torch.stack([0.5 + p * m, 0.5 + q * m], -1)
    if derivatives is None:
        return face, st, None, valid
    steps = []
    for k in (0, 1):
        dx, dy, dz = derivatives[..., k::2].unbind(-1)
        d_major = torch.where(axis == 0, dx, torch.where(axis == 1, dy, dz))
        dp = torch.where(axis == 0, -sign * dz, torch.where(axis == 1, dx, sign * dx))
        dq = torch.where(axis == 1, sign * dz, -dy)
        dm = -sign * d_major * m / major.abs()
        steps.append((dp * m + p * dm, dq * m + q * dm))
    (s_x, t_x), (s_y, t_y) = steps
    return face, st, torch.stack([s_x, s_y, t_x, t_y], -1), valid
