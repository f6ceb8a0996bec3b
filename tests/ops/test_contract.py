"""What every op has to hold, checked for each row of the contract table (contract.py), on any device: see
tests/support/device.py."""

import itertools
import re

import pytest
import torch
from torch.autograd import forward_ad

import diffrender as dr
from diffrender import _checks
from tests.ops.contract import CONTRACTS, Contract, Example
from tests.support.device import DEVICE, NONDETERMINISM
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64

EXAMPLES = [pytest.param(c, e, id=f"{c.name}-{e.label}") for c in CONTRACTS for e in c.examples]
ROWS = [pytest.param(c, id=c.name) for c in CONTRACTS]
BAD_CALLS = [pytest.param(bad, id=f"{c.name}-{bad.label}") for c in CONTRACTS for bad in c.bad_calls]
EMPTY_CALLS = [pytest.param(empty, id=f"{c.name}-{empty.label}") for c in CONTRACTS for empty in c.empty_calls]
FIRST = [pytest.param(c, c.examples[0], id=c.name) for c in CONTRACTS]
FIXED = [pytest.param(c, c.examples[0], id=c.name) for c in CONTRACTS if not c.ragged]
RAGGED = [pytest.param(c, c.examples[0], id=c.name) for c in CONTRACTS if c.ragged]

# float32 against a float64 reference, relative to the largest true value. Barycentrics, crossings and their derivatives
# are ratios of cross products of corners a few pixels apart: of the 24 bits about 8 are lost to those differences.
FLOAT32_TOLERANCE = 2e-4
# float64: the same loss leaves 2^-53 * 2^8 = 3e-14; the rest is margin for longer sums.
FLOAT64_TOLERANCE = 1e-11


# Raised inside torch while it traces and generates code.
QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def cotangents(outputs, dtype=None):
    return [rnd(*x.shape, seed=100 + k, dtype=dtype or x.dtype) for k, x in enumerate(outputs)]


def with_grad(tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def weighted_sum(outputs, weights):
    return sum((x * w).sum() for x, w in zip(outputs, weights, strict=True))


def gradients(call, tensors, weights):
    leaves = with_grad(tensors)
    return torch.autograd.grad(weighted_sum(call(*leaves), weights), leaves)


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


# --- dispatcher, compile, functorch ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("contract", ROWS)
def test_opcheck_of_the_dispatcher_ops(contract: Contract, dtype):
    """Schema, fake kernel and dispatch of the raw ops. Gradients are made above them, so autograd is not registered."""
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for op, arguments in contract.dispatcher_calls(dtype):
        torch.library.opcheck(op, arguments, test_utils=checks)


@pytest.mark.parametrize("contract", ROWS)
def test_dispatcher_ops_accept_any_layout(contract: Contract):
    """Strided arguments of the raw ops give the results of dense ones, and results are dense."""
    for op, arguments in contract.dispatcher_calls(F64):
        strided = [strided_copy(a) if isinstance(a, torch.Tensor) and a.dim() > 0 else a for a in arguments]
        for value, truth in zip(as_tuple(op(*strided)), as_tuple(op(*arguments)), strict=True):
            assert torch.equal(value, truth)
            assert value.is_contiguous()


def strided_copy(x):
    return torch.stack([x, torch.zeros_like(x) + 9], -1)[..., 0]


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@QUIET
@pytest.mark.parametrize(("contract", "example"), FIXED)
def test_compile_fullgraph_equals_eager(contract: Contract, example: Example):
    """Without code generation: the graph is captured whole, forward and backward, and runs the same kernels."""
    compare_compiled(example, "aot_eager")


@QUIET
@pytest.mark.parametrize(("contract", "example"), FIXED)
def test_compile_with_inductor_equals_eager(contract: Contract, example: Example):
    compare_compiled(example, "inductor")


def compare_compiled(example: Example, backend: str):
    def loss(*args):
        outputs = example.call(*args)
        return sum((x.sin() * (k + 1)).sum() for k, x in enumerate(outputs)), *outputs

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    for view in (torch.clone, strided_copy):
        leaves, eager_leaves = ([view(x).requires_grad_() for x in example.tensors()] for _ in range(2))
        results, eager = compiled(*leaves), loss(*eager_leaves)
        for value, truth in zip(results, eager, strict=True):
            torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)
        results[0].backward()
        eager[0].backward()
        for leaf, eager_leaf in zip(leaves, eager_leaves, strict=True):
            torch.testing.assert_close(leaf.grad, eager_leaf.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_func_grad_equals_autograd(contract: Contract, example: Example):
    inputs = example.tensors()
    weights = cotangents(example.call(*inputs))
    everything = tuple(range(len(inputs)))
    grads = torch.func.grad(lambda *args: weighted_sum(example.call(*args), weights), argnums=everything)(*inputs)
    for grad, truth in zip(grads, gradients(example.call, inputs, weights), strict=True):
        assert torch.equal(grad, truth)


@pytest.mark.parametrize(("contract", "example"), FIXED)
def test_vmap_equals_a_loop(contract: Contract, example: Example):
    inputs = example.tensors()
    varied = [torch.stack([x, x * 1.0001, x * 0.9999]) for x in inputs]
    outputs = torch.func.vmap(example.call)(*varied)
    for k, output in enumerate(outputs):
        assert torch.equal(output, torch.stack([example.call(*slices)[k] for slices in zip(*varied, strict=True)]))

    # One argument mapped over its last axis, the others shared.
    for which in range(len(inputs)):
        dims = tuple(-1 if k == which else None for k in range(len(inputs)))
        moved = [varied[k].movedim(0, -1) if k == which else inputs[k] for k in range(len(inputs))]
        outputs = torch.func.vmap(example.call, in_dims=dims)(*moved)
        for k, output in enumerate(outputs):
            single = [example.call(*[varied[j][i] if j == which else inputs[j] for j in range(len(inputs))])[k]
                      for i in range(3)]  # fmt: skip
            assert torch.equal(output, torch.stack(single))


@pytest.mark.parametrize(("contract", "example"), FIXED)
def test_vmap_of_grad_equals_a_loop(contract: Contract, example: Example):
    """Per-sample gradients."""
    inputs = example.tensors()
    varied = [torch.stack([x, x * 1.0001, x * 0.9999]) for x in inputs]
    weights = cotangents(example.call(*inputs))
    everything = tuple(range(len(inputs)))
    grad = torch.func.grad(lambda *args: weighted_sum(example.call(*args), weights), argnums=everything)
    batched = torch.func.vmap(grad)(*varied)
    for i in range(3):
        for value, truth in zip(batched, grad(*[v[i] for v in varied]), strict=True):
            torch.testing.assert_close(value[i], truth, rtol=1e-12, atol=1e-12)

    # The other way round, by autograd: backward() of what vmap returned.
    leaves = [v.clone().requires_grad_() for v in varied]
    outputs = torch.func.vmap(lambda *args: weighted_sum(example.call(*args), weights))(*leaves)
    for value, truth in zip(torch.autograd.grad(outputs.sum(), leaves), batched, strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)


@QUIET
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(("contract", "example"), RAGGED)
def test_ragged_op_breaks_the_graph_and_refuses_vmap(contract: Contract, example: Example):
    """Compiled around the op the numbers are those of eager; vmap says why it can not be."""
    leaf, eager_leaf = (example.tensors()[0].requires_grad_() for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: example.call(x)[0].sin(), backend="aot_eager")
    value, truth = compiled(leaf), example.call(eager_leaf)[0].sin()
    torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)
    value.sum().backward()
    truth.sum().backward()
    torch.testing.assert_close(leaf.grad, eager_leaf.grad, rtol=1e-12, atol=1e-12)
    stack = torch.stack([leaf.detach(), leaf.detach() * 1.01])
    for call in (example.call, torch.func.grad(lambda x: example.call(x)[0].sum())):
        with pytest.raises(NotImplementedError, match=f"{contract.name}: vmap"):
            torch.func.vmap(call)(stack)


