"""Memory between forward and backward: run a function again instead of keeping what it made, and count what is kept.

    picture = recomputed(lambda: shade(interpolate(...)), inputs=[vertices, albedo])

The backward pass calls the function a second time and differentiates that. Every op of this library gives the same bits
for the same inputs, so the gradient is bit for bit that of the function itself. `torch.utils.checkpoint` does the work;
added here is that a changed input raises instead of giving the gradient of something else.

Not handled: inside of `torch.func` transforms and of `torch.compile` the function simply runs once; the first cannot
hold tensors back, the second decides by itself what to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

T = TypeVar("T")


def recomputed(function: Callable[[], T], inputs: Iterable[Tensor]) -> T:
    """Runs a function, keeps none of its intermediate tensors, and runs it again when a backward pass needs them.

    Args:
        function: deterministic, without side effects on tensors; what it returns is returned.
        inputs: all tensors that it reads, so that one changed in place before the backward pass is noticed.

    Returns:
        What the function returns.

    Gradients: those of the function, bit for bit.
    Memory: keeps the inputs, and what the function itself holds on to.

    Raises:
        RuntimeError: in the backward pass, if an input was changed in place since.

    Example:
        >>> x = torch.rand(1000, requires_grad=True)
        >>> recomputed(lambda: x.exp().sin().sum(), [x]).backward()
        >>> torch.allclose(x.grad, x.exp().cos() * x.exp())
        True
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function()
    versions = [(tensor, tensor._version) for tensor in inputs]
    is_first = True

    def run() -> T:
        nonlocal is_first
        if not is_first:
            for tensor, version in versions:
                if tensor._version != version:
                    raise RuntimeError(
                        f"recompute: a tensor of shape {tuple(tensor.shape)} was changed in place between the forward "
                        "and the backward pass. Step the optimiser after backward, or use recompute=False."
                    )
        is_first = False
        return function()

    # The early stop is an exception, whose traceback would keep all that was recomputed until the garbage collector
    # comes by.
    with set_checkpoint_early_stop(False):
        return checkpoint(run, use_reentrant=False, preserve_rng_state=False, determinism_check="none")  # pyright: ignore[reportReturnType]


def tensors_of(*values: Any) -> Iterator[Tensor]:
    """Every tensor in nested containers, modules and plain objects; each object is visited once."""
    seen: set[int] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            yield value
            continue
        if isinstance(value, (str, bytes, int, float, complex, type, torch.dtype, torch.device)) or value is None:
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            stack.extend(value)
        elif (hasattr(value, "__dict__") and not callable(value)) or isinstance(value, torch.nn.Module):
            stack.extend(vars(value).values())


class _Created(TorchDispatchMode):
    """Notes every storage that an operation makes, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, StorageWeakRef] = {}
        self.sizes: list[tuple[StorageWeakRef, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What comes in existed before, or was noted when it was made.
        for tensor in tensors_of(args, kwargs):
            self._note(tensor, counts=False)
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            self._note(tensor, counts=True)
        return result

    def _note(self, tensor: Tensor, counts: bool) -> None:
        storage = tensor.untyped_storage()
        known = self.known.get(storage._cdata)
        if known is not None and not known.expired():
            return  # an address is only reused after the storage that had it is gone
        reference = StorageWeakRef(storage)
        self.known[storage._cdata] = reference
        if counts:
            self.sizes.append((reference, storage.nbytes()))


def saved_bytes(function: Callable[[], Any]) -> int:
    """Bytes that a forward pass keeps for its backward pass.

    Args:
        function: the forward pass; tensors in what it returns hang on the graph that is looked at.

    Returns:
        The size of all memory that operations inside of the function made and that is still held when the result
        itself is given up and only its graph is left. Memory that existed before, such as parameters and textures, does
        not count; memory that several tensors share counts once.

    Example:
        >>> x = torch.rand(1000, requires_grad=True)
        >>> saved_bytes(lambda: x.exp().sum())
        4000
    """
    with _Created() as created:
        result = function()
    # An iterator or a recursive structure of nodes would keep tensors alive: only the graph's roots stay.
    graph = [tensor.grad_fn for tensor in tensors_of(result) if tensor.grad_fn is not None]
    del result
    kept = sum(size for reference, size in created.sizes if not reference.expired())
    del graph
    return kept
