"""Finds and loads the compiled library: one ImportError with its cure when that fails.

The same sources are compiled once per x86-64 level (baseline, avx2, on request avx512; other machines: baseline). The
best built level that this CPU can run is loaded, judged by `torch.backends.cpu.get_cpu_capability()`; the environment
variable DIFFRENDER_CPU_LEVEL asks for one level by name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

LEVELS = ("baseline", "avx2", "avx512")  # ascending: each includes the ones before it
MINIMUM_TORCH = (2, 10)
LIBRARY_FOLDER = Path(__file__).parent / "_lib"

_REBUILD = "Build it with `make build` in the source tree, or install again: `pip install --no-build-isolation .`"

loaded_level: str | None = None
"""Level of the library that `load` loaded, None before."""


def load() -> None:
    """Load the compiled library, which registers the operators as torch.ops.diffrender.*. Further calls do nothing.

    Raises:
        ImportError: torch is too old, nothing is built, DIFFRENDER_CPU_LEVEL cannot be met, or the loader failed.
    """
    global loaded_level
    if loaded_level is not None:
        return
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < MINIMUM_TORCH:
        raise ImportError(f"diffrender: torch must be 2.10 or newer, got {torch.__version__}. Upgrade torch.")
    level = choose_level(os.environ.get("DIFFRENDER_CPU_LEVEL", ""), supported_levels(), built_levels())
    path = library_path(level)
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"diffrender: {path} does not load with torch {torch.__version__}: {error}. {_REBUILD}"
        ) from error
    loaded_level = level


def choose_level(requested: str, supported: list[str], built: list[str]) -> str:
    """The level to load: `requested` if it names one, else the highest of `built` that is also `supported`.

    Raises:
        ImportError: nothing fits; the message says why and what to do.
    """
    if not built:
        raise ImportError(f"diffrender: no compiled library in {LIBRARY_FOLDER}. {_REBUILD}")
    if requested:
        asked = f"diffrender: DIFFRENDER_CPU_LEVEL must be one of {', '.join(LEVELS)}"
        if requested not in LEVELS:
            raise ImportError(f"{asked}, got {requested!r}. Correct or unset it.")
        if requested not in built:
            raise ImportError(f"{asked} that is built ({', '.join(built)}), got {requested!r}. {_REBUILD}")
        if requested not in supported:
            raise ImportError(f"{asked} that this CPU supports ({', '.join(supported)}), got {requested!r}. Unset it.")
        return requested
    usable = [level for level in built if level in supported]
    if not usable:
        raise ImportError(
            f"diffrender: this CPU supports {', '.join(supported)}, but only {', '.join(built)} is built. {_REBUILD}"
        )
    return usable[-1]


def supported_levels() -> list[str]:
    """Levels this CPU can run, ascending. ATen's AVX2 and AVX512 checks imply all of x86-64-v3 and -v4 on real CPUs."""
    capability = torch.backends.cpu.get_cpu_capability().upper()
    if capability.startswith("AVX512"):
        return list(LEVELS)
    if capability.startswith("AVX2"):
        return ["baseline", "avx2"]
    return ["baseline"]


def built_levels() -> list[str]:
    """Levels there is a library of, ascending."""
    return [level for level in LEVELS if library_path(level).is_file()]


def library_path(level: str) -> Path:
    return LIBRARY_FOLDER / f"libdiffrender_{level}.so"
