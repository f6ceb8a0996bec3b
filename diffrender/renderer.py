"""Renderer: composes rasterize, interpolate and antialias into pictures of meshes.

    clip_positions = camera.clip_positions(vertices)      camera.py
    fragments      = rasterize(clip_positions, triangles)  which triangle, where on it
    channels       = interpolate(attributes, fragments)    colors, depth, normals, positions at the pixel centres
    picture        = antialias(channels over background)   coverage at silhouettes, and their gradient

or, with edges="coverage", exact areas instead of samples:

    fragments      = coverage(clip_positions, triangles)   every triangle of every pixel, with its area
    picture        = composite(interpolate(attributes, fragments) over background)

Plain composition of the stages: whatever gradient they have reaches vertices, colors and camera. Visibility gradients
(moving silhouettes) come from the edge op alone, so from the outputs that pass through it: `smooth` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffrender import _checks
from diffrender.camera import Camera
from diffrender.geometry.mesh import Mesh
from diffrender.geometry.normals import safe_normalize
from diffrender.geometry.packing import pack_meshes
from diffrender.ops.antialias import antialias
from diffrender.ops.coverage import Coverage, composite, coverage
from diffrender.ops.interpolate import interpolate
from diffrender.ops.rasterize import Fragments, rasterize

_OUTPUTS = ("color", "alpha", "mask", "depth", "normal", "position", "triangle_id")
_SMOOTHABLE = ("color", "alpha", "depth", "normal", "position")


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
        triangle_id: (B, H, W) int32 rows of mesh.triangles, -1 on background; no gradient.
        fragments: what the rasterizer returned; with a distorting camera, of the mesh that `Camera.split_edges` made.

    depth, normal and position belong to the surface at the pixel's centre. Named in `smooth`, they pass through the
    edge op too and are then weighted by coverage like a premultiplied color: near a silhouette divide by alpha first.
    """

    color: Tensor | None = None
    alpha: Tensor | None = None
    mask: Tensor | None = None
    depth: Tensor | None = None
    normal: Tensor | None = None
    position: Tensor | None = None
    triangle_id: Tensor | None = None
    fragments: Fragments | None = None


