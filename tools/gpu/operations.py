"""What the section `benchmark` times: calls without arguments, with the bytes that they can not avoid to move.

Everything that an earlier stage makes is computed beforehand; a backward pass runs over a graph recorded once. `bytes`
counts what has one value per pixel (per fragment, texel or vertex where an op has no pixels), read or written once;
vertices, texels and scratch memory come on top, so the achieved rate that follows from it is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import diffrender as dr
from benchmarks.scenes import clip_from_world, make_scene


@dataclass(frozen=True)
class Timed:
    name: str
    call: Callable[[], object]
    bytes: int


class Inputs:
    """One scene of benchmarks/scenes.py seen from `batch` sides, and what the stages make of it."""

    def __init__(self, scene: str, size: int, batch: int, device: str) -> None:
        mesh = make_scene(scene)
        self.size, self.batch, self.device = size, batch, device
        self.triangles = torch.from_numpy(mesh.triangles).to(device)
        self.vertices = torch.from_numpy(mesh.vertices).to(device)
        self.colors = torch.from_numpy(mesh.colors).to(device)
        matrix = torch.from_numpy(clip_from_world()).float()
        angles = torch.linspace(0.0, 0.5, batch)
        turns = torch.eye(4).repeat(batch, 1, 1)
        turns[:, 0, 0] = turns[:, 2, 2] = angles.cos()
        turns[:, 0, 2], turns[:, 2, 0] = angles.sin(), -angles.sin()
        self.clip_from_world = (matrix @ turns).to(device)
        generator = torch.Generator("cpu").manual_seed(0)
        self.target = torch.rand(batch, size, size, 3, generator=generator).to(device)
        texels = 1024 if size > 64 else 32
        self.texture = torch.rand(1, texels, texels, 3, generator=generator).to(device)
        self.topology = dr.edge_topology(self.triangles, self.vertices)
        with torch.no_grad():
            self.clip = self.project(self.vertices)
            self.fragments = dr.rasterize(self.clip, self.triangles, (size, size), derivatives=True)
            self.image = dr.interpolate(self.colors, self.triangles, self.fragments)

    def project(self, vertices: Tensor) -> Tensor:
        homogeneous = torch.cat([vertices, torch.ones_like(vertices[:, :1])], 1)
        return homogeneous @ self.clip_from_world.transpose(1, 2)

    @property
    def pixels(self) -> int:
        return self.batch * self.size * self.size


def backward(outputs: list[Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    """The backward pass of a recorded graph, with random cotangents."""
    cotangents = [torch.rand_like(x) for x in outputs]
    return lambda: torch.autograd.grad(outputs, leaves, cotangents, retain_graph=True)


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def stages(inputs: Inputs) -> list[Timed]:
    """Every stage of the mesh pipeline, forward and backward, and a whole step of a fit."""
    i, f, n = inputs, inputs.fragments, inputs.pixels
    size = (i.size, i.size)
    clip = leaf(i.clip)
    drawn = dr.rasterize(clip, i.triangles, size)
    colors, weights = leaf(i.colors), leaf(f.barycentrics)
    values = dr.interpolate(colors, i.triangles, f._replace(barycentrics=weights))
    image, moved = leaf(i.image), leaf(i.clip)
    pairs = dr.antialias(image, f, moved, i.triangles, method="pairs", topology=i.topology)
    segments = dr.antialias(image, f, moved, i.triangles, method="segments", topology=i.topology)
    texels, uv = leaf(i.texture), leaf(4 * f.barycentrics)
    steps = (4 * f.derivatives).detach()
    sampled = dr.texture(texels, uv, texcoord_derivatives=steps)
    normals, albedo = leaf(i.image - 0.5), leaf(i.image)
    lights = dr.pack_lights([dr.DirectionalLight(torch.tensor([0.3, -0.5, -1.0], device=i.device))])
    camera = torch.tensor([0.0, 0.0, 4.0], device=i.device)

    def shade() -> Tensor:
        return dr.shade_metallic_roughness(i.target, normals, albedo, 0.3, 0.4, lights, camera_position=camera)

    shaded = shade()

    # Room for what there is, and a tenth more: nothing waits for the device then.
    counts = dr.coverage(i.clip, i.triangles, size).counts
    assert counts is not None
    fragments, candidates, in_one_pixel = (int(1.1 * count) + 1 for count in counts.tolist())
    room = (fragments, candidates, in_one_pixel)
    areas = dr.coverage(clip, i.triangles, size, capacity=room)
    points = leaf(i.vertices)
    smooth = dr.geometry.vertex_normals(points, i.triangles)
    levels = dr.build_mips(texels)
    side = i.texture.shape[1] // 4
    faces = leaf(torch.rand(6, side, side, 3, device=i.device))
    directions = leaf(i.image - 0.5)
    reflected = dr.texture_cube(faces, directions)

    def cover() -> dr.Coverage:
        return dr.coverage(clip, i.triangles, size, capacity=room)

    def sample() -> Tensor:
        return dr.texture(texels, uv, texcoord_derivatives=steps)

    def blend(method: str) -> Tensor:
        return dr.antialias(image, f, moved, i.triangles, method=method, topology=i.topology)

    def interpolate() -> Tensor:
        return dr.interpolate(colors, i.triangles, f)

    return [
        Timed("rasterize", lambda: dr.rasterize(clip, i.triangles, size), 16 * n),
        Timed("rasterize backward", backward([drawn.barycentrics, drawn.depth], [clip]), 16 * n),
        Timed("interpolate", interpolate, 24 * n),
        Timed("interpolate backward", backward([values], [colors, weights]), 32 * n),
        Timed("antialias pairs", lambda: blend("pairs"), 28 * n),
        Timed("antialias pairs backward", backward([pairs], [image, moved]), 40 * n),
        Timed("antialias segments", lambda: blend("segments"), 28 * n),
        Timed("antialias segments backward", backward([segments], [image, moved]), 40 * n),
        Timed("texture mips", sample, 36 * n),
        Timed("texture mips backward", backward([sampled], [texels, uv]), 44 * n),
        Timed("texture_cube", lambda: dr.texture_cube(faces, directions), 24 * n),
        Timed("texture_cube backward", backward([reflected], [faces, directions]), 36 * n),
        Timed("build_mips", lambda: dr.build_mips(texels), 4 * texels.numel()),
        Timed("build_mips backward", backward(list(levels), [texels]), 4 * texels.numel()),
        Timed("vertex_normals", lambda: dr.geometry.vertex_normals(points, i.triangles), 8 * points.numel()),
        Timed("vertex_normals backward", backward([smooth], [points]), 8 * points.numel()),
        Timed("coverage", cover, 29 * fragments),
        Timed("coverage backward", backward([areas.weight, areas.barycentrics], [clip]), 17 * fragments),
        Timed("shade metallic-roughness", shade, 48 * n),
        Timed("shade metallic-roughness backward", backward([shaded], [normals, albedo]), 72 * n),
        Timed("fit step, pairs", fit_step(i, "pairs"), 16 * n),
        Timed("fit step, segments", fit_step(i, "segments"), 16 * n),
    ]


def fit_step(i: Inputs, method: str) -> Callable[[], object]:
    """Vertices -> clip space -> rasterize -> interpolate -> antialias -> squared error -> gradient of the vertices."""
    vertices = leaf(i.vertices)

    def call() -> tuple[Tensor, ...]:
        clip = i.project(vertices)
        f = dr.rasterize(clip, i.triangles, (i.size, i.size))
        image = dr.interpolate(i.colors, i.triangles, f)
        image = dr.antialias(image, f, clip, i.triangles, method=method, topology=i.topology)
        return torch.autograd.grad(torch.nn.functional.mse_loss(image, i.target), vertices)

    return call


def peer_stages(inputs: Inputs, module, context) -> list[Timed]:
    """The same through the public functions of nvdiffrast, under the same names."""
    i, n, size = inputs, inputs.pixels, (inputs.size, inputs.size)
    clip = leaf(i.clip)
    rast, rast_db = module.rasterize(context, clip, i.triangles, size)
    fixed = rast.detach()
    colors, weights = leaf(i.colors), leaf(rast)
    values, _ = module.interpolate(colors, weights, i.triangles)
    image, moved = leaf(i.image), leaf(i.clip)
    hashes = module.antialias_construct_topology_hash(i.triangles)
    blended = module.antialias(image, fixed, moved, i.triangles, topology_hash=hashes)
    texels, uv = leaf(i.texture), leaf(4 * fixed[..., :2].contiguous())
    steps = (4 * rast_db).detach().contiguous()
    sampled = module.texture(texels, uv, steps, filter_mode="linear-mipmap-linear")
    vertices = leaf(i.vertices)

    def step() -> tuple[Tensor, ...]:
        positions = i.project(vertices)
        drawn, _ = module.rasterize(context, positions, i.triangles, size)
        colored, _ = module.interpolate(i.colors, drawn, i.triangles)
        result = module.antialias(colored, drawn, positions, i.triangles, topology_hash=hashes)
        return torch.autograd.grad(torch.nn.functional.mse_loss(result, i.target), vertices)

    return [
        Timed("rasterize", lambda: module.rasterize(context, clip, i.triangles, size), 32 * n),
        Timed("rasterize backward", backward([rast], [clip]), 32 * n),
        Timed("interpolate", lambda: module.interpolate(colors, fixed, i.triangles), 28 * n),
        Timed("interpolate backward", backward([values], [colors, weights]), 44 * n),
        Timed("antialias pairs", lambda: module.antialias(image, fixed, moved, i.triangles, hashes), 40 * n),
        Timed("antialias pairs backward", backward([blended], [image, moved]), 52 * n),
        Timed("texture mips", lambda: module.texture(texels, uv, steps, filter_mode="linear-mipmap-linear"), 36 * n),
        Timed("texture mips backward", backward([sampled], [texels, uv]), 44 * n),
        Timed("fit step, pairs", step, 16 * n),
    ]
