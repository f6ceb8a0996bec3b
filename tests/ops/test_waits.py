"""No op reads values back, forward or backward, where it may not look at them: on a GPU the host would wait for each.

Seen on the CPU, with the checks of indices off as they are on CUDA. Of host functions tests/test_cuda_sources.py tells.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from diffrender import _checks
from diffrender.ops.coverage import _DRIVER_GPU, _coverage_with_driver
from tests.ops.contract import CONTRACTS
from tests.ops.rows.coverage import many_pixels, picture
from tests.support.vocabulary import rnd
from tools.gpu.workload import renderer_calls

# Operators whose result is a number of Python, or has a size that depends on values.
READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique", "equal", "is_nonzero")
# Methods that reach the memory of a CPU tensor without an operator.
METHODS = ("tolist", "numpy", "cpu", "__array__")


class Reads(TorchDispatchMode):
    """Names of what was read."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        indexed_by_bool = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name.startswith(READS) or indexed_by_bool:
            self.found.append(name)
        return func(*args, **kwargs)


@pytest.fixture
def reads(monkeypatch):
    mode = Reads()
    monkeypatch.setattr(_checks, "can_read", lambda tensor: False)
    for name in METHODS:
        original = getattr(torch.Tensor, name)

        def method(self, *args, name=name, original=original, **kwargs):
            mode.found.append(name)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, method)
    return mode


def differentiate(call, tensors):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    outputs = call(*leaves)
    torch.autograd.grad(outputs, leaves, [rnd(*x.shape, seed=k, dtype=x.dtype) for k, x in enumerate(outputs)])


EXAMPLES = [
    pytest.param(example, id=f"{contract.name}-{example.label}")
    for contract in CONTRACTS
    for example in contract.examples
    if not contract.ragged
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_op_reads_values_back(example, reads):
    differentiate(example.call, example.tensors())  # tables are made once
    reads.found.clear()
    with reads:
        differentiate(example.call, example.tensors())
    assert reads.found == []


@pytest.mark.parametrize(("capacity", "expected"), [(None, ["tolist"]), (3000, [])])
def test_coverage_reads_once_or_never(capacity, expected, reads):
    positions, triangles = many_pixels()

    def call(leaf):
        return (picture(_coverage_with_driver(leaf, triangles, (22, 28), capacity=capacity, driver=_DRIVER_GPU)),)

    differentiate(call, [positions])  # a first call may ask a second time
    reads.found.clear()
    with reads:
        differentiate(call, [positions])
    assert reads.found == expected


@pytest.mark.parametrize("call", renderer_calls("cpu"), ids=lambda call: call.name)
def test_renderer_reads_nothing_back(call, reads):
    call.run(*call.inputs)
    reads.found.clear()
    with reads:
        call.run(*call.inputs)
    assert reads.found == []


def test_reads_are_seen(reads):
    x = torch.arange(4.0)
    for read in (
        lambda: float(x.sum()), lambda: bool(x.any()), x.tolist, lambda: x[x > 1], lambda: x.nonzero(), x.numpy,
        lambda: x.unique(), lambda: torch.equal(x, x), lambda: x.index_put_((x > 2,), torch.tensor(0.0)), x.cpu,
    ):  # fmt: skip
        reads.found.clear()
        with reads:
            read()
        assert reads.found, read
