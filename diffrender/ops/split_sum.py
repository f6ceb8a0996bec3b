"""The second half of the split-sum approximation: how much of a constant environment a GGX surface reflects.

    scale, bias = integral over l of D V n.l (1 - (1 - v.h)^5, (1 - v.h)^5)      reflectance = F0 scale + bias

(Karis 2013) for the GGX distribution D and the height-correlated Smith term V. Both depend on n.v and roughness alone
and come from a table that is computed at first use.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy
import torch
from torch import Tensor

from .. import _checks
from .._autograd import apply, constant_when_compiled, no_second_derivative, product_of_channels
from .._constants import table

_TABLE_SIZE = 64
_ABSCISSAS = 48
# Smallest values that the integrals are taken for; smaller ones count as these.
_LEAST_ROUGHNESS, _LEAST_COSINE = 1e-3, 1e-4


def split_sum(cosine: Tensor, roughness: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and bias of F0 in the reflectance of a surface under constant light.

    Args:
        cosine: n.v in [1e-4, 1], any shape; outside it counts as the bound.
        roughness: perceptual roughness in [0, 1], of a shape that broadcasts.

    Returns:
        (scale, bias) of the broadcast shape; exact to 1e-3 for n.v above 0.001. For F0 = 1 their sum is what single
        scattering keeps.

    Gradients: exact to both for the bicubic interpolation that this is, which has a continuous derivative. Zero beyond
        the bounds. Second derivatives raise NotImplementedError.

    Example:
        >>> scale, bias = split_sum(torch.tensor(0.5), torch.tensor(0.5))
        >>> round(scale.item(), 3), round(bias.item(), 3)
        (0.835, 0.022)
    """
    values = _look_up(cosine, roughness)
    return values[..., 0], values[..., 1]


def reflected_share(cosine: Tensor, roughness: Tensor) -> Tensor:
    """(..., 3): scale, bias, and the mean of (1 - v.h)^5 over cosine-weighted light, which the diffuse part loses."""
    return _look_up(cosine, roughness)


def _look_up(cosine: Tensor, roughness: Tensor) -> Tensor:
    cosine = _checks.check_floating("split_sum", "cosine", cosine)
    roughness = _checks.check_floating("split_sum", "roughness", roughness)
    _checks.check_same_type("split_sum", "roughness", roughness, "cosine", cosine)
    cosine, roughness = torch.broadcast_tensors(cosine.clamp(_LEAST_COSINE, 1).sqrt(), roughness.clamp(0, 1))
    integrals = table(_padded_table, like=cosine)
    # Nodes of sqrt(n.v), which resolves grazing angles, and of roughness lie at i / (n - 1), a ring of continued ones
    # around them: borders are nothing special.
    last = integrals.shape[-1] - 3
    grid = torch.stack([(2 * x - 1) * (last / (last + 2)) for x in (cosine.reshape(-1), roughness.reshape(-1))], -1)
    return apply(_Bicubic, integrals, grid).reshape(*cosine.shape, 3)


