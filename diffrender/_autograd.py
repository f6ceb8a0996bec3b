"""What the ops share around autograd: forward mode, second-derivative guard, scatter algorithm, vmap by a loop.

Forward mode: an op's Function has a static method

    tangents(inputs, outputs, tangents) -> tangents of the outputs

which takes all arguments of `forward` and what it returned, and the tangents of the arguments (None where there is
none). It is written with Functions, never with bare kernels, so that a derivative of it is right or refused.
`torch.compile` traces no Function that has a `jvp`, so `apply` adds that outside of it only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad

# Scatter algorithms of the kernels (csrc/core/launch.h).
SCATTER_NATIVE, SCATTER_FIXED_POINT = 0, 1


def scatter_algorithm(tensor: torch.Tensor) -> int:
    """Order-free sums on CUDA if deterministic algorithms are asked for. On the CPU sums are deterministic anyway."""
    if tensor.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        return SCATTER_FIXED_POINT
    return SCATTER_NATIVE


def no_second_derivative(op: str) -> NoReturn:
    """For the backward of a backward: raise instead of a wrong number.

    `once_differentiable` would not do: it stays silent when the cotangent needs no gradient but the inputs do.
    """
    raise NotImplementedError(
        f"{op}: second derivatives are not implemented. Take the first gradient without create_graph=True, "
        "or detach what enters this op."
    )


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """`function.apply(*args)`, in forward mode too."""
    if torch.compiler.is_compiling():
        if not (torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)):
            # The tracer would give `forward` a context there, even to a Function with `setup_context`.
            return function.forward(*args)
        # It takes no tensor twice.
        twice = [isinstance(x, torch.Tensor) and any(x is y for y in args[:k]) for k, x in enumerate(args)]
        return function.apply(*(x.view_as(x) if again else x for x, again in zip(args, twice, strict=True)))
    # Under vmap of a jvp torch counts the members of tuples as arguments: they are kept closed.
    closed = tuple(_Closed(x) if isinstance(x, tuple) else x for x in args)
    made = _with_forward_mode(function)
    if torch._C._are_functorch_transforms_active():
        return made.apply(*closed)
    # What `made.apply` does then but for default arguments, of which there are none: binding them takes as long as all
    # the rest of the call.
    return super(torch.autograd.Function, made).apply(*unwrap_dead_wrappers(closed))  # pyright: ignore[reportAttributeAccessIssue]


class _Closed:
    """A tuple of constants that torch takes for one value."""

    def __init__(self, members: tuple):
        self.members = members


def _opened(args: Sequence[Any]) -> tuple:
    return tuple(x.members if isinstance(x, _Closed) else x for x in args)


@functools.cache
def _with_forward_mode(function: Any) -> Any:
    """The Function with a `jvp` made from its `tangents`; without them one that raises."""

    def forward(*args: Any) -> Any:
        return function.forward(*_opened(args))

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        inputs = _opened(inputs)
        function.setup_context(ctx, inputs, output)
        outputs = output if isinstance(output, tuple) else (output,)
        # Held during the forward pass only; torch lets go of them before it returns. Only where a tangent can come:
        # under vmap torch remembers the batch axes of what was saved last, for either mode.
        if _is_forward_level():
            ctx.save_for_forward(*(x if isinstance(x, torch.Tensor) else None for x in (*inputs, *outputs)))
        ctx.constants = [None if isinstance(x, torch.Tensor) else x for x in inputs]
        ctx.is_tuple = isinstance(output, tuple)
        # Missing tangents shall be None, since work on zeros is not free; so are missing cotangents then.
        ctx.set_materialize_grads(False)
        ctx.like = [(x.shape, x.dtype, x.device) if isinstance(x, torch.Tensor) else None for x in outputs]

    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if not getattr(function, "takes_missing_cotangents", False):
            grads = tuple(
                torch.zeros(like[0], dtype=like[1], device=like[2]) if grad is None and like is not None else grad
                for grad, like in zip(grads, ctx.like, strict=True)
            )
        return function.backward(ctx, *grads)

    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        rule = getattr(function, "tangents", None)
        # torch calls this with forward mode switched off: in two levels of it, the outer one would silently get zeros.
        if rule is None or _transforms().count(_functorch.TransformType.Jvp) > 1:
            no_forward_mode(function.__module__.rpartition(".")[2].lstrip("_"))
        count = len(ctx.constants)
        saved = ctx.saved_tensors
        inputs = [x if tensor is None else tensor for x, tensor in zip(ctx.constants, saved[:count], strict=True)]
        results = rule(inputs, saved[count:], tangents)
        return tuple(results) if ctx.is_tuple else results

    own = {"forward": forward, "setup_context": setup_context, "backward": backward, "jvp": jvp}
    methods = {name: staticmethod(method) for name, method in own.items()}
    return type(function.__name__, (function,), {**methods, "__module__": function.__module__})


def _transforms() -> list[Any]:
    """Kinds of the torch.func transforms at work, from the outermost to the one that looks at the Function now."""
    return [interpreter.key() for interpreter in _functorch.get_interpreter_stack() or ()]


def _is_forward_level() -> bool:
    """Whether what looks at the Function now is forward mode; vmap only passes on what is around it."""
    around = [kind for kind in _transforms() if kind != _functorch.TransformType.Vmap]
    return around[-1] == _functorch.TransformType.Jvp if around else forward_ad._current_level >= 0


def nests_forward_mode() -> bool:
    """Whether forward mode of torch.func is at work inside or outside of another derivative, as in its hessian."""
    if torch.compiler.is_compiling():
        return False
    derivatives = [kind for kind in _transforms() if kind != _functorch.TransformType.Vmap]
    return len(derivatives) > 1 and _functorch.TransformType.Jvp in derivatives


def constant_when_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compiler.assume_constant_result`, which would import the compiler: over a second for everyone."""
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def no_forward_mode(op: str) -> NoReturn:
    """For what has no forward mode, and for the forward-mode derivative of a backward pass."""
    raise NotImplementedError(
        f"{op}: this derivative is not implemented in forward mode (torch.func.jvp, jacfwd, hessian). "
        "Use reverse mode: torch.func.grad, vjp, jacrev or backward()."
    )


