"""What every op has to hold under torch's transforms, for each row of the contract table (contract.py): the dispatcher,
torch.compile, torch.func, forward mode."""

import pytest
import torch
from torch.autograd import forward_ad

import diffrender.ops.vertex_normals  # noqa: F401  # imported on first use elsewhere; registers what opcheck asks for
from tests.ops.contract import Contract, Example
from tests.support.contract import (
    EXAMPLES,
    FIRST,
    FIXED,
    FLOAT64_TOLERANCE,
    QUIET,
    RAGGED,
    ROWS,
    as_tuple,
    cotangents,
    gradients,
    strided_copy,
    weighted_sum,
    with_grad,
)
from tests.support.vocabulary import rnd

F64 = torch.float64

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
