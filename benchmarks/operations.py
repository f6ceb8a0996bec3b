"""The operations of diffrender that the benchmarks time, each as a call without arguments.

Everything an operation needs from an earlier stage is computed beforehand, so that a call is that operation alone:
a backward pass runs over a graph that was recorded once. `forward_backward` is the whole of one optimisation step
without its update: world-space vertices -> clip space -> rasterize -> interpolate colours -> antialias -> mean squared
difference to an image -> gradient of the vertices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import diffrender as dr
from benchmarks.scenes import Scene, clip_from_world

OPERATION_NAMES = (
    "rasterize",
    "rasterize_backward",
    "interpolate_forward",
    "interpolate_backward",
    "antialias_forward",
    "antialias_backward",
    "forward_backward",
)


@dataclass(frozen=True)
class Operation:
    """A call that returns its result tensors, and the bytes that these take."""

    call: Callable[[], tuple[torch.Tensor, ...]]
    output_bytes: int


class Inputs:
    """Tensors of one scene at one image size, for a batch of `batch` views turned about the y axis.

    Attributes:
        vertices: (V, 3), or (batch, V, 3) for a batch, float32 world space.
        triangles: (T, 3) int32.
        colors: (V, 3) float32.
        target: (batch, size, size, 3) float32 image of a fixed random pattern, so that every pixel has a gradient.
        topology: (T, 3) int32 from `dr.edge_topology`.
    """

    def __init__(self, scene: Scene, size: int, batch: int | None = None) -> None:
        vertices = torch.from_numpy(scene.vertices)
        if batch is not None:
            angles = torch.linspace(0.0, 0.5, batch)
            cos, sin, zero, one = angles.cos(), angles.sin(), torch.zeros(batch), torch.ones(batch)
            turns = torch.stack([cos, zero, sin, zero, one, zero, -sin, zero, cos], dim=1).reshape(batch, 3, 3)
            vertices = vertices @ turns.transpose(1, 2)
        matrix = torch.from_numpy(clip_from_world()).float()
        self._rotation, self._translation = matrix[:, :3].T.contiguous(), matrix[:, 3].contiguous()
        self.vertices = vertices
        self.triangles = torch.from_numpy(scene.triangles)
        self.colors = torch.from_numpy(scene.colors)
        self.size = (size, size)
        generator = torch.Generator().manual_seed(0)
        self.target = torch.rand((batch or 1, size, size, 3), generator=generator)
        self.topology = dr.edge_topology(self.triangles, torch.from_numpy(scene.vertices))

    def clip_positions(self, vertices: torch.Tensor) -> torch.Tensor:
        """World-space vertices (..., 3) -> clip space (..., 4), differentiable."""
        return vertices @ self._rotation + self._translation

    def rasterize(self) -> dr.Fragments:
        """Fragments without gradient."""
        with torch.no_grad():
            return dr.rasterize(self.clip_positions(self.vertices), self.triangles, self.size)


def make_operation(name: str, inputs: Inputs) -> Operation:
    """Prepare the operation `name`, one of OPERATION_NAMES.

    Raises:
        ValueError: for any other name.
    """
    makers = {
        "rasterize": _rasterize,
        "rasterize_backward": _rasterize_backward,
        "interpolate_forward": _interpolate_forward,
        "interpolate_backward": _interpolate_backward,
        "antialias_forward": _antialias_forward,
        "antialias_backward": _antialias_backward,
        "forward_backward": _forward_backward,
    }
    if name not in makers:
        raise ValueError(f"make_operation: name must be one of {', '.join(makers)}, got {name!r}.")
    call = makers[name](inputs)
    return Operation(call, sum(tensor.nbytes for tensor in call()))


def _rasterize(inputs: Inputs) -> Callable[[], tuple[torch.Tensor, ...]]:
    clip_positions = inputs.clip_positions(inputs.vertices)

    def call() -> tuple[torch.Tensor, ...]:
        fragments = dr.rasterize(clip_positions, inputs.triangles, inputs.size)
        return fragments.triangle_id, fragments.barycentrics, fragments.depth

    return call


def _rasterize_backward(inputs: Inputs) -> Callable[[], tuple[torch.Tensor, ...]]:
    clip_positions = inputs.clip_positions(inputs.vertices).requires_grad_()
    fragments = dr.rasterize(clip_positions, inputs.triangles, inputs.size)
    outputs = (fragments.barycentrics, fragments.depth)
    grad_outputs = (inputs.target[..., :2].contiguous(), inputs.target[..., 2].contiguous())
    return lambda: torch.autograd.grad(outputs, clip_positions, grad_outputs, retain_graph=True)


def _interpolate_forward(inputs: Inputs) -> Callable[[], tuple[torch.Tensor, ...]]:
    fragments = inputs.rasterize()
    return lambda: (dr.interpolate(inputs.colors, inputs.triangles, fragments),)


def _interpolate_backward(inputs: Inputs) -> Callable[[], tuple[torch.Tensor, ...]]:
    fragments = inputs.rasterize()
    colors = inputs.colors.clone().requires_grad_()
    barycentrics = fragments.barycentrics.clone().requires_grad_()
    image = dr.interpolate(colors, inputs.triangles, fragments._replace(barycentrics=barycentrics))
    return lambda: torch.autograd.grad(image, (colors, barycentrics), inputs.target, retain_graph=True)


def _antialias_forward(inputs: Inputs) -> Callable[[], tuple[torch.Tensor, ...]]:
    fragments = inputs.rasterize()
    clip_positions = inputs.clip_positions(inputs.vertices)
    image = dr.interpolate(inputs.colors, inputs.triangles, fragments)
    return lambda: (_antialias(image, fragments, clip_positions, inputs),)


def _antialias_backward(inputs: Inputs) -> Callable[[], tuple[torch.Tensor, ...]]:
    fragments = inputs.rasterize()
    clip_positions = inputs.clip_positions(inputs.vertices).requires_grad_()
    image = dr.interpolate(inputs.colors, inputs.triangles, fragments).requires_grad_()
    blended = _antialias(image, fragments, clip_positions, inputs)
    return lambda: torch.autograd.grad(blended, (image, clip_positions), inputs.target, retain_graph=True)


def _forward_backward(inputs: Inputs) -> Callable[[], tuple[torch.Tensor, ...]]:
    vertices = inputs.vertices.clone().requires_grad_()

    def call() -> tuple[torch.Tensor, ...]:
        clip_positions = inputs.clip_positions(vertices)
        fragments = dr.rasterize(clip_positions, inputs.triangles, inputs.size)
        image = dr.interpolate(inputs.colors, inputs.triangles, fragments)
        image = _antialias(image, fragments, clip_positions, inputs)
        (grad_vertices,) = torch.autograd.grad(_loss(image, inputs), vertices)
        return image.detach(), grad_vertices

    return call


def image_loss(inputs: Inputs) -> Callable[[], tuple[torch.Tensor, ...]]:
    """The part of `forward_backward` that is plain torch: the loss of a given image and its gradient."""
    image = torch.full_like(inputs.target, 0.5).requires_grad_()
    return lambda: torch.autograd.grad(_loss(image, inputs), image)


def _loss(image: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    # Written out as (image - target).square().mean() it costs twice the time, in intermediate images.
    return torch.nn.functional.mse_loss(image, inputs.target)


def _antialias(
    image: torch.Tensor, fragments: dr.Fragments, clip_positions: torch.Tensor, inputs: Inputs
) -> torch.Tensor:
    return dr.antialias(image, fragments, clip_positions, inputs.triangles, method="pairs", topology=inputs.topology)