class Renderer:
    """Renders meshes through cameras.

    Args:
        resolution: (height, width), that of the cameras.
        edges: "pairs" blends across silhouettes (`diffrender.antialias`), which is what gives them a gradient; None
            leaves point samples, whose gradient knows nothing of moving silhouettes. "coverage" averages over the area
            of each pixel, exactly, and so is its gradient (`diffrender.coverage`); it costs several times as much.
        background: None, or a color: a number, C numbers or a tensor (C,), (H, W, C) or (B, H, W, C). It is put behind
            the picture before the edges are blended, so that silhouettes see the true contrast.
        outputs: which of color, alpha, mask, depth, normal, position and triangle_id to make.
        smooth: which outputs pass through the edge op, all in one call; those not in `outputs` are ignored.
        cull: None draws both sides of triangles; "back" or "front" leaves one out.

    Raises:
        ValueError: on unknown names.

    Example:
        >>> import diffrender as dr
        >>> camera = dr.Camera.perspective(fov_y_deg=40, width=32, height=32).look_at([0.0, 0.0, 4.0])
        >>> renderer = Renderer((32, 32), edges="pairs", outputs=("color", "depth"))
        >>> result = renderer(dr.geometry.icosphere(2), camera)
        >>> result.color.shape, round(float(result.depth.max()), 2)
        (torch.Size([1, 32, 32, 3]), 3.63)
    """

    def __init__(
        self,
        resolution: tuple[int, int],
        *,
        edges: str | None,
        background: Tensor | float | tuple[float, ...] | list[float] | None = None,
        outputs: tuple[str, ...] = ("color",),
        smooth: tuple[str, ...] = ("color", "alpha"),
        cull: str | None = None,
    ):
        self.height, self.width = _checks.check_resolution("Renderer", resolution)
        if edges not in ("pairs", "coverage", None):
            _checks.fail(ValueError, "Renderer", "edges", 'be "pairs", "coverage" or None', repr(edges))
        for argument, names, known in (("outputs", outputs, _OUTPUTS), ("smooth", smooth, _SMOOTHABLE)):
            for name in (names,) if isinstance(names, str) else names:
                if name not in known:
                    _checks.fail(ValueError, "Renderer", argument, f"name some of {', '.join(known)}", repr(name))
        self.edges = edges
        self.background = background
        self.outputs = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        self.smooth = (smooth,) if isinstance(smooth, str) else tuple(smooth)
        self.cull = cull

    def __call__(
        self,
        mesh: Mesh | Sequence[Mesh],
        camera: Camera,
        *,
        background: Tensor | float | tuple[float, ...] | list[float] | None = None,
    ) -> RenderResult:
        """Renders one mesh through one camera or B (without copies), B shapes of one topology, or B different meshes.

        Args:
            mesh: vertices (V, 3) or (B, V, 3), or a list of B meshes (V_b, 3), which are packed without padding and
                each seen by its own camera. Without colors it is white.
            camera: one camera or B of them, of the renderer's resolution.
            background: replaces the renderer's for this call, for example a random one.

        Gradients:
            To mesh and camera tensors and to the background, through every float output.

        Raises:
            ValueError: if the camera has another resolution, or the batch sizes differ.
        """
        scene = _place(mesh, camera) if isinstance(mesh, Mesh) else _place_many(mesh, camera)
        self._check_inputs(scene, camera)
        fragments = rasterize(
            scene.clip_positions, scene.mesh.triangles, (self.height, self.width), ranges=scene.ranges, cull=self.cull
        )
        mask = (fragments.triangle_id >= 0).unsqueeze(-1)

        behind = self.background if background is None else background
        averaged = [name for name in self.outputs if name in self.smooth] if self.edges == "coverage" else []
        images = self._surface(scene, fragments, mask, [name for name in self.outputs if name not in averaged])
        if "color" in images and behind is not None:
            images["color"] = torch.where(mask, images["color"], self._background_image(behind, images["color"]))
        if averaged:
            images.update(self._area_averages(scene, averaged, behind))
        if self.edges == "pairs":
            self._blend_edges(images, fragments, scene)

        result = RenderResult(fragments=fragments, **images)
        if "mask" in self.outputs:
            result.mask = mask
        if "triangle_id" in self.outputs:
            result.triangle_id = fragments.triangle_id
            if scene.own_triangle is not None:
                own = scene.own_triangle[fragments.triangle_id.clamp(min=0).long()]
                result.triangle_id = torch.where(mask[..., 0], own, -1)
        return result

    def _surface(
        self, scene: _Scene, fragments: Fragments | Coverage, mask: Tensor, names: list[str]
    ) -> dict[str, Tensor]:
        """Float outputs of the surface at each fragment: at pixel centres, zero on background, or of a list."""
        mesh = scene.mesh
        images = {}
        if "color" in names:
            white = mask.to(mesh.dtype).expand(*mask.shape[:-1], 3)
            images["color"] = white if mesh.colors is None else interpolate(mesh.colors, mesh.triangles, fragments)
        if "alpha" in names:
            images["alpha"] = mask.to(mesh.dtype)
        if "depth" in names:
            # Not from z/w, which loses its digits far away. Clip-space w is 1 without perspective, and the distance
            # from the eye for a fisheye lens.
            images["depth"] = interpolate(scene.depth.unsqueeze(-1), mesh.triangles, fragments)
        if "normal" in names:
            normals = mesh.vertex_normals() if mesh.normals is None else mesh.normals
            triangles = mesh.triangles if mesh.normal_triangles is None else mesh.normal_triangles
            images["normal"] = safe_normalize(interpolate(normals, triangles, fragments))
        if "position" in names:
            images["position"] = interpolate(mesh.vertices, mesh.triangles, fragments)
        return images

    def _area_averages(
        self, scene: _Scene, names: list[str], behind: Tensor | float | tuple[float, ...] | list[float] | None
    ) -> dict[str, Tensor]:
        """Outputs averaged over what each pixel shows, zero on background; one list of fragments for all."""
        size = (self.height, self.width)
        areas = coverage(scene.clip_positions, scene.mesh.triangles, size, ranges=scene.ranges, cull=self.cull)
        everywhere = torch.ones(1, 1, len(areas.weight), 1, dtype=torch.bool, device=areas.weight.device)
        rows = self._surface(scene, areas, everywhere, names)
        stack = torch.cat([rows[name] for name in names] + [everywhere.to(areas.weight)], -1)
        pictures = composite(stack, areas).split([rows[name].shape[-1] for name in names] + [1], -1)
        images = dict(zip(names, pictures, strict=False))
        if "color" in images and behind is not None:
            color = images["color"]
            images["color"] = color + (1 - pictures[-1]) * self._background_image(behind, color)
        return images

    def _blend_edges(self, images: dict[str, Tensor], fragments: Fragments, scene: _Scene) -> None:
        """Replaces the smooth outputs by their blend across silhouettes: one call for all channels together."""
        names = [name for name in images if name in self.smooth]
        if not names:
            return
        stack = torch.cat([images[name] for name in names], -1)
        blended = antialias(
            stack,
            fragments,
            scene.clip_positions,
            scene.mesh.triangles,
            method="pairs",
            topology=scene.edge_topology(),
        )
        sizes = [images[name].shape[-1] for name in names]
        images.update(zip(names, blended.split(sizes, -1), strict=True))

    def _background_image(self, background: Tensor | float | tuple[float, ...] | list[float], color: Tensor) -> Tensor:
        tensor = torch.as_tensor(background, dtype=color.dtype, device=color.device)
        channels = color.shape[-1]
        is_shape_known = tensor.ndim == 0 or tensor.shape in ((channels,), color.shape[1:], color.shape)
        if not is_shape_known:
            shape = tuple(color.shape)
            expected = f"be one number or have shape ({channels},), {shape[1:]} or {shape}"
            _checks.fail(ValueError, "Renderer", "background", expected, _checks.shape_text(tensor))
        return tensor

    def _check_inputs(self, scene: _Scene, camera: Camera) -> None:
        if (camera.height, camera.width) != (self.height, self.width):
            expected = f"have the renderer's resolution ({self.height}, {self.width})"
            actual = f"({camera.height}, {camera.width})"
            _checks.fail(ValueError, "Renderer", "camera", expected, actual, "Use camera.scaled or another renderer.")


