"""Different meshes side by side in one set of arrays, without padding.

Item b of a batch draws the triangles `ranges[b]` = (first, count) of the packed mesh: `rasterize(..., ranges=ranges)`.
Vertex indices address the packed vertices, so every op that takes the packed triangles works as for one mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffrender.geometry.mesh import Mesh


class PackedMeshes(NamedTuple):
    """Several meshes in one.

    Attributes:
        mesh: all vertices, triangles, attributes and materials one after the other.
        ranges: (B, 2) int32, (first triangle, count) of each.
        vertex_counts: how many vertices each has, to split tensors that lie along `mesh.vertices`.
    """

    mesh: Mesh
    ranges: Tensor
    vertex_counts: tuple[int, ...]

    def edge_topology(self, meshes: Sequence[Mesh]) -> Tensor:
        """The edge topologies of the meshes, each welded by itself: equal positions of two items mean nothing."""
        first = self.ranges[:, 0].tolist()
        parts = [mesh.edge_topology() for mesh in meshes]
        # Entries below -1 are -2 - corner.
        return torch.cat([p + 3 * k * ((p >= 0).int() - (p < -1).int()) for p, k in zip(parts, first, strict=True)])


def pack_meshes(meshes: Sequence[Mesh]) -> PackedMeshes:
    """Joins meshes (V, 3) of any sizes for rendering them as one batch, or as one mesh.

    Attributes that only some of the meshes have are filled in for the others: colors with 1, texcoords with (0, 0),
    normals with `vertex_normals()`, tangents with those of the texcoords or 0. The lists of materials are joined, None
    for a mesh without.

    Gradients:
        To all float tensors of all meshes.

    Raises:
        ValueError: without meshes, with a batch of shapes, or where dtype, device or color channels differ.

    Example:
        >>> from diffrender.geometry import cube, icosphere
        >>> pack_meshes([cube(), icosphere(0)]).ranges.tolist()
        [[0, 12], [12, 20]]
    """
    meshes = list(meshes)
    if not meshes:
        raise ValueError("pack_meshes: meshes must hold at least one mesh, got none.")
    for k, mesh in enumerate(meshes):
        if mesh.vertices.ndim != 2:
            raise ValueError(
                f"pack_meshes: mesh {k} must hold one shape (V, 3), got {tuple(mesh.vertices.shape)}. "
                "List the items one by one."
            )
        if (mesh.dtype, mesh.device) != (meshes[0].dtype, meshes[0].device):
            raise ValueError(
                f"pack_meshes: mesh {k} is {mesh.dtype} on {mesh.device} but mesh 0 is {meshes[0].dtype} on "
                f"{meshes[0].device}. Convert one of them."
            )
    channels = {mesh.colors.shape[-1] for mesh in meshes if mesh.colors is not None}
    if len(channels) > 1:
        raise ValueError(f"pack_meshes: colors must have the same channels in all meshes, got {sorted(channels)}.")

    fields: dict[str, Any] = {}
    if channels:
        width = channels.pop()
        fields["colors"] = torch.cat([
            mesh.vertices.new_ones(mesh.vertex_count, width) if mesh.colors is None else mesh.colors for mesh in meshes
        ])  # fmt: skip
    for name, fill in (("texcoord", _no_texcoords), ("normal", _smooth_normals), ("tangent", _own_tangents)):
        if any(getattr(mesh, f"{name}s") is not None for mesh in meshes):
            parts = [_attribute(mesh, name, fill) for mesh in meshes]
            fields[f"{name}s"] = torch.cat([rows for rows, _ in parts])
            fields[f"{name}_triangles"] = _concatenated([t for _, t in parts], [len(rows) for rows, _ in parts])
    if any(mesh.material is not None for mesh in meshes):
        materials = [mesh.materials or [None] for mesh in meshes]
        ids = [_material_ids(mesh) for mesh in meshes]
        fields["material"] = [material for of_mesh in materials for material in of_mesh]
        fields["material_ids"] = _concatenated(ids, [len(m) for m in materials])

    vertex_counts = tuple(mesh.vertex_count for mesh in meshes)
    triangles = _concatenated([mesh.triangles for mesh in meshes], vertex_counts)
    counts = torch.tensor([mesh.triangle_count for mesh in meshes], dtype=torch.int32)
    ranges = torch.stack([counts.cumsum(0, dtype=torch.int32) - counts, counts], -1).to(meshes[0].device)
    packed = Mesh(torch.cat([mesh.vertices for mesh in meshes]), triangles, **fields)
    return PackedMeshes(packed, ranges, vertex_counts)


def _concatenated(tables: Sequence[Tensor], row_counts: Sequence[int]) -> Tensor:
    """Index tables one after the other, each counting on from where the rows of the one before end."""
    start, parts = 0, []
    for table, count in zip(tables, row_counts, strict=True):
        parts.append(table + start)
        start += count
    return torch.cat(parts)


def _material_ids(mesh: Mesh) -> Tensor:
    return mesh.triangles.new_zeros(mesh.triangle_count) if mesh.material_ids is None else mesh.material_ids


def _attribute(mesh: Mesh, name: str, fill: Any) -> tuple[Tensor, Tensor]:
    rows, table = getattr(mesh, f"{name}s"), getattr(mesh, f"{name}_triangles")
    return fill(mesh) if rows is None else (rows, table)


def _no_texcoords(mesh: Mesh) -> tuple[Tensor, Tensor]:
    return mesh.vertices.new_zeros(1, 2), torch.zeros_like(mesh.triangles)


def _own_tangents(mesh: Mesh) -> tuple[Tensor, Tensor]:
    if mesh.texcoords is not None:
        return mesh.vertex_tangents()
    return mesh.vertices.new_zeros(1, 4), torch.zeros_like(mesh.triangles)


def _smooth_normals(mesh: Mesh) -> tuple[Tensor, Tensor]:
    return mesh.vertex_normals(), mesh.triangles
