"""Irradiance of an environment from nine spherical-harmonic coefficients per channel (Ramamoorthi and Hanrahan 2001).

    E(n) = sum over l, m of A_l L_lm Y_lm(n),    A = pi, 2 pi / 3, pi / 4,    L_lm = integral of radiance * Y_lm

A diffuse surface reflects albedo / pi * E, so constant radiance 1 (L_00 = sqrt(4 pi), E = pi) returns the albedo. The
coefficients are plain projections of radiance: neither the cosine factors A_l nor 1 / pi are in them.

Order of the coefficients: Y_00; Y_1-1, Y_10, Y_11; Y_2-2, Y_2-1, Y_20, Y_21, Y_22. Axes are those of the normals (z is
the axis of the harmonics). Signs, by `convention`:

    "unsigned"           y, z, x; xy, yz, 3 z^2 - 1, xz, x^2 - y^2, all with positive constants (most of graphics)
    "condon_shortley"    the four terms of odd m (y, x, yz, xz) have a minus sign (physics; Kaolin's current basis)

Not handled: orders above 2, whose share of the irradiance is below 1 percent for most environments.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

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
from .._constants import constant
from ._cube import cube_texels
from ._shade import as_map, as_triangle_id

CONVENTIONS = ("unsigned", "condon_shortley")
_DRIVER_AUTOMATIC = 0

# Constants of the basis, in front of 1; y, z, x; xy, yz, 3 z^2 - 1, xz, x^2 - y^2.
_Y0, _Y1 = math.sqrt(1 / (4 * math.pi)), math.sqrt(3 / (4 * math.pi))
_Y2 = math.sqrt(15 / (4 * math.pi))
_BASIS = (_Y0, _Y1, _Y1, _Y1, _Y2, _Y2, math.sqrt(5 / (16 * math.pi)), _Y2, _Y2 / 2)
_DEGREE = (0, 1, 1, 1, 2, 2, 2, 2, 2)
_IS_ODD = (False, True, False, True, False, True, False, True, False)
_COSINE = (math.pi, 2 * math.pi / 3, math.pi / 4)


def irradiance_sh(
    coefficients: Tensor, normals: Tensor, *, convention: str = "unsigned", mask: Tensor | None = None
) -> Tensor:
    """Irradiance at normals.

    Args:
        coefficients: (9, C), shared by the batch, or (B, 9, C): radiance of the environment projected on the basis.
        normals: (B, H, W, 3), or (H, W, 3) shared by the batch, or (B, 3) or (3,) one for all pixels; of any length:
            the polynomial means something on the unit sphere only, so they are made unit length here. A zero normal
            gives 0.
        convention: "unsigned" or "condon_shortley", the signs of the basis (see the module).
        mask: (B, H, W) bool, or the `triangle_id` of fragments: pixels that are False or negative give 0 and no
            gradient.

    Returns:
        (B, H, W, C) irradiance; radiance of a diffuse surface is albedo / pi times it. Nine coefficients cannot follow
        a small bright source: next to one the sum overshoots and can be negative on the other side. It is not clamped,
        which would take the gradient; `dr.window_sh` damps the overshoot.

    Gradients: exact to coefficients and normals. Second derivatives raise NotImplementedError.
    Memory: saves coefficients, normals and mask.

    Raises:
        TypeError, ValueError: a wrong type, shape or device; an unknown convention.

    Example:
        >>> constant = torch.zeros(9, 3)
        >>> constant[0] = (4 * torch.pi) ** 0.5  # radiance 1 from everywhere
        >>> irradiance = dr.irradiance_sh(constant, torch.randn(1, 4, 4, 3))
        >>> torch.allclose(irradiance, torch.tensor(torch.pi), atol=1e-5)
        True
    """
    table = _checks.check_floating("irradiance_sh", "coefficients", coefficients)
    if table.dim() not in (2, 3) or table.shape[-2] != 9:
        hint = "Transpose it?" if table.dim() in (2, 3) and table.shape[-1] == 9 else ""
        shape = _checks.shape_text(table)
        _checks.fail(ValueError, "irradiance_sh", "coefficients", "have shape (B, 9, C) or (9, C)", shape, hint)
    _checks.check_choice("irradiance_sh", "convention", convention, CONVENTIONS)
    directions = as_map("irradiance_sh", "normals", normals, 3, None)
    _checks.check_same_type("irradiance_sh", "normals", directions, "coefficients", table)
    if table.dim() == 2:
        table = table.unsqueeze(0)
    batch, items = table.shape[0], directions.shape[0]
    if batch != items and 1 not in (batch, items):
        expected = f"have the batch size of coefficients ({batch}) or 1"
        _checks.fail(ValueError, "irradiance_sh", "normals", expected, str(int(items)))
    triangle_id = None
    if mask is not None:
        shape = _checks.broadcast_shapes(directions.shape[:3], (batch, 1, 1))
        triangle_id = as_triangle_id("irradiance_sh", mask, tuple(shape), directions)
    factors = [_COSINE[degree] * sign for degree, sign in zip(_DEGREE, _basis(convention), strict=True)]
    scaled = table * constant(factors, table).unsqueeze(-1)
    return apply(_IrradianceSh, scaled, directions, triangle_id)


def sh_from_environment(environment: Tensor, *, convention: str = "unsigned") -> Tensor:
    """Projects an environment on the nine coefficients that `irradiance_sh` takes.

    Args:
        environment: linear radiance; a lat-long picture (H, W, C) or (B, H, W, C), or a cube map (6, S, S, C) or
            (B, 6, S, S, C). Row 0 of a lat-long picture looks to +y (up), its middle column to -z, columns go on to +x;
            faces of a cube are +X -X +Y -Y +Z -Z in OpenGL's orientation. A (6, S, S, C) tensor is a cube.
        convention: signs of the basis, as in `irradiance_sh`.

    Returns:
        (9, C) or (B, 9, C). Texels count by the exact solid angle of their row, or by that of their part of the cube.

    Gradients: exact, linear in the environment (plain torch).

    Raises:
        ValueError: a wrong shape or an unknown convention.

    Example:
        >>> coefficients = dr.sh_from_environment(torch.ones(16, 32, 3))
        >>> [round(value, 4) for value in coefficients[:2, 0].tolist()]
        [3.5449, 0.0]
    """
    radiance = _checks.check_floating("sh_from_environment", "environment", environment)
    _checks.check_choice("sh_from_environment", "convention", convention, CONVENTIONS)
    is_cube = radiance.dim() in (4, 5) and radiance.shape[-4] == 6 and radiance.shape[-3] == radiance.shape[-2]
    if not is_cube and radiance.dim() not in (3, 4):
        expected = "have shape (B, H, W, C) or (B, 6, S, S, C), with or without B"
        _checks.fail(ValueError, "sh_from_environment", "environment", expected, _checks.shape_text(radiance))
    rows, columns = radiance.shape[-3:-1]
    directions, solid_angle = cube_texels(rows) if is_cube else _lat_long_texels(rows, columns)
    weights = _evaluate_basis(directions, convention) * solid_angle.unsqueeze(-1)
    weights = weights.reshape(-1, 9).to(radiance)
    lead = radiance.shape[: -4 if is_cube else -3]
    with torch.autocast(radiance.device.type, enabled=False):
        return weights.T @ radiance.reshape(*lead, -1, radiance.shape[-1])


def window_sh(coefficients: Tensor, strength: float) -> Tensor:
    """Damps the overshoot of nine coefficients next to bright sources: L_l / (1 + strength * l^2 (l + 1)^2) (Sloan
    2008).

    Args:
        coefficients: (..., 9, C).
        strength: 0 changes nothing; 0.01 to 0.1 is usual. The mean (l = 0) is kept.

    Example:
        >>> window_sh(torch.ones(9, 1), 0.25)[:, 0].tolist()
        [1.0, 0.5, 0.5, 0.5, 0.10000000149011612, 0.10000000149011612, 0.10000000149011612, 0.10000000149011612, \
0.10000000149011612]
    """
    factors = [1 / (1 + strength * (degree * (degree + 1)) ** 2) for degree in _DEGREE]
    return coefficients * constant(factors, coefficients).unsqueeze(-1)


def _basis(convention: str) -> list[float]:
    """Constants of the nine terms with their signs."""
    flips = convention == "condon_shortley"
    return [-value if flips and odd else value for value, odd in zip(_BASIS, _IS_ODD, strict=True)]


def _evaluate_basis(directions: Tensor, convention: str) -> Tensor:
    """The nine functions at unit vectors (..., 3): (..., 9)."""
    x, y, z = directions.unbind(-1)
    terms = [torch.ones_like(x), y, z, x, x * y, y * z, 3 * z * z - 1, x * z, x * x - y * y]
    return torch.stack([value * term for value, term in zip(_basis(convention), terms, strict=True)], -1)


def _lat_long_texels(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Unit directions (rows, columns, 3) of the texel centres, and solid angles (rows, columns), float64."""
    edges = torch.linspace(0, math.pi, rows + 1, dtype=torch.float64)
    theta = (edges[:-1] + edges[1:]) / 2
    phi = 2 * math.pi * ((torch.arange(columns, dtype=torch.float64) + 0.5) / columns - 0.5)
    theta, phi = torch.meshgrid(theta, phi, indexing="ij")
    directions = torch.stack([theta.sin() * phi.sin(), theta.cos(), -theta.sin() * phi.cos()], -1)
    band = (edges[:-1].cos() - edges[1:].cos()) * (2 * math.pi / columns)
    return directions, band.unsqueeze(-1).expand(rows, columns)