def product_of_channels(rows: Callable[[int], Sequence[Any]], channels: int, tangents: Sequence[Any]) -> Any:
    """Tangent (..., channels) of an op whose pixels depend on nothing but their own rows of the arguments.

    No two pixels share an argument then, so that a backward pass gives a row of every pixel's Jacobian at once.

    Args:
        rows: channel -> gradients of the sum of that channel, each of the shape of its tangent (..., C_i).
        tangents: of the arguments; None where there is none, whose gradient is not looked at. One at least is given.
    """
    results = []
    for channel in range(channels):
        pairs = zip(rows(channel), tangents, strict=True)
        parts = [(gradient * tangent).sum(-1) for gradient, tangent in pairs if tangent is not None]
        results.append(functools.reduce(torch.add, parts))
    return torch.stack(results, -1)


def added(*parts: Any) -> Any:
    """Sum of tangents, where None stands for zero."""
    given = [part for part in parts if part is not None]
    return functools.reduce(torch.add, given) if given else None


def is_batched(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor is one of many under vmap, so that there is no one value to look at."""
    while tensor is not None and _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def can_decide(*tensors: torch.Tensor | None) -> bool:
    """Whether the values of these tensors may decide what is computed next; on a GPU the host waits for them.

    Not while something traces, under vmap, or where a CUDA graph is captured, which does the same for all values.
    """
    if torch.compiler.is_compiling() or any(is_batched(tensor) for tensor in tensors):
        return False
    if any(isinstance(tensor, torch._subclasses.FakeTensor) for tensor in tensors):
        return False
    return not any(tensor is not None and is_captured(tensor) for tensor in tensors)


def is_captured(tensor: torch.Tensor) -> bool:
    """Whether what is done with this tensor now goes into a CUDA graph, and nothing may wait for the device."""
    return tensor.is_cuda and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def register_fake(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Shapes and types of a kernel's results, for torch.compile and meta tensors."""
    return torch.library.register_fake(f"diffrender::{op}")


def register_vmap(op: str) -> None:
    """Under vmap the op runs once per slice: kernels have their own batch axis, whose meaning a fold would change."""
    overload = getattr(torch.ops.diffrender, op).default

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        slices = []
        for index in range(info.batch_size):
            pairs = zip(args, in_dims, strict=True)
            picked = [value if dim is None else value.select(dim, index) for value, dim in pairs]
            slices.append(overload(*picked))
        if isinstance(slices[0], torch.Tensor):
            return torch.stack(slices), 0
        return tuple(torch.stack(parts) for parts in zip(*slices, strict=True)), (0,) * len(slices[0])

    torch.library.register_vmap(f"diffrender::{op}", rule)
