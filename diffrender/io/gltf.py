"""Reading glTF 2.0 files, .gltf and .glb: geometry of the scene, its materials and pictures.

Own reader, because the common Python one turns texture coordinates over, keeps one color per file as bytes, repacks
textures and loses factors. Accessors of every component type, normalised, strided and sparse ones; triangles, strips
and fans; node hierarchies with mirroring; embedded, inlined and external buffers and pictures.

Not handled, with a warning: skins and morph targets (the stored shape is read), a second set of texcoords beside the
first, texture transforms that differ within a material. Not handled, with an error: compressed geometry (Draco,
meshopt), which the file then declares as required. Points and lines are skipped. Cameras: `Camera.from_gltf`.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import struct
import urllib.parse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffrender.geometry.mesh import Mesh
from diffrender.geometry.normals import safe_normalize
from diffrender.geometry.packing import pack_meshes
from diffrender.geometry.rotations import rotation_from_quaternion
from diffrender.geometry.transforms import (
    affine,
    compose,
    transform_directions,
    transform_normals,
    transform_points,
)
from diffrender.io.images import decode_image, floats_from_pixels
from diffrender.materials import Material

_COMPONENTS = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT4": 16}
_WRAPS = {10497: "repeat", 33071: "clamp", 33648: "mirror"}
_KNOWN_EXTENSIONS = {
    "KHR_mesh_quantization",
    "KHR_texture_transform",
    "KHR_materials_emissive_strength",
    "KHR_materials_unlit",
}


def read_gltf(path: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32) -> Mesh:
    """Reads all instances of the file's scene as one float64 mesh: see `load_mesh`. `dtype` is that of the materials.

    Raises:
        ValueError: naming the file and the element, if that is not as the specification wants it.
    """
    return _GltfFile(path).to_mesh(dtype)


class _GltfFile:
    """One file: its JSON tree and its binary parts, read when they are needed."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        data = self.path.read_bytes()
        self.binary: bytes | None = None
        if data[:4] == b"glTF":
            data = self._chunks(data)
        try:
            tree = json.loads(data.decode("utf-8"))
        except ValueError as error:
            raise self._error("the file", "be glTF: JSON, or a GLB container around it", str(error)) from None
        if not isinstance(tree, dict) or not str(tree.get("asset", {}).get("version", "")).startswith("2"):
            version = tree.get("asset", {}).get("version") if isinstance(tree, dict) else type(tree).__name__
            raise self._error("asset.version", "be 2.x", str(version))
        unknown = set(tree.get("extensionsRequired", [])) - _KNOWN_EXTENSIONS
        if unknown:
            raise self._error("extensionsRequired", f"be among {sorted(_KNOWN_EXTENSIONS)}", str(sorted(unknown)))
        self.tree: dict[str, Any] = tree
        self._buffers: dict[int, bytes] = {}
        self._pictures: dict[int, Tensor] = {}

    # Scene ------------------------------------------------------------------------------------------------------------

    def to_mesh(self, dtype: torch.dtype) -> Mesh:
        parts: list[Mesh] = []
        material_of_part: list[int | None] = []
        for node, world_from_node in self._placed_nodes():
            if "mesh" not in self.tree["nodes"][node]:
                continue
            if "skin" in self.tree["nodes"][node]:
                warnings.warn(f"load_mesh: {self.path}, nodes[{node}]: the skin is ignored.", stacklevel=5)
            index = self.tree["nodes"][node]["mesh"]
            for k, primitive in enumerate(self._element("meshes", index).get("primitives", [])):
                part = self._primitive(primitive, f"meshes[{index}].primitives[{k}]", world_from_node)
                if part is not None:
                    parts.append(part)
                    material_of_part.append(primitive.get("material"))
        if not sum(part.triangle_count for part in parts):
            raise self._error("the scene", "hold at least one triangle", "none")
        mesh = pack_meshes(parts).mesh if len(parts) > 1 else parts[0]
        if all(material is None for material in material_of_part):
            return mesh
        used = sorted({-1 if material is None else material for material in material_of_part})
        materials = [(Material.from_gltf() if m < 0 else self._material(m, dtype)).to(dtype) for m in used]
        if len(materials) == 1:
            return mesh.replace(material=materials[0])
        ids = [used.index(-1 if material is None else material) for material in material_of_part]
        counts = torch.tensor([part.triangle_count for part in parts])
        return mesh.replace(material=materials, material_ids=torch.tensor(ids).repeat_interleave(counts))

    def _placed_nodes(self) -> list[tuple[int, Tensor]]:
        """Every node below the roots of the scene with its (4, 4) float64 transform to the world."""
        if "scenes" in self.tree:
            roots = self._element("scenes", self.tree.get("scene", 0)).get("nodes", [])
        else:
            children = {c for node in self.tree.get("nodes", []) for c in node.get("children", [])}
            roots = [k for k in range(len(self.tree.get("nodes", []))) if k not in children]
        placed, stack = [], [(root, torch.eye(4, dtype=torch.float64), ()) for root in reversed(roots)]
        while stack:
            index, world_from_parent, ancestors = stack.pop()
            if index in ancestors:
                raise self._error(f"nodes[{index}]", "not be its own descendant", "a cycle")
            node = self._element("nodes", index)
            world_from_node = compose(world_from_parent, self._local_transform(node, index))
            placed.append((index, world_from_node))
            stack += [(c, world_from_node, (*ancestors, index)) for c in reversed(node.get("children", []))]
        return placed

    def _local_transform(self, node: dict[str, Any], index: int) -> Tensor:
        def vector(key: str, default: list[float]) -> Tensor:
            values = node.get(key, default)
            if not isinstance(values, list) or len(values) != len(default):
                raise self._error(f"nodes[{index}].{key}", f"have {len(default)} numbers", str(values))
            return torch.tensor(values, dtype=torch.float64)

        if "matrix" in node:
            return vector("matrix", [0.0] * 16).reshape(4, 4).T  # stored column by column
        x, y, z, w = vector("rotation", [0.0, 0.0, 0.0, 1.0])
        rotation = rotation_from_quaternion(torch.stack([w, x, y, z]))
        return affine(rotation * vector("scale", [1.0] * 3), vector("translation", [0.0] * 3))

    # Geometry ---------------------------------------------------------------------------------------------------------

    def _primitive(self, primitive: dict[str, Any], where: str, world_from_node: Tensor) -> Mesh | None:
        mode = primitive.get("mode", 4)
        if mode not in (4, 5, 6):
            return None  # points and lines
        attributes = primitive.get("attributes", {})
        if "POSITION" not in attributes:
            raise self._error(f"{where}.attributes", "have POSITION", str(sorted(attributes)))
        if primitive.get("targets"):
            warnings.warn(f"load_mesh: {self.path}, {where}: morph targets are ignored.", stacklevel=6)
        positions = self._accessor(attributes["POSITION"], "VEC3")
        count = len(positions)
        if "indices" in primitive:
            order = self._accessor(primitive["indices"], "SCALAR")[:, 0].astype(np.int64)
            if len(order) and order.max() >= count:
                raise self._error(f"{where}.indices", f"be below {count}, the number of positions", str(order.max()))
        else:
            order = np.arange(count)
        triangles = _triangles(order, mode)
        if not len(triangles):
            return None
        if torch.linalg.det(world_from_node[:3, :3]) < 0:
            triangles = triangles[:, [0, 2, 1]]  # a mirrored instance keeps its outside

        fields: dict[str, Any] = {}
        texcoord_set, transform = self._texcoord_use(primitive.get("material"), attributes, where)
        if texcoord_set in attributes:
            texcoords = torch.from_numpy(self._attribute(attributes, texcoord_set, ("VEC2",), count, where))
            fields["texcoords"] = texcoords if transform is None else texcoords @ transform[:, :2].T + transform[:, 2]
        if "NORMAL" in attributes:
            normals = torch.from_numpy(self._attribute(attributes, "NORMAL", ("VEC3",), count, where))
            fields["normals"] = transform_normals(world_from_node, normals)
            if "TANGENT" in attributes:  # means nothing without normals
                tangents = torch.from_numpy(self._attribute(attributes, "TANGENT", ("VEC4",), count, where))
                directions = safe_normalize(transform_directions(world_from_node, tangents[:, :3]))
                # A mirrored bitangent lies on the other side of the mirrored normal and tangent.
                side = tangents[:, 3:] * torch.linalg.det(world_from_node[:3, :3]).sign()
                fields["tangents"] = torch.cat([directions, side], -1)
        if "COLOR_0" in attributes:
            colors = self._attribute(attributes, "COLOR_0", ("VEC3", "VEC4"), count, where)
            fields["colors"] = torch.from_numpy(np.concatenate([colors, np.ones((count, 1))], 1)[:, :4])
            if colors.shape[1] == 3 or bool((colors[:, 3] == 1).all()):
                fields["colors"] = fields["colors"][:, :3]
        vertices = transform_points(world_from_node, torch.from_numpy(positions))
        mesh = Mesh(vertices, torch.from_numpy(np.ascontiguousarray(triangles)), **fields)
        if "NORMAL" not in attributes:  # the specification asks for flat ones
            rows = torch.arange(mesh.triangle_count).unsqueeze(-1).expand(-1, 3)
            mesh = mesh.replace(normals=mesh.triangle_normals(), normal_triangles=rows)
        return mesh

    def _attribute(
        self, attributes: dict[str, int], name: str, kinds: tuple[str, ...], count: int, where: str
    ) -> np.ndarray:
        values = self._accessor(attributes[name], *kinds)
        if len(values) != count:
            raise self._error(f"{where}.attributes.{name}", f"have one row per position ({count})", str(len(values)))
        return values

    def _accessor(self, index: int, *kinds: str) -> np.ndarray:
        """(count, width) float64 values of an accessor, normalised integers as numbers in [-1, 1]."""
        where = f"accessors[{index}]"
        accessor = self._element("accessors", index)
        kind, component = accessor.get("type"), accessor.get("componentType")
        if kind not in kinds:
            raise self._error(f"{where}.type", f"be {' or '.join(kinds)}", str(kind))
        if component not in _COMPONENTS:
            raise self._error(f"{where}.componentType", f"be one of {sorted(_COMPONENTS)}", str(component))
        code, width, count = np.dtype(_COMPONENTS[component]), _WIDTHS[kind], accessor.get("count", 0)
        if "bufferView" in accessor:
            offset = accessor.get("byteOffset", 0)
            values = self._elements(accessor["bufferView"], offset, count, width, code, where).astype(np.float64)
        else:
            values = np.zeros((count, width))
        sparse = accessor.get("sparse")
        if sparse:
            rows, new = sparse["indices"], sparse["values"]
            index_code = np.dtype(_COMPONENTS[rows["componentType"]])
            number = sparse["count"]
            places = self._elements(rows["bufferView"], rows.get("byteOffset", 0), number, 1, index_code, where)[:, 0]
            if len(places) and places.max() >= count:
                raise self._error(f"{where}.sparse.indices", f"be below {count}", str(places.max()))
            values[places] = self._elements(new["bufferView"], new.get("byteOffset", 0), number, width, code, where)
        if accessor.get("normalized"):
            values = np.maximum(values / np.iinfo(code).max, -1)
        return values

    def _elements(self, view: int, offset: int, count: int, width: int, code: np.dtype, where: str) -> np.ndarray:
        """(count, width) numbers inside of a buffer view, which may interleave them with others."""
        data = self._view(view)
        item = width * code.itemsize
        stride = self._element("bufferViews", view).get("byteStride", item)
        needed = offset + (count - 1) * stride + item if count else 0
        if needed > len(data) or offset < 0:
            raise self._error(where, f"fit into bufferViews[{view}] of {len(data)} bytes", f"{needed} bytes")
        if not count:
            return np.zeros((0, width), code)
        return np.ndarray((count, width), code, data, offset, (stride, code.itemsize)).copy()

    # Materials --------------------------------------------------------------------------------------------------------

    def _material(self, index: int, dtype: torch.dtype) -> Material:
        material = self._element("materials", index)
        pbr = material.get("pbrMetallicRoughness", {})
        normal, occlusion = material.get("normalTexture", {}), material.get("occlusionTexture", {})
        strength = (
            material.get("extensions", {}).get("KHR_materials_emissive_strength", {}).get("emissiveStrength", 1.0)
        )
        mode = material.get("alphaMode", "OPAQUE")
        if mode not in ("OPAQUE", "MASK", "BLEND"):
            raise self._error(f"materials[{index}].alphaMode", "be OPAQUE, MASK or BLEND", str(mode))
        textures = [pbr.get("baseColorTexture"), pbr.get("metallicRoughnessTexture"), normal, occlusion]
        textures = [t for t in (*textures, material.get("emissiveTexture")) if t]
        wraps = {self._wrap(t["index"]) for t in textures}
        if len(wraps) > 1:
            warnings.warn(
                f"load_mesh: {self.path}, materials[{index}]: its textures wrap in different ways; the first counts.",
                stacklevel=6,
            )
        picture = self._texture
        return Material.from_gltf(
            base_color_factor=pbr.get("baseColorFactor", [1.0] * 4),
            base_color_texture=picture(pbr.get("baseColorTexture"), 4, dtype),
            metallic_factor=pbr.get("metallicFactor", 1.0),
            roughness_factor=pbr.get("roughnessFactor", 1.0),
            metallic_roughness_texture=picture(pbr.get("metallicRoughnessTexture"), 3, dtype),
            normal_texture=picture(normal, 3, dtype),
            normal_scale=normal.get("scale", 1.0),
            occlusion_texture=picture(occlusion, 3, dtype),
            occlusion_strength=occlusion.get("strength", 1.0),
            emissive_factor=[strength * value for value in material.get("emissiveFactor", [0.0] * 3)],
            emissive_texture=picture(material.get("emissiveTexture"), 3, dtype),
            alpha_mode=mode,
            alpha_cutoff=material.get("alphaCutoff", 0.5),
            double_sided=material.get("doubleSided", False),
            wrap=self._wrap(textures[0]["index"]) if textures else "repeat",
        )

    def _texcoord_use(self, index: int | None, attributes: dict[str, int], where: str) -> tuple[str, Tensor | None]:
        """The texcoord attribute that a material reads and (2, 3) what to do with it: one for all of its textures."""
        if index is None:
            return "TEXCOORD_0", None
        material = self._element("materials", index)
        pbr = material.get("pbrMetallicRoughness", {})
        uses = []
        for holder, key in (
            (pbr, "baseColorTexture"),
            (pbr, "metallicRoughnessTexture"),
            (material, "normalTexture"),
            (material, "occlusionTexture"),
            (material, "emissiveTexture"),
        ):
            if key in holder:
                extension = holder[key].get("extensions", {}).get("KHR_texture_transform", {})
                texcoord = extension.get("texCoord", holder[key].get("texCoord", 0))
                numbers = [
                    extension.get("offset", [0, 0]),
                    [extension.get("rotation", 0)],
                    extension.get("scale", [1, 1]),
                ]
                uses.append((f"TEXCOORD_{texcoord}", tuple(float(x) for part in numbers for x in part)))
        if not uses:
            return "TEXCOORD_0", None
        if len(set(uses)) > 1:
            warnings.warn(
                f"load_mesh: {self.path}, materials[{index}]: its textures use different texcoords; those of the first "
                "count for all.",
                stacklevel=7,
            )
        name, (x, y, angle, scale_x, scale_y) = uses[0]
        if name not in attributes:
            raise self._error(f"{where}.attributes", f"have {name}, which its material reads", str(sorted(attributes)))
        if (x, y, angle, scale_x, scale_y) == (0, 0, 0, 1, 1):
            return name, None
        cosine, sine = np.cos(angle), np.sin(angle)
        rows = [[cosine * scale_x, sine * scale_y, x], [-sine * scale_x, cosine * scale_y, y]]
        return name, torch.tensor(rows, dtype=torch.float64)

    def _texture(self, reference: dict[str, Any] | None, channels: int, dtype: torch.dtype) -> Tensor | None:
        """(H, W, C) values of a texture as stored, with at least `channels` of them (4 only if the file has alpha)."""
        if not reference:
            return None
        source = self._element("textures", reference.get("index")).get("source")
        if source is None:
            raise self._error(f"textures[{reference['index']}]", "have a PNG or JPEG source", "none")
        if source not in self._pictures:
            image = self._element("images", source)
            name = f"{self.path}, images[{source}]"
            data = self._view(image["bufferView"]) if "bufferView" in image else self._uri(image.get("uri"), name)
            self._pictures[source] = floats_from_pixels(decode_image(data, name), decode=False)
        picture = self._pictures[source]
        if picture.shape[-1] in (1, 2):  # grey
            picture = torch.cat([picture[..., :1].expand(*picture.shape[:2], 3), picture[..., 1:]], -1)
        return picture[..., :channels].to(dtype)

    def _wrap(self, texture: int) -> str | tuple[str, str]:
        sampler = self._element("textures", texture).get("sampler")
        sampler = {} if sampler is None else self._element("samplers", sampler)
        across, down = (_WRAPS.get(sampler.get(key, 10497), "repeat") for key in ("wrapS", "wrapT"))
        return across if across == down else (across, down)

    # Bytes ------------------------------------------------------------------------------------------------------------

    def _chunks(self, data: bytes) -> bytes:
        """The JSON chunk of a GLB file; keeps the binary one."""
        if len(data) < 20:
            raise self._error("the file", "hold a GLB header and a JSON chunk", f"{len(data)} bytes")
        _, version, length = struct.unpack("<4sII", data[:12])
        if version != 2 or length > len(data):
            got = f"version {version}" if version != 2 else f"{len(data)} bytes"
            raise self._error("the GLB header", f"name version 2 and the length of the file ({length} bytes)", got)
        chunks, position = {}, 12
        while position + 8 <= length:
            size, kind = struct.unpack("<I4s", data[position : position + 8])
            chunks.setdefault(kind, data[position + 8 : position + 8 + size])
            position += 8 + size
        if b"JSON" not in chunks:
            raise self._error("the file", "hold a JSON chunk", f"{sorted(chunks)}")
        self.binary = chunks.get(b"BIN\0")
        return chunks[b"JSON"]

    def _view(self, index: int) -> bytes:
        view = self._element("bufferViews", index)
        buffer = view.get("buffer", 0)
        if buffer not in self._buffers:
            uri = self._element("buffers", buffer).get("uri")
            where = f"{self.path}, buffers[{buffer}]"
            data = self.binary if uri is None and buffer == 0 else self._uri(uri, where)
            if data is None:
                raise self._error(f"buffers[{buffer}]", "have a uri or be the binary chunk of a GLB file", "neither")
            self._buffers[buffer] = data
        data = self._buffers[buffer]
        start, length = view.get("byteOffset", 0), view.get("byteLength", 0)
        if start + length > len(data):
            expected = f"fit into buffers[{buffer}] of {len(data)} bytes"
            raise self._error(f"bufferViews[{index}]", expected, f"{start + length} bytes")
        return data[start : start + length]

    def _uri(self, uri: str | None, where: str) -> bytes:
        if uri is None:
            raise ValueError(f"load_mesh: {where} must have a uri or a bufferView, got neither.")
        if uri.startswith("data:"):
            _, _, content = uri.partition(",")
            try:
                return base64.b64decode(content, validate=True)
            except binascii.Error:
                raise ValueError(f"load_mesh: {where} must have base64 data in its uri, got {uri[:40]!r}.") from None
        file = self.path.parent / urllib.parse.unquote(uri)
        if not file.is_file():
            raise ValueError(f"load_mesh: {where} must name a file beside it, got {uri!r}, which does not exist.")
        return file.read_bytes()

    def _element(self, kind: str, index: Any) -> dict[str, Any]:
        elements = self.tree.get(kind, [])
        if not isinstance(index, int) or not 0 <= index < len(elements):
            raise self._error(f"{kind}[{index}]", f"be one of {len(elements)} {kind}", "a reference to none")
        return elements[index]

    def _error(self, where: str, expected: str, got: str) -> ValueError:
        shown = got if len(got) <= 120 else got[:117] + "..."
        return ValueError(f"load_mesh: {self.path}: {where} must {expected}, got {shown}.")


def _triangles(order: np.ndarray, mode: int) -> np.ndarray:
    """(T, 3) of the vertices of a primitive in drawing order: mode 4 single triangles, 5 a strip, 6 a fan."""
    if mode == 4:
        return order[: len(order) // 3 * 3].reshape(-1, 3)
    count = max(len(order) - 2, 0)
    k = np.arange(count)
    if mode == 6:
        return np.stack([order[1 : count + 1], order[2:], np.full(count, order[0] if count else 0)], 1)
    odd = k % 2
    return np.stack([order[k], order[k + 1 + odd], order[k + 2 - odd]], 1)
