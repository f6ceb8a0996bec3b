"""Exact coverage: what area of each pixel each triangle shows, and pictures filtered over the area of a pixel.

    coverage = dr.coverage(clip_positions, triangles, (height, width))     visible regions, clipped exactly
    values   = dr.interpolate(attributes, triangles, coverage)             shading once per fragment, any stages
    image    = dr.composite(values, coverage, background=...)              area-weighted sum per pixel

Inside one pixel a triangle is an intersection of half-planes of the screen, and so is "nearer than another triangle",
because z/w is affine on the screen. What a pixel shows of a triangle is therefore a union of convex polygons, found by
subtracting the nearer triangles from it (Catmull 1978; Auzinger et al. 2013 for analytic anti-aliasing on the GPU).
Silhouettes, T-junctions and crossing surfaces are all exact, and so is the derivative, which by Reynolds' transport
theorem is an integral along the edges of those polygons.

Custom Functions because the forward leaves the framework (compiled kernels) and because differentiating the clipper
step by step would cost what the boundary integral saves. Not handled: transparency, other pixel filters than the box.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .. import _checks
from .._autograd import (
    apply,
    is_batched,
    is_captured,
    no_second_derivative,
    register_fake,
    register_vmap,
    scatter_algorithm,
)
from ._coverage_lists import visible_fragments
from .rasterize import Fragments

_DRIVER_NATIVE, _DRIVER_GPU = 0, 1
_COUNTED = ("fragments", "candidates", "candidates in one pixel")


class Coverage(NamedTuple):
    """What `coverage` found: N fragments, sorted by pixel and within a pixel by triangle.

    A fragment is the part of one triangle that one pixel shows. Pixels are counted row by row, item by item: pixel
    (item, row, column) is number (item * H + row) * W + column.
    """

    triangle_id: torch.Tensor
    """(N,) int32: row of `triangles`."""
    weight: torch.Tensor
    """(N,): visible area in square pixels, above 0. Those of a pixel add up to at most 1."""
    barycentrics: torch.Tensor
    """(N, 2): perspective-correct weights of corners 0 and 1 at the centroid of the visible area."""
    depth: torch.Tensor
    """(N,): z/w at the centroid, which is its mean over the visible area."""
    offsets: torch.Tensor
    """(B * H * W + 1,) int64: fragments offsets[p] to offsets[p + 1] belong to pixel p."""
    size: tuple[int, int, int]
    """(B, H, W)."""
    counts: torch.Tensor | None = None
    """(3,) int64: how many fragments there are, how many candidates (triangles that touch a pixel, hidden ones too),
    and how many candidates the pixel with most has."""
    capacity: tuple[int, int, int] | None = None
    """What there was room for, if that was given: places beyond the last fragment show nothing."""

    def check(self) -> Coverage:
        """This, if there was room for all; waits for the device. The CPU has made sure of it before.

        Raises:
            RuntimeError: the capacity was too small, so that fragments are missing.
        """
        check_room(self.counts, self.capacity)
        return self

    @property
    def fragments(self) -> Fragments:
        """The list as a picture of one row, (1, 1, N), for stages that take Fragments and one item."""
        return Fragments(
            self.triangle_id.view(1, 1, -1),
            self.barycentrics.unsqueeze(0).unsqueeze(0),
            self.depth.view(1, 1, -1),
            None,
        )

    @property
    def pixel(self) -> torch.Tensor:
        """(N,) int64: number of the pixel of each fragment; the last one for places beyond the last fragment.

        Made from `offsets` at every call, 8 bytes a fragment; nothing waits for the device.
        """
        places = self.weight.shape[0]
        if self.offsets.shape[0] == 1:  # no pixels, but maybe places
            return self.offsets.new_zeros(places)
        ends = torch.cat([self.offsets[1:-1], self.offsets.new_full((1,), places)])
        return torch.repeat_interleave(ends - self.offsets[:-1], output_size=places)

    @property
    def item(self) -> torch.Tensor:
        """(N,) int64: the batch item of each fragment; the last one for places beyond the last fragment."""
        begins = self.offsets[: -1 : self.size[1] * self.size[2]]
        places = torch.arange(self.weight.shape[0], device=begins.device)
        return torch.searchsorted(begins[1:].contiguous(), places, right=True)


def coverage(
    clip_positions: torch.Tensor,
    triangles: torch.Tensor,
    resolution: tuple[int, int],
    *,
    ranges: torch.Tensor | None = None,
    cull: str | None = None,
    merge_adjacent: bool = False,
    capacity: int | tuple[int, int, int] | None = None,
) -> Coverage:
    """Find what area of every pixel each triangle shows.

    Args:
        clip_positions: (B, V, 4) or (V, 4) homogeneous clip-space vertices, y up; without batch axis shared by all.
        triangles: (T, 3) int32 or int64 vertex indices. Both windings are drawn.
        resolution: (height, width) in pixels.
        ranges: (B, 2) integers (first triangle, count): item b draws these rows only.
        cull: "back" drops triangles that run clockwise on screen, "front" the others.
        merge_adjacent: pixels that lie inside of a smooth surface (triangles of one orientation that share every edge
            that crosses the pixel, in front of all others) get one fragment of weight 1 for the triangle at their
            centre, as `rasterize` would make it. Coverage stays exact; shading is sampled once there, which is
            cheaper and less accurate where it changes within a pixel.
        capacity: how many fragments the list has room for, how many candidates there may be and how many of them in one
            pixel, as `Coverage.counts` tells them; N alone stands for (N, 8 N, 256). The list then has N entries
            whatever is seen: nothing waits for the device, a CUDA graph can hold it, and torch.compile keeps it in its
            graph. Entries that are left over have triangle_id -1, weight 0 and no gradient. What does not fit is left
            out, of which CUDA tells by `Coverage.check()` only, the CPU by an error. Without a capacity the length of
            the list depends on the data, as that of torch.nonzero does, and the host waits for it.

    Returns:
        Coverage. Near and far planes cut (|z| <= w). Where two triangles have the same depth everywhere in a pixel, the
        lowest index is shown. Triangles without area, or with NaN or infinite corners, draw nothing. All computation is
        in double precision, also for float32 positions. Fragments below 1e-14 of a pixel are left out.

    Gradients: weight, barycentrics and depth give clip_positions (x, y, z and w) their exact derivative, the motion of
        silhouettes, of crossings of surfaces and of the centroid included. It is undefined only where visibility
        changes at once on a whole line, as where two edges lie on each other.
    Memory: saves clip_positions, triangles, and of the fragments triangle_id, one byte, and offsets. While it runs
        CUDA takes 37 bytes for each candidate, hidden ones too, that it makes room for, which without a capacity is a
        quarter more than the last call of the same sizes had; the CPU room for two lists of fragments; and both 164 a
        triangle. The CPU's backward pass takes 256 bytes for each triangle that is seen.

    Raises:
        TypeError, ValueError: a wrong type, shape or device, or (on the CPU) an index outside of the vertices.
        RuntimeError: (on the CPU) the capacity is too small; (on CUDA) there is none while a graph is captured.
        NotImplementedError: under torch.func.vmap; the number of fragments depends on the values. Use the batch axis.

    Example:
        >>> corners = torch.tensor([[-0.8, -0.8, 0.0, 1.0], [0.8, -0.8, 0.0, 1.0], [-0.8, 0.8, 0.0, 1.0]])
        >>> triangles = torch.tensor([[0, 1, 2]])
        >>> coverage = dr.coverage(corners.double(), triangles, (64, 64))
        >>> round(float(coverage.weight.sum()), 3)  # half of 51.2 squared
        1310.72
        >>> red = dr.interpolate(torch.tensor([[1.0, 0, 0]] * 3).double(), triangles, coverage)
        >>> dr.composite(red, coverage).shape
        torch.Size([1, 64, 64, 3])
    """
    if torch.compiler.is_compiling() and capacity is None:
        from ._coverage_compiled import coverage_outside as make  # imports the compiler, which is there by now
    else:
        make = _coverage_with_driver
    arguments = (clip_positions, triangles, resolution, ranges, cull, merge_adjacent, capacity)
    return make(*arguments, driver=_DRIVER_NATIVE)  # pyright: ignore[reportCallIssue]


def _coverage_with_driver(
    clip_positions: torch.Tensor,
    triangles: torch.Tensor,
    resolution: tuple[int, int],
    ranges: torch.Tensor | None = None,
    cull: str | None = None,
    merge_adjacent: bool = False,
    capacity: int | tuple[int, int, int] | None = None,
    driver: int = _DRIVER_GPU,
) -> Coverage:
    """`coverage` with a choice of how lists are made: tests run the GPU's way on the CPU."""
    height, width = _checks.check_resolution("coverage", resolution)
    positions = _checks.check_floating("coverage", "clip_positions", clip_positions)
    if positions.dim() not in (2, 3) or positions.shape[-1] != 4:
        expected = "have shape (B, V, 4) or (V, 4)"
        _checks.fail(ValueError, "coverage", "clip_positions", expected, _checks.shape_text(positions))
    if positions.dim() == 2:
        positions = positions.unsqueeze(0)
    indices = _checks.check_triangles("coverage", triangles, positions)
    _checks.check_vertex_range("coverage", indices, positions.shape[1], "clip_positions")
    _checks.check_choice("coverage", "cull", cull, tuple(_checks.CULL))
    if not isinstance(merge_adjacent, bool):
        _checks.fail(TypeError, "coverage", "merge_adjacent", "be True or False", repr(merge_adjacent))
    room = room_for(capacity)
    batch = positions.shape[0]
    if ranges is not None:
        ranges = _checks.check_ranges("coverage", ranges, positions, indices.shape[0])
        batch = ranges.shape[0]
    if not torch.compiler.is_compiling() and any(is_batched(t) for t in (positions, indices, ranges)):
        raise NotImplementedError(
            "coverage: vmap is not supported: the number of fragments depends on the values. "
            "Use the batch axis of clip_positions."
        )
    if room is None and is_captured(positions):
        raise RuntimeError(
            "coverage: capacity must be given where a CUDA graph is captured, got None. "
            "Without it the host waits for the length of the list."
        )
    indices = indices.to(torch.int32)
    options: Any = (height, width, _checks.CULL[cull], merge_adjacent, room, driver)
    results = apply(_Coverage, positions, indices, ranges, *options)
    triangle_id, weight, barycentrics, depth, offsets, _, counts, _ = results
    size = (batch, height, width)
    return Coverage(triangle_id, weight, barycentrics, depth, offsets, size, counts=counts, capacity=room)


