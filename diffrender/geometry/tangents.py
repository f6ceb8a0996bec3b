"""Tangents of a textured mesh, for normal maps: the direction on the surface in which u grows.

For each triangle, with edges e1, e2 and changes of the texcoords (du1, dv1), (du2, dv2) along them, the direction of
growing u at constant v is (e1 dv2 - e2 dv1) / det, det = du1 dv2 - du2 dv1. As in MikkTSpace (Mikkelsen 2008) the
tangent of a corner is the mean of the unit directions of the triangles that share its position, normal, texcoord and
side, weighted by the angles there, made orthogonal to the normal and unit length.

Side, the fourth component: the bitangent is w (n x t), and points up in the picture (to smaller v) for w = +1 where the
picture lies on the surface as it is, and for w = -1 where it is mirrored: w = -sign(det).

Plain torch ops, so that autograd derives them; what has no direction has the value 0 and the gradient 0.

Not handled: the standard measures angles and tangents in the plane of the vertex normal, and welds corners by their
values, here corners are shared by index. Maps that were baked for tangents of a file need those of the file.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .. import _checks
from .normals import corner_angles, safe_normalize, sum_without_noise, triangle_area_vectors, triangle_corners
from .normals import vertex_normals as smooth_normals


def vertex_tangents(
    vertices: Tensor,
    triangles: Tensor,
    texcoords: Tensor,
    texcoord_triangles: Tensor | None = None,
    *,
    normals: Tensor | None = None,
    normal_triangles: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Tangents at the corners of a mesh, one for each combination of vertex, texcoord, normal and side that occurs.

    Args:
        vertices: (V, 3) or (B, V, 3).
        triangles: (T, 3) int32 or int64, counter-clockwise is the outside.
        texcoords: (U, 2) or (B, U, 2), v down. All items of a batch have to be mirrored in the same places.
        texcoord_triangles: (T, 3) rows of texcoords; default: `triangles`.
        normals: (N, 3) or (B, N, 3) vertex normals; default: `vertex_normals(vertices, triangles)`.
        normal_triangles: (T, 3) rows of normals; default: `triangles`.

    Returns:
        tangents (K, 4) or (B, K, 4): unit vectors orthogonal to the normals, and w = +1 or -1, the side of the
            bitangent w (n x t); zero vectors where the texcoords are degenerate or the tangent is parallel to the
            normal.
        tangent_triangles (T, 3) int32, their rows: `interpolate(tangents, tangent_triangles, fragments)`.

    Gradients: to vertices, texcoords and normals, exact; zero where the tangent is zero, and degenerate triangles
        neither give nor receive any. w is a constant.

    Raises:
        TypeError, ValueError: a wrong type, shape or device; an index out of range (on the CPU).

    Example:
        >>> quad = dr.geometry.quad()
        >>> tangents, rows = vertex_tangents(quad.vertices, quad.triangles, quad.texcoords)
        >>> tangents[rows[0, 0]].tolist()
        [1.0, 0.0, 0.0, 1.0]
    """
    return tangents_with(vertices, triangles, texcoords, texcoord_triangles, normals, normal_triangles, {})


