"""AdamUniform and the Laplacian preconditioner."""

import copy
import math

import pytest
import torch

from diffrender import geometry
from diffrender.optim import AdamUniform, LaplacianPreconditioner

F64 = torch.float64


def test_adam_uniform_is_its_formula():
    x = torch.tensor([1.0, -2.0, 0.5], dtype=F64, requires_grad=True)
    optimizer = AdamUniform([x], lr=0.1, betas=(0.8, 0.95))
    expected, mean, squared = x.detach().clone(), torch.zeros(3, dtype=F64), torch.zeros(3, dtype=F64)
    for t in range(1, 6):
        grad = torch.tensor([math.sin(t), 2.0, 0.1 * t], dtype=F64)
        x.grad = grad.clone()
        optimizer.step()
        mean = 0.8 * mean + 0.2 * grad
        squared = 0.95 * squared + 0.05 * grad**2
        expected -= 0.1 * (mean / (1 - 0.8**t)) / (squared.max() / (1 - 0.95**t)).sqrt()
    torch.testing.assert_close(x.detach(), expected)


def test_adam_uniform_keeps_the_direction_of_the_gradient():
    """Adam would step by lr in every entry; here the entries of one tensor keep their proportions."""
    x = torch.zeros(4, requires_grad=True)
    x.grad = torch.tensor([1.0, -0.5, 0.0, 0.25])
    AdamUniform([x], lr=0.2).step()
    torch.testing.assert_close(x.detach(), -0.2 * x.grad)


def test_adam_uniform_stays_put_without_gradients():
    still, zero = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    zero.grad = torch.zeros(2)
    optimizer = AdamUniform([still, zero], lr=1.0)
    optimizer.step()
    assert still.tolist() == [1, 1]
    assert zero.tolist() == [1, 1]


def test_adam_uniform_calls_its_closure_and_minimises():
    x = torch.tensor([3.0, -2.0], requires_grad=True)
    optimizer = AdamUniform([x], lr=0.05)

    def closure():
        optimizer.zero_grad()
        loss = (x - torch.tensor([1.0, 1.0])).square().sum()
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    for _ in range(300):
        last = optimizer.step(closure).item()
    assert first == pytest.approx(13)
    assert last < 1e-3


def test_adam_uniform_state_survives_saving():
    x = torch.ones(3, requires_grad=True)
    optimizer = AdamUniform([x], lr=0.1)
    x.grad = torch.tensor([1.0, 2.0, 3.0])
    optimizer.step()
    y = x.detach().clone().requires_grad_()
    other = AdamUniform([y], lr=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    y.grad = x.grad.clone()
    optimizer.step()
    other.step()
    assert torch.equal(x, y)


def test_adam_uniform_refuses_impossible_numbers():
    with pytest.raises(ValueError, match="AdamUniform: lr must be at least 0, got -1"):
        AdamUniform([torch.ones(1, requires_grad=True)], lr=-1)
    with pytest.raises(ValueError, match="AdamUniform: betas must be at least 0 and below 1"):
        AdamUniform([torch.ones(1, requires_grad=True)], betas=(0.9, 1.0))


@pytest.mark.parametrize("solver", ["direct", "cg"])
@pytest.mark.parametrize("strength", [0.0, 1.0, 50.0])
def test_parameters_and_vertices_are_the_dense_solution(solver, strength):
    torus = geometry.torus(segments=12, tube_segments=8).to(F64)
    preconditioner = LaplacianPreconditioner(
        torus.triangles, torus.vertex_count, strength=strength, solver=solver, dtype=F64
    )
    laplacian = geometry.laplacian_matrix(torus.edges(), torus.vertex_count, F64).to_dense()
    matrix = torch.eye(torus.vertex_count, dtype=F64) + strength * laplacian
    torch.testing.assert_close(preconditioner.to_parameters(torus.vertices), matrix @ torus.vertices)
    right_side = torch.randn(torus.vertex_count, 3, dtype=F64)
    torch.testing.assert_close(
        preconditioner.to_vertices(right_side), torch.linalg.solve(matrix, right_side), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("solver", ["direct", "cg"])
def test_solves_are_differentiable_to_any_order(solver):
    sphere = geometry.icosphere(0)
    preconditioner = LaplacianPreconditioner(sphere.triangles, 12, strength=5.0, solver=solver, dtype=F64)
    parameters = torch.randn(12, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(preconditioner.to_vertices, parameters)
    assert torch.autograd.gradgradcheck(preconditioner.to_vertices, parameters)


def test_both_solvers_agree_in_float32_on_a_real_size():
    sphere = geometry.icosphere(4)
    parameters = torch.randn(sphere.vertex_count, 3)
    solutions = [
        LaplacianPreconditioner(sphere.triangles, sphere.vertex_count, strength=20.0, solver=s).to_vertices(parameters)
        for s in ("direct", "cg")
    ]
    torch.testing.assert_close(solutions[1], solutions[0], rtol=1e-4, atol=1e-5)


def test_vertices_without_edges_stay_themselves():
    sphere = geometry.icosphere(1)
    preconditioner = LaplacianPreconditioner(sphere.triangles, 44, strength=30.0)
    parameters = torch.randn(44, 3)
    torch.testing.assert_close(preconditioner.to_vertices(parameters)[42:], parameters[42:])


def test_a_step_in_parameters_moves_the_neighbourhood_smoothly():
    """A force on one vertex pulls its ring along: the largest difference over an edge is far below the pull."""
    sphere = geometry.icosphere(3)
    preconditioner = LaplacianPreconditioner(sphere.triangles, sphere.vertex_count, strength=20.0)
    parameters = preconditioner.to_parameters(sphere.vertices).requires_grad_()
    preconditioner.to_vertices(parameters)[0].sum().backward()
    with torch.no_grad():
        moved = preconditioner.to_vertices(parameters - parameters.grad) - preconditioner.to_vertices(parameters)
    size = moved.norm(dim=-1)
    i, j = sphere.edges().vertices.unbind(-1)
    assert size.argmax() == 0
    assert (moved[i] - moved[j]).norm(dim=-1).max() < 0.25 * size[0]


def test_preconditioner_says_what_is_wrong():
    triangles = geometry.icosphere(0).triangles
    with pytest.raises(ValueError, match="LaplacianPreconditioner: strength must be at least 0, got -2"):
        LaplacianPreconditioner(triangles, 12, strength=-2)
    with pytest.raises(ValueError, match='solver must be "direct" or "cg", got \'lu\''):
        LaplacianPreconditioner(triangles, 12, solver="lu")
    preconditioner = LaplacianPreconditioner(triangles, 12)
    with pytest.raises(ValueError, match=r"to_vertices: parameters must have shape \(12, C\), got \(11, 3\)"):
        preconditioner.to_vertices(torch.zeros(11, 3))
    with pytest.raises(ValueError, match=r"to_parameters: vertices must have shape \(12, C\), got \(1, 12, 3\)"):
        preconditioner.to_parameters(torch.zeros(1, 12, 3))
