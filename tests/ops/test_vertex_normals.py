"""What is special to vertex normals by kernels: noise, elements that are not finite, threads, order-free sums."""

import pytest
import torch

import diffrender as dr
from diffrender import geometry
from tests.support.vocabulary import rnd

F64 = torch.float64


def normals_and_gradient(vertices, triangles, seed=3):
    leaf = vertices.detach().clone().requires_grad_()
    normals = geometry.vertex_normals(leaf, triangles)
    (grad,) = torch.autograd.grad(normals, leaf, rnd(*normals.shape, seed=seed, dtype=normals.dtype))
    return normals.detach(), grad


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_same_bits_for_any_number_of_threads(dtype, set_threads):
    sphere = geometry.icosphere(5)
    vertices = sphere.vertices.to(dtype) * (1 + 0.1 * rnd(len(sphere.vertices), 1, dtype=dtype))
    results = []
    for threads in (1, 2, 3):
        set_threads(threads)
        results.append(normals_and_gradient(vertices, sphere.triangles))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


def test_order_free_sums_are_those_of_the_ordinary_ones():
    op = torch.ops.diffrender
    sphere = geometry.icosphere(3)
    vertices = (sphere.vertices + 0.05 * rnd(*sphere.vertices.shape))[None].double()
    plain, fixed = (op.vertex_normals(vertices, sphere.triangles, scatter) for scatter in (0, 1))
    grad = rnd(*vertices.shape, dtype=F64)
    for a, b in zip(plain, fixed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    a, b = (op.vertex_normals_backward(vertices, sphere.triangles, plain[1], grad, scatter) for scatter in (0, 1))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_order_free_sums_scale_with_the_largest_contribution(scale):
    """Many components of a sphere's cross products are -0, which no other contribution must hide behind."""
    sphere = geometry.icosphere(1)
    vertices = sphere.vertices[None].double() * scale
    expected, sums = (torch.ops.diffrender.vertex_normals(vertices, sphere.triangles, scatter)[1] for scatter in (0, 1))
    torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-14 * scale**2)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_vertex_that_is_not_finite_spoils_its_own_triangles_only(dtype, value):
    sphere = geometry.icosphere(2)
    vertices = sphere.vertices.to(dtype)
    spoiled = vertices.clone()
    spoiled[7] = value
    around = sphere.triangles[(sphere.triangles == 7).any(1)].unique().long()
    far = torch.ones(len(vertices), dtype=torch.bool)
    far[sphere.triangles[torch.isin(sphere.triangles, around).any(1)].unique().long()] = False
    normals, grad = normals_and_gradient(spoiled, sphere.triangles)
    expected = normals_and_gradient(vertices, sphere.triangles)
    assert far.sum() > 50
    assert torch.equal(normals[far], expected[0][far])
    assert torch.equal(grad[far], expected[1][far])
    if value != 1e30:
        assert (normals[around] == 0).all()
        assert not grad.isnan().any()


@pytest.mark.parametrize("scale", [1e-18, 1e-6, 1e12])
def test_size_of_the_mesh_does_not_matter(scale):
    sphere = geometry.icosphere(2)
    vertices = sphere.vertices + 0.05 * rnd(*sphere.vertices.shape)
    normals, grad = normals_and_gradient(vertices, sphere.triangles)
    scaled, scaled_grad = normals_and_gradient(vertices * scale, sphere.triangles)
    torch.testing.assert_close(scaled, normals, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scaled_grad * scale, grad, rtol=1e-3, atol=1e-4)


def test_an_index_that_no_check_has_seen_is_left_out():
    """On CUDA ranges are not looked at by default: the kernels themselves must not read or write there."""
    vertices = rnd(1, 4, 3, dtype=F64)
    good = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    bad = torch.tensor([[0, 1, 2], [1, 2, 4], [-1, 0, 3]], dtype=torch.int32)
    op = torch.ops.diffrender
    expected, sums = op.vertex_normals(vertices, good, 0)
    assert torch.equal(op.vertex_normals(vertices, bad, 0)[0], expected)
    grad = rnd(1, 4, 3, seed=4, dtype=F64)
    assert torch.equal(
        op.vertex_normals_backward(vertices, bad, sums, grad, 0),
        op.vertex_normals_backward(vertices, good, sums, grad, 0),
    )


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
@pytest.mark.parametrize("inner", ["jacfwd", "jacrev"])
@pytest.mark.parametrize("outer", ["jacfwd", "jacrev"])
def test_second_derivatives_in_any_combination_of_modes(outer, inner):
    sphere = geometry.icosphere(0)
    vertices = (sphere.vertices + 0.1 * rnd(*sphere.vertices.shape)).double()
    weights = rnd(*vertices.shape, seed=8, dtype=F64)

    def loss(v):
        return (weights * geometry.vertex_normals(v, sphere.triangles)).sum() ** 2

    modes = getattr(torch.func, outer), getattr(torch.func, inner)
    expected = torch.autograd.functional.hessian(loss, vertices)
    torch.testing.assert_close(modes[0](modes[1](loss))(vertices), expected, rtol=1e-10, atol=1e-10)


def test_half_goes_through_the_plain_formula():
    sphere = geometry.icosphere(1)
    half = geometry.vertex_normals(sphere.vertices.bfloat16(), sphere.triangles)
    assert half.dtype == torch.bfloat16
    assert (half.float() - dr.geometry.vertex_normals(sphere.vertices, sphere.triangles)).abs().max() < 0.05