def check_room(counts: torch.Tensor | None, capacity: tuple[int, int, int] | None) -> None:
    """`Coverage.check` of these numbers."""
    if counts is None or capacity is None:
        return
    fragments, *others = zip(counts.tolist(), capacity, _COUNTED, strict=True)
    for found, room, what in (*others, fragments):  # without all candidates not all fragments are counted
        if found > room:
            raise RuntimeError(f"coverage: capacity must be at least {found} {what}, got {room}.")


def room_for(capacity: Any, name: str = "coverage") -> tuple[int, int, int] | None:
    """What a capacity, an argument of the function `name`, stands for.

    Raises:
        ValueError: it is none.
    """
    if capacity is None:
        return None
    numbers = (capacity, 8 * capacity, 256) if isinstance(capacity, int) else capacity
    if isinstance(capacity, bool) or not _are_counts(numbers):
        expected = "be None, a number of fragments, or (fragments, candidates, candidates in one pixel)"
        _checks.fail(ValueError, name, "capacity", expected, repr(capacity))
    return numbers


def _are_counts(numbers: object) -> bool:
    return isinstance(numbers, tuple) and len(numbers) == 3 and all(type(n) is int and n >= 0 for n in numbers)


def packed_attributes(
    attributes: torch.Tensor, triangles: torch.Tensor, coverage: Coverage
) -> tuple[torch.Tensor, torch.Tensor, Fragments]:
    """Arguments of `interpolate` for a list that holds fragments of all items.

    Attributes (B, V, C) become one array (1, B * V, C), and triangle t of item b row b * T + t of one index array.
    """
    fragments = coverage.fragments
    batch = coverage.size[0]
    if attributes.shape[0] == 1:
        return attributes, triangles, fragments
    if attributes.shape[0] != batch:
        expected = f"have the batch size of coverage ({batch}) or 1"
        _checks.fail(ValueError, "interpolate", "attributes", expected, str(attributes.shape[0]))
    vertices, rows = attributes.shape[1], triangles.shape[0]
    if batch * max(vertices, rows) >= 1 << 31:
        _checks.fail(ValueError, "interpolate", "attributes", "have fewer than 2^31 rows in all items", str(batch))
    first = torch.arange(batch, dtype=torch.int32, device=triangles.device)
    packed = (triangles.to(torch.int32).unsqueeze(0) + (first * vertices).view(-1, 1, 1)).reshape(-1, 3)
    ids = coverage.triangle_id + (coverage.item * rows).to(torch.int32)
    ids = torch.where(coverage.triangle_id >= 0, ids, -1)
    return attributes.reshape(1, batch * vertices, -1), packed, fragments._replace(triangle_id=ids.view(1, 1, -1))


