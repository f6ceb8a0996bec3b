"""`interpolate`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ... import _checks
from ...ops.interpolate import interpolate as interpolate_fragments
from ._context import resolve_exact_legacy
from ._layout import skip_wrong_rows, to_fragments


def interpolate(
    attr: torch.Tensor,
    rast: torch.Tensor,
    tri: torch.Tensor,
    rast_db: torch.Tensor | None = None,
    diff_attrs: str | Sequence[int] | None = None,
    *,
    exact_legacy: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Vertex attributes at every pixel.

    Args:
        attr: (N, V, A), or (V, A) or (1, V, A) shared by all images.
        rast: of `rasterize`, or made of it by cropping, masking or turning.
        tri: (T, 3) rows of attr; may differ from the one rasterized if its rows stand for the same triangles.
        rast_db: of `rasterize`; needed with diff_attrs.
        diff_attrs: "all" or a list of attributes, negative ones from the end; an attribute that does not exist gives 0.
        exact_legacy: True skips rows of tri with an index outside of attr instead of raising.

    Returns:
        values (N, H, W, A), 0 on background, and (N, H, W, 2 * len(diff_attrs)) with (d/dX, d/dY) of each listed
        attribute in turn, X to the right and Y along the rows; without diff_attrs (N, H, W, 0).

    Gradients: exact to attr, to u and v of rast, and to rast_db.
    Memory: attr, tri, and rast.

    Raises:
        TypeError, ValueError: a wrong type, shape or device, or (on the CPU) an index outside of attr.

    Example:
        >>> from diffrender.compat import nvdiffrast as dr
        >>> corners = torch.tensor([[[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]]])
        >>> tri = torch.tensor([[0, 1, 2]])
        >>> rast, rast_db = dr.rasterize(dr.RasterizeCudaContext(), corners, tri, (64, 64))
        >>> color, color_db = dr.interpolate(torch.eye(3), rast, tri, rast_db, diff_attrs="all")
        >>> color.shape, color_db.shape
        (torch.Size([1, 64, 64, 3]), torch.Size([1, 64, 64, 6]))
    """
    values = _checks.check_floating("interpolate", "attr", attr)
    if values.dim() not in (2, 3):
        expected = "have shape (N, V, A) or (V, A)"
        _checks.fail(ValueError, "interpolate", "attr", expected, _checks.shape_text(values))
    triangles = _checks.check_triangles("interpolate", tri, values, "tri")
    if resolve_exact_legacy(exact_legacy):
        triangles = skip_wrong_rows(triangles, values.shape[-2])
    if diff_attrs is None or len(diff_attrs) == 0:
        result = interpolate_fragments(values, triangles, to_fragments("interpolate", rast))
        return result, result.new_zeros((*result.shape[:3], 0))
    if rast_db is None:
        _checks.fail(ValueError, "interpolate", "rast_db", "be given with diff_attrs", "None")
    fragments = to_fragments("interpolate", rast, rast_db)
    if isinstance(diff_attrs, str):
        return interpolate_fragments(values, triangles, fragments, derivatives=diff_attrs)
    count = values.shape[-1]
    known = [index for index in diff_attrs if -count <= index < count]
    result, steps = interpolate_fragments(values, triangles, fragments, derivatives=known)
    if len(known) == len(diff_attrs):
        return result, steps
    nothing = steps.new_zeros((*steps.shape[:3], 2))
    parts = iter(steps.split(2, dim=-1))
    return result, torch.cat([next(parts) if -count <= index < count else nothing for index in diff_attrs], -1)