class _Bicubic(torch.autograd.Function):
    """Values (N, 3) of a constant table (3, n, n) at places (N, 2). A Function because torch's own `grid_sample` has no
    forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table, places):
        values = torch.nn.functional.grid_sample(
            table[None], places[None, None], mode="bicubic", padding_mode="border", align_corners=True
        )
        return values[0, :, 0].T.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return None, apply(_BicubicBackward, *ctx.saved_tensors, grads[0])

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        table, places = inputs

        def rows(channel: int) -> list[Any]:
            one = torch.zeros_like(outputs[0])
            one[..., channel] = 1
            return [apply(_BicubicBackward, table, places, one)]

        return product_of_channels(rows, 3, [tangents[1]])


class _BicubicBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(table, places, grad_values):
        bicubic, border = 2, 1
        return torch.ops.aten.grid_sampler_2d_backward(
            grad_values.T[None, :, None], table[None], places[None, None], bicubic, border, True, [False, True]
        )[1][0, 0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        no_second_derivative("split_sum")


@constant_when_compiled
def _padded_table() -> Tensor:
    return _refined(_TABLE_SIZE)


@functools.cache
def _refined(size: int) -> Tensor:
    """(3, n + 2, n + 2), n = 4 (size - 1) + 1: the table at a quarter of its spacing and one node beyond each side.

    The bicubic weights of `grid_sample` (A = -0.75) are exact at nodes but only of first order between them: closer
    nodes make up for it. They come from cubics through the four nearest nodes.
    """
    at = torch.arange(-1, 4 * (size - 1) + 2, dtype=torch.float64) / 4
    first = (at.floor().long() - 1).clamp(0, size - 4)
    matrix = torch.zeros(len(at), size, dtype=torch.float64)
    for k in range(4):
        weight = torch.ones_like(at)
        for other in range(4):
            if other != k:
                weight = weight * (at - first - other) / (k - other)
        matrix[torch.arange(len(at)), first + k] = weight
    return torch.einsum("ri,cj,ijk->krc", matrix, matrix, split_sum_table(size))


@functools.cache
def split_sum_table(size: int = _TABLE_SIZE) -> Tensor:
    """(size, size, 3) float64: scale, bias, diffuse loss. Rows are roughness, columns sqrt(n.v), at i / (size - 1).

    With half vectors drawn from D the integrals are means of 4 V n.l v.h / n.h times the Fresnel terms. The means are
    taken by Gauss-Legendre quadrature, after a substitution that resolves the far tail of D.
    """
    node = torch.linspace(0, 1, size, dtype=torch.float64)
    roughness, view = (
        node[:, None, None].clamp(min=_LEAST_ROUGHNESS),
        node[None, :, None].square().clamp(min=_LEAST_COSINE),
    )
    alpha_squared, sine = roughness**4, (1 - view * view).sqrt()
    root_view = (view**2 * (1 - alpha_squared) + alpha_squared).sqrt()
    abscissas, weights = (torch.from_numpy(x) / 2 for x in numpy.polynomial.legendre.leggauss(_ABSCISSAS))
    abscissas = abscissas + 0.5
    # One half of the circle mirrors the other.
    turn = torch.cos(math.pi * (torch.arange(_ABSCISSAS, dtype=torch.float64) + 0.5) / _ABSCISSAS)
    total = torch.zeros(size, size, 3, dtype=torch.float64)
    for abscissa, weight in zip(abscissas.tolist(), weights.tolist(), strict=True):
        uniform = 1 - (1 - abscissa) ** 3
        squared = (1 - uniform) / (1 + (alpha_squared - 1) * uniform)
        half_cosine, half_sine = squared.sqrt(), (1 - squared).clamp(min=0).sqrt()
        view_half = sine * half_sine * turn + view * half_cosine
        light_cosine = 2 * view_half * half_cosine - view
        is_lit = (light_cosine > 0) & (view_half > 0)
        light_cosine = light_cosine.clamp(min=1e-12)
        root_light = (light_cosine**2 * (1 - alpha_squared) + alpha_squared).sqrt()
        visibility = 0.5 / (light_cosine * root_view + view * root_light)
        value = torch.where(is_lit, 4 * visibility * light_cosine * view_half / half_cosine, 0)
        grazing = (1 - view_half.clamp(0, 1)) ** 5
        factor = 3 * (1 - abscissa) ** 2 * weight
        total[..., 0] += factor * (value * (1 - grazing)).mean(-1)
        total[..., 1] += factor * (value * grazing).mean(-1)
        total[..., 2] += _diffuse_loss(view, sine, turn, abscissa) * weight
    return total


def _diffuse_loss(view: Tensor, sine: Tensor, turn: Tensor, uniform: float) -> Tensor:
    """Mean of (1 - v.h)^5 over the directions of light with (n.l)^2 = uniform: v.h^2 = (1 + v.l) / 2."""
    cosine = math.sqrt(uniform)
    view_light = sine * math.sqrt(1 - uniform) * turn + view * cosine
    return ((1 - ((1 + view_light).clamp(0, 2) / 2).sqrt()) ** 5).mean(-1)
