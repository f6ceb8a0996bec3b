"""What surfaces look like at the pixels of given fragments: geometry, material, light. The renderer's middle part.

    fragments -> positions, normals, texcoords -> material -> bent normals -> radiance

Plain composition of the stages, for any picture of fragments: all rows, a band of them, or a list (`coverage`), whose
results are pictures of one row. Nothing here depends on neighbouring pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._constants import constant
from .camera import Camera
from .geometry.mesh import Mesh
from .geometry.normals import safe_normalize
from .lights import AmbientLight, EnclosingLight, Light, PackedLights, pack_lights
from .materials import Material
from .ops.coverage import Coverage
from .ops.interpolate import interpolate
from .ops.perturb_normals import perturb_normals
from .ops.rasterize import Fragments
from .ops.shade_metallic_roughness import shade_metallic_roughness

# Properties of a material that are pictures or constants at the pixels.
_PROPERTIES = ("albedo", "metallic", "roughness", "emissive", "occlusion", "alpha")


@dataclass
class Surface:
    """A mesh with what its pictures need; nothing of it belongs to a pixel.

    Attributes:
        depth: (V,) or (B, V) distance of the mesh's vertices along the viewing axis.
        lights: what lights the surface; None: colors are shown as they are.
        tangents: of the mesh's vertices with their rows; None: made when they are needed.
        materials: the mesh's. What alpha mode "MASK" keeps is opaque: they hold "OPAQUE" instead.
        cutouts: by its place in the list, of each material of alpha mode "MASK", what decides that: its alpha.
    """

    mesh: Mesh
    camera: Camera
    depth: Tensor
    lights: Sequence[Light | PackedLights | EnclosingLight] | None
    tangents: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        materials = [_material_of(material) for material in self.mesh.materials]
        masked = {k: material for k, material in enumerate(materials) if material.alpha_mode == "MASK"}
        self.materials = [_without_mask(m) if k in masked else m for k, m in enumerate(materials)]
        self.cutouts = {k: _alpha_alone(material) for k, material in masked.items()}
        # Here, and not where they are needed: that may run twice.
        self.light_groups = ([], []) if self.lights is None else self._light_groups(self.lights)

    @property
    def is_transparent(self) -> bool:
        return any(material.alpha_mode == "BLEND" for material in self.materials)

    def needs_derivatives(self, outputs: Sequence[str]) -> bool:
        """Whether `images` reads textures through their mips."""
        return self._needs_material(outputs) and any(_is_textured(material) for material in self.materials)

    def with_shared_values(self, outputs: Sequence[str]) -> Surface:
        """The same for several calls of `images`: with normals and tangents of the vertices and filtered environments.

        The gradients of the calls are summed there, so that the way back to what they are made of is gone once.
        """
        lit = "color" in outputs and self.lights is not None
        mesh, tangents, lights = self.mesh, self.tangents, self.lights
        if mesh.normals is None and (lit or "normal" in outputs):
            mesh = mesh.replace(normals=mesh.vertex_normals(), normal_triangles=mesh.triangles)
        if lit and any(material.normal is not None for material in self.materials):
            tangents = self.mesh.vertex_tangents()
        if lit and lights is not None:
            lights = [light.prepared() if isinstance(light, EnclosingLight) else light for light in lights]
        return replace(self, mesh=mesh, tangents=tangents, lights=lights)

    def _needs_material(self, outputs: Sequence[str]) -> bool:
        return bool(self.materials) and (self.is_transparent or not {"color", "albedo"}.isdisjoint(outputs))

    def needs_derivatives_of_cutouts(self) -> bool:
        """Whether `discarded` reads textures through their mips."""
        return any(_is_textured(material) for material in self.cutouts.values())

    def discarded(self, fragments: Fragments) -> Tensor:
        """(B, H, W) bool: pixels whose surface alpha mode "MASK" discards."""
        ids = fragments.triangle_id
        texcoords = slopes = None
        if self.needs_derivatives_of_cutouts():
            texcoords, slopes = self._texcoords(fragments, with_derivatives=True)
        colors = self.mesh.colors
        factor = None
        if colors is not None and colors.shape[-1] == 4:
            factor = interpolate(colors[..., 3:].detach(), self.mesh.triangles, fragments)
        if len(self.materials) == 1:
            return (ids >= 0) & ~self._passes(0, texcoords, slopes, factor)
        materials = self._material_id(ids)
        result = torch.zeros_like(ids, dtype=torch.bool).unsqueeze(-1)
        for k, material in self.cutouts.items():
            _check_shared(material)
            chosen = materials == k
            texcoords_k, slopes_k, factor_k = _of_pixels(chosen, texcoords, slopes, factor)
            discarded = ~self._passes(k, texcoords_k, slopes_k, factor_k).unsqueeze(-1)
            result = _placed(result, chosen, discarded)
        return result[..., 0]

    def _passes(self, k: int, texcoords: Tensor | None, slopes: Tensor | None, factor: Tensor | None) -> Tensor:
        """Where alpha, the vertices' included, reaches the cutoff: (B, H, W), or of constants () or (B, 1, 1)."""
        material = self.cutouts[k]
        alpha = _over(material.evaluate(texcoords, slopes).alpha)
        return ((alpha if factor is None else alpha * factor) >= material.alpha_cutoff)[..., 0]

    def images(self, fragments: Fragments | Coverage, outputs: Sequence[str]) -> dict[str, Tensor]:
        """The float outputs at the pixel centres, zero on background; and "opacity" if the materials have any."""
        mesh, images = self.mesh, {}
        mask = (_ids(fragments) >= 0).unsqueeze(-1)
        lit = "color" in outputs and self.lights is not None
        positions = normals = texcoords = slopes = None
        if "depth" in outputs:
            # Not from z/w, which loses its digits far away. Clip-space w is 1 without perspective, and the distance
            # from the eye for a fisheye lens.
            images["depth"] = interpolate(self.depth.unsqueeze(-1), mesh.triangles, fragments)
        if "normal" in outputs or lit:
            attributes = mesh.vertex_normals() if mesh.normals is None else mesh.normals
            triangles = mesh.triangles if mesh.normal_triangles is None else mesh.normal_triangles
            normals = interpolate(attributes, triangles, fragments)
            if "normal" in outputs:
                images["normal"] = safe_normalize(normals)
        if "position" in outputs or lit:
            positions = interpolate(mesh.vertices, mesh.triangles, fragments)
            if "position" in outputs:
                images["position"] = positions
        textured = self.needs_derivatives(outputs)
        if "texcoord" in outputs or textured:
            texcoords, slopes = self._texcoords(fragments, textured and isinstance(fragments, Fragments))
            if "texcoord" in outputs:
                images["texcoord"] = texcoords
        colors = None
        has_alpha = self.is_transparent and mesh.colors is not None and mesh.colors.shape[-1] == 4
        if mesh.colors is not None and (has_alpha or not {"color", "albedo"}.isdisjoint(outputs)):
            colors = interpolate(mesh.colors, mesh.triangles, fragments)
        properties = self._properties(fragments, texcoords, slopes) if self._needs_material(outputs) else {}
        albedo = _product(colors, properties.get("albedo"))
        if "albedo" in outputs:
            images["albedo"] = colors if albedo is colors and colors is not None else _picture(albedo, mask, mesh.dtype)
        if "color" in outputs:
            if lit:
                assert positions is not None
                assert normals is not None
                images["color"] = self._lit(fragments, positions, normals, albedo, properties)
            elif albedo is colors and colors is not None:
                images["color"] = colors
            else:
                images["color"] = _picture(albedo, mask, mesh.dtype)
        if self.is_transparent:
            opacity = _picture(properties["alpha"], mask, mesh.dtype, channels=1)
            if has_alpha:
                assert colors is not None
                # Alpha of an opaque material is 1, whatever the vertices say.
                opacity = opacity * self._where_blended(fragments, colors[..., 3:])
            images["opacity"] = opacity
        return images

    def _where_blended(self, fragments: Fragments | Coverage, alpha: Tensor) -> Tensor:
        """Alpha at pixels whose material is of alpha mode "BLEND", 1 elsewhere."""
        if len(self.materials) == 1:
            return alpha
        modes = [float(material.alpha_mode == "BLEND") for material in self.materials]
        blends = constant([*modes, 0.0], alpha)[self._material_id(_ids(fragments))]
        return torch.where(blends.unsqueeze(-1) > 0, alpha, 1)

    def _texcoords(self, fragments: Fragments | Coverage, with_derivatives: bool) -> tuple[Tensor, Tensor | None]:
        mesh = self.mesh
        if mesh.texcoords is None:
            _checks.fail(ValueError, "Renderer", "mesh", "have texcoords for its textures", "none")
        triangles = mesh.triangles if mesh.texcoord_triangles is None else mesh.texcoord_triangles
        if isinstance(fragments, Coverage):
            texcoords = interpolate(mesh.texcoords, triangles, fragments)
            if len(self.materials) == 1:  # textures that differ between items are read for every item, see own_rows
                batches = [value.shape[0] for _, value in self.materials[0].tensors() if value.dim() == 4]
                texcoords = texcoords.expand(max(batches, default=1), -1, -1, -1)
            return texcoords, None
        if not with_derivatives:
            return interpolate(mesh.texcoords, triangles, fragments), None
        return interpolate(mesh.texcoords, triangles, fragments, derivatives="all")

    def _material_id(self, triangle_id: Tensor) -> Tensor:
        """(B, H, W), -1 on background."""
        assert self.mesh.material_ids is not None  # a mesh with several materials has them
        own = self.mesh.material_ids[triangle_id.clamp(min=0).long()]
        return torch.where(triangle_id >= 0, own, -1)

    def _properties(
        self, fragments: Fragments | Coverage, texcoords: Tensor | None, slopes: Tensor | None
    ) -> dict[str, Tensor]:
        """Properties of the material at the pixels, as pictures (B, H, W, C) or constants (C,), (B, C)."""
        if len(self.materials) == 1:
            material = self.materials[0]
            values = _evaluate(material, texcoords, slopes, with_normal=material.normal is not None)
            # Materials made of Python numbers are float32.
            return {name: value.to(self.mesh.dtype) for name, value in values.items()}
        # Each material at its own pixels only.
        ids = self._material_id(_ids(fragments))
        with_normal = any(material.normal is not None for material in self.materials)
        pictures: dict[str, Tensor] = {}
        for k, material in enumerate(self.materials):
            _check_shared(material)
            chosen = ids == k
            texcoords_k, slopes_k = _of_pixels(chosen, texcoords, slopes)
            for name, value in _evaluate(material, texcoords_k, slopes_k, with_normal).items():
                value = value.to(self.mesh.dtype)
                if name not in pictures:
                    pictures[name] = value.new_zeros((*ids.shape, value.shape[-1]))
                pictures[name] = _placed(pictures[name], chosen, value)
        return pictures

    def _lit(
        self,
        fragments: Fragments | Coverage,
        positions: Tensor,
        normals: Tensor,
        albedo: Tensor | None,
        properties: dict,
    ) -> Tensor:
        mask = _ids(fragments)
        viewer = self._viewer(fragments)
        geometric = normals
        if "normal" in properties:
            tangents, rows = self.mesh.vertex_tangents() if self.tangents is None else self.tangents
            eye = viewer.get("camera_position")
            toward = viewer["view_directions"] if eye is None else _over(eye) - positions
            normals = perturb_normals(
                normals, interpolate(tangents, rows, fragments), properties["normal"],
                scale=properties["normal_scale"], view_directions=toward, mask=mask,
            )  # fmt: skip
        if albedo is None:
            albedo = positions.new_ones(3)
        elif albedo.shape[-1] not in (3, 4):
            expected = "have 3 color channels (or 4 with alpha) to be lit"
            _checks.fail(ValueError, "Renderer", "mesh", expected, str(albedo.shape[-1]))

        def shade(lights: list) -> Tensor:
            return shade_metallic_roughness(
                positions, normals, albedo[..., :3], properties.get("metallic", 0.0), properties.get("roughness", 1.0),
                lights, geometric_normals=geometric, mask=mask, **viewer,
            )  # fmt: skip

        direct, around = self.light_groups
        color = shade(direct)
        if around:
            # Occlusion darkens what arrives from everywhere, not what a lamp sends (glTF 2.0, 3.9.3).
            color = color + shade(around) * _over(properties["occlusion"])
        if "emissive" in properties:
            color = color + _over(properties["emissive"]) * (mask >= 0).unsqueeze(-1)
        return color

    def _light_groups(self, lights: Sequence[Any]) -> tuple[list, list]:
        """Lights that occlusion does not darken, and those that it does; without occlusion that is none."""
        is_occluded = any(material.has_occlusion for material in self.materials)

        def group(from_around: bool) -> list:
            chosen = [light for light in lights if (is_occluded and _is_around(light)) == from_around]
            if from_around and not chosen:
                return []
            table = pack_lights([light for light in chosen if not isinstance(light, EnclosingLight)])
            table = table.to(device=self.mesh.device, dtype=self.mesh.dtype)
            enclosing = [light for light in chosen if isinstance(light, EnclosingLight)]
            return [table, *enclosing]

        return group(False), group(True)

    def _viewer(self, fragments: Fragments | Coverage) -> dict[str, Any]:
        """Where the surface is seen from, as the shading ops want it."""
        orthographic = self.camera.projection == "orthographic"
        # An orthographic camera looks along -z from everywhere.
        value = self.camera.camera_from_world[..., 2, :3] if orthographic else self.camera.eye
        if isinstance(fragments, Coverage) and value.dim() == 2:
            value = value.expand(fragments.size[0], 3)[fragments.item][None, None]
        return {"view_directions" if orthographic else "camera_position": value}


