"""Contexts, log level, and the switch between our values and exact legacy ones. Nothing here holds device memory."""

from __future__ import annotations

import logging

import torch

from ... import _checks

_logger = logging.getLogger("diffrender.compat.nvdiffrast")
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_logger.setLevel(_LEVELS[1])

_exact_legacy = False


class RasterizeCudaContext:
    """What `rasterize` takes as its first argument. Our kernels keep no state between calls, so it holds nothing.

    One context serves tensors on every device, the CPU included, in any thread.

    Args:
        device: remembered, not used.
    """

    def __init__(self, device: torch.device | str | int | None = None) -> None:
        self.device = device


class RasterizeGLContext(RasterizeCudaContext):
    """Deprecated name of RasterizeCudaContext.

    Args:
        output_db: ignored: derivatives are always there.
        mode: "automatic" or "manual"; ignored.
        device: as above.
    """

    def __init__(
        self, output_db: bool = True, mode: str = "automatic", device: torch.device | str | int | None = None
    ) -> None:
        _checks.check_choice("RasterizeGLContext", "mode", mode, ("automatic", "manual"))
        super().__init__(device)
        self.output_db = output_db
        self.mode = mode
        _logger.info("RasterizeGLContext is a deprecated name of RasterizeCudaContext.")

    def set_context(self) -> None:
        """Does nothing."""

    def release_context(self) -> None:
        """Does nothing."""


def check_context(function: str, value: object) -> None:
    if not isinstance(value, RasterizeCudaContext):
        _checks.fail(
            TypeError, function, "glctx", "be a RasterizeCudaContext or RasterizeGLContext", type(value).__name__
        )


def get_log_level() -> int:
    """0 = info, 1 = warning (the default), 2 = error, 3 = fatal."""
    return _LEVELS.index(_logger.level)


def set_log_level(level: int) -> None:
    """Level from which on the logger "diffrender.compat.nvdiffrast" reports: 0 info, 1 warning, 2 error, 3 fatal."""
    _checks.check_choice("set_log_level", "level", level, (0, 1, 2, 3))
    _logger.setLevel(_LEVELS[level])


def set_exact_legacy(enabled: bool) -> None:
    """Whether calls that do not say `exact_legacy=` themselves follow nvdiffrast where we differ on purpose."""
    global _exact_legacy
    if not isinstance(enabled, bool):
        _checks.fail(TypeError, "set_exact_legacy", "enabled", "be True or False", repr(enabled))
    _exact_legacy = enabled


def get_exact_legacy() -> bool:
    """What `set_exact_legacy` set; False at first."""
    return _exact_legacy


def resolve_exact_legacy(value: bool | None) -> bool:
    """The argument of one call, or the switch."""
    return _exact_legacy if value is None else bool(value)
