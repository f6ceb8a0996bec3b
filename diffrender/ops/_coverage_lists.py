"""The fragments of `coverage` made step by step, as a GPU makes them: lists of candidates, what each of them shows, and
those that are seen without gaps.

How long the lists are, only the device knows. With a capacity nobody asks. Without one the lists are made as long as
the last call of the same sizes needed, and a quarter more, and the device is asked once, at the end, how many fragments
there are; if there was no room for all candidates, everything after their counting is done once more.
"""

from __future__ import annotations

import torch

from .._autograd import register_fake, register_vmap

_RECORD_BYTES = 164  # TriangleRecord and DepthRange of csrc/coverage_geometry.h

# Candidates, and candidates in one pixel, that calls of these sizes get room for at first.
_Sizes = tuple[torch.device, int, int, int, int]
_expected: dict[_Sizes, tuple[int, int]] = {}


def visible_fragments(
    positions: torch.Tensor,
    triangles: torch.Tensor,
    ranges: torch.Tensor | None,
    height: int,
    width: int,
    cull: int,
    merge: bool,
    capacity: tuple[int, int, int] | None,
) -> tuple:
    """triangle_id (N,), weight (N,), barycentrics (N, 2), depth (N,), offsets, kinds (N,), counts (3,), and
    the longest list that working memory has to be made for.
    """
    op = torch.ops.diffrender
    boxes, records, blocks = op.coverage_setup(positions, triangles, ranges, height, width, cull)
    block_offsets = _offsets(blocks.view(-1))
    lengths = op.coverage_count(boxes, records, block_offsets, height, width)
    ends = _offsets(lengths)
    most = torch.nn.functional.pad(lengths, (0, 1)).amax()  # of no pixels, 0

    def clipped(candidate_room: int, pixel_room: int) -> tuple:
        """Lists of candidates, what each of them shows, offsets of those seen, and the numbers of all."""
        offsets = ends.clamp(max=candidate_room)
        candidates = op.coverage_fill(boxes, records, block_offsets, offsets, candidate_room, height, width)
        longest = min(pixel_room, boxes.shape[1])
        seen, *parts = op.coverage_clip(
            positions, triangles, records, offsets, candidates, longest, height, width, merge
        )
        seen = _offsets(seen)
        return (offsets, candidates, *parts), seen, torch.stack([seen[-1], ends[-1], most])

    if capacity is not None:
        lists, seen, counts = clipped(*capacity[1:])
        seen = seen.clamp(max=capacity[0])
        *results, kinds = op.coverage_compact(*lists, seen, capacity[0])
        return *results, seen, kinds, counts, min(capacity[2], boxes.shape[1])

    sizes = (positions.device, boxes.shape[0], boxes.shape[1], height, width)
    room = _expected.get(sizes, (2 * (ends.numel() - 1) + 4 * boxes.shape[0] * boxes.shape[1], 32))
    lists, seen, counts = clipped(*room)
    fragments, *needed = _read(counts)
    if needed[0] > room[0] or needed[1] > room[1]:
        lists, seen, counts = clipped(*needed)
        fragments = _read(counts)[0]
    if len(_expected) > 256:
        _expected.clear()
    _expected[sizes] = (needed[0] + needed[0] // 4, needed[1] + needed[1] // 4)
    *results, kinds = op.coverage_compact(*lists, seen, fragments)
    return *results, seen, kinds, counts, needed[1]


def _read(counts: torch.Tensor) -> list[int]:
    """Values on the host, which waits for the device."""
    return counts.tolist()


def _offsets(counts: torch.Tensor) -> torch.Tensor:
    """0 and the running sums."""
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


@register_fake("coverage_setup")
def _(positions, triangles, ranges, height, width, cull):
    shape = (positions.shape[0] if ranges is None else ranges.shape[0], triangles.shape[0])
    return (
        positions.new_empty((*shape, 4), dtype=torch.int32),
        positions.new_empty((*shape, _RECORD_BYTES), dtype=torch.uint8),
        positions.new_empty(shape, dtype=torch.int64),
    )


@register_fake("coverage_count")
def _(boxes, records, block_offsets, height, width):
    return boxes.new_empty((boxes.shape[0] * height * width,), dtype=torch.int64)


@register_fake("coverage_fill")
def _(boxes, records, block_offsets, offsets, total, height, width):
    return boxes.new_empty((total,), dtype=torch.int32)


@register_fake("coverage_clip")
def _(positions, triangles, records, offsets, candidates, longest, height, width, merge):
    total = candidates.shape[0]
    return (
        offsets.new_empty((offsets.shape[0] - 1,)),
        positions.new_empty((total,)),
        positions.new_empty((total, 2)),
        positions.new_empty((total,)),
        positions.new_empty((total,), dtype=torch.uint8),
    )


@register_fake("coverage_compact")
def _(offsets, candidates, weight, barycentrics, depth, kinds, new_offsets, total):
    return (
        candidates.new_empty((total,)),
        weight.new_empty((total,)),
        weight.new_empty((total, 2)),
        weight.new_empty((total,)),
        kinds.new_empty((total,)),
    )


for _op in ("setup", "count", "fill", "clip", "compact"):
    register_vmap(f"coverage_{_op}")
