"""`rasterize` and `DepthPeeler`."""

from __future__ import annotations

from types import TracebackType

import torch

from ... import _checks
from ...ops.rasterize import Fragments
from ...ops.rasterize import rasterize as rasterize_fragments
from ._context import RasterizeCudaContext, check_context, resolve_exact_legacy
from ._layout import PackRast, flip_rows, is_pairs
from ._legacy_rasterize import LegacyPeeler

Resolution = tuple[int, int] | list[int] | torch.Size


def rasterize(
    glctx: RasterizeCudaContext,
    pos: torch.Tensor,
    tri: torch.Tensor,
    resolution: Resolution,
    ranges: torch.Tensor | None = None,
    grad_db: bool = True,
    *,
    exact_legacy: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which triangle each pixel shows, and where on it.

    Args:
        glctx: a context.
        pos: (N, V, 4) clip positions, one set per image; or (V, 4), shared by the images of `ranges`, or of one image
            without them.
        tri: (T, 3) vertex indices.
        resolution: (height, width), any size.
        ranges: (N, 2) (first row of tri, count) for each image, on any device. Ignored where pos is (N, V, 4).
        grad_db: whether gradients of rast_db reach pos.
        exact_legacy: None = as `set_exact_legacy` says. See the package.

    Returns:
        rast (N, H, W, 4) = (u, v, z/w, id): weights of corners 0 and 1 cut to the triangle, depth cut to [-1, 1], row
        of tri + 1 (see `triangle_ids`); all 0 on background. rast_db (N, H, W, 4) = (du/dX, du/dY, dv/dX, dv/dY) per
        pixel step, X to the right and Y up. Row 0 is the bottom, y = -1.

    Gradients: u, v, z/w and rast_db to pos, exact at fixed visibility and as if the cuts were not there.
    Memory: pos, tri and the ids.

    Raises:
        TypeError, ValueError: a wrong type, shape or device, or (on the CPU) an index outside of pos.

    Example:
        >>> from diffrender.compat import nvdiffrast as dr
        >>> corners = torch.tensor([[[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]]])
        >>> rast, rast_db = dr.rasterize(dr.RasterizeCudaContext(), corners, torch.tensor([[0, 1, 2]]), (256, 256))
        >>> int((rast[..., 3] > 0).sum())
        20706
    """
    check_context("rasterize", glctx)
    return _make_layers("rasterize", pos, tri, resolution, ranges, grad_db, exact_legacy).next_layer()


class DepthPeeler:
    """Surface after surface, front to back, at every pixel.

    Args: those of `rasterize`.

    Raises:
        RuntimeError: entered a second time, or asked for a layer outside of its `with` block.

    Example:
        >>> from diffrender.compat import nvdiffrast as dr
        >>> corners = torch.tensor([[[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]]])
        >>> corners = torch.cat([corners, corners + torch.tensor([0, 0, 0.5, 0])], 1)
        >>> with dr.DepthPeeler(dr.RasterizeCudaContext(), corners, torch.arange(6).view(2, 3), (8, 8)) as peeler:
        ...     layers = [peeler.rasterize_next_layer()[0] for _ in range(3)]
        >>> [int(layer[..., 3].max()) for layer in layers]
        [1, 2, 0]
    """

    def __init__(
        self,
        glctx: RasterizeCudaContext,
        pos: torch.Tensor,
        tri: torch.Tensor,
        resolution: Resolution,
        ranges: torch.Tensor | None = None,
        grad_db: bool = True,
        *,
        exact_legacy: bool | None = None,
    ) -> None:
        check_context("DepthPeeler", glctx)
        self._layers = _make_layers("DepthPeeler", pos, tri, resolution, ranges, grad_db, exact_legacy)
        self._entered = self._active = False

    def __enter__(self) -> DepthPeeler:
        if self._entered:
            raise RuntimeError("DepthPeeler: cannot be entered twice. Make a new one.")
        self._entered = self._active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._active = False
        self._layers = None

    def rasterize_next_layer(self) -> tuple[torch.Tensor, torch.Tensor]:
        """`rast` and `rast_db` of the next layer. The first is that of `rasterize`; past the last all is background."""
        if not self._active or self._layers is None:
            raise RuntimeError("DepthPeeler: layers exist inside of its with block only.")
        return self._layers.next_layer()


def _make_layers(
    function: str,
    pos: torch.Tensor,
    tri: torch.Tensor,
    resolution: Resolution,
    ranges: torch.Tensor | None,
    grad_db: bool,
    exact_legacy: bool | None,
) -> _Layers | LegacyPeeler:
    size = _checks.check_resolution(function, resolution)
    positions = _checks.check_floating(function, "pos", pos)
    if positions.dim() not in (2, 3) or positions.shape[-1] != 4:
        expected = "have shape (N, V, 4), or (V, 4) with ranges"
        _checks.fail(ValueError, function, "pos", expected, _checks.shape_text(positions))
    triangles = _checks.check_triangles(function, tri, positions, "tri")
    kind = LegacyPeeler if resolve_exact_legacy(exact_legacy) else _Layers
    return kind(positions, triangles, size, None if positions.dim() == 3 else ranges, bool(grad_db))


class _Layers:
    """Layers on our `rasterize`.

    There, the lowest row wins at equal depth; here it has to be the highest, so the rows run backwards.
    """

    def __init__(
        self,
        positions: torch.Tensor,
        triangles: torch.Tensor,
        resolution: tuple[int, int],
        ranges: torch.Tensor | None,
        grad_db: bool,
    ) -> None:
        self._positions = flip_rows(positions)
        self._triangles = triangles.flip(0)
        self._resolution = resolution
        if is_pairs(ranges):
            first, count = ranges.unbind(1)
            ranges = torch.stack([len(triangles) - first - count, count], 1)
        self._ranges = ranges
        self._grad_db = grad_db
        self._above: Fragments | None = None

    def next_layer(self) -> tuple[torch.Tensor, torch.Tensor]:
        fragments = rasterize_fragments(
            self._positions,
            self._triangles,
            self._resolution,
            ranges=self._ranges,
            beneath=self._above,
            derivatives=True,
        )
        b, depth = fragments.barycentrics.detach(), fragments.depth.detach()
        self._above = Fragments(fragments.triangle_id, b, depth, None)
        ids = torch.where(fragments.triangle_id >= 0, len(self._triangles) - fragments.triangle_id, 0)
        assert fragments.derivatives is not None
        steps = fragments.derivatives if self._grad_db else fragments.derivatives.detach()
        return PackRast.apply(fragments.barycentrics, fragments.depth, ids), steps