def own_rows(values: Tensor, coverage: Coverage) -> Tensor:
    """(1, 1, N, C): of values (B, 1, N, C), which were made of every fragment for every item, those of its own item.

    Lights and materials that differ between items make them so; where all is shared there is one row.
    """
    if values.shape[0] == 1:
        return values
    return values.gather(0, coverage.item.view(1, 1, -1, 1).expand(1, *values.shape[1:]))


def _ids(fragments: Fragments | Coverage) -> Tensor:
    """(B, H, W) triangle_id; of a list (1, 1, N)."""
    return fragments.triangle_id.view(1, 1, -1) if isinstance(fragments, Coverage) else fragments.triangle_id


def _material_of(material: Any) -> Material:
    if material is None:
        return Material()
    if not isinstance(material, Material):
        _checks.fail(TypeError, "Renderer", "mesh.material", "be dr.Material", type(material).__name__)
    return material


def _check_shared(material: Material) -> None:
    for name, value in material.tensors():
        if value.dim() == 2 or (value.dim() == 4 and value.shape[0] > 1):
            expected = "hold materials that the batch shares where there are several"
            _checks.fail(ValueError, "Renderer", "mesh", expected, f"a batched {name}")


# Two ways to evaluate something at chosen pixels only. Where values can be looked at, the pixels are put side by side
# as the row of one picture (1, 1, N, C). How many they are would make the host wait for a GPU: there, and where nothing
# has a value yet, the picture stays whole, and textures are not read where texcoords are NaN.


