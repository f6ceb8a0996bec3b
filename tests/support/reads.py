"""What a call asks of the host: values that it reads back, data that it copies to the device, and the operators that it
starts. Seen on the CPU, where every tensor stands for one on a GPU."""

from __future__ import annotations

import sys
from typing import Any

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from diffrender import _checks, _constants

# Operators whose result is a number of Python, or has a size that depends on values.
READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique", "equal", "is_nonzero")
# Methods that reach the memory of a CPU tensor without an operator.
METHODS = ("tolist", "numpy", "cpu", "__array__")


class Reads(TorchDispatchMode):
    """Names of what was read or copied, and every operator with its constants and the shapes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        indexed_by_bool = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name.startswith(READS) or indexed_by_bool:
            self.found.append(name)
        if not name.startswith("profiler"):
            self.operators.append(f"{func} {_described(args)} {_described(kwargs)}")
        return func(*args, **kwargs)

    def __enter__(self) -> Reads:
        self.found.clear()
        self.operators.clear()
        super().__enter__()
        return self


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (*value.shape, value.dtype)
    if isinstance(value, (list, tuple)):
        return [_described(x) for x in value]
    return {key: _described(x) for key, x in value.items()} if isinstance(value, dict) else value


def watched(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The mode, with what passes no dispatcher seen too, and with values that may not be looked at, as on CUDA."""
    mode = Reads()
    monkeypatch.setattr(_checks, "can_read", lambda tensor: False)

    def watch(owner: Any, name: str, is_found: Any) -> None:
        original = getattr(owner, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            if is_found(*args):
                mode.found.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, method)

    for name in METHODS:
        watch(torch.Tensor, name, lambda *args: True)
    # Numbers and arrays, which a GPU gets by a copy; a few of them `constant` writes by launches there.
    watch(torch.Tensor, "new_tensor", lambda *args: True)
    watch(torch, "from_numpy", lambda *args: True)
    for name in ("tensor", "as_tensor"):
        watch(torch, name, _is_copied)
    return mode


def _is_copied(values: Any, *_: Any) -> bool:
    if isinstance(values, torch.Tensor):
        return False
    caller = sys._getframe(2).f_globals.get("__name__")
    return caller != _constants.__name__ or numpy.size(values) > _constants._FEW
