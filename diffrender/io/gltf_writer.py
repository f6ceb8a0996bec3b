"""Writing glTF 2.0: one mesh with a primitive for each of its materials, pictures as PNG, all in one GLB file.

glTF knows one index table: vertices are repeated along the seams of texcoords and normals. Numbers are float32. Colors
of textures are stored as 8-bit sRGB and the other textures as 8 bits, so what was loaded from such files is written
back as it was; finer textures are rounded. Metallic and roughness share a picture: the smaller one is enlarged.
"""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffrender._extras import require
from diffrender.color import linear_to_srgb
from diffrender.geometry.mesh import Mesh
from diffrender.io.resize import to_one_size
from diffrender.io.unsaved import wraps
from diffrender.materials import Material

_WRAPS = {"repeat": 10497, "clamp": 33071, "mirror": 33648, "zero": 33071}
_VEC = {1: "SCALAR", 2: "VEC2", 3: "VEC3", 4: "VEC4"}


def write_glb(path: str | os.PathLike[str], mesh: Mesh) -> None:
    """Writes a mesh (V, 3) on the CPU; without normals, its smooth `vertex_normals()`."""
    _GlbWriter().write(path, mesh)


def one_index_table(mesh: Mesh, rows: Tensor | None = None) -> Mesh:
    """The same surface, or its triangles `rows`, with one vertex for each used combination of values."""
    tables = [mesh.triangles, mesh.texcoord_triangles, mesh.normal_triangles, mesh.tangent_triangles]
    is_shared = all(table is None or torch.equal(table, mesh.triangles) for table in tables)
    counts = {len(a) for a in (mesh.vertices, mesh.texcoords, mesh.normals, mesh.tangents) if a is not None}
    if rows is None and is_shared and len(counts) == 1:
        return mesh.replace(material=None, material_ids=None)
    attributes = (mesh.texcoords, mesh.normals, mesh.tangents)
    tables[1:] = [None if t is None else _merged(t, a) for t, a in zip(tables[1:], attributes, strict=True)]
    used = [None if table is None else table if rows is None else table[rows] for table in tables]
    corners = torch.stack([table.reshape(-1) for table in used if table is not None], -1)
    combinations, triangles = torch.unique(corners, dim=0, return_inverse=True)
    columns = iter(combinations.long().unbind(-1))
    vertex_index = next(columns)
    texcoords = None if mesh.texcoords is None else mesh.texcoords[next(columns)]
    normals = None if mesh.normals is None else mesh.normals[next(columns)]
    tangents = None if mesh.tangents is None else mesh.tangents[next(columns)]
    colors = None if mesh.colors is None else mesh.colors[vertex_index]
    return Mesh(
        mesh.vertices[vertex_index], triangles.reshape(-1, 3), texcoords=texcoords, normals=normals, tangents=tangents,
        colors=colors,
    )  # fmt: skip


def _merged(table: Tensor, attribute: Tensor | None) -> Tensor:
    """The index table with the first of equal rows for all of them: attributes given per corner tear nothing apart."""
    if attribute is None or len(attribute) == 0:
        return table
    _, group = torch.unique(attribute, dim=0, return_inverse=True)
    row = torch.arange(len(attribute), device=group.device)
    first = torch.full_like(row, len(attribute)).scatter_reduce(0, group, row, "amin")
    return first[group][table.long()].to(table.dtype)


