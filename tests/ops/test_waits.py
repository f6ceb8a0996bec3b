"""No op reads values back, forward or backward, where it may not look at them: on a GPU the host would wait for each.

Seen on the CPU, with the checks of indices off as they are on CUDA. Of host functions tests/test_cuda_sources.py tells.
"""

import pytest
import torch

import diffrender as dr
from diffrender import _autograd
from diffrender._constants import constant
from diffrender.ops import coverage as coverage_module
from diffrender.ops.coverage import _DRIVER_GPU, _coverage_with_driver
from tests.ops.contract import CONTRACTS
from tests.ops.rows.coverage import many_pixels, picture
from tests.support.reads import watched
from tests.support.vocabulary import rnd
from tools.gpu.workload import renderer_calls


@pytest.fixture
def reads(monkeypatch):
    return watched(monkeypatch)


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
    with reads:
        differentiate(example.call, example.tensors())
    assert reads.found == []


@pytest.mark.parametrize(("capacity", "expected"), [(None, ["tolist"]), (3000, [])])
def test_coverage_reads_once_or_never(capacity, expected, reads):
    positions, triangles = many_pixels()

    def call(leaf):
        return (picture(_coverage_with_driver(leaf, triangles, (22, 28), capacity=capacity, driver=_DRIVER_GPU)),)

    differentiate(call, [positions])  # a first call may ask a second time
    with reads:
        differentiate(call, [positions])
    assert reads.found == expected


@pytest.mark.parametrize("call", renderer_calls("cpu"), ids=lambda call: call.name)
def test_renderer_reads_nothing_back(call, reads):
    """But whether there is one more layer, and whether a layer shows what alpha mode "MASK" discards."""
    call.run(*call.inputs)
    with reads:
        call.run(*call.inputs)
    # Three layers at most, of which the third is not asked; of each, its rounds of discarded pixels.
    assert set(reads.found) == ({"_local_scalar_dense", "is_nonzero"} & set(reads.found) if call.layered else set())
    assert not call.layered or 3 <= len(reads.found) < 20


@pytest.mark.parametrize("call", [call for call in renderer_calls("cpu") if call.layered], ids=lambda call: call.name)
def test_layers_are_drawn_without_a_look_where_a_graph_is_captured(call, reads, monkeypatch):
    expected = call.run(*call.inputs)
    monkeypatch.setattr(_autograd, "is_captured", lambda tensor: True)
    with reads:
        values = call.run(*call.inputs)
    assert reads.found == []
    for value, truth in zip(values, expected, strict=True):
        assert torch.allclose(value, truth, rtol=1e-5, atol=1e-6)


def test_coverage_without_capacity_names_it_where_a_graph_is_captured(monkeypatch):
    positions, triangles = many_pixels()
    monkeypatch.setattr(coverage_module, "is_captured", lambda tensor: True)
    with pytest.raises(RuntimeError, match="coverage: capacity must be given where a CUDA graph is captured"):
        dr.coverage(positions, triangles, (22, 28))
    assert len(dr.coverage(positions, triangles, (22, 28), capacity=3000).triangle_id) == 3000


def test_reads_are_seen(reads):
    x = torch.arange(4.0)
    for read in (
        lambda: float(x.sum()), lambda: bool(x.any()), x.tolist, lambda: x[x > 1], lambda: x.nonzero(), x.numpy,
        lambda: x.unique(), lambda: torch.equal(x, x), lambda: x.index_put_((x > 2,), torch.zeros(())), x.cpu,
        lambda: x.new_tensor([1.0]), lambda: torch.tensor([1.0]), lambda: torch.as_tensor(2.0),
        lambda: constant([1.0] * 33, x),
    ):  # fmt: skip
        with reads:
            read()
        assert reads.found, read
    with reads:
        constant([1.0] * 32, torch.as_tensor(x))
    assert reads.found == []
