"""Materials of OBJ files (MTL), read and written as `dr.Material`.

Read: Kd and map_Kd (a picture is multiplied by Kd, unless that is black), d, Tr and map_d, Ke and map_Ke, the physical
extension Pm, Pr, map_Pm, map_Pr and norm, and wrapping by `-clamp`. Where Pr is missing, Ns gives the roughness by
Ns = 2 / roughness^4 - 2, if Ks says that there is a highlight at all; else it is 1. Kd counts as linear, pictures of
colors as sRGB. File names may contain spaces. map_d becomes the fourth channel of map_Kd: where they differ in size,
the smaller one is enlarged. All other pictures keep sizes of their own.

Not handled: Ks as a color, bump heights, reflection maps, scales and offsets of pictures (with a warning).
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffrender.color import linear_to_srgb, srgb_to_linear
from diffrender.geometry.mesh import Mesh
from diffrender.io.gltf_writer import _constant_and_picture, _picture, write_png
from diffrender.io.images import decode_image, floats_from_pixels
from diffrender.io.resize import to_one_size
from diffrender.io.unsaved import wraps
from diffrender.materials import Material

# Arguments of the options before a file's name; -o, -s and -t take up to three numbers.
_OPTION_ARGUMENTS = {
    "-blendu": 1, "-blendv": 1, "-boost": 1, "-mm": 2, "-texres": 1, "-clamp": 1, "-bm": 1, "-imfchan": 1, "-type": 1,
    "-colorspace": 1, "-cc": 1,
}  # fmt: skip
_NUMBERS = {"Kd": 3, "Ks": 3, "Ke": 3, "Ns": 1, "d": 1, "Tr": 1, "Pm": 1, "Pr": 1}
_PICTURES = {"map_kd", "map_d", "map_ke", "map_pm", "map_pr", "norm", "map_kn"}


def read_mtl(path: Path, *, dtype: torch.dtype = torch.float32) -> dict[str, Material]:
    """The materials of a file by name.

    Raises:
        ValueError: naming the file and the line.
    """
    statements: dict[str, dict[str, Any]] = {}
    current: dict[str, Any] | None = None
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            keyword, _, rest = line.split("#", 1)[0].strip().replace("\t", " ").partition(" ")
            rest = rest.strip()
            if keyword == "newmtl":
                current = statements.setdefault(rest, {})
            elif not keyword or current is None:
                continue
            elif keyword in _NUMBERS:
                current[keyword] = _numbers(path, number, keyword, rest)
            elif keyword.lower() in _PICTURES:
                current[keyword.lower()] = _picture_name(path, number, rest)
    pictures: dict[Path, Tensor] = {}
    return {name: _material(path, name, values, pictures, dtype) for name, values in statements.items()}


def write_mtl(path: Path, mesh: Mesh) -> list[str]:
    """Writes the mesh's materials and their pictures beside `path`, and returns their names."""
    names, lines = [], ["# written by diffrender"]
    for index, material in enumerate(mesh.materials):
        name = f"material_{index}"
        names.append(name)
        lines += ["", f"newmtl {name}"]
        if material is None:
            continue
        for keyword, key in (("Kd", "albedo"), ("Ke", "emissive"), ("Pm", "metallic"), ("Pr", "roughness")):
            value = _constant_and_picture(material, key)
            count = 3 if key in ("albedo", "emissive") else 1
            lines.append(f"{keyword} " + " ".join(f"{x:.9g}" for x in value.factor[:count]))
            has_alpha = material.alpha_mode != "OPAQUE"
            if key == "albedo" and len(value.factor) == 4 and has_alpha:
                lines.append(f"d {value.factor[3]:.9g}")
            if value.picture is not None:
                picture = value.picture[..., :count]
                file = path.with_name(f"{path.stem}_{index}_{key}.png")
                write_png(file, linear_to_srgb(picture) if count == 3 else picture)
                lines.append(f"map_{keyword} {_clamp(material)}{file.name}")
                if value.picture.shape[-1] == 4 and has_alpha:
                    alpha = path.with_name(f"{path.stem}_{index}_alpha.png")
                    write_png(alpha, value.picture[..., 3:])
                    lines.append(f"map_d {_clamp(material)}{alpha.name}")
        if material.normal is not None:
            file = path.with_name(f"{path.stem}_{index}_normal.png")
            write_png(file, _picture(material.normal, "normal"))
            lines.append(f"norm {_clamp(material)}{file.name}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return names


def _clamp(material: Material) -> str:
    return "-clamp on " if wraps(material) == ("clamp", "clamp") else ""


def _material(
    path: Path, name: str, values: dict[str, Any], pictures: dict[Path, Tensor], dtype: torch.dtype
) -> Material:
    clamps = [values[key][1].get("-clamp") for key in values if key in _PICTURES]
    wrap = "clamp" if clamps and all(clamp == ["on"] for clamp in clamps) else "repeat"

    def texture(key: str, channels: int) -> Tensor | None:
        """(H, W, channels) as stored; grey is repeated."""
        if key not in values:
            return None
        file = path.parent / values[key][0]
        if not file.is_file():
            warnings.warn(f"load_mesh: {path}, material {name!r}: {key} names {file.name!r}, which does not exist.",
                          stacklevel=8)  # fmt: skip
            return None
        if file not in pictures:
            pictures[file] = floats_from_pixels(decode_image(file.read_bytes(), str(file)), decode=False).to(dtype)
        count = pictures[file].shape[-1]
        color = pictures[file][..., : count - (count in (2, 4))]
        return color.mean(-1, keepdim=True) if channels == 1 else color.expand(*color.shape[:2], channels)

    color, alpha_picture = texture("map_kd", 3), texture("map_d", 1)
    diffuse, emission = values.get("Kd", [1.0] * 3), values.get("Ke", [0.0] * 3)
    if color is not None:
        color = srgb_to_linear(color)
        # Exporters that mean "the picture alone" write a black Kd.
        diffuse = [1.0] * 3 if max(diffuse) == 0 else diffuse
    # Tr 1 would be invisible; the programs that write it mean opaque.
    transparency = values.get("Tr", [0.0])[0]
    alpha = values["d"][0] if "d" in values else (1 - transparency if transparency < 1 else 1.0)
    if alpha_picture is not None:
        color = torch.ones(1, 1, 3, dtype=dtype) if color is None else color
        color = torch.cat(to_one_size([color, alpha_picture], wrap), -1)
    emissive, metallic, roughness = texture("map_ke", 3), texture("map_pm", 1), texture("map_pr", 1)
    if emissive is not None and max(emission) == 0:
        emission = [1.0] * 3
    return Material(
        1.0 if color is None else color,
        1.0 if metallic is None else metallic,
        1.0 if roughness is None else roughness,
        normal=texture("norm", 3) if "norm" in values else texture("map_kn", 3),
        emissive=1.0 if emissive is None else srgb_to_linear(emissive),
        albedo_factor=[*diffuse, alpha],
        metallic_factor=values.get("Pm", [0.0 if metallic is None else 1.0])[0],
        roughness_factor=_roughness(values) if roughness is None else values.get("Pr", [1.0])[0],
        emissive_factor=emission,
        alpha_mode="BLEND" if alpha < 1 or alpha_picture is not None else "OPAQUE",
        double_sided=True,
        wrap=wrap,
    ).to(dtype)


def _roughness(values: dict[str, Any]) -> float:
    if "Pr" in values:
        return values["Pr"][0]
    has_highlight = max(values.get("Ks", [0.0])) > 0 and values.get("Ns", [0.0])[0] > 0
    return (2 / (values["Ns"][0] + 2)) ** 0.25 if has_highlight else 1.0


def _numbers(path: Path, number: int, keyword: str, rest: str) -> list[float]:
    try:
        values = [float(word) for word in rest.split()]
    except ValueError:
        values = []
    if keyword in ("Kd", "Ks", "Ke") and len(values) == 1:
        values = values * 3  # a grey
    if len(values) < _NUMBERS[keyword]:
        expected = f"{_NUMBERS[keyword]} numbers must follow {keyword!r}"
        raise ValueError(f"load_mesh: {path}, line {number}: {expected}, got {rest!r}.")
    return values[: _NUMBERS[keyword]]


def _picture_name(path: Path, number: int, rest: str) -> tuple[str, dict[str, list[str]]]:
    """The file's name, which may contain spaces, and the options before it."""
    words, options = rest.split(" "), {}
    while words and words[0] in (*_OPTION_ARGUMENTS, "-o", "-s", "-t"):
        option, count = words.pop(0), 0
        limit = _OPTION_ARGUMENTS.get(option, 3)
        while words and count < limit and (option in _OPTION_ARGUMENTS or _is_number(words[0])):
            options.setdefault(option, []).append(words.pop(0))
            count += 1
    changed = [o for o in ("-o", "-s", "-t") if any(float(x) != (o == "-s") for x in options.get(o, []))]
    if changed:
        warnings.warn(f"load_mesh: {path}, line {number}: the option {changed[0]} is ignored.", stacklevel=7)
    name = os.path.normpath(" ".join(words).strip().replace("\\", "/"))
    if name == ".":
        raise ValueError(f"load_mesh: {path}, line {number}: a map must name a file, got {rest!r}.")
    return name, options


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
