"""Recovering the shape of a mesh from pictures of it: the job behind `python -m diffrender fit`.

`photograph` renders what a capture would give: silhouettes, depth and shaded normals from known cameras. `recover` sees
only those pictures and cameras. It starts from a sphere and moves vertices down the gradient of the picture difference,
through the renderer, in the smoothed variables of `optim.LaplacianPreconditioner`. It goes from coarse to fine: small
pictures and long edges first; between the stages the mesh is remeshed to even, shorter edges, so that parts which grew
out of the sphere (legs, horns) get the vertices they need.

The sphere's topology stays: handles and separate parts of the source are not found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from diffrender import losses
from diffrender.camera import Camera
from diffrender.geometry import Mesh, icosphere, remesh, rotation, transform_directions, triangle_corners
from diffrender.optim import AdamUniform, LaplacianPreconditioner
from diffrender.renderer import Renderer

FIELD_OF_VIEW_DEG = 40.0


@dataclass(frozen=True)
class Stage:
    """One pass of the coarse-to-fine schedule.

    Attributes:
        share: its part of all steps.
        edge_length: to which the mesh is remeshed before it, for a shape of size 1; None keeps the mesh.
        shrink: the pictures are averaged over blocks of this many pixels.
        batch: how many views each step looks at.
        smoothing: strength of the Laplacian preconditioner; a step spreads over about sqrt(smoothing) edges.
    """

    share: float
    edge_length: float | None
    shrink: int
    batch: int
    smoothing: float


@dataclass(frozen=True)
class FitSettings:
    """How to recover a shape.

    Attributes:
        steps: number of gradient steps over all stages.
        seed: of the choice of views.
        learning_rate: distance per step of the fastest vertex in the smoothed variables, for a shape of size 1.
        weights: of the silhouette, depth and shading differences.
        edges, interior: how the renderer treats silhouettes and surfaces between them, see `Renderer`.
        stages: from coarse to fine.
    """

    steps: int = 1000
    seed: int = 0
    learning_rate: float = 0.01
    weights: tuple[float, float, float] = (4.0, 1.0, 3.0)
    edges: str | None = "pairs"
    interior: str = "steady"
    stages: tuple[Stage, ...] = (
        Stage(0.10, None, shrink=2, batch=8, smoothing=20.0),
        Stage(0.15, 0.040, shrink=2, batch=8, smoothing=20.0),
        Stage(0.30, 0.025, shrink=1, batch=4, smoothing=16.0),
        Stage(0.45, 0.017, shrink=1, batch=4, smoothing=10.0),
    )


@dataclass
class Pictures:
    """What a camera sees of a shape inside the sphere of radius `scene_radius` around the origin; B views.

    Attributes:
        cameras: B cameras at the same distance from the origin.
        scene_radius: of the sphere that holds the shape.
        silhouette: (B, H, W, 1) coverage.
        depth: (B, H, W, 1) distance behind the front of the scene sphere, times coverage.
        shading: (B, H, W, 3) shaded normals, (n + 1) / 2 for world normals n, times coverage.
        mask: (B, H, W, 1) bool, whether the pixel centre is covered.
    """

    cameras: Camera
    scene_radius: float
    silhouette: Tensor
    depth: Tensor
    shading: Tensor
    mask: Tensor

    def shrunk(self, factor: int) -> Pictures:
        """The same pictures averaged over blocks of factor x factor pixels, which have to fit the sides."""
        if factor == 1:
            return self

        def pool(image: Tensor) -> Tensor:
            return torch.nn.functional.avg_pool2d(image.permute(0, 3, 1, 2), factor).permute(0, 2, 3, 1)

        height, width = self.cameras.height, self.cameras.width
        if height % factor or width % factor:
            raise ValueError(f"Pictures.shrunk: picture sides must be multiples of {factor}, got {height} x {width}.")
        silhouette = pool(self.silhouette)
        return replace(
            self,
            cameras=self.cameras.scaled(1 / factor),
            silhouette=silhouette,
            depth=pool(self.depth),
            shading=pool(self.shading),
            mask=silhouette > 0.5,
        )

    def difference(self, other: Pictures) -> Tensor:
        """(3,) mean absolute differences of silhouette, depth and shading."""
        pairs = [(self.silhouette, other.silhouette), (self.depth, other.depth), (self.shading, other.shading)]
        return torch.stack([losses.l1(image, target) for image, target in pairs])

    def __getitem__(self, views: Tensor) -> Pictures:
        return replace(
            self,
            cameras=self.cameras[views],
            silhouette=self.silhouette[views],
            depth=self.depth[views],
            shading=self.shading[views],
            mask=self.mask[views],
        )


@dataclass
class Recovery:
    """What `recover` found.

    Attributes:
        mesh: the recovered mesh.
        snapshots: the mesh at the start and at the end of each stage.
        history: one row per step: (silhouette, depth, shading) differences on the views of that step.
        stage_starts: the step at which each stage began.
        steps: how many steps were taken; fewer than asked for if it was stopped.
    """

    mesh: Mesh
    snapshots: list[Mesh] = field(default_factory=list)
    history: list[tuple[float, float, float]] = field(default_factory=list)
    stage_starts: list[int] = field(default_factory=list)
    steps: int = 0


@dataclass(frozen=True)
class Placement:
    """Where a normalized shape lies in its source: source position = position * scale + center, (3,) float64."""

    center: Tensor
    scale: float


def normalize(mesh: Mesh) -> tuple[Mesh, Placement]:
    """Moves the middle of a mesh's bounding box to the origin and scales its longest side to 1; positions only.

    A mesh whose signed volume is negative, one turned inside out, is turned back.

    Raises:
        ValueError: if positions are not finite or lie in one point.
    """
    if not bool(mesh.vertices.isfinite().all()):
        raise ValueError("normalize: mesh must have finite vertices, got NaN or infinity.")
    used = mesh.vertices[mesh.triangles.long().unique()]
    low, high = used.amin(0), used.amax(0)
    scale = float((high - low).max())
    if not scale > 0:
        raise ValueError("normalize: mesh must have an extent, got one point.")
    center = (low + high) / 2
    vertices = (mesh.vertices - center) / scale
    corner0, corner1, corner2 = triangle_corners(vertices, mesh.triangles)
    volume = (corner0 * torch.linalg.cross(corner1, corner2)).sum() / 6
    triangles = mesh.triangles if volume >= 0 else mesh.triangles.flip(-1)
    return Mesh(vertices, triangles), Placement(center.double(), scale)


def cameras_around(directions: Tensor, size: int, scene_radius: float) -> Camera:
    """Cameras that look from `directions` (B, 3) at the sphere of `scene_radius` around the origin and see it all."""
    distance = scene_radius * 1.05 / math.sin(math.radians(FIELD_OF_VIEW_DEG / 2))
    lens = Camera.perspective(
        fov_y_deg=FIELD_OF_VIEW_DEG,
        width=size,
        height=size,
        near=distance - 1.5 * scene_radius,
        far=distance + 1.5 * scene_radius,
        dtype=directions.dtype,
        device=directions.device,
    )
    return lens.look_at(directions * distance)


def spread_directions(count: int, *, turn_rad: float = 0.0) -> Tensor:
    """(count, 3) unit vectors spread evenly over the sphere (a Fibonacci spiral), turned about a skew axis."""
    index = torch.arange(count, dtype=torch.float64) + 0.5
    height = 1 - 2 * index / count
    around = index * (math.pi * (3 - math.sqrt(5)))
    level = (1 - height * height).sqrt()
    spiral = torch.stack([level * around.cos(), height, level * around.sin()], -1)
    turn = rotation(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), turn_rad)
    return transform_directions(turn, spiral).float()


def photograph(
    mesh: Mesh,
    cameras: Camera,
    scene_radius: float,
    *,
    edges: str | None = "pairs",
    interior: str = "steady",
    samples: int = 1,
) -> Pictures:
    """Pictures of a mesh: of a source for reference, or, with gradients, of a shape that is being recovered.

    `edges`, `interior` and `samples` are those of `Renderer`.
    """
    # Every channel passes through the edge op, so that silhouettes inside the shape count too (a leg before the body).
    renderer = Renderer(
        (cameras.height, cameras.width),
        edges=edges,
        interior=interior,
        samples=samples,
        outputs=("color", "alpha", "depth", "mask"),
        smooth=("color", "alpha", "depth"),
        recompute=False,  # small pictures: time matters more than memory
    )
    result = renderer(mesh.replace(colors=(mesh.vertex_normals() + 1) / 2), cameras)
    assert result.alpha is not None
    assert result.depth is not None
    assert result.color is not None
    assert result.mask is not None
    # Depth counts from the front of the scene sphere: its step at a silhouette is then about as large as the others'.
    front = cameras.eye.norm(dim=-1)[:, None, None, None] - scene_radius
    depth = result.depth - front * result.alpha
    return Pictures(cameras, scene_radius, result.alpha, depth, result.color, result.mask)


def recover(
    pictures: Pictures,
    settings: FitSettings,
    *,
    on_step: Callable[[int, Tensor], None] | None = None,
    on_shape: Callable[[int, Mesh], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Recovery:
    """Recovers a closed surface from pictures alone.

    Args:
        pictures: of a shape of about size 1 around the origin, B views whose sides `Stage.shrink` divides.
        settings: schedule, weights and seed.
        on_step: called after every step with its number and its (3,) differences.
        on_shape: called after every step with its number and the mesh that was rendered in it.
        should_stop: asked before every step; True ends the work with the shape as it is then.

    Returns:
        A Recovery; the same one for the same arguments on the same machine.
    """
    device, dtype = pictures.silhouette.device, pictures.silhouette.dtype
    mesh = icosphere(3, radius=0.5).to(device).to(dtype)
    recovery = Recovery(mesh, snapshots=[mesh])
    generator = torch.Generator().manual_seed(settings.seed)
    weights = torch.tensor(settings.weights, device=device, dtype=dtype)
    stopped = False

    for number, (stage, stage_steps) in enumerate(zip(settings.stages, _stage_steps(settings), strict=True)):
        if stage.edge_length is not None:
            mesh = remesh(mesh, stage.edge_length)
        stage_pictures = pictures.shrunk(stage.shrink)
        preconditioner = LaplacianPreconditioner(
            mesh.triangles, mesh.vertex_count, strength=stage.smoothing, dtype=dtype
        )
        parameters = preconditioner.to_parameters(mesh.vertices).requires_grad_()
        optimizer = AdamUniform([parameters], lr=settings.learning_rate)
        recovery.stage_starts.append(recovery.steps)
        is_last = number == len(settings.stages) - 1

        for step in range(stage_steps):
            stopped = should_stop is not None and should_stop()
            if stopped:
                break
            if is_last:
                # Settle: the views of a step pull in slightly different directions.
                optimizer.param_groups[0]["lr"] = settings.learning_rate * _cosine_decay(step / stage_steps)
            views = torch.randperm(len(pictures.cameras), generator=generator)[: stage.batch].to(device)
            target = stage_pictures[views]
            shape = mesh.with_vertices(preconditioner.to_vertices(parameters))
            rendered = photograph(
                shape, target.cameras, target.scene_radius, edges=settings.edges, interior=settings.interior
            )
            difference = rendered.difference(target)
            optimizer.zero_grad()
            (difference * weights).sum().backward()
            optimizer.step()
            recovery.steps += 1
            silhouette, depth, shading = difference.tolist()
            recovery.history.append((silhouette, depth, shading))
            if on_step is not None:
                on_step(recovery.steps, difference.detach())
            if on_shape is not None:
                on_shape(recovery.steps, shape.with_vertices(shape.vertices.detach()))

        mesh = mesh.with_vertices(preconditioner.to_vertices(parameters).detach())
        recovery.mesh = mesh
        recovery.snapshots.append(mesh)
        if stopped:
            break
    return recovery


def _stage_steps(settings: FitSettings) -> list[int]:
    """Steps per stage, which add up to settings.steps."""
    total = sum(stage.share for stage in settings.stages)
    ends, done = [], 0.0
    for stage in settings.stages:
        done += stage.share
        ends.append(round(settings.steps * done / total))
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _cosine_decay(progress: float, last: float = 0.1) -> float:
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * progress))
