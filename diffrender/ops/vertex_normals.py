"""Area-weighted vertex normals by kernels: two passes over triangles and vertices instead of some thirty torch ops.

A custom Function because the forward leaves the framework (compiled kernels). Forward mode and second derivatives use
the tangent in plain torch: with n_t = e_1 x e_2 the sums s_v and normals N_v = s_v / |s_v| change by

    dn_t = de_1 x e_2 + e_1 x de_2      ds_v = sum of dn_t around v      dN_v = (ds_v - N_v (N_v . ds_v)) / |s_v|
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _checks
from .._autograd import apply, register_fake, register_vmap, scatter_algorithm
from ..geometry import normals as plain


def area_weighted_normals(vertices: torch.Tensor, triangles: torch.Tensor) -> torch.Tensor:
    """See `diffrender.geometry.vertex_normals`; vertices (..., V, 3) in float32 or float64."""
    if vertices.dim() < 2 or vertices.shape[-1] != 3:
        expected = "have shape (V, 3) or (B, V, 3)"
        _checks.fail(ValueError, "vertex_normals", "vertices", expected, _checks.shape_text(vertices))
    if triangles.dim() != 2 or triangles.shape[1] != 3:
        _checks.fail(ValueError, "vertex_normals", "triangles", "have shape (T, 3)", _checks.shape_text(triangles))
    _checks.check_vertex_range("vertex_normals", triangles, int(vertices.shape[-2]), "the mesh")
    batched = vertices[None] if vertices.dim() == 2 else vertices.flatten(0, -3)
    return apply(_VertexNormals, batched, triangles.int())[0].reshape(vertices.shape)


class _VertexNormals(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(vertices, triangles):
        return torch.ops.diffrender.vertex_normals(vertices, triangles, scatter_algorithm(vertices))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        return apply(_VertexNormalsBackward, *ctx.saved_tensors, grads[0]), None

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        return _tangent(inputs[0], inputs[1], tangents[0]), None


class _VertexNormalsBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(vertices, triangles, sums, grad_normals):
        scatter = scatter_algorithm(vertices)
        return torch.ops.diffrender.vertex_normals_backward(vertices, triangles, sums, grad_normals, scatter)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        vertices, triangles, _, grad_normals = inputs
        ctx.save_for_backward(vertices, triangles, grad_normals)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        # This Function is J^T g, of which the product with a cotangent c is (J c) . g.
        vertices, triangles, grad_normals = ctx.saved_tensors
        product, pull = torch.func.vjp(lambda v: _tangent(v, triangles, grads[0]), vertices)[:2]
        return pull(grad_normals)[0], None, None, product


def _tangent(vertices: torch.Tensor, triangles: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """Change of the normals (B, V, 3) by that of the vertices."""
    corners, moves = plain.triangle_corners(vertices, triangles), plain.triangle_corners(change, triangles)
    edge1, edge2 = corners[1] - corners[0], corners[2] - corners[0]
    turned = torch.linalg.cross(moves[1] - moves[0], edge2) + torch.linalg.cross(edge1, moves[2] - moves[0])
    area_vectors = plain.triangle_area_vectors(vertices, triangles)
    turned = torch.where((area_vectors == 0).all(-1, keepdim=True), 0, turned)

    rows, count = triangles.reshape(-1), vertices.shape[-2]
    sums = plain.sum_without_noise(area_vectors.repeat_interleave(3, -2), rows, count)
    shifts = turned.new_zeros(vertices.shape).index_add(-2, rows.long(), turned.repeat_interleave(3, -2))
    normals = plain.safe_normalize(sums)
    has_none = (normals == 0).all(-1, keepdim=True)
    length = torch.where(has_none, 1, (sums * normals).sum(-1, keepdim=True))
    return torch.where(has_none, 0, (shifts - normals * (normals * shifts).sum(-1, keepdim=True)) / length)


@register_fake("vertex_normals")
def _(vertices, triangles, scatter):
    return vertices.new_empty(vertices.shape), vertices.new_empty((*vertices.shape[:2], 4))


@register_fake("vertex_normals_backward")
def _(vertices, triangles, sums, grad_normals, scatter):
    return vertices.new_empty(vertices.shape)


register_vmap("vertex_normals")
register_vmap("vertex_normals_backward")
