"""What a row of the contract table consists of, and the small scenes that rows are made from.

Examples are functions of float tensors only; what is frozen (triangle ids, topology) is closed over, and floats that
are closed over follow the dtype of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

import diffrender as dr
from tests.reference import rasterize as reference_rasterize
from tests.support.device import here
from tests.support.scenes import cube, perspective, rigid, to_clip
from tests.support.vocabulary import P, uniform

F64 = torch.float64


@dataclass(frozen=True)
class Example:
    """One small input of an op.

    arguments    float64 tensors by name, in the order that `call` and `reference` take them
    call         arguments -> tuple of all differentiable outputs of the op
    reference    the same in plain torch, float64; autograd of it is the truth
    """

    label: str
    arguments: dict[str, Tensor]
    call: Callable[..., tuple[Tensor, ...]]
    reference: Callable[..., tuple[Tensor, ...]]

    def tensors(self, dtype: torch.dtype = F64) -> list[Tensor]:
        return [value.to(dtype, copy=True) for value in self.arguments.values()]


@dataclass(frozen=True)
class BadCall:
    """A call that has to raise `error` with a message that matches `message` from its start."""

    label: str
    call: Callable[[], object]
    error: type[Exception]
    message: str


@dataclass(frozen=True)
class EmptyCall:
    """A legal call on empty input: `call` -> (inputs that need a gradient, outputs); shapes of the outputs."""

    label: str
    call: Callable[[], tuple[list[Tensor], list[Tensor]]]
    shapes: list[tuple[int, ...]]


@dataclass(frozen=True)
class Contract:
    """One row of the table."""

    name: str
    examples: list[Example]
    dispatcher_calls: Callable[[torch.dtype], Iterable[tuple[object, tuple]]]
    bad_calls: list[BadCall]
    empty_calls: list[EmptyCall]
    large: Example  # enough pixels that several threads get work
    second_derivative: bool = False  # False: has to raise NotImplementedError that names the op
    ragged: bool = False  # sizes inside depend on values: vmap has to be refused, compile may not capture it whole
    # Arguments whose gradient is not the derivative of the op's own forward, but of what it stands for.
    beyond_forward: tuple[str, ...] = ()
    # Arguments whose derivative in forward mode has to be refused by name.
    reverse_mode_only: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()  # arguments whose in-place change between forward and backward has to raise


# --- scenes ---------------------------------------------------------------------------------------

SIZE = (6, 7)


def one_triangle() -> tuple[Tensor, Tensor]:
    """(3, 4) positions with three different w, corners off the frame and off every pixel centre."""
    p = P(*SIZE)
    corners = [p(0.71, -0.63, 1.0, 0.3), p(6.83, 2.21, 2.0, -0.2), p(1.37, 5.77, 1.5, 0.6)]
    return torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2]], dtype=torch.int32)


def two_layers() -> tuple[Tensor, Tensor]:
    """Two triangles, the second in front and of the other winding, the first with one vertex behind the camera."""
    p = P(*SIZE)
    corners = [p(-0.9, 5.6, 1.2, 0.8), p(7.4, 5.1, 1.7, 0.7), [0.4, -3.1, -0.6, -0.5]]
    corners += [p(2.2, 0.9, 1.0, -0.5), p(1.3, 4.4, 1.4, 0.1), p(5.6, 3.3, 0.8, -0.1)]
    return torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)


def turned_cube(batch: int = 0) -> tuple[Tensor, Tensor]:
    """12 triangles that share 8 vertices, seen in perspective; (B, 8, 4) of different poses where batch > 0."""
    vertices, triangles = cube(0.8, dtype=F64)
    poses = [[0.05, -0.1, -3.0, 0.5, 0.7, -0.3], [-0.2, 0.15, -2.6, -0.4, 0.3, 0.9]]
    camera = perspective(55, *SIZE)
    clip = [to_clip(vertices, camera @ rigid(torch.tensor(pose, dtype=F64))) for pose in poses]
    return torch.stack(clip[:batch]) if batch else clip[0], triangles


def sub_pixel_triangle() -> tuple[Tensor, Tensor]:
    """A triangle of a tenth of a pixel around one pixel centre: an absolute epsilon would eat its gradient."""
    p = P(*SIZE)
    corners = [p(2.43, 3.46, 1.0, 0.1), p(2.56, 3.47, 1.3, 0.2), p(2.49, 3.58, 0.9, -0.1)]
    return torch.tensor(corners, dtype=F64), torch.tensor([[0, 1, 2]], dtype=torch.int32)


def many_triangles(count: int = 400) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Overlapping triangles in 2 items of 120 x 150 pixels: work for several threads, all of it shared vertices."""
    positions = uniform(2, 300, 4, low=-1.1, high=1.1, seed=5, dtype=F64)
    positions[..., 3] = 1 + 0.3 * positions[..., 3]
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in (6, 7)]
    near = torch.randint(0, 300, (400, 1), generator=generators[0], device="cpu")
    offsets = torch.randint(1, 40, (400, 2), generator=generators[1], device="cpu")
    triangles = here(torch.cat([near, near + offsets], 1) % 300)
    return positions, triangles[:count].int(), (120, 150)


def seen(positions: Tensor, triangles: Tensor, size: tuple[int, int], **options) -> Tensor:
    return reference_rasterize.visible_triangles(positions, triangles, size, **options)[0]


def fragments_of(triangle_id: Tensor, barycentrics: Tensor, derivatives: Tensor | None = None) -> dr.Fragments:
    """Fragments for an op that does not read their depth."""
    depth = torch.ones(triangle_id.shape, dtype=barycentrics.dtype)
    return dr.Fragments(triangle_id, barycentrics, depth, derivatives)