class _GlbWriter:
    def __init__(self) -> None:
        self.binary = bytearray()
        self.tree: dict[str, Any] = {
            "asset": {"version": "2.0", "generator": "diffrender"},
            "scene": 0,
            "scenes": [{"nodes": [0]}],
            "nodes": [{"mesh": 0}],
            "meshes": [{"primitives": []}],
            "accessors": [],
            "bufferViews": [],
        }

    def write(self, path: str | os.PathLike[str], mesh: Mesh) -> None:
        if mesh.normals is None:
            mesh = mesh.replace(normals=mesh.vertex_normals())
        materials = mesh.materials
        ids = mesh.material_ids if mesh.material_ids is not None else torch.zeros_like(mesh.triangles[:, 0])
        for index in torch.unique(ids).tolist() if len(materials) > 1 else [0]:
            part = one_index_table(mesh, torch.nonzero(ids == index)[:, 0] if len(materials) > 1 else None)
            primitive: dict[str, Any] = {"attributes": self._attributes(part)}
            primitive["indices"] = self._accessor(part.triangles.reshape(-1, 1).numpy().astype("<u4"), 34963)
            if materials and materials[index] is not None:
                primitive["material"] = self._material(materials[index])
            self.tree["meshes"][0]["primitives"].append(primitive)

        self.tree["buffers"] = [{"byteLength": len(self.binary)}]
        text = json.dumps(self.tree, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 4)
        length = 12 + 8 + len(text) + 8 + len(self.binary)
        with open(path, "wb") as file:
            file.write(struct.pack("<4sII", b"glTF", 2, length))
            file.write(struct.pack("<I4s", len(text), b"JSON") + text)
            file.write(struct.pack("<I4s", len(self.binary), b"BIN\0") + self.binary)

    def _attributes(self, mesh: Mesh) -> dict[str, int]:
        attributes = {"POSITION": mesh.vertices, "NORMAL": mesh.normals, "TEXCOORD_0": mesh.texcoords}
        if mesh.tangents is not None:
            attributes["TANGENT"] = mesh.tangents
        if mesh.colors is not None:
            attributes["COLOR_0"] = mesh.colors if mesh.colors.shape[1] in (3, 4) else mesh.colors[:, :1].expand(-1, 3)
        return {
            name: self._accessor(values.numpy().astype("<f4"), 34962)
            for name, values in attributes.items()
            if values is not None
        }

    def _accessor(self, values: np.ndarray, target: int) -> int:
        is_float = values.dtype.kind == "f"
        accessor = {
            "bufferView": self._view(values.tobytes(), target),
            "componentType": 5126 if is_float else 5125,
            "count": len(values),
            "type": _VEC[values.shape[1]],
        }
        if is_float and len(values):
            accessor |= {"min": values.min(0).tolist(), "max": values.max(0).tolist()}
        self.tree["accessors"].append(accessor)
        return len(self.tree["accessors"]) - 1

    def _view(self, data: bytes, target: int | None = None) -> int:
        view = {"buffer": 0, "byteOffset": len(self.binary), "byteLength": len(data)}
        self.tree["bufferViews"].append(view if target is None else {**view, "target": target})
        self.binary += data + b"\0" * (-len(data) % 4)
        return len(self.tree["bufferViews"]) - 1

    def _material(self, material: Material) -> int:
        pbr, result = {}, {}
        albedo, metallic, roughness, emissive, occlusion = (
            _constant_and_picture(material, name)
            for name in ("albedo", "metallic", "roughness", "emissive", "occlusion")
        )
        pbr["baseColorFactor"] = [*albedo.factor, 1.0, 1.0, 1.0][:3] if len(albedo.factor) == 3 else albedo.factor
        pbr["baseColorFactor"] = [*pbr["baseColorFactor"], 1.0][:4]
        pbr["metallicFactor"], pbr["roughnessFactor"] = metallic.factor[0], roughness.factor[0]
        if albedo.picture is not None:
            color, alpha = albedo.picture[..., :3], albedo.picture[..., 3:]
            pbr["baseColorTexture"] = self._texture(torch.cat([linear_to_srgb(color), alpha], -1), material)
        if metallic.picture is not None or roughness.picture is not None:
            pbr["metallicRoughnessTexture"] = self._texture(
                _packed(metallic.picture, roughness.picture, material), material
            )
        result["pbrMetallicRoughness"] = pbr
        if material.normal is not None:
            scale = float(material.normal_scale.reshape(-1)[0])
            result["normalTexture"] = {**self._texture(_picture(material.normal, "normal"), material), "scale": scale}
        if occlusion.picture is not None:
            strength = float(material.occlusion_strength.reshape(-1)[0])
            texture = self._texture(occlusion.picture.expand(-1, -1, 3), material)
            result["occlusionTexture"] = {**texture, "strength": strength}
        strength = max(1.0, *emissive.factor)
        result["emissiveFactor"] = [value / strength for value in emissive.factor]
        if strength > 1:
            result["extensions"] = {"KHR_materials_emissive_strength": {"emissiveStrength": strength}}
            self.tree["extensionsUsed"] = ["KHR_materials_emissive_strength"]
        if emissive.picture is not None:
            result["emissiveTexture"] = self._texture(linear_to_srgb(emissive.picture), material)
        result["alphaMode"] = material.alpha_mode
        if material.alpha_mode == "MASK":
            result["alphaCutoff"] = material.alpha_cutoff
        result["doubleSided"] = material.double_sided
        self.tree.setdefault("materials", []).append(result)
        return len(self.tree["materials"]) - 1

    def _texture(self, picture: Tensor, material: Material) -> dict[str, int]:
        across, down = wraps(material)
        sampler = {"wrapS": _WRAPS[across], "wrapT": _WRAPS[down]}
        samplers = self.tree.setdefault("samplers", [])
        if sampler not in samplers:
            samplers.append(sampler)
        images, textures = self.tree.setdefault("images", []), self.tree.setdefault("textures", [])
        images.append({"bufferView": self._view(png_bytes(picture)), "mimeType": "image/png"})
        textures.append({"source": len(images) - 1, "sampler": samplers.index(sampler)})
        return {"index": len(textures) - 1}


