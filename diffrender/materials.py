"""Materials: a plain container of the constants and textures of a glTF 2.0 metallic-roughness surface.

    material = dr.Material(albedo=torch.rand(256, 256, 3), roughness=0.4)
    at = material.evaluate(texcoords, texcoord_derivatives)
    image = dr.shade_metallic_roughness(positions, normals, at.albedo, at.metallic, at.roughness, lights, ...)

Every property is a constant or a texture, times a constant factor, as in glTF. All tensors are linear: `from_gltf`
takes pictures as they are stored and decodes those that are sRGB. Shapes, with C the channels of the property:

    a number, (C,)      constant            (B, C)           a constant for each item of the batch
    (Ht, Wt, C)         texture, shared     (B, Ht, Wt, C)   a texture for each item

Everything is plain torch around `dr.texture`, so gradients reach whatever the properties were made of.

Not handled: a second set of texcoords, texture transforms, and glTF's extensions (clearcoat, transmission, ...).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._constants import constant
from ._frozen import FrozenTextures
from .color import srgb_to_linear
from .ops.texture import texture as sample_texture

Property = Tensor | float | Sequence[float]

ALPHA_MODES = ("OPAQUE", "MASK", "BLEND")
_FLOATING = (torch.float32, torch.float64)
# Channels that a property may have. Albedo with a fourth channel carries alpha.
_CHANNELS = {"albedo": (3, 4), "metallic": (1,), "roughness": (1,), "normal": (3,), "occlusion": (1,), "emissive": (3,)}
_FACTORS = {
    "albedo_factor": (3, 4), "metallic_factor": (1,), "roughness_factor": (1,), "normal_scale": (1,),
    "occlusion_strength": (1,), "emissive_factor": (3,),
}  # fmt: skip


class MaterialSample(NamedTuple):
    """What a material is at every pixel: pictures (B, H, W, C); or constants (C,) or (B, C) where it has no texture.

    Attributes:
        albedo: 3 channels, linear.
        metallic, roughness: 1 channel.
        normal: 3 channels, tangent-space normal as RGB in [0, 1] for `dr.perturb_normals`; None without a normal map.
        emissive: 3 channels of radiance, to be added to what the surface reflects.
        occlusion: 1 channel, share of ambient and environment light that arrives; direct light is not concerned.
        alpha: 1 channel after the alpha mode: 1 if opaque, 0 or 1 if masked, coverage if blended.
    """

    albedo: Tensor
    metallic: Tensor
    roughness: Tensor
    normal: Tensor | None
    emissive: Tensor
    occlusion: Tensor
    alpha: Tensor


class Material:
    """A glTF metallic-roughness material.

    Args:
        albedo: base color, 3 channels, or 4 with alpha.
        metallic: 1 channel in [0, 1]. The default is a dielectric; a glTF file that is silent about it means 1.
        roughness: 1 channel in [0, 1], perceptual.
        normal: tangent-space normal map, 3 channels in [0, 1] as stored (0.5 is zero), or None.
        emissive: 3 channels of radiance.
        occlusion: 1 channel, 1 = open.
        albedo_factor, metallic_factor, roughness_factor, emissive_factor: constants that multiply the properties; the
            color factor may have a fourth component for alpha.
        normal_scale: scales x and y of the normal map, for `dr.perturb_normals`.
        occlusion_strength: 0 ignores the occlusion, 1 applies it all: 1 + strength * (occlusion - 1).
        alpha_mode: "OPAQUE" (alpha counts as 1), "MASK" (1 where alpha >= alpha_cutoff, else 0), "BLEND" (alpha).
        alpha_cutoff: threshold of "MASK".
        double_sided: whether back faces show; they are lit with the normal turned round (`two_sided` of the shading
            ops), and culled otherwise (`cull="back"` of `rasterize`).
        wrap: of all textures, as in `dr.texture`.

    Raises:
        TypeError, ValueError: a wrong type, shape or mode.

    Example:
        >>> material = dr.Material(albedo=torch.rand(8, 8, 3), roughness=0.4)
        >>> surface = material.evaluate(torch.rand(1, 5, 6, 2))
        >>> surface.albedo.shape, surface.roughness.shape
        (torch.Size([1, 5, 6, 3]), torch.Size([1]))
    """

    albedo: Tensor
    metallic: Tensor
    roughness: Tensor
    normal: Tensor | None
    emissive: Tensor
    occlusion: Tensor
    albedo_factor: Tensor
    metallic_factor: Tensor
    roughness_factor: Tensor
    emissive_factor: Tensor
    normal_scale: Tensor
    occlusion_strength: Tensor

    def __init__(
        self,
        albedo: Property = 1.0,
        metallic: Property = 0.0,
        roughness: Property = 1.0,
        *,
        normal: Tensor | None = None,
        emissive: Property = 0.0,
        occlusion: Property = 1.0,
        albedo_factor: Property = 1.0,
        metallic_factor: Property = 1.0,
        roughness_factor: Property = 1.0,
        emissive_factor: Property = 1.0,
        normal_scale: Property = 1.0,
        occlusion_strength: Property = 1.0,
        alpha_mode: str = "OPAQUE",
        alpha_cutoff: float = 0.5,
        double_sided: bool = False,
        wrap: str | tuple[str, str] = "repeat",
    ):
        values = {
            "albedo": albedo, "metallic": metallic, "roughness": roughness, "normal": normal, "emissive": emissive,
            "occlusion": occlusion, "albedo_factor": albedo_factor, "metallic_factor": metallic_factor,
            "roughness_factor": roughness_factor, "emissive_factor": emissive_factor, "normal_scale": normal_scale,
            "occlusion_strength": occlusion_strength,
        }  # fmt: skip
        like = next((v for v in values.values() if isinstance(v, Tensor) and v.dtype in _FLOATING), None)
        for name, value in values.items():
            setattr(self, name, _as_tensor(name, value, like))
        self._frozen = FrozenTextures()
        self._frozen_alpha = FrozenTextures()  # for lookups of alpha alone, which decide what "MASK" discards
        # Known without a look at values, which would not be traced and would wait for the GPU.
        self._open = None if isinstance(occlusion, Tensor) or occlusion != 1 else self.occlusion
        _checks.check_choice("Material", "alpha_mode", alpha_mode, ALPHA_MODES)
        self.alpha_mode = alpha_mode
        self.alpha_cutoff = float(alpha_cutoff)
        self.double_sided = bool(double_sided)
        self.wrap = wrap

    @classmethod
    def from_gltf(
        cls,
        *,
        base_color_factor: Property = (1.0, 1.0, 1.0, 1.0),
        base_color_texture: Tensor | None = None,
        metallic_factor: Property = 1.0,
        roughness_factor: Property = 1.0,
        metallic_roughness_texture: Tensor | None = None,
        normal_texture: Tensor | None = None,
        normal_scale: Property = 1.0,
        occlusion_texture: Tensor | None = None,
        occlusion_strength: Property = 1.0,
        emissive_factor: Property = (0.0, 0.0, 0.0),
        emissive_texture: Tensor | None = None,
        alpha_mode: str = "OPAQUE",
        alpha_cutoff: float = 0.5,
        double_sided: bool = False,
        wrap: str | tuple[str, str] = "repeat",
    ) -> Material:
        """The material of a glTF file, with that format's names, defaults and channels.

        Args:
            base_color_texture, emissive_texture: (Ht, Wt, 3 or 4) sRGB values in [0, 1] as stored; decoded here, alpha
                excepted.
            metallic_roughness_texture: (Ht, Wt, 3 or 4), roughness in G and metallic in B.
            occlusion_texture: (Ht, Wt, 1 or more), occlusion in R; may be the same picture.
            normal_texture: (Ht, Wt, 3 or 4) in [0, 1] as stored.
            others: as in the file; factors are linear.

        Example:
            >>> packed = torch.tensor([1.0, 0.25, 0.75]).expand(2, 2, 3)
            >>> material = Material.from_gltf(metallic_roughness_texture=packed)
            >>> material.roughness[0, 0].item(), material.metallic[0, 0].item()
            (0.25, 0.75)
        """

        def channels(name: str, picture: Tensor | None, first: int, last: int, absent: float | None) -> Any:
            if picture is None:
                return absent
            picture = _checks.check_floating("Material.from_gltf", name, picture)
            if picture.dim() not in (3, 4) or picture.shape[-1] < last:
                expected = f"have shape (Ht, Wt, C) with at least {last} channels"
                _checks.fail(ValueError, "Material.from_gltf", name, expected, _checks.shape_text(picture))
            return picture[..., first:last]

        color = channels("base_color_texture", base_color_texture, 0, 3, 1.0)
        if isinstance(color, Tensor):
            assert base_color_texture is not None
            color = torch.cat([srgb_to_linear(color), base_color_texture[..., 3:4]], -1)
        emissive = channels("emissive_texture", emissive_texture, 0, 3, 1.0)
        return cls(
            color,
            channels("metallic_roughness_texture", metallic_roughness_texture, 2, 3, 1.0),
            channels("metallic_roughness_texture", metallic_roughness_texture, 1, 2, 1.0),
            normal=channels("normal_texture", normal_texture, 0, 3, None),
            emissive=srgb_to_linear(emissive) if isinstance(emissive, Tensor) else emissive,
            occlusion=channels("occlusion_texture", occlusion_texture, 0, 1, 1.0),
            albedo_factor=base_color_factor,
            metallic_factor=metallic_factor,
            roughness_factor=roughness_factor,
            emissive_factor=emissive_factor,
            normal_scale=normal_scale,
            occlusion_strength=occlusion_strength,
            alpha_mode=alpha_mode,
            alpha_cutoff=alpha_cutoff,
            double_sided=double_sided,
            wrap=wrap,
        )

    def evaluate(
        self, texcoords: Tensor | None = None, texcoord_derivatives: Tensor | None = None, *, max_anisotropy: int = 1
    ) -> MaterialSample:
        """The material at texture coordinates.

        Args:
            texcoords: (B, H, W, 2), as `interpolate` gives them; may be left out if nothing is a texture.
            texcoord_derivatives: (B, H, W, 4), change of the texcoords per pixel step: with them, textures are read
                through their mips (trilinear). Without, bilinear in the texture itself.
            max_anisotropy: as in `dr.texture`.

        Returns:
            MaterialSample. Constants stay constants, (C,) or (B, C), which the shading ops take as they are.

        Gradients: exact to all properties and factors, texcoords and their derivatives. The step of alpha_mode "MASK"
            has none.
        Memory: textures of one size are read together; what is kept is what `dr.texture` keeps. Of textures that
            require no gradient, the material also keeps the stack of those of one size and its mips (for a single one
            only the mips) for the next call. They are made anew when a texture is replaced or changed in place, and
            let go when it becomes a constant or is trained. Changes that torch does not count are not seen: in place
            through `.data`, a NumPy array of the same memory, or by a fused optimizer or collective call while
            the texture requires no gradient here.

        Raises:
            ValueError: no texcoords although a property is a texture.
        """
        values = self._sample(texcoords, texcoord_derivatives, max_anisotropy)
        color = values["albedo"]
        factor = _wide(_over(self.albedo_factor, color), 3)
        alpha = color[..., 3:4] if color.shape[-1] == 4 else None
        if factor.shape[-1] == 4:
            alpha = factor[..., 3:4] if alpha is None else alpha * factor[..., 3:4]
        strength = _over(self.occlusion_strength, values["occlusion"])
        return MaterialSample(
            albedo=color[..., :3] * factor[..., :3],
            metallic=values["metallic"] * _over(self.metallic_factor, values["metallic"]),
            roughness=values["roughness"] * _over(self.roughness_factor, values["roughness"]),
            normal=values.get("normal"),
            emissive=values["emissive"] * _over(self.emissive_factor, values["emissive"]),
            occlusion=1 + strength * (values["occlusion"] - 1),
            alpha=self._apply_alpha_mode(alpha, color),
        )

    def _sample(self, texcoords: Tensor | None, derivatives: Tensor | None, max_anisotropy: int) -> dict[str, Tensor]:
        """Every property at the pixels; constants as (..., C)."""
        values: dict[str, Tensor] = {}
        groups: dict[tuple, list[str]] = {}
        for name in _CHANNELS:
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if tensor.dim() < 3:
                values[name] = _wide(tensor, _CHANNELS[name][0])
                continue
            # One lookup for all textures of a size; what is frozen stays apart, so that it gets no gradient.
            key = (tensor.shape[:-1], tensor.requires_grad, tensor.dtype, tensor.device)
            groups.setdefault(key, []).append(name)
        if groups and texcoords is None:
            names = ", ".join(name for group in groups.values() for name in group)
            _checks.fail(ValueError, "Material.evaluate", "texcoords", f"be given for the textures {names}", "None")
        self._frozen.keep_only([tuple(names) for key, names in groups.items() if not key[1]])
        for names in groups.values():
            assert texcoords is not None
            textures = [getattr(self, name) for name in names]
            if textures[0].requires_grad:
                stack, mips = textures[0] if len(textures) == 1 else torch.cat(textures, -1), None
            else:
                stack, mips = self._frozen.stacked(names, textures, with_mips=derivatives is not None)
            sampled = sample_texture(
                stack, texcoords, texcoord_derivatives=derivatives, wrap=self.wrap, max_anisotropy=max_anisotropy,
                mips=mips if derivatives is not None else None,
            )  # fmt: skip
            parts = sampled.split([t.shape[-1] for t in textures], -1)
            values.update(zip(names, parts, strict=True))
        return values

    def _apply_alpha_mode(self, alpha: Tensor | None, color: Tensor) -> Tensor:
        if alpha is None or self.alpha_mode == "OPAQUE":
            alpha = color.new_ones(1)
        return (alpha >= self.alpha_cutoff).to(alpha.dtype) if self.alpha_mode == "MASK" else alpha

    @property
    def has_occlusion(self) -> bool:
        """False if the occlusion is the plain number 1 that it was made with."""
        return self._open is not self.occlusion

    # --- container ---------------------------------------------------------------------------------

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, value) of every property and factor that is present."""
        for name in (*_CHANNELS, *_FACTORS):
            value = getattr(self, name)
            if value is not None:
                yield name, value

    def parameters(self) -> list[Tensor]:
        """The values that require a gradient and are leaves: what an optimiser may step."""
        return [value for _, value in self.tensors() if value.requires_grad and value.is_leaf]

    def replace(self, **fields: Any) -> Material:
        """A copy with some constructor arguments replaced; tensors are shared, not copied."""
        modes = ("alpha_mode", "alpha_cutoff", "double_sided", "wrap")
        copy = Material(**{**dict(self.tensors()), **{name: getattr(self, name) for name in modes}, **fields})
        if "occlusion" not in fields:
            copy._open = None if self.has_occlusion else copy.occlusion
        return copy

    def to(self, *args: Any, **kwargs: Any) -> Material:
        """A copy on another device or of another floating dtype, as `Tensor.to`. The gradient passes through."""
        copy = self.replace(**{name: value.to(*args, **kwargs) for name, value in self.tensors()})
        copy._open = None if self.has_occlusion else copy.occlusion
        return copy

    def state_dict(self) -> dict[str, Tensor]:
        """Detached values by name, for `torch.save`."""
        return {name: value.detach() for name, value in self.tensors()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copies values in place, so that an optimiser that holds them keeps working.

        Raises:
            ValueError: where the names or a shape differ.
        """
        own = dict(self.tensors())
        if set(state) != set(own):
            expected, actual = (", ".join(sorted(names)) for names in (own, state))
            _checks.fail(ValueError, "load_state_dict", "state", f"hold {expected}", actual)
        for name, value in own.items():
            if value.shape != state[name].shape:
                expected = f"have shape {_checks.shape_text(value)}"
                _checks.fail(ValueError, "load_state_dict", name, expected, _checks.shape_text(state[name]))
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(state[name])
        self._open = None

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={_checks.shape_text(getattr(self, name))}" for name in _CHANNELS
                           if getattr(self, name) is not None)  # fmt: skip
        return f"Material({shapes}, {self.alpha_mode}{', double-sided' if self.double_sided else ''})"


def _as_tensor(name: str, value: Any, like: Tensor | None) -> Tensor | None:
    is_factor = name in _FACTORS
    channels = _FACTORS[name] if is_factor else _CHANNELS[name]
    if value is None and name == "normal":
        return None
    if isinstance(value, Tensor):
        tensor = _checks.check_floating("Material", name, value)
    else:
        try:
            tensor = constant(value, torch.empty(0, dtype=torch.float32) if like is None else like)
        except (TypeError, ValueError, RuntimeError):
            _checks.fail(TypeError, "Material", name, "be a tensor or numbers", type(value).__name__)
    fits = tensor.dim() == 0 or tensor.shape[-1] in channels
    if not fits or tensor.dim() > (2 if is_factor else 4):
        c = channels[0]
        expected = f"be a number or have shape ({c},) or (B, {c})"
        if not is_factor:
            expected = f"be a number or have shape ({c},), (B, {c}), (Ht, Wt, {c}) or (B, Ht, Wt, {c})"
        hint = "Add an axis of length 1 at the end." if c == 1 and tensor.dim() in (2, 3) and not is_factor else ""
        _checks.fail(ValueError, "Material", name, expected, _checks.shape_text(tensor), hint)
    return tensor


def _wide(value: Tensor, channels: int) -> Tensor:
    """A number as a vector of `channels` equal numbers."""
    return value.expand(channels) if value.dim() == 0 else value


def _over(factor: Tensor, value: Tensor) -> Tensor:
    """A factor (), (C,) or (B, C), shaped to multiply `value`: a constant (C,), (B, C) or a picture (B, H, W, C)."""
    return factor[:, None, None] if factor.dim() == 2 and value.dim() == 4 else factor
