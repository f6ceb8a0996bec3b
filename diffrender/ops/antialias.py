"""Antialiasing of visibility edges: the gradient of an image through silhouettes.

A custom Function because the true derivative is missing from the other stages (which triangle a pixel shows is
piecewise constant) and because the forward leaves the framework.

Method "segments" walks every silhouette edge of the mesh through the pixels that it crosses and clips it exactly to
each of them: the picture is blended by exact areas, the gradient is the boundary integral of the discontinuity in
closed form. Visibility of the pieces and the colours next to them come from the pixels around (csrc/segments*.h).

Method "pairs" blends neighbouring pixels across the silhouette edge that passes between their centres (the idea of
Laine et al. 2020, section 3.6, with changes: the edge is found by walking over the mesh from the pixel's triangle, so
that it need not belong to a triangle that shows at a centre; each edge counts once over both axes; a pixel stays a mean
of input colours). It does not handle more than one edge between two centres, faces that cross each other, and surfaces
too thin to show at any centre.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _checks
from .._autograd import apply, no_forward_mode, no_second_derivative, register_fake, register_vmap, scatter_algorithm
from ._segments import AntialiasSegments
from .rasterize import Fragments
from .topology import edge_topology

_METHODS = ("segments", "pairs")
_FORWARDS = ("area", "identity")
_VISIBILITIES = ("window", "exact")


def antialias(
    image: torch.Tensor,
    fragments: Fragments,
    clip_positions: torch.Tensor,
    triangles: torch.Tensor,
    *,
    method: str = "segments",
    forward: str = "area",
    visibility: str = "window",
    seams: torch.Tensor | None = None,
    topology: torch.Tensor | None = None,
    ranges: torch.Tensor | None = None,
    cull: str | None = None,
) -> torch.Tensor:
    """Blend pixels across visibility edges, so that moving an edge changes the image.

    Args:
        image: (B, H, W, C) of any channel count. Background pixels have to hold the background that is meant: blend
            colours over it first.
        fragments: result of `rasterize` for the same clip_positions and triangles.
        clip_positions: (B, V, 4) or (V, 4), as given to `rasterize`.
        triangles: (T, 3), as given to `rasterize`.
        method: "segments" walks the silhouette edges of the mesh; "pairs" blends pixels two by two (simpler, a mean
            of input colours, far less accurate). `visibility` and `seams` are options of "segments" alone.
        forward: "area" blends by the area that each surface covers; "identity" returns the image as it is, and only
            the gradient knows of the edges: to clip_positions that of the blend, to image the cotangent itself.
        visibility: "window" decides what hides an edge, and what lies behind it, by the triangles that show in the
            3 x 3 pixels around; "exact" asks all triangles, which costs two more passes over them and finds thin things
            that no pixel shows.
        seams: (T, 3) indices of an attribute array. Edges across which they differ count as edges too, for pictures
            whose colours jump there.
        topology: result of `edge_topology`, made once per mesh. None builds it in every call, from vertices that
            coincide in clip_positions.
        ranges, cull: as given to `rasterize`.

    Returns:
        (B, H, W, C). With "segments" the mean over the pixel's area wherever surfaces have constant colours; the limit
        of what that can reach where several surfaces meet is a little outside of the range of the input. With "pairs"
        a weighted mean of the pixel's own and its four neighbours' input colours.

    Gradients: to image exact, as the blend mixes it. To clip_positions with "segments": the derivative of the ideal
        picture filtered over the area of pixels, through silhouettes, borders, occlusions, crossing surfaces (those to
        z as well) and seams, with the colours next to an edge taken from the picture; with "pairs": exact derivative of
        the blend to x, y, w. docs/gradients.md has measured errors.
    Memory: saves image, clip_positions, triangles, topology, triangle_id; with "pairs" also one byte per triangle,
        with "segments" two per triangle and two per pixel.

    Raises:
        TypeError, ValueError: a wrong type, shape or device, or (on the CPU) an index outside of the vertices.

    Example:
        >>> corners = torch.tensor([[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]])
        >>> corners.requires_grad_()
        >>> triangles = torch.tensor([[0, 1, 2]])
        >>> fragments = dr.rasterize(corners, triangles, (64, 64))
        >>> mask = (fragments.triangle_id >= 0).float().unsqueeze(-1)
        >>> area = dr.antialias(mask, fragments, corners, triangles).sum()
        >>> round(area.item(), 2)  # half of (0.8 * 64) squared
        1310.72
        >>> area.backward()
        >>> round(corners.grad[1, 0].item(), 2)  # the right corner by 1 in x, 32 pixels: 32 * 51.2 / 2 more
        819.2
    """
    _checks.check_choice("antialias", "method", method, _METHODS)
    _checks.check_choice("antialias", "forward", forward, _FORWARDS)
    _checks.check_choice("antialias", "visibility", visibility, _VISIBILITIES)
    _checks.check_choice("antialias", "cull", cull, tuple(_checks.CULL))
    if method == "pairs" and (visibility, seams) != ("window", None):
        raise ValueError('antialias: visibility and seams are options of method "segments".')
    colors = _checks.check_floating("antialias", "image", image)
    positions = _checks.check_floating("antialias", "clip_positions", clip_positions)
    if not isinstance(fragments, Fragments):
        _checks.fail(TypeError, "antialias", "fragments", "be the result of rasterize", type(fragments).__name__)
    triangle_id = fragments.triangle_id
    _checks.check_triangle_id("antialias", "fragments.triangle_id", triangle_id)
    if colors.dim() != 4 or tuple(colors.shape[:3]) != tuple(triangle_id.shape):
        expected = f"have shape {_checks.shape_text(triangle_id)[:-1]}, C)"
        _checks.fail(ValueError, "antialias", "image", expected, _checks.shape_text(colors))
    if positions.dim() not in (2, 3) or positions.shape[-1] != 4:
        expected = "have shape (B, V, 4) or (V, 4)"
        _checks.fail(ValueError, "antialias", "clip_positions", expected, _checks.shape_text(positions))
    if positions.dim() == 2:
        positions = positions.unsqueeze(0)
    if positions.shape[0] not in (1, triangle_id.shape[0]):
        expected = f"have the batch size of fragments ({triangle_id.shape[0]}) or 1"
        _checks.fail(ValueError, "antialias", "clip_positions", expected, str(positions.shape[0]))
    _checks.check_same_type("antialias", "image", colors, "clip_positions", positions)
    _checks.check_same_type("antialias", "fragments", triangle_id, "clip_positions", positions)
    indices = _checks.check_triangles("antialias", triangles, positions)
    _checks.check_vertex_range("antialias", indices, positions.shape[1], "clip_positions")
    _checks.check_rows("antialias", indices, triangle_id)
    indices = indices.to(torch.int32)
    if topology is None:
        topology = edge_topology(indices, positions)
    else:
        topology = _check_index_array(topology, "topology", indices)
    _checks.check_same_type("antialias", "topology", topology, "clip_positions", positions)
    if method == "pairs":
        return apply(_AntialiasPairs, colors, triangle_id, positions, indices, topology, forward == "area")[0]
    if seams is not None:
        seams = _check_index_array(seams, "seams", indices)
        _checks.check_same_type("antialias", "seams", seams, "clip_positions", positions)
    if ranges is not None:
        ranges = _checks.check_ranges("antialias", ranges, positions, indices.shape[0])
        if ranges.shape[0] != triangle_id.shape[0]:
            expected = f"have one row per item of fragments ({triangle_id.shape[0]})"
            _checks.fail(ValueError, "antialias", "ranges", expected, str(ranges.shape[0]))
    return apply(
        AntialiasSegments,
        colors,
        triangle_id,
        positions,
        indices,
        topology,
        ranges,
        seams,
        _checks.CULL[cull],
        visibility == "exact",
        forward == "area",
    )[0]


def _check_index_array(value: object, argument: str, triangles: torch.Tensor) -> torch.Tensor:
    """`value` as int32 of the shape of the triangles."""
    _checks.check_tensor("antialias", argument, value)
    assert isinstance(value, torch.Tensor)
    if value.dtype not in (torch.int32, torch.int64):
        _checks.fail(TypeError, "antialias", argument, "be int32 or int64", str(value.dtype))
    if tuple(value.shape) != tuple(triangles.shape):
        expected = f"have the shape of triangles {_checks.shape_text(triangles)}"
        _checks.fail(ValueError, "antialias", argument, expected, _checks.shape_text(value))
    return value.to(torch.int32)


class _AntialiasPairs(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(image, triangle_id, positions, triangles, topology, blended):
        result, silhouette = torch.ops.diffrender.antialias_pairs(image, triangle_id, positions, triangles, topology)
        return result if blended else image.clone(), silhouette

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*inputs[:5], output[1])
        ctx.blended = inputs[5]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        need_image, need_positions = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        none = (None,) * 6
        if not (need_image or need_positions):
            return none
        grad_image, grad_positions = grads[0], None
        if ctx.blended or need_positions:
            mixed, grad_positions = apply(
                _AntialiasPairsBackward, *ctx.saved_tensors, grads[0], need_image and ctx.blended, need_positions
            )
            grad_image = mixed if ctx.blended else grad_image
        return grad_image if need_image else None, None, grad_positions if need_positions else None, *none[3:]

    @staticmethod
    def tangents(inputs: Any, outputs: Any, tangents: Any) -> Any:
        """Linear in the image."""
        if tangents[2] is not None:
            no_forward_mode("antialias (to clip_positions)")
        return apply(_AntialiasPairs, tangents[0], *inputs[1:])[0], None


class _AntialiasPairsBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        image, triangle_id, positions, triangles, topology, silhouette, grad_result, need_image, need_positions
    ):
        return torch.ops.diffrender.antialias_pairs_backward(
            image,
            triangle_id,
            positions,
            triangles,
            topology,
            silhouette,
            grad_result,
            need_image,
            need_positions,
            scatter_algorithm(image),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        no_second_derivative("antialias")


@register_fake("antialias_pairs")
def _(image, triangle_id, positions, triangles, topology):
    silhouette = image.new_empty((positions.shape[0], triangles.shape[0]), dtype=torch.uint8)
    return image.new_empty(image.shape), silhouette


@register_fake("antialias_pairs_backward")
def _(image, triangle_id, positions, triangles, topology, silhouette, grad_result, need_image, need_positions, scatter):
    batch, vertices = positions.shape[:2]
    return (
        image.new_empty((image.shape[0] if need_image else 0, *image.shape[1:])),
        positions.new_empty((batch if need_positions else 0, vertices, 4)),
    )


register_vmap("antialias_pairs")
register_vmap("antialias_pairs_backward")
