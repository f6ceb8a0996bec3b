"""Blinn-Phong shading, all lights of an item in one pass.

    radiance = sum over the lights of irradiance * n.l * (c / pi + ks (s + 8) / (8 pi) (n.h)^s)    (+ c * ambient
    radiance)

with the unit vector h halfway between the directions to the light and to the viewer. The factor (s + 8) / (8 pi) is the
common normalisation, which keeps the energy of a highlight about constant as the shininess s changes.

Not handled: shadows, light from one surface to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import _checks
from ._shade import Lights, check_arguments, register, shade, split_lights


def shade_blinn_phong(
    positions: Tensor,
    normals: Tensor,
    albedo: Tensor | float,
    specular: Tensor | float,
    shininess: Tensor | float,
    lights: Lights,
    *,
    camera_position: Tensor | Sequence[float] | None = None,
    view_directions: Tensor | None = None,
    geometric_normals: Tensor | None = None,
    mask: Tensor | None = None,
    two_sided: bool = True,
) -> Tensor:
    """Radiance of a Blinn-Phong surface.

    Maps are pictures (B, H, W, C), or (H, W, C) shared by the batch; or constants, (B, C) one vector per item or (C,)
    one for all. Constants are never expanded, and their gradient has their own shape. All in the space of the lights
    (world).

    Args:
        positions: map of 3 channels, points of the surface.
        normals: map of 3 channels, of any length: they are made unit length here. A zero normal gives 0.
        albedo: map of 3 channels, linear diffuse color; or a number.
        specular: map of 3 channels, linear color of the highlight; or a number.
        shininess: map of 1 channel, at least 1 (smaller values count as 1, without a gradient below); or a number.
        lights: lights, or their packed table (`dr.pack_lights`), of any mix of types; each shared or with its own
            batch. Ambient lights add albedo * color.
        camera_position: (B, 3), (3,) or a map: where the viewer is.
        view_directions: in its place, directions to the viewer, of any length: a constant for orthographic cameras.
        geometric_normals: map that decides which side is seen; default `normals`.
        mask: (B, H, W) bool, or the `triangle_id` of fragments: pixels that are False or negative are not shaded. They
            give
            0 and no gradient, whatever their maps hold (NaN included).
        two_sided: normals are turned to the viewer's side where the geometric normal looks away from it. The sign is a
            constant for the gradient.

    Returns:
        (B, H, W, 3) linear radiance, not clamped.

    Gradients: exact to all maps, lights, camera_position and view_directions. Cosines of exactly 0 count as dark.
        Second derivatives raise NotImplementedError.
    Memory: saves its inputs, nothing per light.

    Raises:
        TypeError, ValueError: a wrong type, shape, size or device; no viewer.

    Example:
        >>> normals = torch.tensor([0.0, 0.0, 1.0]).expand(1, 4, 4, 3)
        >>> sun = dr.DirectionalLight((0.0, 0.0, -1.0))
        >>> image = dr.shade_blinn_phong(
        ...     torch.zeros(1, 4, 4, 3), normals, 0.5, 0.1, 32.0, sun, camera_position=(0.0, 0.0, 2.0)
        ... )
        >>> [round(value, 4) for value in image[0, 0, 0].tolist()]
        [1.0, 1.0, 1.0]
    """
    lights, enclosing = split_lights(lights)
    if enclosing:
        expected = "be made of lights with a direction or a position"
        hint = "shade_metallic_roughness and shade_lambert take environments."
        _checks.fail(ValueError, "shade_blinn_phong", "lights", expected, "an environment", hint)
    arguments = check_arguments(
        "shade_blinn_phong",
        positions,
        normals,
        {"albedo": (albedo, 3), "specular": (specular, 3), "shininess": (shininess, 1)},
        lights,
        camera_position=camera_position,
        view_directions=view_directions,
        geometric_normals=geometric_normals,
        mask=mask,
        two_sided=two_sided,
        needs_view=True,
    )
    return shade("shade_blinn_phong", arguments)


register("shade_blinn_phong", material=3, options=0)
