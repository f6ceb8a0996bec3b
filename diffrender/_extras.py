"""Optional packages, imported when first needed: the core of diffrender runs on torch and numpy alone."""

import importlib
from typing import Any


def require(module: str, extra: str, *, used_by: str) -> Any:
    """Imports `module`, or raises an ImportError that says how to get it.

    Example:
        >>> require("math", "io", used_by="save_image").sqrt(4)
        2.0
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(
            f"{used_by}: the package {package} is missing. Install it with `pip install diffrender-torch[{extra}]`."
        ) from error
