"""Wavefront OBJ, read and written here because order and index tables matter.

Readers that build one index table merge, split or reorder vertices; the common Python reader resolves negative indices
from the end of the file and fans concave polygons. Here row i of `vertices` is the i-th `v` line, triangles follow the
`f` lines, and texcoords and normals keep their own index tables.

Materials (`mtllib`, `usemtl`) are in `mtl.py`: `usemtl` becomes a material number per triangle.

Not handled: groups, free-form surfaces (`curv`, `surf`); lines and points (`l`, `p`) are skipped.
"""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffrender.geometry.mesh import Mesh
from diffrender.io.mtl import read_mtl, write_mtl
from diffrender.io.polygons import triangulate_polygons
from diffrender.materials import Material

_NONE = -1  # marks a face corner without texcoord or normal


def read_obj(path: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32) -> Mesh:
    """Reads an OBJ file as float64: see `load_mesh` for the meaning of the result. `dtype` is that of the materials.

    Raises:
        ValueError: naming the file and, where there is one, the line.
    """
    parsed = _ObjLines(path)
    for number, words in _statements(path):
        parsed.add(number, words)
    return parsed.to_mesh(dtype)


def write_obj(path: str | os.PathLike[str], mesh: Mesh) -> None:
    """Writes vertices (with colors, where present), texcoords, normals and triangles, with all digits of the dtype.

    Materials go into an MTL file of the same name, their pictures into PNG files beside it.
    """
    vertices = mesh.vertices if mesh.colors is None else torch.cat([mesh.vertices, mesh.colors[:, :3]], -1)
    lines = ["# written by diffrender"]
    material_file = Path(path).with_suffix(".mtl")
    names = write_mtl(material_file, mesh) if mesh.material is not None else []
    if names:
        lines.append(f"mtllib {material_file.name}")
    lines += _rows("v", vertices)
    corner_tables = [mesh.triangles + 1]
    corner_format = "%d"
    if mesh.texcoords is not None and mesh.texcoord_triangles is not None:
        u, v = mesh.texcoords.double().unbind(-1)
        lines += _rows("vt", torch.stack([u, 1 - v], -1))
        corner_tables.append(mesh.texcoord_triangles + 1)
        corner_format += "/%d"
    if mesh.normals is not None and mesh.normal_triangles is not None:
        lines += _rows("vn", mesh.normals)
        corner_tables.append(mesh.normal_triangles + 1)
        corner_format += "/%d" if len(corner_tables) == 3 else "//%d"
    face_format = f"f {corner_format} {corner_format} {corner_format}"
    corners = torch.stack(corner_tables, -1).reshape(mesh.triangle_count, -1)
    faces = [face_format % tuple(row) for row in corners.tolist()]
    ids = [0] * len(faces) if mesh.material_ids is None else mesh.material_ids.tolist()
    current = None
    for material, face in zip(ids, faces, strict=True):
        if names and material != current:
            lines.append(f"usemtl {names[material]}")
            current = material
        lines.append(face)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _rows(keyword: str, values: Tensor) -> list[str]:
    # str() of a numpy scalar is the shortest text that reads back to the same number.
    return [f"{keyword} " + " ".join(map(str, row)) for row in values.detach().cpu().numpy()]


def _statements(path: str | os.PathLike[str]) -> Iterator[tuple[int, list[str]]]:
    """The words of each statement with its line number; comments dropped, lines that end in a backslash joined."""
    with open(path, encoding="utf-8", errors="replace") as file:
        pending = ""
        for number, line in enumerate(file, 1):
            line = pending + line.split("#", 1)[0].rstrip()
            if line.endswith("\\"):
                pending = line[:-1] + " "
                continue
            pending = ""
            words = line.split()
            if words:
                yield number, words


