"""Welding: vertices at one place become one, so that triangles that touch share their edges.

Files that know no connectivity (STL), and files whose vertices were split for normals or texcoords, load as triangles
that only lie beside each other. What asks for neighbours then finds none: smooth normals, the losses on meshes, and
`LaplacianPreconditioner`, under which such a shape falls apart. `antialias` needs no welding: it compares positions.

Integer work on any device, once per mesh. Vertices within a distance are found on a grid of that size and joined as
connected components, so that a chain of near ones becomes one vertex, however long.
"""

from __future__ import annotations

import itertools
import math
import numbers
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from ..ops.topology import equal_rows
from .mesh import Mesh

_MOST_CANDIDATES = 1 << 24  # of some 110 bytes each while they are looked at
_HASH = (73856093, 19349663, 83492791)  # of cells of the grid; equal hashes of different cells only cost time


def weld(mesh: Mesh, *, distance: float = 0.0) -> Mesh:
    """The mesh with one vertex for all that lie at the same place.

    Every corner keeps its texcoord, normal and tangent: these get index tables of their own, in which equal rows count
    once. So a texture seam stays, and stored normals shade as before; `weld(mesh).replace(normals=None)` is smooth.
    Vertices whose colors differ stay apart. Triangles that use a vertex twice are left out, with their material_ids.

    Args:
        mesh: vertices (V, 3), or (B, V, 3): then only those are welded that meet in every item.
        distance: how far apart vertices may lie that become one, in units of the mesh. 0 = not at all, bit for bit.
            Choose it well below the length of edges.

    Returns:
        A mesh whose vertices are the first ones of each place, in their order.

    Gradients: to vertices, texcoords, normals, tangents and colors: what is merged belongs to its first row.

    Raises:
        ValueError: a distance that is negative, or so large that each vertex has too many others within it.

    Example:
        >>> cube = dr.geometry.cube()
        >>> corners = cube.triangles.long().flatten()
        >>> soup = dr.Mesh(cube.vertices[corners], torch.arange(36).reshape(12, 3))  # as an STL file holds it
        >>> weld(soup)
        Mesh(vertices (8, 3), 12 triangles, torch.float32, cpu)
    """
    rows, index = weld_vertices(mesh.vertices, distance=distance, attributes=mesh.colors)
    triangles = index[mesh.triangles.long()]
    kept = torch.nonzero((triangles != triangles.roll(1, -1)).all(-1))[:, 0]
    fields: dict[str, Any] = {"vertices": mesh.vertices.index_select(-2, rows), "triangles": triangles[kept]}
    if mesh.colors is not None:
        fields["colors"] = mesh.colors.index_select(-2, rows)
    for name in ("texcoord", "normal", "tangent"):
        values, table = getattr(mesh, f"{name}s"), getattr(mesh, f"{name}_triangles")
        if values is not None:
            rows, index = _first_rows(equal_rows(values.detach()))
            fields[f"{name}s"] = values.index_select(-2, rows)
            fields[f"{name}_triangles"] = index[table.long()][kept]
    return Mesh(**fields, **mesh.fields_per_triangle(kept), offset=mesh.offset)


