"""What is installed and what runs: `python -m diffrender.info`. Its output belongs into every bug report.

Lists versions, the compiler and CUDA toolkit of the build, devices, threads, the instruction set the loaded library was
compiled for, and for every operator the devices it has a kernel on.
"""

from __future__ import annotations

import json
import platform
from typing import Any

import numpy
import torch

import diffrender
from diffrender import _library


def collect() -> dict[str, Any]:
    """Everything that `main` prints, as plain values.

    Returns:
        A dictionary with `diffrender`, `torch`, `numpy`, `python`, `platform` (version strings), `library` (path),
        `level`, `levels_built`, `levels_supported`, `build` (compiler, torch, levels, cuda; what
        tools/build_library.py wrote), `threads`, `devices` (descriptions) and `operators` (name -> list of devices).

    Example:
        >>> from diffrender import info
        >>> info.collect()["level"] in ("baseline", "avx2", "avx512")
        True
    """
    _library.load()
    assert _library.loaded_level is not None  # load() raises otherwise
    return {
        "diffrender": diffrender.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "library": str(_library.library_path(_library.loaded_level)),
        "level": _library.loaded_level,
        "levels_built": _library.built_levels(),
        "levels_supported": _library.supported_levels(),
        "build": json.loads((_library.LIBRARY_FOLDER / "build_info.json").read_text()),
        "threads": torch.get_num_threads(),
        "devices": _devices(),
        "operators": _operators(),
    }


def describe(info: dict[str, Any]) -> str:
    """The lines that `main` prints for a dictionary from `collect`."""
    build = info["build"]
    cuda = build["cuda"]
    lines = [
        ("diffrender", info["diffrender"]),
        ("torch", info["torch"]),
        ("numpy", info["numpy"]),
        ("python", f"{info['python']} on {info['platform']}"),
        ("library", info["library"]),
        ("compiled by", f"{build['compiler']}, against torch {build['torch']}"),
        ("CUDA kernels", f"CUDA {cuda['version']} for {' '.join(cuda['archs'])}" if cuda else "not built"),
        (
            "instruction set",
            f"{info['level']} (built: {' '.join(info['levels_built'])}; "
            f"this CPU runs: {' '.join(info['levels_supported'])})",
        ),
        ("threads", str(info["threads"])),
        *[("device", device) for device in info["devices"]],
        *[("operator", f"{name}: {' '.join(devices)}") for name, devices in info["operators"].items()],
    ]
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)


def main() -> None:
    print(describe(collect()))


def _devices() -> list[str]:
    devices = ["cpu"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory_gib = properties.total_memory / 2**30
        devices.append(f"cuda:{index} {properties.name}, sm_{properties.major}{properties.minor}, {memory_gib:.0f} GiB")
    return devices


def _operators() -> dict[str, list[str]]:
    """Every operator of torch.ops.diffrender with the devices it has a kernel on.

    torch lists operators and kernels only through its private dispatcher queries.
    """
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("diffrender::"))
    return {
        name.removeprefix("diffrender::"): [
            key.lower() for key in ("CPU", "CUDA") if torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)
        ]
        for name in names
    }


if __name__ == "__main__":
    main()