class _ObjLines:
    """Collects the statements of one file."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = path
        self.rows: dict[str, list[list[float]]] = {"v": [], "vt": [], "vn": []}
        self.face_sizes: list[int] = []
        self.face_lines: list[int] = []
        self.corners: list[tuple[int, int, int]] = []  # (vertex, texcoord, normal) of each face corner
        self.material_files: list[tuple[int, str]] = []  # (line, name)
        self.material_names: list[str | None] = []  # in the order of their first use
        self.face_materials: list[int] = []  # place in material_names of each face
        self.material = 0

    def add(self, number: int, words: list[str]) -> None:
        keyword = words[0]
        if keyword in self.rows:
            self.rows[keyword].append(self._numbers(number, words))
        elif keyword == "f":
            if len(words) < 4:
                raise self._error(number, "a face must have at least 3 corners", " ".join(words))
            if not self.material_names:
                self.material_names.append(None)  # faces before any usemtl
            self.face_materials.append(self.material)
            self.face_sizes.append(len(words) - 1)
            self.face_lines.append(number)
            self.corners.extend(self._corner(number, word) for word in words[1:])
        elif keyword == "usemtl":
            name = " ".join(words[1:])
            if name not in self.material_names:
                self.material_names.append(name)
            self.material = self.material_names.index(name)
        elif keyword == "mtllib":
            self.material_files.append((number, " ".join(words[1:])))

    def to_mesh(self, dtype: torch.dtype) -> Mesh:
        if not self.rows["v"]:
            raise ValueError(f"load_mesh: {self.path} must hold OBJ vertices (`v x y z`), got none. Is it an OBJ file?")
        if not self.corners:
            raise ValueError(
                f"load_mesh: {self.path} must hold at least one face, got {len(self.rows['v'])} vertices only."
            )
        corners, sizes = np.array(self.corners, dtype=np.int64), np.array(self.face_sizes)
        self._check_range(corners, sizes)

        positions = np.array([row[:3] for row in self.rows["v"]], dtype=np.float64)
        picked = triangulate_polygons(positions, corners[:, 0], sizes)  # (T, 3) rows of `corners`
        triangles, texcoord_triangles, normal_triangles = (corners[picked, column] for column in range(3))
        fields: dict[str, np.ndarray | None] = {"colors": self._colors()}
        fields |= self._texcoords(texcoord_triangles)
        fields |= self._normals(normal_triangles)

        def to_tensor(array: np.ndarray | None) -> Tensor | None:
            return None if array is None else torch.from_numpy(array)

        vertices = torch.from_numpy(positions)
        materials = self._materials(np.repeat(self.face_materials, np.maximum(sizes - 2, 0)), dtype)
        tensors = {name: to_tensor(array) for name, array in fields.items()}
        return Mesh(vertices, torch.from_numpy(triangles), **tensors, **materials)

    def _materials(self, of_triangle: np.ndarray, dtype: torch.dtype) -> dict[str, Any]:
        """`material` and `material_ids` of the mesh; nothing for a file without material files."""
        library: dict[str, Material] = {}
        for number, name in self.material_files:
            folder = Path(self.path).parent
            # One line may name several files, and a file's name may contain spaces.
            files = [name] if (folder / name).is_file() else name.split()
            for file in files:
                if (folder / file).is_file():
                    library |= read_mtl(folder / file, dtype=dtype)
                else:
                    missing = f"line {number}: mtllib names {file!r}, which does not exist"
                    warnings.warn(f"load_mesh: {self.path}, {missing}.", stacklevel=6)
        if not library:
            return {}
        unknown = [name for name in self.material_names if name is not None and name not in library]
        if unknown:
            warnings.warn(f"load_mesh: {self.path}: no file defines the material {unknown[0]!r}.", stacklevel=6)
        used, ids = np.unique(of_triangle, return_inverse=True)
        names = [self.material_names[k] for k in used]
        materials = [library[name] if name in library else Material(double_sided=True).to(dtype) for name in names]
        if len(materials) == 1:
            return {"material": materials[0]}
        return {"material": materials, "material_ids": torch.from_numpy(ids.reshape(-1))}

    def _texcoords(self, triangles: np.ndarray) -> dict[str, np.ndarray | None]:
        missing = (triangles == _NONE).any(-1)
        if missing.all():
            return {}
        texcoords = np.array([[*row, 0.0][:2] for row in self.rows["vt"]], dtype=np.float64)
        texcoords[:, 1] = 1 - texcoords[:, 1]  # the file counts v from the bottom
        if missing.any():
            warnings.warn(
                f"load_mesh: {self.path}: {missing.sum()} triangles have no texcoords; they get (0, 0).", stacklevel=4
            )
            texcoords = np.concatenate([texcoords, np.zeros((1, 2))])
            triangles[missing] = len(texcoords) - 1
        return {"texcoords": texcoords, "texcoord_triangles": triangles}

    def _normals(self, triangles: np.ndarray) -> dict[str, np.ndarray | None]:
        missing = (triangles == _NONE).any(-1)
        if missing.all():
            return {}
        if missing.any():
            warnings.warn(
                f"load_mesh: {self.path}: {missing.sum()} triangles have no normals; the stored ones are dropped, "
                "Mesh.vertex_normals() computes smooth ones.",
                stacklevel=4,
            )
            return {}
        normals = np.array([row[:3] for row in self.rows["vn"]], dtype=np.float64)
        return {"normals": normals, "normal_triangles": triangles}

    def _colors(self) -> np.ndarray | None:
        # `v x y z r g b` is a common extension; a fourth number alone is the weight of rational curves.
        if all(len(row) >= 6 for row in self.rows["v"]):
            return np.array([row[3:6] for row in self.rows["v"]], dtype=np.float64)
        return None

    def _numbers(self, number: int, words: list[str]) -> list[float]:
        at_least = 1 if words[0] == "vt" else 3
        try:
            values = [float(word) for word in words[1:]]
        except ValueError:
            raise self._error(number, f"numbers must follow {words[0]!r}", " ".join(words)) from None
        if len(values) < at_least:
            raise self._error(number, f"{words[0]!r} must have at least {at_least} numbers", " ".join(words))
        return values

    def _corner(self, number: int, word: str) -> tuple[int, int, int]:
        parts = [*word.split("/"), "", ""][:3]
        vertex, texcoord, normal = (
            self._index(number, word, part, key) for part, key in zip(parts, ("v", "vt", "vn"), strict=True)
        )
        if vertex == _NONE:
            raise self._error(number, "a face corner must name a vertex", word)
        return vertex, texcoord, normal

    def _index(self, number: int, word: str, part: str, key: str) -> int:
        if not part:
            return _NONE
        try:
            index = int(part)
        except ValueError:
            raise self._error(number, "face corners must be v, v/vt, v//vn or v/vt/vn", word) from None
        # Negative indices count back from the last row before this line.
        zero_based = index - 1 if index > 0 else len(self.rows[key]) + index
        if index == 0 or zero_based < 0:
            raise self._error(number, f"indices must name an existing {key!r} line", word)
        return zero_based

    def _check_range(self, corners: np.ndarray, sizes: np.ndarray) -> None:
        for column, key in enumerate(("v", "vt", "vn")):
            bad = np.flatnonzero(corners[:, column] >= len(self.rows[key]))
            if len(bad):
                line = self.face_lines[int(np.searchsorted(sizes.cumsum(), bad[0], side="right"))]
                index = corners[bad[0], column] + 1
                raise self._error(
                    line, f"indices must be at most {len(self.rows[key])} ({key!r} lines in the file)", str(index)
                )

    def _error(self, number: int, expected: str, got: str) -> ValueError:
        shown = got if len(got) <= 60 else got[:57] + "..."
        return ValueError(f"load_mesh: {self.path}, line {number}: {expected}, got {shown!r}.")