def _of_pixels(chosen: Tensor, texcoords: Tensor | None, *others: Tensor | None) -> list[Tensor | None]:
    """Pictures (B, H, W, C) at the chosen pixels (B, H, W)."""
    if _checks.can_read(chosen):
        return [None if value is None else value[chosen][None, None] for value in (texcoords, *others)]
    if texcoords is not None:
        texcoords = torch.where(chosen.unsqueeze(-1), texcoords, torch.nan)
    return [texcoords, *others]


def _placed(picture: Tensor, chosen: Tensor, value: Tensor) -> Tensor:
    """A picture with another value at the chosen pixels: constants (C,), or what was made of `_of_pixels`."""
    if not _checks.can_read(chosen):
        return torch.where(chosen.unsqueeze(-1), value, picture)
    rows = value[0, 0] if value.dim() == 4 else value
    return picture.index_put((chosen,), rows.expand(int(chosen.sum()), picture.shape[-1]))


def _without_mask(material: Material) -> Material:
    """A material of alpha mode "MASK" where it is kept."""
    opaque = material.replace(alpha_mode="OPAQUE")
    opaque._frozen = material._frozen  # the next picture finds what is kept of frozen textures there
    return opaque


def _alpha_alone(material: Material) -> Material:
    """A material with the alpha of another and nothing else, cut off from autograd, without the step of "MASK"."""
    albedo = material.albedo.detach() if material.albedo.requires_grad else material.albedo
    alone = Material(
        albedo, albedo_factor=material.albedo_factor.detach(), alpha_mode="BLEND", alpha_cutoff=material.alpha_cutoff,
        wrap=material.wrap,
    )  # fmt: skip
    if albedo is material.albedo:
        alone._frozen = material._frozen_alpha
    else:
        material._frozen_alpha.keep_only(())  # nothing of what is trained
    return alone


