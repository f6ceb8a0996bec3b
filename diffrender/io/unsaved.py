"""What a file format has no place for, in words, so that nothing of a mesh is lost without a warning.

OBJ is meant with its MTL file. Not counted is what no picture shows: which of equal rows is which, and what the format
says of itself in `save_mesh` (bytes of colors in PLY, 8 bits of pictures, float32 in GLB, both sides of OBJ surfaces).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

from diffrender.geometry.mesh import Mesh
from diffrender.materials import Material


def warn_of_what_is_lost(path: str | os.PathLike[str], mesh: Mesh) -> None:
    """One warning that names all that the file at `path` cannot hold of the mesh."""
    suffix = Path(path).suffix.lower()
    lost = unsaved(mesh, suffix)
    if lost:
        hint = "" if suffix == ".glb" else " A .glb file does."
        warnings.warn(f"save_mesh: {path} cannot hold {'; '.join(lost)}.{hint}", stacklevel=3)


def unsaved(mesh: Mesh, suffix: str) -> list[str]:
    """What files of this suffix do not keep, each with where it is and what comes of it."""
    materials = [(index, material) for index, material in enumerate(mesh.materials) if material is not None]
    lost = []
    if suffix == ".ply" and materials:
        lost.append("materials")
    if suffix in (".ply", ".obj") and mesh.colors is not None and mesh.colors.shape[-1] == 4:
        lost.append("the alpha of vertex colors")
    if suffix == ".obj" and mesh.tangents is not None and any(m.normal is not None for _, m in materials):
        lost.append("tangents (those of the texcoords take their place)")
    for text, is_lost in _OF_MATERIALS.get(suffix, ()):
        numbers = [str(index) for index, material in materials if is_lost(material)]
        if numbers:
            lost.append(text.format(f"material {', '.join(numbers)}"))
    return lost


def wraps(material: Material) -> tuple[str, str]:
    """How textures go on across and down."""
    return (material.wrap, material.wrap) if isinstance(material.wrap, str) else tuple(material.wrap)  # pyright: ignore


def _has_texture(material: Material) -> bool:
    return any(value.ndim >= 3 for _, value in material.tensors())


_OF_MATERIALS: dict[str, tuple[tuple[str, Callable[[Material], bool]], ...]] = {
    ".obj": (
        ('alpha mode "MASK" of {} (it is read as "BLEND")', lambda m: m.alpha_mode == "MASK"),
        ("the occlusion of {}", lambda m: bool((m.occlusion.detach() != 1).any())),
        ("the normal_scale of {} (it is read as 1)",
         lambda m: m.normal is not None and bool((m.normal_scale.detach() != 1).any())),
        ("the wrap of {} (it is read as \"repeat\")",
         lambda m: _has_texture(m) and wraps(m) not in (("repeat", "repeat"), ("clamp", "clamp"))),
    ),
    ".glb": (
        ('the wrap "zero" of {} (it is read as "clamp")', lambda m: _has_texture(m) and "zero" in wraps(m)),
    ),
}  # fmt: skip
