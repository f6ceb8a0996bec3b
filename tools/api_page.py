"""Writes docs/api.md: every public name with its call and the first sentence of its docstring.

    python -m tools.api_page            # write the page
    python -m tools.api_page --check    # exit code 1 if the page is not what the package says

The page is made of the docstrings, so it changes with them; names without a place in GROUPS are an error.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import diffrender as dr

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"

# Of each group the title, what is said first, and the names: of the package, or all of a module.
GROUPS: list[tuple[str, str, Sequence[str] | ModuleType]] = [
    (
        "Scenes",
        "What is drawn and what draws it.",
        ["Mesh", "Camera", "Material", "MaterialSample", "Renderer", "RenderResult"]
        + ["frame_camera", "studio_lights"],
    ),
    (
        "Lights",
        "",
        ["AmbientLight", "DirectionalLight", "PointLight", "SpotLight", "EnvironmentLight", "PrefilteredEnvironment"]
        + ["pack_lights", "PackedLights"],
    ),
    (
        "Visibility",
        "Which triangle a pixel shows, and how its edges move.",
        ["rasterize", "Fragments", "fragments_at", "edge_topology", "antialias", "coverage", "Coverage", "composite"],
    ),
    ("Attributes and textures", "", ["interpolate", "texture", "texture_cube", "build_mips", "perturb_normals"]),
    (
        "Shading",
        "",
        ["shade_lambert", "shade_blinn_phong", "shade_metallic_roughness", "irradiance_sh", "split_sum"]
        + ["prefilter_environment", "cube_from_lat_long", "sh_from_environment", "window_sh"]
        + ["roughness_from_unbounded", "unbounded_from_roughness"],
    ),
    ("Colors", "", ["srgb_to_linear", "linear_to_srgb", "tonemap", "over", "unpremultiply"]),
    ("Files", "", ["load_mesh", "save_mesh", "load_image", "save_image"]),
    ("Running", "", ["set_checks", "saved_bytes", "keep_freed_memory"]),
    ("diffrender.geometry", "Shapes, transforms, rotations, topology.", dr.geometry),
    ("diffrender.losses", "Distances of pictures, roughness of meshes and maps.", dr.losses),
    ("diffrender.metrics", "What results are judged by; without gradients.", dr.metrics),
    ("diffrender.optim", "Optimizers and parametrizations for shapes.", dr.optim),
    ("diffrender.io", "What the package reads and writes besides the four above.", dr.io),
    ("diffrender.distributed", "Views over many processes.", dr.distributed),
]
MODULES = {"geometry", "losses", "metrics", "optim", "io", "distributed", "compat"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write docs/api.md.")
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args(arguments)
    text = page()
    if not options.check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("docs/api.md is not what the docstrings say. python -m tools.api_page writes it.", file=sys.stderr)
        return 1
    return 0


def page() -> str:
    """The page's text; raises if a public name is in no group."""
    listed = [name for *_, names in GROUPS if not isinstance(names, ModuleType) for name in names]
    missing = set(dr.__all__) - MODULES - set(listed)
    if missing:
        raise ValueError(f"api_page: {', '.join(sorted(missing))} must be named in one of GROUPS.")
    parts = [
        "# Public names\n\nMade from the docstrings by `python -m tools.api_page`; `help(dr.rasterize)` and so on tell"
        " shapes, units, gradients,\nmemory and errors. `import diffrender as dr` stands before everything here."
    ]
    shown: set[int] = set()
    for title, lead, names in GROUPS:
        is_module = isinstance(names, ModuleType)
        owner, chosen = (names, public_names(names)) if is_module else (dr, names)
        prefix = "dr." + (f"{title.rpartition('.')[2]}." if is_module else "")
        rows = [row for name in chosen for row in rows_of(prefix, name, getattr(owner, name), shown)]
        parts.append("\n\n".join(filter(None, [f"## {title}", lead, "| call | |\n|---|---|\n" + "\n".join(rows)])))
    return "\n\n".join(parts) + "\n"


def public_names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    names = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in names if not name.startswith("_")]


def rows_of(prefix: str, name: str, value: Any, shown: set[int]) -> Iterator[str]:
    """The row of a function, or those of a class and its public methods; nothing for what was shown before, such as
    methods of a common base."""
    if id(value) in shown:
        return
    shown.add(id(value))
    yield row(prefix + name, "", value, inspect.unwrap(value))
    if not inspect.isclass(value) or issubclass(value, tuple):
        return
    for method, function in inspect.getmembers(value):
        plain = inspect.unwrap(getattr(function, "__func__", function))
        is_ours = (getattr(plain, "__module__", None) or "").startswith("diffrender")
        if (
            method.startswith("_")
            or not inspect.isroutine(function)
            or not is_ours
            or not plain.__doc__
            or id(plain) in shown
        ):
            continue
        shown.add(id(plain))
        yield row(f".{method}", "&nbsp;&nbsp;", function, plain)


def row(label: str, indent: str, value: Any, source: Any) -> str:
    file = Path(inspect.getsourcefile(source) or "").resolve().relative_to(ROOT)
    return f"| {indent}[`{label}`](../{file}) {call(value)} | {summary(source)} |"


def call(value: Any) -> str:
    """The arguments by name and default, without types."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return ""
    parameters = [
        p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name not in ("self", "cls")
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    return f"`{text}`"


def summary(value: Any) -> str:
    """First sentence of the docstring, on one line."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[^.][.])(?<!et al[.])\s", text)[0].replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