class _Property:
    """A property as glTF has it: a factor, and a picture (H, W, C) or None."""

    def __init__(self, factor: list[float], picture: Tensor | None):
        self.factor, self.picture = factor, picture


def _constant_and_picture(material: Material, name: str) -> _Property:
    value = getattr(material, name).detach().cpu()
    factor = getattr(material, f"{name}_factor", torch.ones(())).detach().cpu()
    channels = 3 if name in ("albedo", "emissive") else 1
    if factor.ndim > 1 or value.ndim == 2:
        raise ValueError(f"save_mesh: {name} of a material must be shared by all items, got one for each of a batch.")
    if value.ndim >= 3:
        return _Property(_wide(factor, channels), _picture(value, name))
    value, factor = _wide(value, channels), _wide(factor, channels)
    wide = [[*numbers, 1.0][: max(len(value), len(factor))] for numbers in (value, factor)]
    return _Property([a * b for a, b in zip(*wide, strict=True)], None)


def _picture(texture: Tensor, name: str) -> Tensor:
    if texture.ndim == 4 and len(texture) != 1:
        raise ValueError(f"save_mesh: {name} of a material must be one texture (H, W, C), got {tuple(texture.shape)}.")
    return texture.detach().cpu().reshape(texture.shape[-3:])


def _wide(constant: Tensor, channels: int) -> list[float]:
    numbers = constant.reshape(-1).tolist()
    return numbers * channels if len(numbers) == 1 else numbers


def _packed(metallic: Tensor | None, roughness: Tensor | None, material: Material) -> Tensor:
    """(H, W, 3) with roughness in G and metallic in B; 1 where there is no texture and the factor says it all."""
    pictures = [picture for picture in (metallic, roughness) if picture is not None]
    resized = to_one_size(pictures, material.wrap)
    one = torch.ones_like(resized[0])
    return torch.cat([one, one if roughness is None else resized[-1], one if metallic is None else resized[0]], -1)


def png_bytes(picture: Tensor) -> bytes:
    """An 8-bit PNG of (H, W, 1, 3 or 4) values in [0, 1], stored as they are."""
    pillow = require("PIL.Image", "io", used_by="save_mesh")
    pixels = (picture.double().nan_to_num(nan=0.0).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    buffer = io.BytesIO()
    pillow.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_png(path: Path, picture: Tensor) -> None:
    """`png_bytes` into a file."""
    path.write_bytes(png_bytes(picture))