class _IrradianceSh(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(coefficients, normals, triangle_id):
        return torch.ops.diffrender.irradiance_sh(coefficients, normals, triangle_id, _DRIVER_AUTOMATIC)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        need_coefficients, need_normals = ctx.needs_input_grad[:2]
        if not (need_coefficients or need_normals):
            return None, None, None
        to_coefficients, to_normals = apply(
            _IrradianceShBackward, *ctx.saved_tensors, grads[0], need_coefficients, need_normals
        )
        return to_coefficients if need_coefficients else None, to_normals if need_normals else None, None

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        coefficients, normals, triangle_id = inputs
        parts = []
        if tangents[0] is not None:
            parts.append(apply(_IrradianceSh, tangents[0], normals, triangle_id))  # linear in them
        if tangents[1] is not None:
            pixels = (*outputs[0].shape[:3], 3)

            def rows(channel: int) -> list[Any]:
                one = slice(channel, channel + 1)
                ones = torch.ones_like(outputs[0][..., one])
                own = coefficients[..., one]
                return [apply(_IrradianceShBackward, own, normals.expand(pixels), triangle_id, ones, False, True)[1]]

            parts.append(product_of_channels(rows, coefficients.shape[-1], [tangents[1].expand(pixels)]))
        return added(*parts)


class _IrradianceShBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(coefficients, normals, triangle_id, grad_irradiance, need_coefficients, need_normals):
        return torch.ops.diffrender.irradiance_sh_backward(
            coefficients,
            normals,
            triangle_id,
            grad_irradiance,
            need_coefficients,
            need_normals,
            scatter_algorithm(normals),
            _DRIVER_AUTOMATIC,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        no_second_derivative("irradiance_sh")


def _result_shape(coefficients: Tensor, normals: Tensor, triangle_id: Tensor | None) -> tuple[int, ...]:
    shapes = [normals.shape[:3], (coefficients.shape[0], 1, 1)]
    if triangle_id is not None:
        shapes.append(triangle_id.shape)
    return tuple(torch.broadcast_shapes(*shapes))


@register_fake("irradiance_sh")
def _(coefficients, normals, triangle_id, driver):
    return normals.new_empty((*_result_shape(coefficients, normals, triangle_id), coefficients.shape[2]))


@register_fake("irradiance_sh_backward")
def _(coefficients, normals, triangle_id, grad_irradiance, need_coefficients, need_normals, scatter, driver):
    return (
        coefficients.new_empty((coefficients.shape[0] if need_coefficients else 0, *coefficients.shape[1:])),
        normals.new_empty((normals.shape[0] if need_normals else 0, *normals.shape[1:])),
    )


register_vmap("irradiance_sh")
register_vmap("irradiance_sh_backward")
