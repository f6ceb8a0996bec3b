"""recomputed keeps nothing and changes no bit of the gradient; saved_bytes counts what a graph holds."""

import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import diffrender as dr
from diffrender.recompute import recomputed, saved_bytes, tensors_of


def test_saved_bytes_counts_each_storage_once() -> None:
    x = torch.rand(100, requires_grad=True)
    y = torch.rand(100, requires_grad=True)
    assert saved_bytes(lambda: (x * y).sum()) == 0  # both existed before
    assert saved_bytes(lambda: x.exp().sum()) == 400
    assert saved_bytes(lambda: (x.exp() * x.exp()).sum()) == 800

    def shared() -> torch.Tensor:
        e = x.exp()  # kept by exp itself and twice by the product
        return (e.view(10, 10) * e.view(10, 10)).sum()

    assert saved_bytes(shared) == 400
    with torch.no_grad():
        assert saved_bytes(lambda: x.exp().sum()) == 0


def test_saved_bytes_does_not_count_results_that_no_graph_holds() -> None:
    x = torch.rand(100, requires_grad=True)
    assert saved_bytes(lambda: x * 2.0) == 0
    assert saved_bytes(lambda: {"a": [x * 2.0], "b": x.detach().clone()}) == 0


def test_saved_bytes_sees_what_a_closure_holds() -> None:
    x = torch.rand(100, requires_grad=True)

    def forward() -> torch.Tensor:
        stash = x.detach().clone()
        result = x.sum()
        result.grad_fn.register_hook(lambda *_: stash)  # pyright: ignore[reportOptionalMemberAccess]
        return result

    assert saved_bytes(forward) == 400


def test_recomputed_keeps_nothing_and_gives_the_same_bits() -> None:
    x = torch.rand(1000, requires_grad=True)
    w = torch.rand(1000)
    calls = []

    def function() -> torch.Tensor:
        calls.append(1)
        return (x.exp().sin() * w).tanh()

    assert saved_bytes(lambda: recomputed(function, [x, w])) == 0
    assert saved_bytes(function) == 8000  # the results of exp and tanh
    calls.clear()
    expected = torch.autograd.grad(function(), x, w)[0]
    assert len(calls) == 1
    actual = torch.autograd.grad(recomputed(function, [x, w]), x, w)[0]
    assert len(calls) == 3
    assert torch.equal(actual, expected)


def test_what_was_recomputed_is_gone_after_the_backward_pass() -> None:
    """Without the garbage collector, which may come late."""
    x = torch.rand(1000, requires_grad=True)
    made = []

    def function() -> torch.Tensor:
        inner = recomputed(lambda: note(note(x.exp()).sin()), [])
        return note(note(inner.tanh()).exp()) * 2

    def note(tensor: torch.Tensor) -> torch.Tensor:
        made.append(StorageWeakRef(tensor.untyped_storage()))
        return tensor

    gc.collect()
    gc.disable()
    try:
        result = recomputed(function, [])
        result.sum().backward()
        del result
        assert len(made) >= 8
        assert all(reference.expired() for reference in made)
    finally:
        gc.enable()


def test_recomputed_twice_through_one_graph() -> None:
    x = torch.rand(10, dtype=torch.float64, requires_grad=True)
    result = recomputed(lambda: x.exp().sin(), [x])
    first = torch.autograd.grad(result.sum(), x, retain_graph=True)[0]
    second = torch.autograd.grad(result.sum(), x)[0]
    assert torch.equal(first, second)


def test_recomputed_raises_where_an_input_was_changed() -> None:
    x = torch.rand(10, requires_grad=True)
    w = torch.rand(10)
    result = recomputed(lambda: (x * w).exp().sum(), [x, w])
    w.add_(1)
    with pytest.raises(RuntimeError, match=r"shape \(10,\) was changed in place"):
        result.backward()


def test_recomputed_without_grad_runs_once() -> None:
    calls = []
    with torch.no_grad():
        recomputed(lambda: calls.append(1), [])
    assert calls == [1]


def test_recomputed_inside_of_func_grad() -> None:
    x = torch.rand(10, dtype=torch.float64)
    gradient = torch.func.grad(lambda v: recomputed(lambda: v.exp().sin().sum(), [v]))(x)
    torch.testing.assert_close(gradient, x.exp().cos() * x.exp())


def test_tensors_of_finds_all_of_them() -> None:
    mesh = dr.geometry.cube()
    camera = dr.Camera.perspective(fov_y_deg=40, width=8, height=8).look_at([0.0, 0.0, 4.0])
    light = dr.PointLight((0.0, 1.0, 2.0))
    module = torch.nn.Linear(2, 3)
    found = {id(t) for t in tensors_of({"mesh": [mesh]}, (camera, light), module, "text", 3, None)}
    expected = [mesh.vertices, mesh.triangles, light.position, light.color, module.weight, module.bias]
    assert all(id(tensor) in found for tensor in expected)
    loop: list = []
    loop.append(loop)
    assert list(tensors_of(loop)) == []
