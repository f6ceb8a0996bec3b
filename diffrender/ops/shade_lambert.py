"""Diffuse shading by Lambert's law, all lights of an item in one pass.

    radiance = albedo / pi * sum over the lights of irradiance * max(n . l, 0)    (+ albedo * radiance of ambient
    lights)

Not handled: shadows, and light from one surface to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import _checks
from ._shade import Lights, check_arguments, register, shade, split_lights


def shade_lambert(
    positions: Tensor,
    normals: Tensor,
    albedo: Tensor | float,
    lights: Lights,
    *,
    camera_position: Tensor | Sequence[float] | None = None,
    view_directions: Tensor | None = None,
    geometric_normals: Tensor | None = None,
    mask: Tensor | None = None,
    two_sided: bool = True,
    leak: float = 0.0,
) -> Tensor:
    """Radiance of a diffuse surface.

    Maps are pictures (B, H, W, C), or (H, W, C) shared by the batch; or constants, (B, C) one vector per item or (C,)
    one for all. Constants are never expanded, and their gradient has their own shape. All in the space of the lights
    (world).

    Args:
        positions: map of 3 channels, points of the surface.
        normals: map of 3 channels, of any length: they are made unit length here. A zero normal gives 0.
        albedo: map of 3 channels, linear; or a number.
        lights: lights, or their packed table (`dr.pack_lights`), of any mix of types; each shared or with its own
            batch. An `EnvironmentLight` adds albedo / pi times its irradiance.
        camera_position: (B, 3), (3,) or a map: where the viewer is. Needed for two-sided shading only.
        view_directions: in its place, directions to the viewer, of any length: a constant for orthographic cameras.
        geometric_normals: map that decides which side is seen; default `normals`.
        mask: (B, H, W) bool, or the `triangle_id` of fragments: pixels that are False or negative are not shaded. They
            give
            0 and no gradient, whatever their maps hold (NaN included).
        two_sided: normals are turned to the viewer's side where the geometric normal looks away from it. The sign is a
            constant for the gradient. False shades the side of the normal only, the other one is dark.
        leak: for optimisation: the share of the gradient of n . l that also passes where a surface faces away from a
            light, so that a face lit from behind can turn. The value stays exact; with 0 the gradient is, too.

    Returns:
        (B, H, W, 3) linear radiance, not clamped.

    Gradients: exact to positions, normals, albedo, lights, camera_position and view_directions (with leak 0). A cosine
        of exactly 0 counts as dark. Second derivatives raise NotImplementedError.
    Memory: saves its inputs, nothing per light.

    Raises:
        TypeError, ValueError: a wrong type, shape, size or device; two_sided without a viewer.

    Example:
        >>> normals = torch.tensor([0.0, 0.0, 1.0]).expand(1, 4, 4, 3)
        >>> sun = dr.DirectionalLight((0.0, 0.0, -1.0))
        >>> image = dr.shade_lambert(torch.zeros(1, 4, 4, 3), normals, 0.5, sun, camera_position=(0.0, 0.0, 2.0))
        >>> [round(value, 4) for value in image[0, 0, 0].tolist()]
        [0.5, 0.5, 0.5]
    """
    if not 0 <= leak <= 1:
        _checks.fail(ValueError, "shade_lambert", "leak", "lie in [0, 1]", str(leak))
    lights, enclosing = split_lights(lights)
    arguments = check_arguments(
        "shade_lambert",
        positions,
        normals,
        {"albedo": (albedo, 3)},
        lights,
        camera_position=camera_position,
        view_directions=view_directions,
        geometric_normals=geometric_normals,
        mask=mask,
        two_sided=two_sided,
        needs_view=False,
    )
    radiance = shade("shade_lambert", arguments, (float(leak),))
    for light in enclosing:
        radiance = radiance + light.reflect_lambert(arguments)
    return radiance


register("shade_lambert", material=1, options=1)