def _is_textured(material: Material) -> bool:
    return any(value.dim() >= 3 for _, value in material.tensors())


def _is_around(light: Any) -> bool:
    return isinstance(light, (AmbientLight, EnclosingLight))


def _evaluate(
    material: Material, texcoords: Tensor | None, slopes: Tensor | None, with_normal: bool
) -> dict[str, Tensor]:
    sample = material.evaluate(texcoords, slopes)
    values = {name: getattr(sample, name) for name in _PROPERTIES}
    if with_normal:
        flat = constant([0.5, 0.5, 1.0], values["albedo"])
        values["normal"] = flat if sample.normal is None else sample.normal
        scale = material.normal_scale
        values["normal_scale"] = scale.expand(1) if scale.dim() == 0 else scale
    return values


def _over(value: Tensor) -> Tensor:
    """A constant (C,) or (B, C), or a picture, shaped to go with pictures (B, H, W, C)."""
    return value[:, None, None] if value.dim() == 2 else value


def _product(colors: Tensor | None, albedo: Tensor | None) -> Tensor | None:
    """Vertex colors times base color; None is white. Alpha among the vertex colors is no part of the product."""
    if colors is None or albedo is None:
        return albedo if colors is None else colors
    return colors[..., :3] * _over(albedo) if colors.shape[-1] in (3, 4) else colors * _over(albedo)


def _picture(value: Tensor | None, mask: Tensor, dtype: torch.dtype, channels: int = 3) -> Tensor:
    """A value at every covered pixel, zero on background; None is one."""
    if value is None:
        return mask.to(dtype).expand(*mask.shape[:-1], channels)
    if value.dim() == 4:
        return value * mask
    return _over(value) * mask.to(value.dtype)
