"""`texture` and `texture_construct_mip`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import _checks
from ...ops.build_mips import build_mips
from ...ops.texture import texture as texture_plane
from ...ops.texture_cube import texture_cube

_FILTERS = {
    "nearest": "nearest",
    "linear": "linear",
    "linear-mipmap-nearest": "mip_nearest",
    "linear-mipmap-linear": "mip_linear",
}
_WRAPS = {"wrap": "repeat", "clamp": "clamp", "zero": "zero", "cube": None}


class MipStack:
    """Mip levels as they were when `texture_construct_mip` built them. Changes of the texture do not show in them."""

    def __init__(self, levels: tuple[torch.Tensor, ...], shape: torch.Size, cube_mode: bool) -> None:
        self.levels = levels
        self.shape = shape
        self.cube_mode = cube_mode


def texture(
    tex: torch.Tensor,
    uv: torch.Tensor,
    uv_da: torch.Tensor | None = None,
    mip_level_bias: torch.Tensor | None = None,
    mip: MipStack | Sequence[torch.Tensor] | None = None,
    filter_mode: str = "auto",
    boundary_mode: str = "wrap",
    max_mip_level: int | None = None,
) -> torch.Tensor:
    """Lookups in a texture or a cube map.

    Args:
        tex: (N, Ht, Wt, C) or, with boundary_mode "cube", (N, 6, S, S, C); N may be 1. Any size.
        uv: (N, H, W, 2), or (N, H, W, 3) directions of any length for a cube. (0, 0) is the outer corner of the texel
            in row 0 and column 0.
        uv_da: (N, H, W, 4) as (ds/dX, ds/dY, dt/dX, dt/dY), or (N, H, W, 6) for a cube, as `interpolate` returns them.
        mip_level_bias: (N, H, W), added to the mip level; the level itself without uv_da.
        mip: levels 1, 2, ... as tensors, or what `texture_construct_mip` returned. None builds them from tex.
        filter_mode: "nearest", "linear", "linear-mipmap-nearest" (the level is the floor of the exact one),
            "linear-mipmap-linear", or "auto": the last if uv_da or mip_level_bias is given, else "linear".
        boundary_mode: "wrap", "clamp", "zero" or "cube".
        max_mip_level: the last level built from tex, 0 for none. Ignored where mip is given.

    Returns:
        (N, H, W, C).

    Gradients: exact to tex, uv, uv_da, mip_level_bias and, where mip is a list, to its tensors (not to tex through
        them). With what `texture_construct_mip` returned, tex receives them.
    Memory: the arguments, and the mips.

    Raises:
        TypeError, ValueError: a wrong type, shape, device or mode.

    Example:
        >>> from diffrender.compat import nvdiffrast as dr
        >>> texels, uv = torch.rand(1, 8, 8, 3), torch.rand(1, 4, 5, 2)
        >>> dr.texture(texels, uv, mip_level_bias=torch.ones(1, 4, 5), boundary_mode="clamp").shape
        torch.Size([1, 4, 5, 3])
    """
    _checks.check_choice("texture", "filter_mode", filter_mode, ("auto", *_FILTERS))
    _checks.check_choice("texture", "boundary_mode", boundary_mode, tuple(_WRAPS))
    if filter_mode == "auto":
        filter_mode = "linear" if uv_da is None and mip_level_bias is None else "linear-mipmap-linear"
    if mip is None and max_mip_level == 0 and filter_mode.startswith("linear"):
        filter_mode = "linear"
    options: dict[str, Any] = {"filter": _FILTERS[filter_mode]}
    if "mipmap" in filter_mode:
        if uv_da is None and mip_level_bias is None:
            expected = "come with uv_da or mip_level_bias"
            _checks.fail(ValueError, "texture", "filter_mode", expected, f"{filter_mode!r} without them")
        options["level_bias"] = mip_level_bias
        if mip is None:
            options["max_level"] = max_mip_level
        else:
            options["mips"] = _levels(tex, mip, boundary_mode == "cube")
    else:
        uv_da = None
    if boundary_mode == "cube":
        return texture_cube(tex, uv, direction_derivatives=uv_da, **options)
    wrap = _WRAPS[boundary_mode]
    assert wrap is not None
    return texture_plane(tex, uv, texcoord_derivatives=uv_da, wrap=wrap, **options)


def texture_construct_mip(tex: torch.Tensor, max_mip_level: int | None = None, cube_mode: bool = False) -> MipStack:
    """Mips for many calls of `texture` with one texture.

    Args:
        tex: as for `texture`, of any size.
        max_mip_level: the last level to build; None for all.
        cube_mode: whether tex is a cube map.

    Returns:
        An object for `mip=`: the levels of tex as it is now. Where tex changes, build them anew.

    Gradients: `texture` hands those of the levels to its own tex.

    Raises:
        TypeError, ValueError: a wrong type or shape.

    Example:
        >>> from diffrender.compat import nvdiffrast as dr
        >>> texels, uv, bias = torch.rand(1, 8, 8, 3), torch.rand(1, 4, 5, 2), torch.ones(1, 4, 5)
        >>> mip = dr.texture_construct_mip(texels)
        >>> torch.equal(dr.texture(texels, uv, mip_level_bias=bias, mip=mip), dr.texture(texels, uv, None, bias))
        True
    """
    values = _checks.check_floating("texture_construct_mip", "tex", tex)
    if values.dim() != (5 if cube_mode else 4):
        expected = "have shape (N, 6, S, S, C) with cube_mode" if cube_mode else "have shape (N, Ht, Wt, C)"
        _checks.fail(ValueError, "texture_construct_mip", "tex", expected, _checks.shape_text(values))
    levels = build_mips(values.detach(), max_level=max_mip_level)
    return MipStack(levels, values.shape, bool(cube_mode))


def _levels(tex: torch.Tensor, mip: MipStack | Sequence[torch.Tensor], cube: bool) -> Sequence[torch.Tensor]:
    if not isinstance(mip, MipStack):
        return mip
    _checks.check_floating("texture", "tex", tex)
    if tex.shape != mip.shape:
        expected = f"be built from a texture of shape {_checks.shape_text(tex)}"
        _checks.fail(ValueError, "texture", "mip", expected, "(" + ", ".join(str(int(n)) for n in mip.shape) + ")")
    if mip.cube_mode != cube:
        expected = f"be built with cube_mode={cube} for this boundary_mode"
        _checks.fail(ValueError, "texture", "mip", expected, f"cube_mode={mip.cube_mode}")
    if not mip.levels:
        return []
    return _SnapshotMips.apply(tex, *mip.levels)


class _SnapshotMips(torch.autograd.Function):
    """Levels built earlier, with the derivative of levels built from the texture now: building is linear."""

    generate_vmap_rule = True

    @staticmethod
    def forward(texture, *levels):
        return tuple(level.view_as(level) for level in levels)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.shape = inputs[0].shape
        ctx.dtype, ctx.device = inputs[0].dtype, inputs[0].device

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        if not ctx.needs_input_grad[0]:
            return (None,) * (1 + len(grads))
        faces, (height, width, channels) = ctx.shape[1:-3].numel(), ctx.shape[-3:]
        packed = torch.cat([grad.reshape(ctx.shape[0], -1, channels) for grad in grads], 1)
        base = torch.ops.diffrender.build_mips_backward(packed, faces, height, width, len(grads))
        return base.reshape(ctx.shape), *(None for _ in grads)
