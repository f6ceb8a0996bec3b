"""`antialias` and its topology."""

from __future__ import annotations

import torch

from ... import _checks
from ...ops.antialias import antialias as antialias_fragments
from ...ops.topology import edge_topology
from ._context import resolve_exact_legacy
from ._layout import ScaleGradient, check_rast, flip_rows, to_fragments
from ._legacy_antialias import antialias_legacy, opposite_vertices


class TopologyHash:
    """Neighbours of the edges of a mesh, found by vertex index. Built by `antialias_construct_topology_hash`."""

    def __init__(self, triangles: torch.Tensor) -> None:
        self._triangles = triangles
        self._twins: torch.Tensor | None = None
        self._opposites: torch.Tensor | None = None

    def twins(self) -> torch.Tensor:
        """(T, 3) as `diffrender.edge_topology` returns it."""
        if self._twins is None:
            self._twins = edge_topology(self._triangles)
        return self._twins

    def opposites(self) -> torch.Tensor:
        """(T, 3) for the legacy algorithm, see `opposite_vertices`."""
        if self._opposites is None:
            self._opposites = opposite_vertices(self._triangles)
        return self._opposites


def antialias_construct_topology_hash(tri: torch.Tensor) -> TopologyHash:
    """What `antialias` has to know of a mesh, for many calls with the same `tri`.

    Args:
        tri: (T, 3) vertex indices.

    Returns:
        An object for `topology_hash=`. Where the connectivity changes, build it anew.

    Raises:
        TypeError, ValueError: a wrong type or shape.

    Example:
        >>> from diffrender.compat import nvdiffrast as dr
        >>> topology_hash = dr.antialias_construct_topology_hash(torch.tensor([[0, 1, 2], [1, 3, 2]]))
    """
    _checks.check_tensor("antialias_construct_topology_hash", "tri", tri)
    triangles = _checks.check_triangles("antialias_construct_topology_hash", tri, tri, "tri")
    return TopologyHash(triangles.detach().clone())


def antialias(
    color: torch.Tensor,
    rast: torch.Tensor,
    pos: torch.Tensor,
    tri: torch.Tensor,
    topology_hash: TopologyHash | None = None,
    pos_gradient_boost: float = 1.0,
    *,
    exact_legacy: bool | None = None,
) -> torch.Tensor:
    """Blends pixels across silhouette edges, so that the image has a gradient to the vertices that move them.

    Edges are matched by vertex index: along a seam where vertices were split, both sides are silhouettes. Background
    pixels have to hold the background: blend colours over it before this call.

    Args:
        color: (N, H, W, C), any C.
        rast: of `rasterize`.
        pos, tri: as given to `rasterize`.
        topology_hash: of `antialias_construct_topology_hash`; None builds it in every call.
        pos_gradient_boost: factor on the gradient of pos.
        exact_legacy: True blends as the original does: see the package.

    Returns:
        (N, H, W, C). Each pixel is a weighted mean of its own and its neighbours' colours.

    Gradients: exact to color and, times pos_gradient_boost, to x, y, w of pos; none to rast.
    Memory: color, pos, tri, topology, ids.

    Raises:
        TypeError, ValueError: a wrong type, shape or device, or (on the CPU) an index outside of pos.

    Example:
        >>> from diffrender.compat import nvdiffrast as dr
        >>> corners = torch.tensor([[[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]]])
        >>> tri = torch.tensor([[0, 1, 2]])
        >>> rast, _ = dr.rasterize(dr.RasterizeCudaContext(), corners, tri, (64, 64))
        >>> mask = (rast[..., 3:] > 0).float()
        >>> mask.unique(), len(dr.antialias(mask, rast, corners, tri).unique()) > 2
        (tensor([0., 1.]), True)
    """
    positions = _checks.check_floating("antialias", "pos", pos)
    if positions.dim() not in (2, 3) or positions.shape[-1] != 4:
        expected = "have shape (N, V, 4) or (V, 4)"
        _checks.fail(ValueError, "antialias", "pos", expected, _checks.shape_text(positions))
    triangles = _checks.check_triangles("antialias", tri, positions, "tri")
    if topology_hash is None:
        topology_hash = TopologyHash(triangles)
    elif not isinstance(topology_hash, TopologyHash):
        expected = "be made by antialias_construct_topology_hash"
        _checks.fail(TypeError, "antialias", "topology_hash", expected, type(topology_hash).__name__)
    if pos_gradient_boost != 1.0:
        positions = ScaleGradient.apply(positions, float(pos_gradient_boost))
    if resolve_exact_legacy(exact_legacy):
        colors = _checks.check_floating("antialias", "color", color)
        fragments = check_rast("antialias", rast).detach()
        return antialias_legacy(colors, fragments, positions, triangles, topology_hash.opposites())
    fragments = to_fragments("antialias", rast)
    return antialias_fragments(
        color, fragments, flip_rows(positions), triangles, method="pairs", topology=topology_hash.twins()
    )
