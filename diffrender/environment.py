"""Light from an environment: a trainable cube map or panorama, by the split-sum approximation (Karis 2013).

    radiance = (1 - m) c (1 - Fd) E(n) / pi + P(r, roughness) (F0 scale + bias),   F0 = 0.04 (1 - m) + c m

E is the irradiance at the normal, P the environment filtered with the GGX lobe around the reflection r = 2 (n.v) n - v,
scale and bias as in `dr.split_sum`, and Fd the mean Fresnel reflectance of a dielectric under even light. For a
constant environment this is the integral of `shade_metallic_roughness` over all lights. For others the lobe is taken to
be that of a view along the normal: exact for a mirror, within a few percent where the environment is smooth over the
lobe, and wrong in shape for rough surfaces at grazing view (docs/shading.md has figures).

Plain torch around `prefilter_environment`, `texture_cube` and the table of `split_sum`.

Not handled: shadows and light from one surface to another (but see `occlusion`); anti-aliasing of a mirror's picture.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from diffrender import _checks
from diffrender._constants import constant
from diffrender.geometry.normals import safe_normalize
from diffrender.io.images import load_image
from diffrender.lights import EnclosingLight
from diffrender.ops._shade import ShadeArguments, check_arguments
from diffrender.ops.build_mips import last_level
from diffrender.ops.cube_from_lat_long import cube_from_lat_long
from diffrender.ops.prefilter_environment import prefilter_environment
from diffrender.ops.split_sum import reflected_share
from diffrender.ops.texture_cube import texture_cube

# The roughest level has faces of at least so many texels.
_LEAST_SIZE = 8
# n.v is bounded from below, where the normal of a map looks away from the viewer.
_LEAST_COSINE = 1e-4


class PrefilteredEnvironment(NamedTuple):
    """What a surface sees of an environment: cubes (6, S, S, C) or (B, 6, S, S, C).

    Attributes:
        mirror: the environment itself.
        levels: filtered for roughness k / K, k = 1 ... K, each half the size of the one before.
        diffuse: irradiance / pi.
    """

    mirror: Tensor
    levels: tuple[Tensor, ...]
    diffuse: Tensor


class EnvironmentLight(EnclosingLight, torch.nn.Module):
    """Light that arrives from all around, from far away.

    Use it by itself (`light.shade(...)`), or among the lights of `shade_metallic_roughness` and `shade_lambert`.

    Args:
        map: linear radiance; a cube map (6, S, S, 3) or (B, 6, S, S, 3), faces as in `texture_cube`, or a panorama
            (H, W, 3) or (B, H, W, 3) as in `cube_from_lat_long`. A `torch.nn.Parameter` is a parameter of the module;
            any other tensor is a buffer, and may be the result of other operations (`light.map = log_map.exp()`).
        intensity: factor of the radiance, number or tensor (3,) or (B, 3); may be a Parameter too.
        world_from_light: rotation (3, 3) or (B, 3, 3) from the axes of the map to the world's; None for the same axes.
        size: side of the cube that a panorama is resampled to, see `cube_from_lat_long`.
        levels: number of roughness levels, the mirror included; default as many as end at faces of 8 texels (6 for a
            side of 256).
        diffuse_size: side of the cube of irradiance.

    The filtered maps are kept as long as the map does not change: a new tensor or a change in place is noticed, except
    one through `.data` or NumPy, after which `refresh()` is needed. While the map gets a gradient they are made anew at
    every call of a shading op, and once at every call of a `Renderer`; pass `prefiltered=light.prefilter()` to share
    them between calls.

    Raises:
        TypeError, ValueError: a wrong type or shape.

    Example:
        >>> light = dr.EnvironmentLight(torch.nn.Parameter(torch.full((16, 32, 3), 0.5)), size=16)
        >>> normals = torch.tensor([0.0, 0.0, 1.0]).expand(1, 4, 4, 3)
        >>> image = light.shade(torch.zeros(1, 4, 4, 3), normals, 0.8, 0.0, 0.5, camera_position=(0.0, 0.0, 2.0))
        >>> [round(value, 3) for value in image[0, 0, 0].tolist()]
        [0.402, 0.402, 0.402]
    """

    map: Tensor
    intensity: Tensor
    world_from_light: Tensor

    def __init__(
        self,
        map: Tensor,
        *,
        intensity: Tensor | float | Sequence[float] = 1.0,
        world_from_light: Tensor | None = None,
        size: int | None = None,
        levels: int | None = None,
        diffuse_size: int = 32,
    ):
        super().__init__()
        name = type(self).__name__
        values = _checks.check_floating(name, "map", map)
        _check_map(values)
        if world_from_light is None:
            world_from_light = torch.eye(3, dtype=values.dtype, device=values.device)
        if not isinstance(intensity, Tensor):
            intensity = constant(intensity, values)
        if levels is not None and levels < 1:
            _checks.fail(ValueError, name, "levels", "be at least 1", str(levels))
        if tuple(world_from_light.shape[-2:]) != (3, 3):
            expected = "have shape (3, 3) or (B, 3, 3)"
            _checks.fail(ValueError, name, "world_from_light", expected, _checks.shape_text(world_from_light))
        self.size, self.levels, self.diffuse_size = size, levels, diffuse_size
        tensors = {"map": map, "intensity": intensity, "world_from_light": world_from_light}
        for key, tensor in tensors.items():
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(key, tensor)
            else:
                self.register_buffer(key, tensor)
        self._kept: dict[str, tuple[tuple, Any]] = {}

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Any) -> EnvironmentLight:
        """From a panorama, .exr or .hdr (or another picture); options as of the class.

        Raises:
            ValueError, FileNotFoundError, ImportError: as `dr.io.load_image`.
        """
        pixels = load_image(path)
        return cls(pixels[..., :3] if pixels.shape[-1] > 3 else pixels, **options)

    # --- what of the map is kept ------------------------------------------------------------------

    def refresh(self) -> None:
        """Forgets the filtered maps: for changes that a tensor does not notice."""
        self._kept = {}

    def prefilter(self) -> PrefilteredEnvironment:
        """The filtered maps, from the map as it is now or as kept; differentiable to the map."""
        return self._keep("prefiltered", self._filtered)

    def cube(self) -> Tensor:
        """The map as a cube map (without intensity), (6, S, S, C) or (B, 6, S, S, C)."""
        return self._keep("cube", self._as_cube)

    def _as_cube(self) -> Tensor:
        _check_map(self.map)
        return self.map if _is_cube(self.map) else cube_from_lat_long(self.map, self.size)

    def _filtered(self) -> PrefilteredEnvironment:
        cube = self.cube()
        side = cube.shape[-2]
        count = self.levels
        if count is None:
            count = max(2, 1 + int(math.log2(max(side / _LEAST_SIZE, 1))))
        last = min(count - 1, last_level("EnvironmentLight", side, side, None))
        roughness = [k / last for k in range(1, last + 1)] + [1.0]
        sizes = [side >> k for k in range(1, last + 1)] + [self.diffuse_size]
        *levels, diffuse = prefilter_environment(cube, roughness, sizes)
        return PrefilteredEnvironment(cube, tuple(levels), diffuse)

    def _keep(self, name: str, make: Any) -> Any:
        if torch.compiler.is_compiling() or (self.map.requires_grad and torch.is_grad_enabled()):
            return make()
        # What is made in inference mode could not be saved for a backward pass later.
        if torch.is_inference_mode_enabled() or self.map.is_inference() or _is_abstract(self.map):
            return make()
        # The tensor itself, not its id: an id may come back.
        state = (self.map._version, self.map.data_ptr(), self.map.shape, self.map.dtype, self.map.device)
        state = (*state, self.size, self.levels, self.diffuse_size)
        kept = self._kept.get(name)
        if kept is None or kept[0][0] is not self.map or kept[0][1:] != state:
            with torch.no_grad():
                kept = ((self.map, *state), make())
            self._kept[name] = kept
        return kept[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    # --- light ------------------------------------------------------------------------------------

    def radiance(self, directions: Tensor) -> Tensor:
        """What is seen in world directions, (B, H, W, 3) or (H, W, 3) of any length: the background of a picture.

        Gradients: exact to directions, map, intensity and rotation.
        """
        return self._radiance(self.cube(), directions)

    def _radiance(self, cube: Tensor, directions: Tensor) -> Tensor:
        return self._scaled(texture_cube(cube, self._to_light(directions)))

    def irradiance(self, normals: Tensor, *, prefiltered: PrefilteredEnvironment | None = None) -> Tensor:
        """Irradiance at world normals, (B, H, W, 3) or (H, W, 3); a diffuse surface reflects albedo / pi of it."""
        filtered = self.prefilter() if prefiltered is None else prefiltered
        return math.pi * self._scaled(texture_cube(filtered.diffuse, self._to_light(normals)))

    def shade(
        self,
        positions: Tensor,
        normals: Tensor,
        albedo: Tensor | float,
        metallic: Tensor | float,
        roughness: Tensor | float,
        *,
        camera_position: Tensor | Sequence[float] | None = None,
        view_directions: Tensor | None = None,
        geometric_normals: Tensor | None = None,
        mask: Tensor | None = None,
        two_sided: bool = True,
        occlusion: Tensor | float = 1.0,
        diffuse_fresnel: bool = True,
        multi_scatter: bool = False,
        prefiltered: PrefilteredEnvironment | None = None,
    ) -> Tensor:
        """Radiance that a glTF metallic-roughness surface reflects from the environment.

        Args:
            positions, normals, albedo, metallic, roughness, camera_position, view_directions, geometric_normals, mask,
                two_sided, diffuse_fresnel, multi_scatter: as in `shade_metallic_roughness`. There is no least
                roughness: 0 is a mirror. Where a normal looks away from a viewer who sees the front side, it counts as
                grazing.
            occlusion: map of 1 channel or a number that scales the result: how open the surface is.
            prefiltered: maps made before by `prefilter()`, so that several calls share them.

        Returns:
            (B, H, W, 3) linear radiance, not clamped.

        Gradients: exact to the map, intensity, rotation, positions, normals, camera_position, view_directions, albedo,
            metallic, roughness and occlusion. Roughness beyond [0, 1] counts as the bound and has none. Second
            derivatives raise NotImplementedError.
        Memory: saves a dozen pictures of the size of the result, besides the filtered maps.

        Raises:
            TypeError, ValueError: as `shade_metallic_roughness`.
        """
        material = {"albedo": (albedo, 3), "metallic": (metallic, 1), "roughness": (roughness, 1)}
        arguments = check_arguments(
            "EnvironmentLight", positions, normals, {**material, "occlusion": (occlusion, 1)}, [],
            camera_position=camera_position, view_directions=view_directions, geometric_normals=geometric_normals,
            mask=mask, two_sided=two_sided, needs_view=True,
        )  # fmt: skip
        return self._reflect(arguments, diffuse_fresnel, multi_scatter, prefiltered)

    forward = shade

    def reflect_metallic_roughness(
        self, arguments: ShadeArguments, diffuse_fresnel: bool, multi_scatter: bool
    ) -> Tensor:
        """The share of this light in `shade_metallic_roughness`."""
        return self._reflect(arguments, diffuse_fresnel, multi_scatter, None)

    def reflect_lambert(self, arguments: ShadeArguments) -> Tensor:
        """The share of this light in `shade_lambert`: albedo / pi times irradiance."""
        return self._reflect_lambert(arguments, self.prefilter())

    def prepared(self) -> EnclosingLight:
        """This light with the maps that `prefilter` makes now, for several calls of the shading ops."""
        return _Prepared(self, self.prefilter())

    def _reflect_lambert(self, arguments: ShadeArguments, filtered: PrefilteredEnvironment) -> Tensor:
        frame = _Frame.of(arguments)
        light = self._scaled(texture_cube(filtered.diffuse, self._to_light(frame.normal)))
        return torch.where(frame.is_lit, frame.select(arguments.material[0], 0.0) * light, 0.0)

    def _reflect(
        self,
        arguments: ShadeArguments,
        diffuse_fresnel: bool,
        multi_scatter: bool,
        prefiltered: PrefilteredEnvironment | None,
    ) -> Tensor:
        frame = _Frame.of(arguments)
        albedo, metallic, roughness, *rest = (frame.select(value, 0.5) for value in arguments.material)
        filtered = self.prefilter() if prefiltered is None else prefiltered
        _checks.check_same_type("EnvironmentLight", "positions", arguments.positions, "map", filtered.mirror)

        normal, to_viewer = frame.normal, frame.to_viewer
        cosine = (normal * to_viewer).sum(-1, keepdim=True)
        reflected = self._to_light(2 * cosine * normal - to_viewer)
        level = (roughness.clamp(0, 1) * len(filtered.levels)).expand(*reflected.shape[:3], 1)[..., 0]
        mirrored = texture_cube(filtered.mirror, reflected, level=level, mips=filtered.levels)
        diffuse = texture_cube(filtered.diffuse, self._to_light(normal))

        scale, bias, loss = reflected_share(cosine.clamp(_LEAST_COSINE, 1), roughness)[..., 0, :].split(1, -1)
        base = 0.04 * (1 - metallic) + albedo * metallic
        specular = base * scale + bias
        if multi_scatter:
            specular = specular * (1 + base * (1 / (scale + bias) - 1))
        kept = 0.96 * (1 - loss) if diffuse_fresnel else 1.0
        radiance = self._scaled((1 - metallic) * albedo * kept * diffuse + specular * mirrored)
        for occlusion in rest:
            radiance = radiance * occlusion
        return torch.where(frame.is_lit, radiance, 0.0)

    def _to_light(self, directions: Tensor) -> Tensor:
        """World directions in the axes of the map: the inverse of a rotation is its transpose."""
        rotation = self.world_from_light
        if rotation.dim() == 3:
            rotation = rotation[:, None]
            directions = directions if directions.dim() == 4 else directions[None]
        # No matmul, which would be in half precision under autocast.
        x, y, z = directions.split(1, -1)
        turned = x * rotation[..., 0:1, :] + y * rotation[..., 1:2, :] + z * rotation[..., 2:3, :]
        if rotation.dim() == 2:
            turned = turned.reshape(directions.shape)
        # A batch of maps looks at one picture.
        batch = self.map.shape[0] if self.map.dim() == (5 if _is_cube(self.map) else 4) else 1
        if batch != 1 and (turned.dim() == 3 or turned.shape[0] == 1):
            turned = turned.expand(batch, *turned.shape[-3:])
        return turned

    def _scaled(self, radiance: Tensor) -> Tensor:
        intensity = self.intensity
        return radiance * (intensity[:, None, None] if intensity.dim() == 2 else intensity)


class _Prepared(EnclosingLight):
    """An environment together with its filtered maps."""

    def __init__(self, light: EnvironmentLight, filtered: PrefilteredEnvironment):
        self.light, self.filtered = light, filtered

    def radiance(self, directions: Tensor) -> Tensor:
        return self.light._radiance(self.filtered.mirror, directions)

    def reflect_lambert(self, arguments: ShadeArguments) -> Tensor:
        return self.light._reflect_lambert(arguments, self.filtered)

    def reflect_metallic_roughness(
        self, arguments: ShadeArguments, diffuse_fresnel: bool, multi_scatter: bool
    ) -> Tensor:
        return self.light._reflect(arguments, diffuse_fresnel, multi_scatter, self.filtered)


class _Frame(NamedTuple):
    """Normal and view of every pixel, turned to the viewer's side; harmless where nothing is to be shaded."""

    normal: Tensor  # (B, H, W, 3)
    to_viewer: Tensor  # (B, H, W, 3), of length zero where there is no viewer
    is_lit: Tensor  # (B, H, W, 1) bool
    inside: Tensor | None  # (B, H, W, 1) bool

    @staticmethod
    def of(arguments: ShadeArguments) -> _Frame:
        a = arguments
        inside = None if a.triangle_id is None else (a.triangle_id >= 0)[..., None]

        def chosen(value: Tensor, other: float) -> Tensor:
            return value if inside is None else torch.where(inside, value, other)

        normal = safe_normalize(chosen(a.normals, 1.0))
        is_lit = (normal.detach() != 0).any(-1, keepdim=True)
        if a.view is None:
            to_viewer = torch.zeros_like(normal)
        else:
            view = chosen(a.view, 2.0)
            to_viewer = safe_normalize(view if a.view_is_direction else view - chosen(a.positions, 0.0))
            facing = normal if a.geometric_normals is None else chosen(a.geometric_normals, 1.0)
            side = (facing * to_viewer).sum(-1, keepdim=True).detach()
            if a.two_sided:
                normal = torch.where(side < 0, -normal, normal)
            else:
                is_lit = is_lit & (side > 0)
            is_lit = is_lit & (to_viewer.detach() != 0).any(-1, keepdim=True)
        shapes = [x.shape[:3] for x in (normal, to_viewer, a.positions, *a.material)]
        shape = _checks.broadcast_shapes(*shapes, *([] if inside is None else [inside.shape[:3]]))
        is_lit = is_lit if inside is None else is_lit & inside
        normal, to_viewer = normal.expand(*shape, 3), to_viewer.expand(*shape, 3)
        return _Frame(normal, to_viewer, is_lit.expand(*shape, 1), inside)

    def select(self, value: Tensor, other: float) -> Tensor:
        return value if self.inside is None else torch.where(self.inside, value, other)


def _is_cube(map: Tensor) -> bool:
    return map.dim() in (4, 5) and map.shape[-4] == 6 and map.shape[-3] == map.shape[-2]


def _check_map(map: Tensor) -> None:
    if map.shape[-1] != 3 or not (_is_cube(map) or map.dim() in (3, 4)):
        expected = "have shape (6, S, S, 3) or (B, 6, S, S, 3), or (H, W, 3) or (B, H, W, 3)"
        _checks.fail(ValueError, "EnvironmentLight", "map", expected, _checks.shape_text(map))


def _is_abstract(tensor: Tensor) -> bool:
    """Without a value of its own: inside functorch transforms, on meta."""
    return is_functorch_wrapped_tensor(tensor) or tensor.is_meta
