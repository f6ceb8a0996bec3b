"""What a call of the renderer renders, and what it returns.

scene = place(mesh, camera)        one mesh, its positions in clip space
scene = place_many(meshes, camera) several, packed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffrender import _checks
from diffrender._constants import constant
from diffrender._surface import Surface
from diffrender.camera import Camera
from diffrender.geometry.mesh import Mesh
from diffrender.geometry.packing import pack_meshes
from diffrender.lights import EnclosingLight
from diffrender.ops.coverage import check_room
from diffrender.ops.rasterize import Fragments

Background = Tensor | float | tuple[float, ...] | list[float] | EnclosingLight


@dataclass
class RenderResult:
    """Pictures (B, H, W, C), row 0 on top; None for what was not asked for. B is 1 for one mesh and one camera.

    Attributes:
        color: (B, H, W, C) linear colors over the background; without a background premultiplied by coverage.
        alpha: (B, H, W, 1) coverage in [0, 1]: 1 inside, 0 on background, between them where an edge crosses the pixel.
        mask: (B, H, W, 1) bool, whether the pixel's centre is covered; no gradient.
        depth: (B, H, W, 1) positive distance along the viewing axis; 0 on background.
        normal: (B, H, W, 3) unit normals in world space; 0 on background.
        position: (B, H, W, 3) world positions; 0 on background.
        texcoord: (B, H, W, 2); 0 on background.
        albedo: (B, H, W, C) base color of the material, or the vertex colors, without light; 0 on background.
        triangle_id: (B, H, W) int32 rows of mesh.triangles, -1 on background; no gradient.
        material_id: (B, H, W) int32 places in the mesh's list of materials, -1 on background; no gradient.
        fragments: what the rasterizer returned; with a distorting camera, of the mesh that `Camera.split_edges` made.
            Only with `recompute=False`: it is what recomputation spares.
        area_counts, area_capacity: of edges="coverage", those of `Coverage`.

    All but color and alpha belong to the nearest surface at the pixel's centre, "BLEND" surfaces included; where alpha
    mode "MASK" leaves nothing of a surface, to what is behind it. Named in `smooth`, they pass through
    the edge op too and are then weighted by coverage like a premultiplied color: near a silhouette divide by alpha
    first. With the renderer's forward="identity" all of them, color and alpha too, are what the pixel's centre shows.
    """

    color: Tensor | None = None
    alpha: Tensor | None = None
    mask: Tensor | None = None
    depth: Tensor | None = None
    normal: Tensor | None = None
    position: Tensor | None = None
    texcoord: Tensor | None = None
    albedo: Tensor | None = None
    triangle_id: Tensor | None = None
    material_id: Tensor | None = None
    fragments: Fragments | None = None
    area_counts: Tensor | None = None
    area_capacity: tuple[int, int, int] | None = None

    def check(self) -> RenderResult:
        """This, if the renderer's `capacity` was enough; waits for the device.

        Raises:
            RuntimeError: fragments are missing.
        """
        check_room(self.area_counts, self.area_capacity)
        return self


@dataclass
class Scene:
    """What a call renders: one mesh as the stages need it.

    Attributes:
        mesh: one topology, or several meshes packed.
        clip_positions, depth: (V, 4) and (V,) or with a batch axis, of the mesh's vertices.
        edge_topology: makes the topology when it is needed.
        ranges: (B, 2) of packed meshes.
        own_triangle: (T,) what users call each triangle, where that is not its row.
    """

    mesh: Mesh
    clip_positions: Tensor
    depth: Tensor
    edge_topology: Callable[[], Tensor]
    ranges: Tensor | None = None
    own_triangle: Tensor | None = None


@dataclass
class Frame:
    """One call: what it renders, and what a second run of the same pixels may know of the first.

    Attributes:
        triangle_ids: (B, H, W) of each layer.
        is_complete: whether all layers are known.
        first_fragments: of the nearest layer, where they are kept.
        area_counts, area_capacity: of the list of fragments, if there is one.
    """

    scene: Scene
    surface: Surface
    background: Background | None
    triangle_ids: list[Tensor] = field(default_factory=list)
    is_complete: bool = False
    first_fragments: Fragments | None = None
    area_counts: Tensor | None = None
    area_capacity: tuple[int, int, int] | None = None

    def background_image(self, color: Tensor, samples: int) -> Tensor:
        """What lies behind everything, shaped to go with `color` (B, H, W, C) of `samples` x `samples` a pixel."""
        background, camera = self.background, self.surface.camera
        if isinstance(background, EnclosingLight):
            return _seen_of(background, camera, color)
        if isinstance(background, str) or str(getattr(background, "dtype", "")).endswith("uint8"):
            actual = repr(background) if isinstance(background, str) else "bytes"
            hint = "White is 1.0; diffrender.load_image makes linear floats."
            _checks.fail(TypeError, "Renderer", "background", "be numbers, a float picture or a light", actual, hint)
        tensor = constant(background, color)
        batch, channels = color.shape[0], color.shape[-1]
        shape = (batch, camera.height // samples, camera.width // samples, channels)
        is_shape_known = tensor.ndim == 0 or tuple(tensor.shape) in ((channels,), shape[1:], shape)
        if not is_shape_known:
            expected = f"be one number or have shape ({channels},), {shape[1:]} or {shape}"
            _checks.fail(ValueError, "Renderer", "background", expected, _checks.shape_text(tensor))
        if samples > 1 and tensor.ndim > 1:
            tensor = tensor.repeat_interleave(samples, -3).repeat_interleave(samples, -2)
        return tensor


def place(mesh: Mesh, camera: Camera) -> Scene:
    shapes = mesh.vertices.shape[0] if mesh.vertices.ndim == 3 else 1
    if shapes > 1 and camera.batch_size not in (None, 1, shapes):
        expected = f"hold {camera.batch_size} shapes, one per camera, or one for all"
        _checks.fail(ValueError, "Renderer", "mesh", expected, str(shapes))
    split, source = camera.split_edges(mesh)  # changes nothing unless the lens distorts
    own = None if split is mesh else source
    clip_positions, depth = camera.clip_positions(split.vertices), camera.depth(split.vertices)
    return Scene(split, clip_positions, depth, split.edge_topology, own_triangle=own)


def place_many(meshes: Sequence[Mesh], camera: Camera) -> Scene:
    """Packed meshes, each with the positions that its own camera gives them; triangles count within each mesh."""
    if camera.batch_size not in (None, 1, len(meshes)):
        expected = f"hold one camera, or one for each of the {len(meshes)} meshes"
        _checks.fail(ValueError, "Renderer", "camera", expected, str(camera.batch_size))
    cameras = [camera if camera.batch_size is None else camera[k % len(camera)] for k in range(len(meshes))]
    split = [own_camera.split_edges(mesh) for mesh, own_camera in zip(meshes, cameras, strict=True)]
    meshes = [mesh for mesh, _ in split]
    packed = pack_meshes(meshes)
    pairs = list(zip(meshes, cameras, strict=True))
    return Scene(
        packed.mesh,
        torch.cat([own_camera.clip_positions(mesh.vertices) for mesh, own_camera in pairs]),
        torch.cat([own_camera.depth(mesh.vertices) for mesh, own_camera in pairs]),
        lambda: packed.edge_topology(meshes),
        packed.ranges,
        torch.cat([source for _, source in split]),
    )


def with_filtered_environments(lights: Sequence[Any], background: Any) -> tuple[list[Any], Any]:
    """Environments with the maps that all layers share, made outside of what runs twice.

    Filtering may cost more than a picture.
    """
    prepared = {id(light): light.prepared() for light in lights if isinstance(light, EnclosingLight)}
    return [prepared.get(id(light), light) for light in lights], prepared.get(id(background), background)


def _seen_of(light: EnclosingLight, camera: Camera, color: Tensor) -> Tensor:
    """(B, H, W, 3) or (1, H, W, 3) radiance of an environment along the rays of the pixel centres."""
    _, directions = camera.rays(camera.pixel_centers().reshape(-1, 2))
    directions = directions.reshape(-1, camera.height, camera.width, 3)
    return light.radiance(directions).to(color.dtype)