def weld_vertices(
    vertices: Tensor, *, distance: float = 0.0, attributes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Which vertices are one: for data beside a `Mesh`, or to keep all triangles.

    Args:
        vertices: (V, 3) or (B, V, 3) positions, float32 or float64.
        distance: as of `weld`.
        attributes: (V, C) or (B, V, C): vertices whose rows differ stay apart.

    Returns:
        rows: (W,) int64, the first vertex of each place, ascending: `vertices[rows]` are the welded ones.
        index: (V,) int64, for each vertex its place among them: `index[triangles.long()]` are the welded triangles.

    Raises:
        TypeError, ValueError: as `weld`; a wrong type or shape.

    Example:
        >>> rows, index = weld_vertices(torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 0, 0]]))
        >>> rows.tolist(), index.tolist()
        ([0, 1], [0, 1, 0])
    """
    points = _checks.check_floating("weld_vertices", "vertices", vertices).detach()
    if points.dim() not in (2, 3) or points.shape[-1] != 3:
        expected = "have shape (V, 3) or (B, V, 3)"
        _checks.fail(ValueError, "weld_vertices", "vertices", expected, _checks.shape_text(points))
    if isinstance(distance, bool) or not isinstance(distance, numbers.Real) or not 0 <= distance < math.inf:
        _checks.fail(ValueError, "weld_vertices", "distance", "be a number, 0 or more", repr(distance))
    if attributes is not None:
        _checks.check_tensor("weld_vertices", "attributes", attributes)
    if attributes is not None and (attributes.dim() not in (2, 3) or attributes.shape[-2] != points.shape[-2]):
        expected = f"have one row per vertex ({points.shape[-2]})"
        _checks.fail(ValueError, "weld_vertices", "attributes", expected, _checks.shape_text(attributes))

    # Vertices with the same position and the same attributes, both by number, then both numbers together.
    kind = torch.zeros(points.shape[-2], dtype=torch.int64, device=points.device)
    if attributes is not None:
        kind = equal_rows(attributes.detach())
    pairs = torch.stack([equal_rows(points), kind], -1)
    rows, index = _first_rows(equal_rows(pairs))
    if distance > 0:
        first, second = _close_pairs(points.index_select(-2, rows).double(), float(distance))
        alike = kind[rows[first]] == kind[rows[second]]
        nearby, joined = _first_rows(_components(len(rows), first[alike], second[alike]))
        rows, index = rows[nearby], joined[index]
    return rows, index


def _first_rows(label: Tensor) -> tuple[Tensor, Tensor]:
    """Of (N,) labels below N: the first row of each, ascending, and for every row its place among them."""
    row = torch.arange(len(label), device=label.device)
    first = torch.full_like(row, len(label)).scatter_reduce(0, label, row, "amin")[label]
    is_first = first == row
    return torch.nonzero(is_first)[:, 0], (is_first.cumsum(0) - 1)[first]


def _close_pairs(points: Tensor, distance: float) -> tuple[Tensor, Tensor]:
    """Pairs of rows of (N, 3) or (B, N, 3) points that lie within the distance in every item."""
    ground = points if points.dim() == 2 else points[0]
    finite = torch.nonzero(ground.isfinite().all(-1))[:, 0]
    # Nearer than rounding there are equal points only, which are one by now; and a cell has to have a number.
    if finite.numel() == 0 or distance < 2.0**-52 * float(ground[finite].abs().max()):
        return finite[:0], finite[:0]
    cells = (ground[finite] / distance).floor().long()
    primes = torch.tensor(_HASH, device=points.device)
    key, order = torch.sort((cells * primes).sum(-1))
    found = []
    # Half of the neighbours: the others find the same pairs from the other end.
    for offset in [o for o in itertools.product((-1, 0, 1), repeat=3) if o >= (0, 0, 0)]:
        wanted = key + sum(step * prime for step, prime in zip(offset, _HASH, strict=True))
        start, end = torch.searchsorted(key, wanted), torch.searchsorted(key, wanted, right=True)
        counts = end - start
        total = int(counts.sum())
        if total > _MOST_CANDIDATES:
            expected = "be well below the length of edges"
            _checks.fail(ValueError, "weld_vertices", "distance", expected, f"{distance:g}, with {total} pairs to try")
        one = torch.repeat_interleave(counts)
        other = torch.arange(total, device=key.device) - (counts.cumsum(0) - counts - start)[one]
        first, second = finite[order[one]], finite[order[other]]
        gap = (points.index_select(-2, first) - points.index_select(-2, second)).norm(dim=-1)
        near = (gap <= distance) if gap.dim() == 1 else (gap <= distance).all(0)
        near &= (first < second) if offset == (0, 0, 0) else (first != second)
        found.append(torch.stack([first[near], second[near]]))
    first, second = torch.cat(found, -1)
    return first, second


def _components(count: int, first: Tensor, second: Tensor) -> Tensor:
    """(count,) labels, equal for rows that pairs connect: the lowest row that each one reaches."""
    label = torch.arange(count, device=first.device)
    while True:
        lowest = torch.minimum(label[first], label[second])
        # To the labels of both ends, not only to the ends: whole trees are joined at once.
        ends = torch.cat([label[first], label[second], first, second])
        joined = label.scatter_reduce(0, ends, lowest.repeat(4), "amin")
        joined = joined[joined]
        if torch.equal(joined, label):
            return label
        label = joined
