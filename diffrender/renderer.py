"""Renderer: composes the stages into pictures of meshes.

    clip_positions = camera.clip_positions(vertices)      camera.py
    fragments      = rasterize(clip_positions, triangles)  which triangle, where on it
    channels       = surface at the fragments              _surface.py: attributes, material, light at the pixel centres
    picture        = antialias(channels over background)   coverage at silhouettes, and their gradient

or, with edges="coverage", exact areas instead of samples:

    fragments      = coverage(clip_positions, triangles)   every triangle of every pixel, with its area
    picture        = composite(surface at the fragments over background)

Plain composition: whatever gradient the stages have reaches vertices, colors, materials, lights and camera. Visibility
gradients (moving silhouettes) come from the edge op alone, so from the outputs that pass through it: `smooth` says
which.

Transparent surfaces (alpha mode "BLEND" of `Material`) are peeled off layer by layer. With C_k the color of layer k,
o_k its opacity and I_k the picture of all that lies at or behind it, I_k = edges(o_k C_k + (1 - o_k) I_(k+1)), the
background at the end: every layer's silhouettes are blended in what is seen of it.

What alpha mode "MASK" discards is no surface at all: each layer's triangle_id is that of the nearest surface that is
kept, found before anything else is computed. The outline of a texture's holes is decided at pixel centres; it is no
edge of the mesh, and neither blended (but by `samples`) nor differentiated. An edge of the mesh that lies in such a
hole is still an edge for "segments", with what shows next to it on both sides: over a smooth background that leaves 1%
of the gradient of an edge that shows, over pixel-wise noise 10%, over an even one nothing; "pairs" leaves none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from diffrender import _checks
from diffrender._autograd import can_decide
from diffrender._scene import Background, Frame, RenderResult, Scene, place, place_many, with_filtered_environments
from diffrender._surface import Surface, own_rows
from diffrender._visibility import kept_ids, only_ids, rasterized
from diffrender.camera import Camera
from diffrender.geometry.mesh import Mesh
from diffrender.lights import EnclosingLight, Light, PackedLights
from diffrender.ops.antialias import antialias
from diffrender.ops.composite import composite
from diffrender.ops.coverage import coverage, room_for
from diffrender.ops.fragments_at import fragments_at
from diffrender.ops.interior_flow import interior_flow
from diffrender.ops.rasterize import Fragments
from diffrender.recompute import recomputed, tensors_of

_SMOOTHABLE = ("color", "alpha", "depth", "normal", "position", "texcoord", "albedo")
_OUTPUTS = (*_SMOOTHABLE, "mask", "triangle_id", "material_id")
# Of recompute="tiles": so many bands at least, and so many pixels of all items in one at most.
_BANDS, _BAND_PIXELS = 8, 1 << 16
_LEAST_WIDTH = 1 / 16  # pixels, of interior="steady"

Lights = Light | PackedLights | EnclosingLight | Sequence[Light | PackedLights | EnclosingLight]


class Renderer:
    """Renders meshes through cameras.

    Args:
        resolution: (height, width), that of the cameras.
        edges: how silhouettes are blended, which is what gives them a gradient: "segments" by the edges of the mesh,
            "pairs" by pairs of pixels, much less accurate (both `diffrender.antialias`); surfaces behind transparent
            ones always by pairs. "coverage" averages over the area of each pixel, exactly, and so is its gradient
            (`diffrender.coverage`); it costs several times as much, reads textures without mips, takes no transparent
            materials, and shades every fragment once per item where lights or materials have a batch. None leaves point
            samples, whose gradient knows nothing of moving silhouettes.
        interior: "steady" differentiates what the stages compute at the pixel centres, but triangles narrower than
            1/16 pixel at the centre give their positions only a part of it, width / (1/16 pixel): one that is seen on
            edge may else outweigh all others. "exact" gives all of it. "flow" takes the picture's own differences for
            how the nearest surfaces change when they move, which is better for structures about a pixel wide.
        forward: of edges="segments" and "pairs": "area" blends the pixels at edges; "identity" leaves the picture as
            it is, point samples, and only its gradient knows of the edges: for pictures that must not be blended, such
            as labels or depth in `smooth`.
        visibility: of edges="segments": "window" decides what hides an edge by the pixels around it, "exact" by all
            triangles, which finds what is too thin to show at any pixel's centre.
        background: None, or a color: a number, C numbers or a tensor (C,), (H, W, C) or (B, H, W, C); or an
            `EnvironmentLight`, which shows what the camera sees of it. It is put behind the picture before the edges
            are blended, so that silhouettes see the true contrast.
        outputs: which of color, alpha, depth, normal, position, texcoord, albedo, mask, triangle_id and material_id to
            make.
        smooth: which outputs pass through the edge op, all in one call; those not in `outputs` are ignored.
        cull: None draws both sides of triangles; "back" or "front" leaves one out.
        samples: N renders N x N as many pixels and averages them. Outputs without a gradient are those of the sample
            next to the pixel's centre.
        capacity: of edges="coverage", as in `diffrender.coverage`: with it the call does not wait for the device, and
            `RenderResult.check` tells whether all fragments found room.
        recompute: True keeps 4 bytes a pixel and layer for the backward pass, the triangle_id, and computes the rest
            again; the gradient is bit for bit that of False. "tiles" also shades the picture in bands of rows, forward
            and backward, so that only one band's intermediate pictures exist at a time; sums over bands round
            differently. False keeps everything and is faster. The filtered maps of an environment are kept in any case.
        max_layers: transparent surfaces behind one another that are shown at most.

    Raises:
        ValueError: on unknown names.

    Example:
        >>> import diffrender as dr
        >>> camera = dr.Camera.perspective(fov_y_deg=40, width=32, height=32).look_at([0.0, 0.0, 4.0])
        >>> renderer = Renderer((32, 32), outputs=("color", "depth"))
        >>> result = renderer(dr.geometry.icosphere(2), camera)
        >>> result.color.shape, round(float(result.depth.max()), 2)
        (torch.Size([1, 32, 32, 3]), 3.63)
    """

    def __init__(
        self,
        resolution: tuple[int, int],
        *,
        edges: str | None = "segments",
        interior: str = "steady",
        forward: str = "area",
        visibility: str = "window",
        background: Tensor | float | tuple[float, ...] | list[float] | None = None,
        outputs: tuple[str, ...] = ("color",),
        smooth: tuple[str, ...] = ("color", "alpha"),
        cull: str | None = None,
        samples: int = 1,
        capacity: int | tuple[int, int, int] | None = None,
        recompute: bool | str = True,
        max_layers: int = 8,
    ):
        self.height, self.width = _checks.check_resolution("Renderer", resolution)
        _checks.check_choice("Renderer", "edges", edges, ("segments", "pairs", "coverage", None))
        _checks.check_choice("Renderer", "interior", interior, ("steady", "exact", "flow"))
        _checks.check_choice("Renderer", "forward", forward, ("area", "identity"))
        _checks.check_choice("Renderer", "visibility", visibility, ("window", "exact"))
        if forward == "identity" and edges not in ("segments", "pairs"):
            hint = "point samples have nothing to leave out" if edges is None else "exact areas are its picture"
            raise ValueError(f'Renderer: forward="identity" is an option of edges="segments" and "pairs"; {hint}.')
        if visibility == "exact" and edges != "segments":
            raise ValueError('Renderer: visibility="exact" is an option of edges="segments".')
        if capacity is not None and edges != "coverage":
            raise ValueError('Renderer: capacity is an option of edges="coverage".')
        if interior == "flow" and edges == "coverage":
            raise ValueError('Renderer: interior="flow" is for pictures of point samples, not for edges="coverage".')
        for argument, names, known in (("outputs", outputs, _OUTPUTS), ("smooth", smooth, _SMOOTHABLE)):
            for name in (names,) if isinstance(names, str) else names:
                if name not in known:
                    _checks.fail(ValueError, "Renderer", argument, f"name some of {', '.join(known)}", repr(name))
        self.edges = edges
        self.interior = interior
        self.forward = forward
        self.visibility = visibility
        self.background = background
        self.outputs = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        self.smooth = (smooth,) if isinstance(smooth, str) else tuple(smooth)
        self.cull = cull
        for argument, value in (("samples", samples), ("max_layers", max_layers)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                _checks.fail(ValueError, "Renderer", argument, "be an int of at least 1", repr(value))
        if interior == "flow" and recompute == "tiles":
            raise ValueError('Renderer: interior="flow" keeps the surface apart from its positions; bands do not.')
        if recompute not in (True, False, "tiles"):
            _checks.fail(ValueError, "Renderer", "recompute", 'be True, False or "tiles"', repr(recompute))
        self._least_width = _LEAST_WIDTH if interior == "steady" else 0.0
        self.samples = samples
        self.capacity = room_for(capacity, "Renderer")
        self.recompute = recompute
        self.max_layers = max_layers

    def __call__(
        self,
        mesh: Mesh | Sequence[Mesh],
        camera: Camera,
        lights: Lights | None = None,
        *,
        background: Background | None = None,
    ) -> RenderResult:
        """Renders one mesh through one camera or B (without copies), B shapes of one topology, or B different meshes.

        Args:
            mesh: vertices (V, 3) or (B, V, 3), or a list of B meshes (V_b, 3), which are packed without padding and
                each seen by its own camera. Its color is the material's base color times the vertex colors, white
                without either; their alpha counts where the material's does.
            camera: one camera or B of them, of the renderer's resolution. With meshes of float64 it may be of float32.
            lights: what lights the surfaces (glTF's metallic-roughness model; without a material rough and white). None
                shows the colors as they are.
            background: replaces the renderer's for this call, for example a random one.

        Gradients:
            To mesh, material, light and camera tensors and to the background, through every float output. Which layers
            a pixel has, and the step of alpha mode "MASK", are constants.

        Raises:
            ValueError: if the camera has another resolution, or the batch sizes differ.
        """
        self._check_camera(camera)
        meshes = [mesh] if isinstance(mesh, Mesh) else list(mesh)
        if camera.focal_px.dtype == torch.float64 and any(one.dtype == torch.float32 for one in meshes):
            raise TypeError(
                "Renderer: mesh is float32 but camera is float64. Convert one of them: camera.to(mesh.dtype)."
            )
        if camera.focal_px.dtype == torch.float32 and all(one.dtype == torch.float64 for one in meshes):
            camera = camera.to(torch.float64)  # loses nothing, where the other way round would
        whole = camera if self.samples == 1 else camera.scaled(self.samples)
        scene = place(mesh, whole) if isinstance(mesh, Mesh) else place_many(meshes, whole)
        lamps = None
        if lights is not None:  # a table of lights is a sequence too, but not of lights
            one = isinstance(lights, (Light, PackedLights, EnclosingLight))
            lamps = [lights] if one else list(lights)  # pyright: ignore[reportArgumentType]
        behind = self.background if background is None else background
        if lamps is not None and "color" in self.outputs:
            lamps, behind = with_filtered_environments(lamps, behind)
        frame = Frame(scene, Surface(scene.mesh, whole, scene.depth, lamps), behind)
        if self.recompute:
            inputs = tensors_of(scene.mesh, scene.clip_positions, scene.depth, scene.ranges, lamps, whole, behind)
            images = recomputed(lambda: self._images(frame), inputs)
        else:
            images = self._images(frame)

        first = frame.triangle_ids[0]
        if self.samples > 1:
            images = {name: _averaged(image, self.samples) for name, image in images.items()}
        centre = self.samples // 2
        triangle_id = first[:, centre :: self.samples, centre :: self.samples]
        fragments = None if self.recompute or self.samples > 1 else frame.first_fragments
        result = RenderResult(**images, fragments=fragments)  # pyright: ignore[reportArgumentType]
        result.area_counts, result.area_capacity = frame.area_counts, frame.area_capacity
        self._add_constants(result, triangle_id, scene)
        return result

    def _add_constants(self, result: RenderResult, triangle_id: Tensor, scene: Scene) -> None:
        """The outputs without gradient."""
        covered = triangle_id >= 0
        if "mask" in self.outputs:
            result.mask = covered.unsqueeze(-1)
        if "material_id" in self.outputs:
            ids = scene.mesh.material_ids
            own = torch.zeros_like(triangle_id) if ids is None else ids[triangle_id.clamp(min=0).long()]
            result.material_id = torch.where(covered, own, -1).to(torch.int32)
        if "triangle_id" in self.outputs:
            result.triangle_id = triangle_id
            if scene.own_triangle is not None:
                own = scene.own_triangle[triangle_id.clamp(min=0).long()]
                result.triangle_id = torch.where(covered, own, -1).to(torch.int32)

    # --- pixels: all of this may run twice ------------------------------------------------------------

    def _images(self, frame: Frame) -> dict[str, Tensor]:
        """The float outputs."""
        averaged = [name for name in self.outputs if name in self.smooth] if self.edges == "coverage" else []
        layers = self._layers(frame, tuple(name for name in self.outputs if name not in averaged))
        behind: dict[str, Tensor] = {}
        images: dict[str, Tensor] = {}
        for k in reversed(range(len(layers))):
            fragments, samples = layers.pop()
            images = self._over(frame, fragments, samples, behind)
            if k == 0:
                images = {**samples, **images}
                images.pop("opacity", None)
            samples.clear()  # pictures go as soon as they are not needed
            if k == 0 and self.interior == "flow" and images:
                self._add_flow(images, fragments, frame.scene)
            if self.edges in ("segments", "pairs"):
                # Visibility of segments is that of the nearest surfaces.
                self._blend_edges(images, fragments, frame.scene, self.edges if k == 0 else "pairs")
            behind = images
        if averaged:
            images.update(self._area_averages(frame, averaged))
        return {name: images[name] for name in self.outputs if name in images}

    def _area_averages(self, frame: Frame, names: list[str]) -> dict[str, Tensor]:
        """Outputs averaged over what each pixel shows, zero on background; one list of fragments for all."""
        scene = frame.scene
        if frame.surface.is_transparent or frame.surface.cutouts:
            expected = 'hold opaque materials only with edges="coverage"'
            _checks.fail(ValueError, "Renderer", "mesh", expected, "transparent ones")
        size = (self.height * self.samples, self.width * self.samples)
        areas = coverage(
            scene.clip_positions,
            scene.mesh.triangles,
            size,
            ranges=scene.ranges,
            cull=self.cull,
            capacity=self.capacity,
        )
        frame.area_counts, frame.area_capacity = areas.counts, areas.capacity
        rows = {name: own_rows(values, areas) for name, values in frame.surface.images(areas, names).items()}
        one = areas.weight.new_ones(1, 1, len(areas.weight), 1)
        rows["alpha"] = one
        listed = [*(name for name in names if name != "alpha"), "alpha"]
        pictures = composite(torch.cat([rows[name] for name in listed], -1), areas)
        images = dict(zip(listed, pictures.split([rows[name].shape[-1] for name in listed], -1), strict=True))
        if "color" in images and frame.background is not None:
            behind = frame.background_image(images["color"], self.samples)
            images["color"] = images["color"] + (1 - images["alpha"]) * behind
        return images

    def _over(
        self, frame: Frame, fragments: Fragments, samples: dict[str, Tensor], behind: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Color and alpha of a layer over those of all that lies behind it."""
        covered, opacity = (fragments.triangle_id >= 0).unsqueeze(-1), samples.get("opacity")
        result = {}
        if "color" in samples:
            color, below = samples["color"], behind.get("color")
            if below is None and frame.background is not None:
                below = frame.background_image(color, self.samples)
            if opacity is not None:
                color = opacity * color if below is None else opacity * color + (1 - opacity) * below
            result["color"] = color if below is None else torch.where(covered, color, below)
        if "alpha" in self.outputs and self.edges != "coverage":
            alpha = covered.to(frame.scene.mesh.dtype)
            if opacity is not None:
                below = behind.get("alpha")
                alpha = opacity if below is None else torch.where(covered, opacity + (1 - opacity) * below, below)
            result["alpha"] = alpha
        return result

    def _layers(self, frame: Frame, outputs: tuple[str, ...]) -> list[tuple[Fragments, dict[str, Tensor]]]:
        """Fragments and point samples of every layer, the nearest first."""
        layers: list[tuple[Fragments, dict[str, Tensor]]] = []
        behind = None
        for k in range(self.max_layers if frame.surface.is_transparent else 1):
            fragments = self._fragments(frame, k, behind, outputs)
            # What lies behind the nearest surface matters for its color alone.
            wanted = outputs if k == 0 else tuple(name for name in outputs if name == "color")
            surface = fragments
            if k == 0 and self.interior == "flow":
                slopes = fragments.derivatives
                surface = fragments._replace(
                    barycentrics=fragments.barycentrics.detach(),
                    derivatives=None if slopes is None else slopes.detach(),
                )
            layers.append((fragments, self._point_samples(frame, surface, wanted)))
            if len(frame.triangle_ids) > k + 1:
                continue  # known from the forward pass
            if frame.is_complete or not self._is_seen_through(fragments, layers[-1][1]):
                break
            behind = fragments
        frame.is_complete = True
        return layers

    def _is_seen_through(self, fragments: Fragments, images: dict[str, Tensor]) -> bool:
        opacity = images.get("opacity")
        if opacity is None:
            return False
        if not can_decide(opacity, fragments.triangle_id):
            return True  # layers without a surface change nothing
        return bool(((opacity < 1) & (fragments.triangle_id >= 0).unsqueeze(-1)).any())

    def _fragments(self, frame: Frame, layer: int, behind: Fragments | None, outputs: tuple[str, ...]) -> Fragments:
        """By rasterizing the first time, from the ids after that."""
        scene = frame.scene
        # Bands make their own fragments; the ids are all that is needed of the whole picture.
        in_bands = self.recompute == "tiles"
        derivatives = not in_bands and frame.surface.needs_derivatives(outputs)
        if layer < len(frame.triangle_ids):
            known = frame.triangle_ids[layer]
            if in_bands:
                return only_ids(known, scene.clip_positions)
            return fragments_at(
                scene.clip_positions,
                scene.mesh.triangles,
                known,
                derivatives=derivatives,
                least_width=self._least_width,
            )
        positions = scene.clip_positions.detach() if in_bands else scene.clip_positions
        if frame.surface.cutouts:
            ids = kept_ids(frame, behind, self.cull, self.max_layers)
            fragments = fragments_at(
                positions, scene.mesh.triangles, ids, derivatives=derivatives, least_width=self._least_width
            )
        else:
            fragments = rasterized(frame, positions, behind, self.cull, derivatives, self._least_width)
        frame.triangle_ids.append(fragments.triangle_id)
        if not self.recompute and layer == 0:
            frame.first_fragments = fragments
        return only_ids(fragments.triangle_id, positions) if in_bands else fragments

    def _point_samples(self, frame: Frame, fragments: Fragments, outputs: Sequence[str]) -> dict[str, Tensor]:
        """The float outputs of one layer at the pixel centres, and its opacity where that is not 1."""
        scene, surface = frame.scene, frame.surface
        if self.recompute != "tiles":
            return surface.images(fragments, outputs)
        derivatives = surface.needs_derivatives(outputs)
        triangle_id = fragments.triangle_id  # all of the pixels that the bands may hold on to
        batch, rows, width = triangle_id.shape
        height = max(1, min(-(-rows // _BANDS), _BAND_PIXELS // max(batch * width, 1)))
        surface = surface.with_shared_values(outputs)

        def shade(first: int) -> dict[str, Tensor]:
            ids = triangle_id[:, first : first + height].contiguous()
            band = fragments_at(
                scene.clip_positions, scene.mesh.triangles, ids, height=rows, first_row=first, derivatives=derivatives,
                least_width=self._least_width,
            )  # fmt: skip
            return surface.images(band, outputs)

        bands = [recomputed(functools.partial(shade, first), ()) for first in range(0, rows, height)]
        # Bands of one output are let go as soon as it is whole.
        return {name: torch.cat([band.pop(name) for band in bands], 1) for name in list(bands[0])}

    def _add_flow(self, images: dict[str, Tensor], fragments: Fragments, scene: Scene) -> None:
        """Gives all float outputs the gradient of their interior to the positions."""
        stack = interior_flow(
            torch.cat(list(images.values()), -1),
            fragments,
            scene.clip_positions,
            scene.mesh.triangles,
            scene.edge_topology(),
            ranges=scene.ranges,
            cull=_checks.CULL[self.cull],
            visibility=self.visibility,
        )
        images.update(zip(images, stack.split([image.shape[-1] for image in images.values()], -1), strict=True))

    def _blend_edges(self, images: dict[str, Tensor], fragments: Fragments, scene: Scene, method: str) -> None:
        """Replaces the smooth outputs by their blend across silhouettes: one call for all channels together."""
        names = [name for name in images if name in self.smooth and name in self.outputs]
        if not names:
            return
        sizes = [images[name].shape[-1] for name in names]
        # Popped, so that no picture outlives its blend.
        parts = [images.pop(name) for name in names]
        stack = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        parts.clear()
        blended = antialias(
            stack,
            fragments,
            scene.clip_positions,
            scene.mesh.triangles,
            method=method,
            forward=self.forward,
            visibility=self.visibility if method == "segments" else "window",
            topology=scene.edge_topology(),
            ranges=scene.ranges,
            cull=self.cull,
        )
        parts = [blended] if len(names) == 1 else blended.split(sizes, -1)
        images.update(zip(names, parts, strict=True))

    def _check_camera(self, camera: Camera) -> None:
        if (camera.height, camera.width) != (self.height, self.width):
            expected = f"have the renderer's resolution ({self.height}, {self.width})"
            actual = f"({camera.height}, {camera.width})"
            _checks.fail(ValueError, "Renderer", "camera", expected, actual, "Use camera.scaled or another renderer.")


def _averaged(image: Tensor, samples: int) -> Tensor:
    """Mean over blocks of samples x samples pixels."""
    return image.unflatten(2, (-1, samples)).unflatten(1, (-1, samples)).mean((2, 4))