def tangents_with(
    vertices: Tensor,
    triangles: Tensor,
    texcoords: Tensor,
    texcoord_triangles: Tensor | None,
    normals: Tensor | None,
    normal_triangles: Tensor | None,
    kept: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """`vertex_tangents`, with the combinations of the last call from `kept` where index tables and texcoords are the
    same: to find them anew takes several sorts, and on a GPU the host waits for each.
    """
    name = "vertex_tangents"
    vertices = _check_rows(name, "vertices", vertices, 3, None)
    texcoords = _check_rows(name, "texcoords", texcoords, 2, vertices)
    if normals is not None:
        normals = _check_rows(name, "normals", normals, 3, vertices)
    tables = {"triangles": triangles, "texcoord_triangles": texcoord_triangles, "normal_triangles": normal_triangles}
    tables = {key: triangles if table is None else table for key, table in tables.items()}
    owners = {"triangles": ("vertices", vertices), "texcoord_triangles": ("texcoords", texcoords),
              "normal_triangles": ("normals", vertices if normals is None else normals)}  # fmt: skip
    for key, table in tables.items():
        _checks.check_triangles(name, table, vertices, key)
        if table.shape != triangles.shape:
            expected = f"have one row per triangle ({triangles.shape[0]})"
            _checks.fail(ValueError, name, key, expected, str(table.shape[0]))
        _checks.check_vertex_range(name, table, owners[key][1].shape[-2], owners[key][0])
    if normals is None:
        normals = smooth_normals(vertices, triangles)

    directions, side = _triangle_tangents(vertices, triangles, texcoords, tables["texcoord_triangles"])
    rows, corner_of_row = _kept_corners(list(tables.values()), texcoords, side, kept)
    angles = corner_angles(vertices, triangles, triangle_area_vectors(vertices, triangles))
    weighted = (angles.unsqueeze(-1) * directions.unsqueeze(-2)).flatten(-3, -2)
    sums = sum_without_noise(weighted, rows.reshape(-1), corner_of_row.shape[0])

    normal_rows = tables["normal_triangles"].reshape(-1).long()[corner_of_row]
    unit_normals = safe_normalize(normals.index_select(-2, normal_rows))
    tangents = safe_normalize(_reject(safe_normalize(sums), unit_normals))
    w = side.repeat_interleave(3)[corner_of_row].to(tangents.dtype)
    return torch.cat([tangents, w.unsqueeze(-1).expand(*tangents.shape[:-1], 1)], -1), rows.to(torch.int32)


def _check_rows(function: str, argument: str, value: object, width: int, like: Tensor | None) -> Tensor:
    rows = _checks.check_floating(function, argument, value)
    if rows.dim() not in (2, 3) or rows.shape[-1] != width:
        expected = f"have shape (N, {width}) or (B, N, {width})"
        _checks.fail(ValueError, function, argument, expected, _checks.shape_text(rows))
    if like is not None:
        _checks.check_same_type(function, argument, rows, "vertices", like)
    return rows


def _triangle_tangents(
    vertices: Tensor, triangles: Tensor, texcoords: Tensor, texcoord_triangles: Tensor
) -> tuple[Tensor, Tensor]:
    """Unit directions (..., T, 3) of growing u, zero in degenerate triangles; and the side (T,) of each, +1 or -1."""
    corner0, corner1, corner2 = triangle_corners(vertices, triangles)
    uv0, uv1, uv2 = triangle_corners(texcoords, texcoord_triangles)
    edge1, edge2, step1, step2 = corner1 - corner0, corner2 - corner0, uv1 - uv0, uv2 - uv0
    determinant = step1[..., 0:1] * step2[..., 1:2] - step2[..., 0:1] * step1[..., 1:2]
    # The rule of triangle_area_vectors: an area that is lost in the rounding of the texcoords has no sign.
    with torch.no_grad():
        epsilon = torch.finfo(texcoords.dtype).eps
        size = torch.maximum(torch.maximum(uv0.abs(), uv1.abs()), uv2.abs()).amax(-1, keepdim=True)
        step = torch.maximum(step1.abs(), step2.abs()).amax(-1, keepdim=True)
        is_degenerate = determinant.abs() <= 4 * epsilon * size * step
        sign = torch.where(is_degenerate, 0, determinant.sign())
    # Dividing by det would only change the length, which does not count: its sign is enough.
    directions = safe_normalize(sign * (edge1 * step2[..., 1:2] - edge2 * step1[..., 1:2]))

    sides = torch.where(sign > 0, -1, 1).squeeze(-1)
    if sides.dim() == 1:
        return directions, sides
    if _checks.can_read(sides) and bool((sides != sides[:1]).any()):
        expected = "be mirrored in the same triangles in all items"
        _checks.fail(ValueError, "vertex_tangents", "texcoords", expected, "different ones", "Call it once per item.")
    return directions, sides[0]


def _kept_corners(tables: list[Tensor], texcoords: Tensor, side: Tensor, kept: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """`_unique_corners`, which depends on the tables and on where texcoords are mirrored."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return _unique_corners(tables, side)
    made_from = [*tables, texcoords]
    is_plain = [type(x) in (Tensor, torch.nn.Parameter) and not x.is_inference() for x in made_from]
    states = [(x._version, x.data_ptr()) if plain else None for x, plain in zip(made_from, is_plain, strict=True)]
    owners, known, result = kept.get("tangent_corners", ([], None, None))
    if known == states and all(a is b for a, b in zip(owners, made_from, strict=True)) and result is not None:
        return result
    # Ordinary tensors, also where the caller is in inference mode.
    with torch.inference_mode(False), torch.no_grad():
        result = _unique_corners([table.clone() if table.is_inference() else table for table in tables], side.clone())
        if side.is_cuda:
            torch.cuda.current_stream(side.device).synchronize()  # so that other streams can use them
    # What a graph made is new in every call: it would only be held, its graph with it.
    if all(is_plain) and texcoords.grad_fn is None and _get_current_dispatch_mode() is None:
        kept["tangent_corners"] = made_from, states, result
    return result


def _unique_corners(tables: list[Tensor], side: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers the combinations of indices and side that occur: (T, 3) numbers, and a corner (K,) that has each."""
    distinct = [table for k, table in enumerate(tables) if not any(table is other for other in tables[:k])]
    flat = torch.stack([*(table.reshape(-1).long() for table in distinct), side.repeat_interleave(3).long()], -1)
    # Folding column by column keeps every key below (number of corners)^2, whatever the indices are.
    key = torch.zeros(flat.shape[0], dtype=torch.long, device=flat.device)
    for column in flat.unbind(-1):
        _, number = torch.unique(column, return_inverse=True)
        _, key = torch.unique(key * flat.shape[0] + number, return_inverse=True)
    count = int(key.max()) + 1 if key.numel() else 0
    corner = torch.empty(count, dtype=torch.long, device=flat.device)
    corner[key] = torch.arange(flat.shape[0], device=flat.device)
    return key.view(-1, 3), corner


def _reject(tangents: Tensor, normals: Tensor) -> Tensor:
    """The part of unit (or zero) tangents that is orthogonal to unit normals; 0 where only rounding errors are left."""
    rest = tangents - (tangents * normals).sum(-1, keepdim=True) * normals
    is_noise = rest.detach().abs().amax(-1, keepdim=True) <= 8 * torch.finfo(rest.dtype).eps
    return torch.where(is_noise, 0, rest)
