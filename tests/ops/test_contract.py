"""What every op has to hold, checked for each row of the contract table (contract.py), on any device (see
tests/support/device.py): values, gradients, what is saved and skipped, layouts, threads, empty and bad input."""

import itertools
import re

import pytest
import torch

import diffrender as dr
from diffrender import _checks
from tests.ops.contract import CONTRACTS, Contract, Example
from tests.support.contract import (
    EXAMPLES,
    FIRST,
    FLOAT32_TOLERANCE,
    FLOAT64_TOLERANCE,
    ROWS,
    cotangents,
    gradients,
    strided_copy,
    weighted_sum,
    with_grad,
)
from tests.support.device import DEVICE, NONDETERMINISM
from tests.support.vocabulary import relative_error

F64 = torch.float64

BAD_CALLS = [pytest.param(bad, id=f"{c.name}-{bad.label}") for c in CONTRACTS for bad in c.bad_calls]
EMPTY_CALLS = [pytest.param(empty, id=f"{c.name}-{empty.label}") for c in CONTRACTS for empty in c.empty_calls]

# --- values and first derivatives -----------------------------------------------------------------


@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_gradcheck_in_float64(contract: Contract, example: Example):
    leaves = with_grad(example.tensors())
    for name, leaf in zip(example.arguments, leaves, strict=True):
        leaf.requires_grad_(name not in contract.beyond_forward)
    # Every entry of the Jacobian where that is cheap; random projections of it elsewhere. The comparison with autograd
    # of the reference sees every component anyway.
    entries = sum(x.numel() for x in leaves) * sum(x.numel() for x in example.call(*leaves))
    options = {"nondet_tol": NONDETERMINISM}
    assert torch.autograd.gradcheck(example.call, leaves, fast_mode=entries > 10_000, **options)
    # Each output alone: a mixed-up cotangent could hide in the sum of all.
    for k in range(len(example.call(*leaves))):
        assert torch.autograd.gradcheck(lambda *args, k=k: example.call(*args)[k], leaves, fast_mode=True, **options)


@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, FLOAT64_TOLERANCE), (torch.float32, FLOAT32_TOLERANCE)])
def test_values_and_gradients_equal_the_reference(contract: Contract, example: Example, dtype, tolerance):
    inputs = example.tensors(dtype)
    outputs, truth = example.call(*inputs), example.reference(*inputs)
    for value, true_value in zip(outputs, truth, strict=True):
        assert value.dtype == dtype
        assert value.is_contiguous()
        assert relative_error(value, true_value) < tolerance
    weights = cotangents(truth)
    grads = gradients(example.call, inputs, [w.to(dtype) for w in weights])
    for name, grad, true_grad in zip(
        example.arguments, grads, gradients(example.reference, inputs, weights), strict=True
    ):
        assert grad.dtype == dtype
        assert true_grad.any()
        assert relative_error(grad, true_grad) < tolerance, name


# --- second derivatives, in-place changes, what is skipped ----------------------------------------


