"""Interfaces of other libraries on the ops of this one, for scripts that were written for them."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["install_as_nvdiffrast"]

# The version whose interface `diffrender.compat.nvdiffrast` follows.
_NVDIFFRAST_VERSION = "0.4.0"


def install_as_nvdiffrast(*, exact_legacy: bool | None = None) -> None:
    """Make `import nvdiffrast.torch as dr` mean `diffrender.compat.nvdiffrast`, in this process.

    For third-party code that one does not want to touch. Call it before that code is imported; a second call is
    harmless.

    Args:
        exact_legacy: True or False also calls `diffrender.compat.nvdiffrast.set_exact_legacy` with it.

    Raises:
        RuntimeError: the real package is imported already, so that some modules would go on using it.

    Example, at the top of a program:
        diffrender.compat.install_as_nvdiffrast()
        import nvdiffrast.torch as dr  # is diffrender.compat.nvdiffrast
    """
    interface = importlib.import_module("diffrender.compat.nvdiffrast")
    present = sys.modules.get("nvdiffrast")
    if present is not None and getattr(present, "torch", None) is not interface:
        raise RuntimeError(
            "install_as_nvdiffrast: nvdiffrast is imported already. Call this before the first import of nvdiffrast."
        )
    if present is None:
        package = ModuleType("nvdiffrast", "diffrender.compat.nvdiffrast under the name of nvdiffrast.")
        package.__spec__ = ModuleSpec("nvdiffrast", loader=None, is_package=True)
        package.__path__ = []
        package.__dict__.update(torch=interface, __version__=_NVDIFFRAST_VERSION)
        sys.modules["nvdiffrast"] = package
        sys.modules["nvdiffrast.torch"] = interface
    if exact_legacy is not None:
        interface.set_exact_legacy(exact_legacy)