@QUIET
@pytest.mark.parametrize(("contract", "example"), FIXED)
def test_compile_fullgraph_without_gradients(contract: Contract, example: Example):
    """Of inputs that need none, and of those that do under no_grad."""
    torch._dynamo.reset()
    compiled = torch.compile(example.call, fullgraph=True, backend="eager")
    truth = example.call(*example.tensors())
    for leaves, enabled in ((example.tensors(), True), (with_grad(example.tensors()), False)):
        with torch.set_grad_enabled(enabled):
            for value, expected in zip(compiled(*leaves), truth, strict=True):
                assert torch.equal(value, expected)
                assert not value.requires_grad


@pytest.mark.parametrize(("contract", "example"), FIRST)
def test_batched_cotangents_equal_a_loop(contract: Contract, example: Example):
    """is_grads_batched=True, which jacrev and torch.autograd.functional.jacobian(vectorize=True) use."""
    leaves = with_grad(example.tensors())
    outputs = example.call(*leaves)
    stacks = [rnd(3, *x.shape, seed=k, dtype=F64) for k, x in enumerate(outputs)]
    batched = torch.autograd.grad(outputs, leaves, stacks, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        single = torch.autograd.grad(outputs, leaves, [s[i] for s in stacks], retain_graph=True)
        for value, truth in zip(batched, single, strict=True):
            torch.testing.assert_close(value[i], truth, rtol=1e-12, atol=1e-12)


def directions(contract, example, seed):
    """Tangents of the arguments that have a forward mode, zero for the others."""
    pairs = enumerate(example.arguments.items())
    return [
        rnd(*x.shape, seed=seed + k, dtype=F64) * (name not in contract.reverse_mode_only) for k, (name, x) in pairs
    ]


def forward_product(contract, example, tangents):
    """Outputs and products with the Jacobian, with tangents only where forward mode goes."""
    inputs = example.tensors()
    chosen = [k for k, name in enumerate(example.arguments) if name not in contract.reverse_mode_only]

    def call(*moving):
        return example.call(*[moving[chosen.index(k)] if k in chosen else x for k, x in enumerate(inputs)])

    return torch.func.jvp(call, tuple(inputs[k] for k in chosen), tuple(tangents[k] for k in chosen))


def magnitude(outputs, weights):
    """Size of the terms of a weighted sum, which its rounding is measured by."""
    return sum((x * w).abs().sum() for x, w in zip(outputs, weights, strict=True))


def has_forward_mode(contract, example):
    return any(name not in contract.reverse_mode_only for name in example.arguments)


@QUIET
@pytest.mark.parametrize(("contract", "example"), EXAMPLES)
def test_forward_mode_is_the_transpose_of_reverse_mode(contract: Contract, example: Example):
    if not has_forward_mode(contract, example):
        pytest.skip("has no forward mode")
    inputs, tangents = example.tensors(), directions(contract, example, 40)
    outputs, products = forward_product(contract, example, tangents)
    assert all(torch.equal(a, b) for a, b in zip(outputs, example.call(*inputs), strict=True))
    weights = cotangents(products)
    forward = weighted_sum(products, weights)
    backward = weighted_sum(gradients(example.call, inputs, weights), tangents)
    assert abs(forward - backward) <= FLOAT64_TOLERANCE * magnitude(products, weights)
    if example is not contract.examples[0]:
        return
    # Each argument alone, so that others without a tangent are left out rather than taken as zero.
    for which, name in enumerate(example.arguments):
        if name in contract.reverse_mode_only:
            continue
        fixed = lambda x, which=which: example.call(*[x if k == which else y for k, y in enumerate(inputs)])  # noqa: E731
        _, alone = torch.func.jvp(fixed, (inputs[which],), (tangents[which],))
        weights = cotangents(alone)
        grad = gradients(example.call, inputs, weights)[which]
        error = weighted_sum(alone, weights) - (grad * tangents[which]).sum()
        assert abs(error) <= FLOAT64_TOLERANCE * magnitude(alone, weights), name


@QUIET
@pytest.mark.parametrize(("contract", "example"), FIRST)
def test_forward_mode_under_other_transforms(contract: Contract, example: Example):
    """jacfwd, which is vmap of jvp; dual tensors; and never a wrong derivative of it: right, or refused by name."""
    if not has_forward_mode(contract, example):
        pytest.skip("has no forward mode")
    inputs, tangents = example.tensors(), directions(contract, example, 40)
    which = next(k for k, name in enumerate(example.arguments) if name not in contract.reverse_mode_only)
    fixed = lambda x: example.call(*[x if k == which else y for k, y in enumerate(inputs)])  # noqa: E731
    _, alone = torch.func.jvp(fixed, (inputs[which],), (tangents[which],))
    with forward_ad.dual_level():
        duals = fixed(forward_ad.make_dual(inputs[which], tangents[which]))
        for dual, product in zip(duals, alone, strict=True):
            assert torch.equal(forward_ad.unpack_dual(dual).tangent, product)
    if not contract.ragged:
        two = torch.stack([tangents[which], 2 * tangents[which]])
        batched = torch.func.vmap(lambda t: torch.func.jvp(fixed, (inputs[which],), (t,))[1])(two)
        for values, product in zip(batched, alone, strict=True):
            torch.testing.assert_close(values, torch.stack([product, 2 * product]), rtol=1e-12, atol=1e-12)

    leaf = inputs[which].clone().requires_grad_()
    products = torch.func.jvp(fixed, (leaf,), (tangents[which],))[1]
    live = [x for x in products if x.requires_grad]
    if not live:
        return  # linear
    try:
        (grad,) = torch.autograd.grad(sum((x**2).sum() for x in live), leaf)
    except NotImplementedError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert refusal.startswith(contract.name)
        return
    step = 1e-5 * rnd(*leaf.shape, seed=77, dtype=F64)
    ends = [
        sum((x**2).sum() for x in torch.func.jvp(fixed, (inputs[which] + sign * step,), (tangents[which],))[1])
        for sign in (-1, 1)
    ]
    torch.testing.assert_close((ends[1] - ends[0]) / 2, (grad * step).sum(), rtol=1e-6, atol=1e-12)


@QUIET
@pytest.mark.parametrize(("contract", "example"), FIRST)
def test_forward_mode_is_refused_by_name(contract: Contract, example: Example):
    """Where there is none, and of the backward pass."""
    inputs = example.tensors()
    for which, name in enumerate(example.arguments):
        fixed = lambda x, which=which: example.call(*[x if k == which else y for k, y in enumerate(inputs)])  # noqa: E731
        ones = torch.ones_like(inputs[which])
        if name in contract.reverse_mode_only:
            with pytest.raises(NotImplementedError, match=f"^{contract.name}.*forward mode"):
                torch.func.jvp(fixed, (inputs[which],), (ones,))
        elif not contract.second_derivative:
            slope = torch.func.grad(lambda x, fixed=fixed: sum((y**2).sum() for y in fixed(x)))
            with pytest.raises(NotImplementedError, match="is not implemented in forward mode"):
                torch.func.jvp(slope, (inputs[which],), (ones,))


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