@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_second_derivative_is_right_or_refused(contract: Contract, example: Example):
    leaves = with_grad(example.tensors())
    if contract.second_derivative:
        fast = example is not contract.examples[0]
        assert torch.autograd.gradgradcheck(example.call, leaves, fast_mode=fast, nondet_tol=NONDETERMINISM)
        return
    # The cotangent of sum() needs no gradient itself: the error has to hang on the inputs.
    for head in (lambda x: x.sum(), lambda x: (x**2).sum()):
        for which, leaf in enumerate(leaves):
            loss = sum(head(x) for x in example.call(*leaves)) + (leaf**3).sum()
            (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
            with pytest.raises(NotImplementedError, match=contract.name):
                (grad**2).sum().backward()
            assert which < len(leaves)


@pytest.mark.parametrize(("contract", "example"), FIRST)
def test_in_place_change_of_a_saved_input_raises(contract: Contract, example: Example):
    for name in contract.saves:
        leaves = with_grad(example.tensors())
        which = list(example.arguments).index(name)
        changed = leaves[which] * 1
        outputs = example.call(*[changed if k == which else leaf for k, leaf in enumerate(leaves)])
        with torch.no_grad():
            changed.mul_(10)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            sum(x.sum() for x in outputs).backward()


@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_inputs_are_not_changed(contract: Contract, example: Example):
    leaves = with_grad(example.tensors())
    sum(x.sum() for x in example.call(*leaves)).backward()
    for leaf, before in zip(leaves, example.tensors(), strict=True):
        assert torch.equal(leaf.detach(), before)


@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_only_inputs_that_need_a_gradient_get_one(contract: Contract, example: Example):
    inputs = example.tensors()
    weights = cotangents(example.call(*inputs))
    full = gradients(example.call, inputs, weights)
    for count in range(len(inputs) + 1):
        for needed in itertools.combinations(range(len(inputs)), count):
            leaves = [x.clone().requires_grad_(k in needed) for k, x in enumerate(inputs)]
            outputs = example.call(*leaves)
            # With all inputs but the derivatives frozen an output may be constant; otherwise it is in the graph.
            assert any(x.requires_grad for x in outputs) == bool(needed)
            if not needed:
                continue
            live = [(x * w).sum() for x, w in zip(outputs, weights, strict=True) if x.requires_grad]
            sum(live).backward()
            for k, leaf in enumerate(leaves):
                if k in needed:
                    torch.testing.assert_close(leaf.grad, full[k], rtol=1e-13, atol=1e-13)
                else:
                    assert leaf.grad is None


@pytest.mark.parametrize(("contract", "example"), FIRST)
def test_no_kernel_computes_a_gradient_that_nobody_needs(contract: Contract, example: Example):
    """Counts what the backward kernels return: nothing bigger than the gradients that were asked for."""
    for which in range(len(example.arguments)):
        leaves = [x.requires_grad_(k == which) for k, x in enumerate(example.tensors())]
        outputs = [x for x in example.call(*leaves) if x.requires_grad]
        with KernelLog() as log:
            sum(x.sum() for x in outputs).backward()
        assert log.results, "the backward runs no kernel of diffrender"
        written = sum(x.numel() for x in log.results)
        assert written <= leaves[which].numel(), f"{written} values for {leaves[which].numel()}"


class KernelLog(torch.utils._python_dispatch.TorchDispatchMode):
    """Tensors that the kernels of diffrender return while this is active."""

    def __init__(self):
        super().__init__()
        self.results = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "diffrender":
            self.results += [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        return result


@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_an_output_without_cotangent_counts_as_zero(contract: Contract, example: Example):
    inputs = example.tensors()
    outputs = example.call(*inputs)
    weights = cotangents(outputs)
    parts = []
    for k in range(len(outputs)):
        leaves = with_grad(inputs)
        one = example.call(*leaves)[k]
        parts.append(torch.autograd.grad((one * weights[k]).sum(), leaves, allow_unused=True))
    for name, column, whole in zip(
        example.arguments, zip(*parts, strict=True), gradients(example.call, inputs, weights), strict=True
    ):
        total = sum(grad for grad in column if grad is not None)
        torch.testing.assert_close(total, whole, rtol=1e-10, atol=1e-10, msg=name)


# --- layouts, threads, autocast -------------------------------------------------------------------


def layouts(x):
    """The same values in other storage: transposed, every other element, offset, and (where legal) expanded."""
    yield x.transpose(0, -1).contiguous().transpose(0, -1)
    yield strided_copy(x)
    yield torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view(x.shape)
    if x.shape[0] == 1:
        yield x.expand(1, *x.shape[1:])


@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_layout_of_inputs_does_not_matter(contract: Contract, example: Example):
    inputs = example.tensors()
    truth = example.call(*inputs)
    weights = cotangents(truth)
    true_grads = gradients(example.call, inputs, weights)
    for which in range(len(inputs)):
        for view in layouts(inputs[which]):
            changed = [view if k == which else x for k, x in enumerate(inputs)]
            assert all(torch.equal(a, b) for a, b in zip(example.call(*changed), truth, strict=True))
            leaves = [x.detach().requires_grad_() for x in changed]
            grads = torch.autograd.grad(weighted_sum(example.call(*leaves), weights), leaves)
            assert all(torch.equal(a, b) for a, b in zip(grads, true_grads, strict=True))


@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_layout_of_cotangents_does_not_matter(contract: Contract, example: Example):
    leaves = with_grad(example.tensors())
    outputs = example.call(*leaves)
    ones = [torch.ones_like(x) for x in outputs]
    dense = torch.autograd.grad(outputs, leaves, ones, retain_graph=True)
    strides_zero = torch.autograd.grad(
        outputs, leaves, [o[:1, :1].mean().expand(o.shape) for o in ones], retain_graph=True
    )
    assert all(torch.equal(a, b) for a, b in zip(dense, strides_zero, strict=True))
    weights = cotangents(outputs)
    dense = torch.autograd.grad(outputs, leaves, weights, retain_graph=True)
    for view in range(3):
        viewed = [list(layouts(w))[view] for w in weights]
        grads = torch.autograd.grad(outputs, leaves, viewed, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(dense, grads, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("contract", ROWS)
def test_one_and_two_threads_are_bit_identical(contract: Contract, dtype, set_threads):
    inputs = contract.large.tensors(dtype)
    runs = []
    for threads in (1, 2, 1):
        set_threads(threads)
        outputs = contract.large.call(*inputs)
        runs.append([*outputs, *gradients(contract.large.call, inputs, cotangents(outputs))])
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))
    if dtype == F64:
        truth = contract.large.reference(*inputs)
        true_grads = gradients(contract.large.reference, inputs, cotangents(truth))
        for value, true_value in zip(runs[0], [*truth, *true_grads], strict=True):
            assert relative_error(value, true_value) < 1e-9


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_autocast_changes_nothing(contract: Contract, example: Example, half):
    """Geometry runs in the precision of its inputs, and gradients come back in the type of the inputs."""
    inputs = example.tensors(torch.float32)
    truth = example.call(*inputs)
    weights = cotangents(truth)
    true_grads = gradients(example.call, inputs, weights)
    with torch.autocast(DEVICE.type, dtype=half):
        outputs = example.call(*inputs)
        grads = gradients(example.call, inputs, weights)
    for value, expected in zip([*outputs, *grads], [*truth, *true_grads], strict=True):
        assert value.dtype == torch.float32
        assert torch.equal(value, expected)


# --- empty and bad input --------------------------------------------------------------------------


@pytest.mark.parametrize("empty", EMPTY_CALLS)
def test_empty_input_is_legal(empty):
    inputs, outputs = empty.call()
    assert [tuple(x.shape) for x in outputs] == empty.shapes
    live = [x.sum() for x in outputs if x.requires_grad]
    assert live
    sum(live).backward()
    for x in inputs:
        assert x.grad.shape == x.shape
        assert not x.grad.any()


@pytest.fixture
def checked_indices():
    """Ranges of indices are looked at on every device, not on the CPU alone."""
    before = _checks._device_checks
    dr.set_checks(True)
    yield
    dr.set_checks(before)


@pytest.mark.usefixtures("checked_indices")
@pytest.mark.parametrize("bad", BAD_CALLS)
def test_bad_call_says_what_is_wrong(bad):
    with pytest.raises(bad.error) as caught:
        bad.call()
    assert re.match(bad.message, str(caught.value)), str(caught.value)