@dataclass
class _Scene:
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


def _place(mesh: Mesh, camera: Camera) -> _Scene:
    shapes = mesh.vertices.shape[0] if mesh.vertices.ndim == 3 else 1
    if shapes > 1 and camera.batch_size not in (None, 1, shapes):
        expected = f"hold {camera.batch_size} shapes, one per camera, or one for all"
        _checks.fail(ValueError, "Renderer", "mesh", expected, str(shapes))
    split, source = camera.split_edges(mesh)  # changes nothing unless the lens distorts
    own = None if split is mesh else source
    clip_positions, depth = camera.clip_positions(split.vertices), camera.depth(split.vertices)
    return _Scene(split, clip_positions, depth, split.edge_topology, own_triangle=own)


def _place_many(meshes: Sequence[Mesh], camera: Camera) -> _Scene:
    """Packed meshes, each with the positions that its own camera gives them; triangles count within each mesh."""
    if camera.batch_size not in (None, 1, len(meshes)):
        expected = f"hold one camera, or one for each of the {len(meshes)} meshes"
        _checks.fail(ValueError, "Renderer", "camera", expected, str(camera.batch_size))
    cameras = [camera if camera.batch_size is None else camera[k % len(camera)] for k in range(len(meshes))]
    split = [own_camera.split_edges(mesh) for mesh, own_camera in zip(meshes, cameras, strict=True)]
    meshes = [mesh for mesh, _ in split]
    packed = pack_meshes(meshes)
    pairs = list(zip(meshes, cameras, strict=True))
    return _Scene(
        packed.mesh,
        torch.cat([own_camera.clip_positions(mesh.vertices) for mesh, own_camera in pairs]),
        torch.cat([own_camera.depth(mesh.vertices) for mesh, own_camera in pairs]),
        lambda: packed.edge_topology(meshes),
        packed.ranges,
        torch.cat([source for _, source in split]),
    )
