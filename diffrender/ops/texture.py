"""Texture lookups on a plane: nearest, bilinear, and mip-mapped with the level taken from the pixel's footprint.

A custom Function because the forward leaves the framework (compiled kernels). The footprint of a pixel is the ellipse
that the Jacobian of the texel coordinates makes of the unit circle; its level is log2 of the major axis (the largest
singular value, not the longest column), and with max_anisotropy > 1 several taps share the major axis, and the level
comes from the shortened axis. The mips are built on the way (build_mips), and their gradients go back to the texture.

Second derivatives are exact for `nearest` and `linear`; with mips they raise NotImplementedError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _checks
from .._autograd import (
    added,
    apply,
    no_second_derivative,
    product_of_channels,
    register_fake,
    register_vmap,
    scatter_algorithm,
)
from .build_mips import PackedMips, last_level, pack_mips

# As in csrc/texture.h and csrc/texture_plane.h.
FILTERS = {"nearest": 0, "linear": 1, "mip_nearest": 2, "mip_linear": 3}
WRAPS = {"repeat": 0, "clamp": 1, "mirror": 2, "zero": 3}
MAX_ANISOTROPY = 64


def texture(
    texture: torch.Tensor,
    texcoords: torch.Tensor,
    *,
    texcoord_derivatives: torch.Tensor | None = None,
    level: torch.Tensor | None = None,
    level_bias: torch.Tensor | None = None,
    mips: Sequence[torch.Tensor] | PackedMips | None = None,
    filter: str = "auto",
    wrap: str | tuple[str, str] = "repeat",
    max_level: int | None = None,
    max_anisotropy: int = 1,
) -> torch.Tensor:
    """Values of a texture at texture coordinates.

    Args:
        texture: (B, Ht, Wt, C) or (Ht, Wt, C); without batch axis, or with one of size 1, shared by all items.
        texcoords: (B, H, W, 2) or (H, W, 2) as (u, v), u along the width. (0, 0) is the outer corner of the texel in
            row 0 and column 0, (1, 1) that of the last; texel centres lie at ((column + 0.5) / Wt, (row + 0.5) / Ht).
        texcoord_derivatives: (B, H, W, 4) as (du/dx, du/dy, dv/dx, dv/dy) per pixel step, as `interpolate` returns
            them.
        level: (B, H, W) mip level, instead of the one from texcoord_derivatives.
        level_bias: (B, H, W), added to the level; by itself it is the level.
        mips: levels 1, 2, ... as `build_mips` returns them, or the `PackedMips` that materials keep; None builds them
            from the texture.
        filter: "nearest", "linear" (bilinear in the texture itself), "mip_nearest" (bilinear in the level that is the
            floor of the exact one), "mip_linear" (between the two nearest levels), "auto" (mip_linear if there is a
            level to choose by, else linear).
        wrap: "repeat", "clamp" (the border texel goes on), "mirror" or "zero" (0 outside, faded over one texel); one
            for both axes or (u, v).
        max_level: the last level that is read; None for all.
        max_anisotropy: taps along the major axis of the footprint; needs texcoord_derivatives and a mip filter. What n
            taps shorten is the axis: the level comes from the larger of major / n and minor.

    Returns:
        (B, H, W, C). Where a texture coordinate is NaN or infinite: 0.

    Levels are clamped to [0, last]; a footprint of size 0 reads level 0, an infinite or NaN one the last level.

    Gradients: exact to texture, mips (to the texture where they are built from it), texcoords, texcoord_derivatives,
    level and level_bias. A clamped level has none, nearest gives none but to the texture, and mip_nearest none to the
    level. For NaN and infinite texcoords all are 0. Sums of many pixels on one texel are made in double precision.
    Memory: saves the arguments, and the mips if it built them (a third of the texture). On the CPU a call also
        works on copies of levels that are small next to the number of lookups.

    Raises:
        TypeError, ValueError: a wrong type, shape, device or mode.
        NotImplementedError: for a second derivative of a mip filter.

    Example:
        >>> texels = torch.rand(64, 64, 3)
        >>> v, u = torch.meshgrid(torch.linspace(0, 1, 20), torch.linspace(0, 1, 30), indexing="ij")
        >>> dr.texture(texels, torch.stack([u, v], -1)[None], wrap="clamp").shape
        torch.Size([1, 20, 30, 3])
    """
    values, shared = check_texture("texture", texture, (4, 3), "(B, Ht, Wt, C) or (Ht, Wt, C)")
    coordinates = check_lookups("texture", "texcoords", texcoords, 2, values)
    grid = coordinates.shape[:3]
    steps = check_per_lookup("texture", "texcoord_derivatives", texcoord_derivatives, grid, values, 4)
    bias = check_level("texture", level, level_bias, steps, grid, values)
    mode = choose_filter("texture", filter, steps is not None or bias is not None, mips is not None)
    wrap_u, wrap_v = _wrap_modes(wrap)
    taps = _anisotropy(max_anisotropy, mode, steps)
    height, width = values.shape[1:3]
    if mode in ("nearest", "linear"):
        return apply(_Texture, values, coordinates, FILTERS[mode], wrap_u, wrap_v)
    last = last_level("texture", height, width, max_level)
    if mips is None:
        packed = pack_mips(values.unsqueeze(1), last)
    elif isinstance(mips, PackedMips):
        if last != mips.last:
            _checks.fail(ValueError, "texture", "max_level", "be None with packed mips", str(max_level))
        packed = mips.values
    else:
        packed, last = pack_levels("texture", mips, values, shared, last)
    return apply(_TextureMips, values, packed, coordinates, steps, bias, FILTERS[mode], wrap_u, wrap_v, last, taps)


# --- checks, shared with texture_cube --------------------------------------------------------------


def check_texture(function: str, value: object, dims: tuple[int, int], expected: str) -> tuple[torch.Tensor, bool]:
    """The texture with a batch axis, and whether that was added."""
    values = _checks.check_floating(function, "texture", value)
    if values.dim() not in dims:
        _checks.fail(ValueError, function, "texture", f"have shape {expected}", _checks.shape_text(values))
    shared = values.dim() == min(dims)
    if shared:
        values = values.unsqueeze(0)
    if values.shape[-3] < 1 or values.shape[-2] < 1:
        _checks.fail(ValueError, function, "texture", "have at least one texel", _checks.shape_text(values))
    if values.shape[1:-1].numel() >= 1 << 31:
        _checks.fail(ValueError, function, "texture", "have fewer than 2^31 texels", _checks.shape_text(values))
    return values, shared


def check_lookups(function: str, argument: str, value: object, size: int, like: torch.Tensor) -> torch.Tensor:
    """Coordinates (B, H, W, size); without batch axis repeated for every item of the texture."""
    coordinates = _checks.check_floating(function, argument, value)
    if coordinates.dim() not in (3, 4) or coordinates.shape[-1] != size:
        expected = f"have shape (B, H, W, {size}) or (H, W, {size})"
        _checks.fail(ValueError, function, argument, expected, _checks.shape_text(coordinates))
    _checks.check_same_type(function, argument, coordinates, "texture", like)
    if coordinates.dim() == 3:
        coordinates = coordinates.expand(like.shape[0], *coordinates.shape)
    if like.shape[0] not in (1, coordinates.shape[0]):
        expected = f"have the batch size of {argument} ({coordinates.shape[0]}) or 1"
        _checks.fail(ValueError, function, "texture", expected, str(like.shape[0]))
    return coordinates


def check_per_lookup(
    function: str, argument: str, value: object, grid: torch.Size, like: torch.Tensor, size: int | None
) -> torch.Tensor | None:
    """One number, or `size` of them, per lookup; None stays None. A missing batch axis is added."""
    if value is None:
        return None
    tensor = _checks.check_floating(function, argument, value)
    _checks.check_same_type(function, argument, tensor, "texture", like)
    shape = tuple(grid) if size is None else (*grid, size)
    if tensor.dim() == len(shape) - 1:
        tensor = tensor.expand(grid[0], *tensor.shape)
    if tuple(tensor.shape) != shape:
        expected = "have shape (" + ", ".join(str(int(side)) for side in shape) + ")"
        _checks.fail(ValueError, function, argument, expected, _checks.shape_text(tensor))
    return tensor


def check_level(
    function: str,
    level: object,
    level_bias: object,
    derivatives: torch.Tensor | None,
    grid: torch.Size,
    like: torch.Tensor,
) -> torch.Tensor | None:
    """What the kernels add to the level of the footprint (0 without derivatives), or None."""
    explicit = check_per_lookup(function, "level", level, grid, like, None)
    bias = check_per_lookup(function, "level_bias", level_bias, grid, like, None)
    if explicit is None:
        return bias
    if derivatives is not None:
        _checks.fail(ValueError, function, "level", "be None where derivatives are given", "both", "Use level_bias.")
    return explicit if bias is None else explicit + bias


def choose_filter(function: str, name: str, has_level: bool, has_mips: bool) -> str:
    """The filter that "auto" stands for."""
    _checks.check_choice(function, "filter", name, ("auto", *FILTERS))
    if name == "auto":
        name = "mip_linear" if has_level else "linear"
    if name.startswith("mip") and not has_level:
        expected = "come with derivatives, level or level_bias"
        _checks.fail(ValueError, function, "filter", expected, f"{name!r} without them")
    if has_mips and not name.startswith("mip"):
        expected = "be None unless a mip filter reads them"
        hint = "" if has_level else "Give derivatives, level or level_bias."
        _checks.fail(ValueError, function, "mips", expected, f"levels with filter {name!r}", hint)
    return name


def pack_levels(
    function: str, mips: Sequence[torch.Tensor], texture: torch.Tensor, shared: bool, last: int
) -> tuple[torch.Tensor, int]:
    """Levels of the user one after the other, (B, texels, C), and the last of them that is read."""
    if isinstance(mips, torch.Tensor) or not isinstance(mips, Sequence):
        _checks.fail(TypeError, function, "mips", "be a sequence of tensors", type(mips).__name__)
    full = max(int(side) for side in texture.shape[-3:-1]).bit_length() - 1
    if len(mips) > full:
        _checks.fail(ValueError, function, "mips", f"have at most {full} levels", str(len(mips)))
    levels = []
    for index, value in enumerate(mips[:last], start=1):
        name = f"mips[{index - 1}]"
        tensor = _checks.check_floating(function, name, value)
        _checks.check_same_type(function, name, tensor, "texture", texture)
        height, width = (max(1, int(side) >> index) for side in texture.shape[-3:-1])
        shape = (*texture.shape[:-3], height, width, texture.shape[-1])
        if tuple(tensor.shape) != (shape[1:] if shared else shape):
            expected = "have shape (" + ", ".join(str(int(side)) for side in (shape[1:] if shared else shape)) + ")"
            _checks.fail(ValueError, function, name, expected, _checks.shape_text(tensor))
        levels.append(tensor.reshape(texture.shape[0], -1, texture.shape[-1]))
    if not levels:
        return texture.new_zeros((texture.shape[0], 0, texture.shape[-1])), 0
    return torch.cat(levels, 1), len(levels)


def _wrap_modes(wrap: object) -> tuple[int, int]:
    pair = (wrap, wrap) if isinstance(wrap, str) else wrap
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        _checks.fail(ValueError, "texture", "wrap", "be one mode or (u, v)", repr(wrap))
    for mode in pair:
        _checks.check_choice("texture", "wrap", mode, tuple(WRAPS))
    return WRAPS[pair[0]], WRAPS[pair[1]]


def _anisotropy(taps: object, filter_mode: str, derivatives: torch.Tensor | None) -> int:
    if isinstance(taps, bool) or not isinstance(taps, int):
        _checks.fail(TypeError, "texture", "max_anisotropy", "be an int", type(taps).__name__)
    if not 1 <= taps <= MAX_ANISOTROPY:
        _checks.fail(ValueError, "texture", "max_anisotropy", f"lie in [1, {MAX_ANISOTROPY}]", str(taps))
    if taps > 1 and (derivatives is None or not filter_mode.startswith("mip")):
        expected = "be 1 without texcoord_derivatives and a mip filter"
        _checks.fail(ValueError, "texture", "max_anisotropy", expected, str(taps))
    return taps


def lookup_tangents(
    look_up: Callable, gradients: Callable, texture: Any, mips: Any, values: Any, tangents: Sequence[Any]
) -> Any:
    """Forward mode of a look-up with mips.

    Args:
        look_up: texture, mips -> values.
        gradients: texture, mips, cotangent, which are needed -> those to texture, mips, and the three of each look-up.
        values: what was looked up.
        tangents: of texture, mips, coordinates, derivatives and bias, or None.
    """
    parts = []
    if tangents[0] is not None or (mips is not None and tangents[1] is not None):
        # Linear in the texels of all levels together.
        rest = None if mips is None else torch.zeros_like(mips) if tangents[1] is None else tangents[1]
        parts.append(look_up(torch.zeros_like(texture) if tangents[0] is None else tangents[0], rest))
    moving = tangents[2:5]
    if any(tangent is not None for tangent in moving):
        needs = (False, False, *(tangent is not None for tangent in moving))
        # The bias has no axis of channels.
        rows_of = [None if t is None else t.unsqueeze(-1) if k == 2 else t for k, t in enumerate(moving)]

        def rows(channel: int) -> list[Any]:
            one = slice(channel, channel + 1)
            level_0, others = texture[..., one], None if mips is None else mips[..., one]
            to_coordinates, to_derivatives, to_bias = gradients(
                level_0, others, torch.ones_like(values[..., one]), needs
            )[2:]
            return [to_coordinates, to_derivatives, to_bias.unsqueeze(-1)]

        parts.append(product_of_channels(rows, texture.shape[-1], rows_of))
    return added(*parts)


# --- autograd ------------------------------------------------------------------------------------


class _Texture(torch.autograd.Function):
    """Nearest and linear, without mips."""

    generate_vmap_rule = True

    @staticmethod
    def forward(texture, texcoords, filter_mode, wrap_u, wrap_v):
        return torch.ops.diffrender.texture(texture, None, texcoords, None, None, filter_mode, wrap_u, wrap_v, 0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        texture, texcoords, *ctx.modes = inputs
        ctx.save_for_backward(texture, texcoords)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        texture, texcoords = ctx.saved_tensors
        need_texture, need_texcoords = ctx.needs_input_grad[:2]
        if not (need_texture or need_texcoords):
            return None, None, None, None, None
        grad_texture, grad_texcoords = apply(
            _TextureBackward, texture, texcoords, grads[0], *ctx.modes, need_texture, need_texcoords
        )
        return grad_texture if need_texture else None, grad_texcoords if need_texcoords else None, None, None, None

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        """Linear in the texels. To texcoords, with J their Jacobian: the backward pass is J^T g, and the derivative of
        <u, J^T g> to g is J u.
        """
        texture, texcoords, filter_mode, *wraps = inputs
        parts = []
        if tangents[0] is not None:
            parts.append(apply(_Texture, tangents[0], texcoords, filter_mode, *wraps))
        if tangents[1] is not None and filter_mode != FILTERS["nearest"]:
            nothing = torch.zeros_like(outputs[0])
            parts.append(apply(_TextureBackwardTwice, texture, texcoords, nothing, tangents[1], *wraps)[0])
        return added(*parts) if parts else torch.zeros_like(outputs[0])


class _TextureBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(texture, texcoords, grad_values, filter_mode, wrap_u, wrap_v, need_texture, need_texcoords):
        # The nearest texel does not move with the coordinates.
        slides = filter_mode != FILTERS["nearest"]
        grad_texture, _, grad_texcoords, _, _ = torch.ops.diffrender.texture_backward(
            texture, None, texcoords, None, None, grad_values, filter_mode, wrap_u, wrap_v, 0, 1,
            need_texture, False, need_texcoords and slides, False, False, scatter_algorithm(texture),
        )  # fmt: skip
        return grad_texture, grad_texcoords if slides or not need_texcoords else torch.zeros_like(texcoords)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        texture, texcoords, grad_values, *ctx.modes, ctx.need_texture, ctx.need_texcoords = inputs
        ctx.save_for_backward(texture, texcoords, grad_values)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        """The first backward is linear in grad_values g. Given cotangents a of grad_texture and u of grad_texcoords:
        <a, grad_texture> is <g, a sampled>, the forward with the texture a; <u, grad_texcoords> has a kernel.
        """
        texture, texcoords, grad_values = ctx.saved_tensors
        filter_mode, wrap_u, wrap_v = ctx.modes
        to_texture = to_texcoords = to_grad = None
        if ctx.need_texture:
            to_grad = apply(_Texture, grads[0], texcoords, *ctx.modes)
            if ctx.needs_input_grad[1]:
                to_texcoords = apply(_TextureBackward, grads[0], texcoords, grad_values, *ctx.modes, False, True)[1]
        if ctx.need_texcoords and filter_mode != FILTERS["nearest"]:
            term, to_texture, mixed = apply(
                _TextureBackwardTwice, texture, texcoords, grad_values, grads[1], wrap_u, wrap_v
            )
            to_grad = term if to_grad is None else to_grad + term
            to_texcoords = mixed if to_texcoords is None else to_texcoords + mixed
        return to_texture, to_texcoords, to_grad, None, None, None, None, None


class _TextureBackwardTwice(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(texture, texcoords, grad_values, cotangent, wrap_u, wrap_v):
        return torch.ops.diffrender.texture_backward_twice(
            texture, texcoords, grad_values, cotangent, wrap_u, wrap_v, scatter_algorithm(texture)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        no_second_derivative("texture (a third derivative)")


class _TextureMips(torch.autograd.Function):
    """The filters with mips."""

    generate_vmap_rule = True

    @staticmethod
    def forward(texture, mips, texcoords, derivatives, bias, *modes):
        return torch.ops.diffrender.texture(texture, mips, texcoords, derivatives, bias, *modes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.modes = inputs[5:]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        needs = ctx.needs_input_grad[:5]
        if not any(needs):
            return (None,) * 10
        results = apply(_TextureMipsBackward, *ctx.saved_tensors, grads[0], ctx.modes, needs)
        return *(grad if need else None for grad, need in zip(results, needs, strict=True)), *(None,) * 5

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        modes = tuple(inputs[5:])

        def look_up(texture: Any, mips: Any) -> Any:
            return apply(_TextureMips, texture, mips, *inputs[2:5], *modes)

        def gradients(texture: Any, mips: Any, ones: Any, needs: tuple[bool, ...]) -> Any:
            return apply(_TextureMipsBackward, texture, mips, *inputs[2:5], ones, modes, needs)

        return lookup_tangents(look_up, gradients, inputs[0], inputs[1], outputs[0], tangents[:5])


class _TextureMipsBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(texture, mips, texcoords, derivatives, bias, grad_values, modes, needs):
        return torch.ops.diffrender.texture_backward(
            texture, mips, texcoords, derivatives, bias, grad_values, *modes, *needs, scatter_algorithm(texture)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        no_second_derivative("texture")


@register_fake("texture")
def _(texture, mips, texcoords, derivatives, bias, filter, wrap_u, wrap_v, last_level, anisotropy):
    return texture.new_empty((*texcoords.shape[:3], texture.shape[3]))


@register_fake("texture_backward")
def _(
    texture, mips, texcoords, derivatives, bias, grad_values, filter, wrap_u, wrap_v, last_level, anisotropy,
    need_texture, need_mips, need_texcoords, need_derivatives, need_bias, scatter,
):  # fmt: skip
    batch, height, width, channels = texture.shape
    items, *grid = texcoords.shape[:3]
    texels = 0 if mips is None else mips.shape[1]
    return (
        texture.new_empty((batch if need_texture else 0, height, width, channels)),
        texture.new_empty((batch if need_mips and mips is not None else 0, texels, channels)),
        texture.new_empty((items if need_texcoords else 0, *grid, 2)),
        texture.new_empty((items if need_derivatives else 0, *grid, 4)),
        texture.new_empty((items if need_bias else 0, *grid)),
    )


@register_fake("texture_backward_twice")
def _(texture, texcoords, grad_values, cotangent_texcoords, wrap_u, wrap_v, scatter):
    return tuple(x.new_empty(x.shape) for x in (grad_values, texture, texcoords))


register_vmap("texture")
register_vmap("texture_backward")
register_vmap("texture_backward_twice")
