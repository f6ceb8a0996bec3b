"""glTF 2.0 metallic-roughness shading (GGX), all lights of an item in one pass.

    radiance = sum over the lights of irradiance * n.l * ((1 - m) (1 - Fd) c / pi + D V F)    (+ c * ambient radiance)

with a = roughness^2 in the GGX distribution D and in the height-correlated Smith term V, and Schlick's Fresnel F from
F0 = 0.04 (1 - m) + c m. Fd is the Fresnel term of the dielectric, so this is glTF's mix of a dielectric and a metal,
not the often copied form with one F for both parts. Formulas and derivatives are in csrc/shade_metallic_roughness.h.

Not handled: shadows, light from one surface to another, light between the microfacets (but see `multi_scatter`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _checks
from ..geometry.normals import safe_normalize
from ._shade import Lights, ShadeArguments, check_arguments, register, shade, split_lights
from .split_sum import reflected_share

MINIMUM_ROUGHNESS = 0.045


def shade_metallic_roughness(
    positions: Tensor,
    normals: Tensor,
    albedo: Tensor | float,
    metallic: Tensor | float,
    roughness: Tensor | float,
    lights: Lights,
    *,
    camera_position: Tensor | Sequence[float] | None = None,
    view_directions: Tensor | None = None,
    geometric_normals: Tensor | None = None,
    mask: Tensor | None = None,
    two_sided: bool = True,
    minimum_roughness: float = MINIMUM_ROUGHNESS,
    diffuse_fresnel: bool = True,
    multi_scatter: bool = False,
) -> Tensor:
    """Radiance of a glTF metallic-roughness surface.

    Maps are pictures (B, H, W, C), or (H, W, C) shared by the batch; or constants, (B, C) one vector per item or (C,)
    one for all. Constants are never expanded, and their gradient has their own shape. All in the space of the lights
    (world).

    Args:
        positions: map of 3 channels, points of the surface.
        normals: map of 3 channels, of any length: they are made unit length here. A zero normal gives 0.
        albedo: map of 3 channels, linear base color; or a number.
        metallic: map of 1 channel in [0, 1]; or a number.
        roughness: map of 1 channel in [0, 1], perceptual (its square is the width of the highlight); or a number.
        lights: lights, or their packed table (`dr.pack_lights`), of any mix of types; each shared or with its own
            batch. Ambient lights add albedo * color; an `EnvironmentLight` adds what `light.shade` gives.
        camera_position: (B, 3), (3,) or a map: where the viewer is.
        view_directions: in its place, directions to the viewer, of any length: a constant for orthographic cameras.
        geometric_normals: map that decides which side is seen; default `normals`.
        mask: (B, H, W) bool, or the `triangle_id` of fragments: pixels that are False or negative are not shaded. They
            give
            0 and no gradient, whatever their maps hold (NaN included).
        two_sided: normals are turned to the viewer's side where the geometric normal looks away from it. The sign is a
            constant for the gradient.
        minimum_roughness: smaller values count as this one. A roughness below it has no gradient and stays there for
            ever if it is optimised: optimise `roughness_from_unbounded(x)` instead, or clamp the tensor in place after
            the step.
        diffuse_fresnel: False leaves the factor (1 - Fd) out of the diffuse part, to match tools that do so.
        multi_scatter: adds the energy that single scattering loses on rough surfaces, F D V (1 + F0 (1 / E - 1)) with
            the albedo E(n.v, roughness) of a white metal, so that one is white in a white environment at any roughness.
            Off in glTF. It keeps some pictures of one channel for the backward pass.

    Returns:
        (B, H, W, 3) linear radiance, not clamped. Lights reach a point only where n.l > 0 and n.v > 0.

    Gradients: exact to positions, normals, albedo, metallic, roughness, lights, camera_position and view_directions.
        Cosines of exactly 0 count as dark. Second derivatives raise NotImplementedError.
    Memory: saves its inputs, nothing per light.

    Raises:
        TypeError, ValueError: a wrong type, shape, size or device; no viewer.

    Example:
        >>> normals = torch.tensor([0.0, 0.0, 1.0]).expand(1, 4, 4, 3)
        >>> sun = dr.DirectionalLight((0.0, 0.0, -1.0))
        >>> image = dr.shade_metallic_roughness(
        ...     torch.zeros(1, 4, 4, 3), normals, 0.5, 0.0, 1.0, sun, camera_position=(0.0, 0.0, 2.0)
        ... )
        >>> [round(value, 4) for value in image[0, 0, 0].tolist()]
        [0.49, 0.49, 0.49]
    """
    name = "shade_metallic_roughness"
    if not 0 < minimum_roughness <= 1:
        _checks.fail(ValueError, name, "minimum_roughness", "lie in (0, 1]", str(minimum_roughness))
    lights, enclosing = split_lights(lights)
    arguments = check_arguments(
        name,
        positions,
        normals,
        {"albedo": (albedo, 3), "metallic": (metallic, 1), "roughness": (roughness, 1)},
        lights,
        camera_position=camera_position,
        view_directions=view_directions,
        geometric_normals=geometric_normals,
        mask=mask,
        two_sided=two_sided,
        needs_view=True,
    )
    around = [light.reflect_metallic_roughness(arguments, diffuse_fresnel, multi_scatter) for light in enclosing]
    like = arguments.positions
    energy = _lost_energy(arguments, minimum_roughness) if multi_scatter else like.new_zeros(1, 1, 1, 1)
    arguments.material.append(energy)
    radiance = shade(name, arguments, (float(minimum_roughness), bool(diffuse_fresnel)))
    for share in around:
        radiance = radiance + share
    return radiance


def roughness_from_unbounded(values: Tensor, *, minimum: float = MINIMUM_ROUGHNESS) -> Tensor:
    """Roughness in (minimum, 1) from numbers of any size: minimum + (1 - minimum) * sigmoid(values).

    A roughness that is optimised directly gets stuck below the bound of the shading op, where its gradient is zero.
    This one always has a gradient.

    Example:
        >>> [round(r, 4) for r in roughness_from_unbounded(torch.tensor([-100.0, 0.0, 100.0])).tolist()]
        [0.045, 0.5225, 1.0]
    """
    return minimum + (1 - minimum) * torch.sigmoid(values)


def unbounded_from_roughness(roughness: Tensor, *, minimum: float = MINIMUM_ROUGHNESS) -> Tensor:
    """Where to start: the inverse of `roughness_from_unbounded`, for roughness strictly between minimum and 1.

    Example:
        >>> values = unbounded_from_roughness(torch.tensor([0.2, 0.9]))
        >>> [round(r, 4) for r in roughness_from_unbounded(values).tolist()]
        [0.2, 0.9]
    """
    return torch.logit((roughness - minimum) / (1 - minimum))


# --- energy lost by single scattering -------------------------------------------------------------


def _lost_energy(arguments: ShadeArguments, minimum_roughness: float) -> Tensor:
    """1 / E - 1 at every pixel, (B, H, W, 1), by a bicubic look-up, which has a continuous gradient."""
    positions, normals, view = arguments.positions, arguments.normals, arguments.view
    assert view is not None
    if arguments.triangle_id is not None:
        # Whatever stands on the background would come back as NaN from the backward pass.
        inside = (arguments.triangle_id >= 0)[..., None]
        positions, normals = torch.where(inside, positions, 0), torch.where(inside, normals, 1)
        view = torch.where(inside, view, 2)
    to_viewer = safe_normalize(view if arguments.view_is_direction else view - positions)
    normal = safe_normalize(normals)
    cosine = (normal * to_viewer).sum(-1, keepdim=True)
    if arguments.two_sided:
        facing = normal if arguments.geometric_normals is None else arguments.geometric_normals
        away = (facing * to_viewer).sum(-1, keepdim=True) < 0
        cosine = torch.where(away, -cosine, cosine)
    roughness = arguments.material[2].clamp(minimum_roughness, 1)
    if arguments.triangle_id is not None:
        roughness = torch.where(inside, roughness, 1)
    scale, bias, _ = reflected_share(cosine, roughness)[..., 0, :].split(1, -1)
    return 1 / (scale + bias) - 1


register("shade_metallic_roughness", material=4, options=2)
