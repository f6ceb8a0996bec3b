"""GGX-filtered environment: what a rough mirror sees in each direction (the first half of the split-sum approximation).

    P(n) = integral of w L(l) dl / integral of w dl,   w = n.l D(n.h) where n.l > 0,   view = normal = reflection = n

(Karis 2013), with the GGX distribution D of alpha = roughness^2. At roughness 1 the weight is the cosine, so P is the
irradiance divided by pi: the same op makes the diffuse map.

A custom Function because the forward leaves the framework (compiled kernels). The environment is first made a pyramid
of energies (radiance times solid angle) in plain torch; near n the kernel reads fine texels, far from it coarse ones.
All of it is linear in the environment, so derivatives of any order are the same two kernels.

Not handled: the stretch of the lobe at grazing view, which the split-sum approximation leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from .. import _checks
from .._autograd import apply, constant_when_compiled, register_fake, register_vmap, scatter_algorithm
from .._constants import table
from ._cube import cube_texels, halve_sums

MINIMUM_ROUGHNESS = 0.01
# Which body of the kernel runs: the choice is made for tests only.
_DRIVER_AUTOMATIC = 0
# Half a diagonal of a texel over the distance on which the weight varies, at most: for results of at least so many
# texels a side. Small results can afford better.
_TOLERANCES = ((64, 0.14), (0, 0.05))


@overload
def prefilter_environment(environment: Tensor, roughness: float, size: int) -> Tensor: ...


@overload
def prefilter_environment(
    environment: Tensor, roughness: Sequence[float], size: Sequence[int]
) -> tuple[Tensor, ...]: ...


def prefilter_environment(
    environment: Tensor, roughness: float | Sequence[float], size: int | Sequence[int]
) -> Tensor | tuple[Tensor, ...]:
    """Filters a cube map with the GGX lobe of one roughness or of several.

    Args:
        environment: (6, S, S, C) or (B, 6, S, S, C), linear radiance, faces as in `texture_cube`. Any side is legal;
            one that halves often (a power of two) is much faster than an odd one.
        roughness: in [0.01, 1], perceptual; or a sequence. 1 is the cosine lobe: irradiance / pi.
        size: side of the result, or one for each roughness. Texels should be about a tenth of the lobe.

    Returns:
        (6, size, size, C) or (B, 6, size, size, C), or a tuple of those. A constant environment stays what it is. A
        lobe narrower than a texel sees the nearest ones.

    Gradients: exact to the environment, at any order.
    Memory: saves one number per texel of the result.

    Raises:
        TypeError, ValueError: a wrong type, shape, roughness or size.

    Example:
        >>> sky = torch.rand(6, 16, 16, 3)
        >>> glossy, diffuse = prefilter_environment(sky, (0.4, 1.0), (8, 4))
        >>> glossy.shape, diffuse.shape
        (torch.Size([6, 8, 8, 3]), torch.Size([6, 4, 4, 3]))
    """
    name = "prefilter_environment"
    texels = _checks.check_floating(name, "environment", environment)
    if texels.dim() not in (4, 5) or texels.shape[-4] != 6 or texels.shape[-3] != texels.shape[-2]:
        expected = "have shape (B, 6, S, S, C) or (6, S, S, C)"
        hint = "dr.cube_from_lat_long makes a cube." if texels.dim() == 3 else ""
        _checks.fail(ValueError, name, "environment", expected, _checks.shape_text(texels), hint)
    if texels.shape[-2] < 1:
        _checks.fail(ValueError, name, "environment", "have at least one texel", _checks.shape_text(texels))
    single = not isinstance(roughness, Sequence) and not isinstance(size, Sequence)
    lobes = list(roughness) if isinstance(roughness, Sequence) else [roughness]
    sides = list(size) if isinstance(size, Sequence) else [size] * len(lobes)
    if len(lobes) != len(sides):
        _checks.fail(ValueError, name, "size", f"give one side per roughness ({len(lobes)})", str(len(sides)))
    for lobe in lobes:
        if not MINIMUM_ROUGHNESS <= lobe <= 1:
            _checks.fail(ValueError, name, "roughness", f"lie in [{MINIMUM_ROUGHNESS}, 1]", str(lobe))
    for side in sides:
        if isinstance(side, bool) or not isinstance(side, int):
            _checks.fail(TypeError, name, "size", "be an int", type(side).__name__)
        if not 1 <= side <= 8192:
            _checks.fail(ValueError, name, "size", "lie in [1, 8192]", str(side))

    shared = texels.dim() == 4
    energies = _energies(texels[None] if shared else texels)
    results = []
    for lobe, side in zip(lobes, sides, strict=True):
        values = _filter(energies, lobe, side, next(value for least, value in _TOLERANCES if side >= least))
        results.append(values[0] if shared else values)
    return results[0] if single else tuple(results)


class _Energies(NamedTuple):
    """Environment as the kernels read it."""

    pyramid: Tensor  # (B, N, C) radiance times solid angle, level by level
    nodes: Tensor  # (N / 6, 4) unit directions in the frame of a face, and solid angles
    size: int  # side of the finest level
    levels: int


def _filter(energies: _Energies, roughness: float, size: int, tolerance: float) -> Tensor:
    return apply(_Prefilter, *energies, size, float(roughness) ** 4, tolerance)[0]


def _energies(environment: Tensor) -> _Energies:
    size = environment.shape[2]
    nodes = table(_nodes, size, like=environment)
    levels = [environment * nodes[: size * size, 3].view(size, size, 1)]
    while levels[-1].shape[2] % 2 == 0:
        levels.append(halve_sums(levels[-1]))
    return _Energies(torch.cat([level.flatten(1, 3) for level in levels], 1), nodes, size, len(levels))


@constant_when_compiled
def _nodes(size: int) -> Tensor:
    """(N / 6, 4) float64: all levels of a face, unit directions in its frame and solid angles."""
    levels = [cube_texels(size)[1][None, ..., None]]
    while levels[-1].shape[2] % 2 == 0:
        levels.append(halve_sums(levels[-1]))
    rows = []
    for level in levels:
        side = level.shape[2]
        center = (2 * torch.arange(side, dtype=torch.float64) + 1) / side - 1
        t, s = torch.meshgrid(center, center, indexing="ij")
        vectors = torch.stack([s, t, torch.ones_like(s)], -1)
        rows.append(torch.cat([vectors / vectors.norm(dim=-1, keepdim=True), level[0, 0]], -1).view(-1, 4))
    return torch.cat(rows)


class _Prefilter(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(pyramid, nodes, size, levels, resolution, alpha_squared, tolerance):
        return torch.ops.diffrender.prefilter_environment(
            pyramid, nodes, size, levels, resolution, alpha_squared, tolerance, _DRIVER_AUTOMATIC
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, nodes, *ctx.options = inputs
        ctx.save_for_backward(nodes, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        nodes, total = ctx.saved_tensors
        return apply(_PrefilterBackward, grads[0], total, nodes, *ctx.options), *(None,) * 6

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        return apply(_Prefilter, tangents[0], *inputs[1:])[0], None


class _PrefilterBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(grad_values, total, nodes, size, levels, resolution, alpha_squared, tolerance):
        return torch.ops.diffrender.prefilter_environment_backward(
            grad_values, total, nodes, size, levels, alpha_squared, tolerance, scatter_algorithm(grad_values),
            _DRIVER_AUTOMATIC,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])
        ctx.options = inputs[3:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        # The transpose of the transpose.
        return apply(_Prefilter, grads[0], ctx.saved_tensors[0], *ctx.options)[0], *(None,) * 7


@register_fake("prefilter_environment")
def _(pyramid, nodes, size, levels, resolution, alpha_squared, tolerance, driver):
    shape = (6, resolution, resolution)
    return pyramid.new_empty((pyramid.shape[0], *shape, pyramid.shape[2])), pyramid.new_empty(shape)


@register_fake("prefilter_environment_backward")
def _(grad_values, total, nodes, size, levels, alpha_squared, tolerance, scatter, driver):
    texels = sum(6 * (size >> level) ** 2 for level in range(levels))
    return grad_values.new_empty((grad_values.shape[0], texels, grad_values.shape[4]))


register_vmap("prefilter_environment")
register_vmap("prefilter_environment_backward")