class _Coverage(torch.autograd.Function):
    generate_vmap_rule = True
    takes_missing_cotangents = True

    @staticmethod
    def forward(positions, triangles, ranges, height, width, cull, merge, room, driver):
        exact = positions.double()
        if not positions.is_cuda and driver == _DRIVER_NATIVE:
            double = positions.dtype == torch.float64
            *results, counts = torch.ops.diffrender.coverage_fragments(
                exact, triangles, ranges, height, width, cull, merge, double, *(room or (-1, -1, -1))
            )
            return *results, counts, int(counts[2]) if room is None else room[2]
        triangle_id, *floats, offsets, kinds, counts, longest = visible_fragments(
            exact, triangles, ranges, height, width, cull, merge, room
        )
        return triangle_id, *(x.to(positions.dtype) for x in floats), offsets, kinds, counts, longest

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        positions, triangles, _, ctx.height, ctx.width, *_ = inputs
        triangle_id, _, _, _, offsets, kinds, counts, ctx.longest = output
        ctx.save_for_backward(positions, triangles, offsets, triangle_id, kinds)
        ctx.mark_non_differentiable(triangle_id, offsets, kinds, counts)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple:
        _, grad_weight, grad_barycentrics, grad_depth, *_ = grads
        nothing = (None,) * 8
        if not ctx.needs_input_grad[0] or (grad_weight is grad_barycentrics is grad_depth is None):
            return (None, *nothing)
        grad = apply(
            _CoverageBackward,
            *ctx.saved_tensors,
            ctx.longest,
            ctx.height,
            ctx.width,
            grad_weight,
            grad_barycentrics,
            grad_depth,
        )
        return (grad, *nothing)


class _CoverageBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(positions, *args):
        grad = torch.ops.diffrender.coverage_backward(positions.double(), *args, scatter_algorithm(positions))
        return grad.to(positions.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        no_second_derivative("coverage")


@register_fake("coverage_fragments")
def _(positions, triangles, ranges, height, width, cull, merge, is_double, capacity, *_):
    total = torch.library.get_ctx().new_dynamic_size() if capacity < 0 else capacity
    batch = positions.shape[0] if ranges is None else ranges.shape[0]
    floats = torch.float64 if is_double else torch.float32
    return (
        triangles.new_empty((total,)),
        positions.new_empty((total,), dtype=floats),
        positions.new_empty((total, 2), dtype=floats),
        positions.new_empty((total,), dtype=floats),
        triangles.new_empty((batch * height * width + 1,), dtype=torch.int64),
        triangles.new_empty((total,), dtype=torch.uint8),
        triangles.new_empty((3,), dtype=torch.int64),
    )


@register_fake("coverage_backward")
def _(positions, triangles, offsets, triangle_id, kinds, longest, height, width, gw, gb, gd, scatter):
    return positions.new_empty(positions.shape)


for _op in ("fragments", "backward"):
    register_vmap(f"coverage_{_op}")
