"""Recovers base colour, roughness and metallic maps, and the lamp, from pictures of an object.

    python examples/recover_material.py [--steps 600] [--out DIRECTORY]        about a minute on one core

Known are the shape with its normal map, the cameras, and a faint light from all sides. A lamp is mounted beside the
camera, as on a flash photo: where, and of which colour, is not known and is recovered too. (The known light settles
what is otherwise undecidable: a dark surface under a bright lamp, or the reverse.) Everything starts grey.

The object is glTF's sample `avocado` where ../shared/data/gltf/avocado or the folder in DIFFRENDER_TEST_DATA has it,
otherwise a torus with made maps. The pictures are rendered from its true maps, with noise of 1 percent added. Prints
the PSNR over the pixels of the object in views that were not fitted, under the lamp and under a light from elsewhere;
writes maps and views beside the truth. Needs the extra `io`.
"""

import argparse
import os
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import diffrender as dr
from diffrender import geometry

TEXTURE_SIZE, IMAGE_SIZE, VIEWS, VIEWS_PER_STEP = 256, 128, 32, 4
PYRAMID = (1, 4, 16, 64, TEXTURE_SIZE)
AMBIENT, NOISE = 0.2, 0.01
TRUE_LAMP = dr.PointLight((0.9, 0.6, 0.2), (16.0, 13.0, 10.0))  # in the space of the camera
OTHER_LIGHT = dr.DirectionalLight((-0.6, -1.0, 0.5), (3.0, 3.0, 3.6))  # in the world, never seen while fitting
ROOT = Path(__file__).resolve().parents[1]


def main(steps: int = 600, out: Path | str = ".") -> dict[str, float]:
    """Fits, writes the pictures; returns the PSNR in dB by name."""
    mesh, truth = load_asset()
    surfaces = [see(mesh, truth, camera) for camera in make_cameras(VIEWS, seed=0)]
    held_out = [see(mesh, truth, camera) for camera in make_cameras(6, seed=1)]
    noise = torch.Generator().manual_seed(2)
    photos = [photograph(surface, truth, TRUE_LAMP) for surface in surfaces]
    photos = [photo + NOISE * torch.randn(photo.shape, generator=noise) for photo in photos]

    unknown = Unknown()
    quality = {}

    def report(when: str, seconds: float = 0.0) -> None:
        material, lamp = unknown.material(), unknown.lamp()
        for name, true_light, light in (("lamp", TRUE_LAMP, lamp), ("other light", OTHER_LIGHT, OTHER_LIGHT)):
            quality[f"{when}, {name}"] = mean_psnr(held_out, truth, true_light, material, light)
        known = seen_texels(surfaces)
        errors = {name: map_error(material, truth, name, known) for name in ("albedo", "roughness", "metallic")}
        numbers = ", ".join(f"{name} {error:.3f}" for name, error in errors.items())
        views, relit = quality[f"{when}, lamp"], quality[f"{when}, other light"]
        shown = f"held-out views {views:.1f} dB, held-out light {relit:.1f} dB"
        print(f"{when}: {shown}; mean error of {numbers}; {seconds:.0f} s", flush=True)

    report("start")
    begin = time.perf_counter()
    fit(unknown, surfaces, photos, steps)
    report("result", time.perf_counter() - begin)
    lamp = unknown.lamp()
    for name in ("position", "color"):
        true_text, text = (", ".join(f"{x:.2f}" for x in getattr(light, name).tolist()) for light in (TRUE_LAMP, lamp))
        print(f"lamp {name}: ({text}), true ({true_text})")
    write(Path(out), truth, unknown, held_out)
    return quality


class Unknown:
    """What is fitted, as numbers of any size, and what they stand for. All zeros are grey maps and a white lamp.

    Every map is a sum of pictures from coarse to fine. A single texel sees a few pixels, and its roughness soon sits in
    a local minimum (a highlight so small that no pixel meets it); the coarse pictures move many texels together.
    """

    def __init__(self) -> None:
        self.albedo, self.roughness, self.metallic = (
            [torch.zeros(1, channels, side, side, requires_grad=True) for side in PYRAMID] for channels in (3, 1, 1)
        )
        self.lamp_place = torch.zeros(3, requires_grad=True)
        self.lamp_color = torch.zeros(3, requires_grad=True)

    def material(self) -> dr.Material:
        def add_up(pyramid: list[Tensor]) -> Tensor:
            size = (TEXTURE_SIZE, TEXTURE_SIZE)
            layers = [torch.nn.functional.interpolate(layer, size, mode="bilinear") for layer in pyramid]
            return torch.stack(layers).sum(0)[0].permute(1, 2, 0)

        roughness = dr.roughness_from_unbounded(add_up(self.roughness))
        return dr.Material(add_up(self.albedo).sigmoid(), add_up(self.metallic).sigmoid(), roughness)

    def lamp(self) -> dr.PointLight:
        return dr.PointLight(self.lamp_place, 10.0 * self.lamp_color.exp())

    def groups(self) -> list[dict]:
        # Roughness comes last: while the colours are wrong, highlights are better off if they vanish.
        rates = ((self.albedo, 0.04), (self.metallic, 0.04), (self.roughness, 0.01))
        groups = [{"params": params, "lr": rate} for params, rate in rates]
        return [*groups, {"params": [self.lamp_place, self.lamp_color], "lr": 0.04}]


def fit(unknown: Unknown, surfaces: list["Surface"], photos: list[Tensor], steps: int) -> None:
    optimizer = torch.optim.Adam(unknown.groups(), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1), eta_min=0.003)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        picked = torch.randperm(len(surfaces), generator=generator)[:VIEWS_PER_STEP].tolist()
        material, lamp = unknown.material(), unknown.lamp()
        loss = 0.005 * dr.losses.edge_aware_smoothness(
            torch.cat([material.roughness, material.metallic], -1), material.albedo
        )
        for k in picked:
            image = photograph(surfaces[k], material, lamp)
            weight = (surfaces[k].triangle_id >= 0)[..., None]
            loss = loss + dr.losses.l1(image, photos[k], weight=weight) / VIEWS_PER_STEP
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


# --- pictures -------------------------------------------------------------------------------------


class Surface(NamedTuple):
    """What a camera sees, as pictures; none of it depends on what is fitted."""

    camera: dr.Camera
    triangle_id: Tensor
    positions: Tensor
    normals: Tensor  # bent by the normal map
    geometric_normals: Tensor
    texcoords: Tensor
    texcoord_derivatives: Tensor


def see(mesh: dr.Mesh, material: dr.Material, camera: dr.Camera) -> Surface:
    size = (camera.height, camera.width)
    fragments = dr.rasterize(camera.clip_positions(mesh.vertices), mesh.triangles, size, derivatives=True)
    positions = dr.interpolate(mesh.vertices, mesh.triangles, fragments)
    vertex_normals = mesh.vertex_normals() if mesh.normals is None else mesh.normals
    normals = dr.interpolate(vertex_normals, mesh.triangles, fragments)
    tangents = dr.interpolate(*mesh.vertex_tangents(), fragments)
    texcoords, steps = dr.interpolate(mesh.texcoords, mesh.texcoord_triangles, fragments, derivatives="all")
    bent = dr.perturb_normals(
        normals, tangents, material.evaluate(texcoords, steps).normal, scale=material.normal_scale,
        view_directions=camera.eye - positions, mask=fragments.triangle_id,
    )  # fmt: skip
    return Surface(camera, fragments.triangle_id, positions, bent, normals, texcoords, steps)


def photograph(surface: Surface, material: dr.Material, light: dr.PointLight | dr.DirectionalLight) -> Tensor:
    """Linear radiance (1, H, W, 3); black where nothing is. A point light moves with the camera."""
    if isinstance(light, dr.PointLight):
        world_from_camera = torch.linalg.inv(surface.camera.camera_from_world)
        light = dr.PointLight(geometry.transform_points(world_from_camera, light.position[None])[0], light.color)
    at = material.evaluate(surface.texcoords, surface.texcoord_derivatives)
    return dr.shade_metallic_roughness(
        surface.positions, surface.normals, at.albedo, at.metallic, at.roughness, [light, dr.AmbientLight(AMBIENT)],
        camera_position=surface.camera.eye, geometric_normals=surface.geometric_normals, mask=surface.triangle_id,
    )  # fmt: skip


def make_cameras(count: int, seed: int) -> list[dr.Camera]:
    """On a sphere around the object, spread evenly by golden angles from a random start."""
    lens = dr.Camera.perspective(fov_y_deg=37, width=IMAGE_SIZE, height=IMAGE_SIZE)
    turn = 2.4 * (torch.arange(count) + 10 * torch.rand(1, generator=torch.Generator().manual_seed(seed)))
    height = 0.95 * (2 * (torch.arange(count) + 0.5) / count - 1)
    ring = (1 - height.square()).sqrt()
    eyes = 3.2 * torch.stack([ring * turn.sin(), height, ring * turn.cos()], -1)
    return [lens.look_at(eye) for eye in eyes]


# --- the object -----------------------------------------------------------------------------------


def asset_path() -> Path | None:
    data = Path(os.environ.get("DIFFRENDER_TEST_DATA", ROOT.parent / "shared" / "data"))
    path = data / "gltf" / "avocado" / "avocado.gltf"
    return path if path.is_file() else None


def load_asset() -> tuple[dr.Mesh, dr.Material]:
    """Mesh of about unit radius with texcoords, and its material with maps of TEXTURE_SIZE."""
    path = asset_path()
    if path is None:
        return geometry.torus(0.75, 0.38, segments=64, tube_segments=32), made_material()
    mesh = dr.load_mesh(path, recenter=True)
    material = mesh.materials[0]

    def smaller(name: str) -> Tensor:
        """The mean over areas, as for mips."""
        size = (TEXTURE_SIZE, TEXTURE_SIZE)
        picture = getattr(material, name)[..., :3].permute(2, 0, 1)
        return torch.nn.functional.adaptive_avg_pool2d(picture, size).permute(1, 2, 0)

    maps = {name: smaller(name) for name in ("albedo", "metallic", "roughness", "normal")}
    return mesh.replace(vertices=mesh.vertices / mesh.vertices.norm(dim=-1).max()), dr.Material(**maps)


def made_material() -> dr.Material:
    """Coloured bands, polished and rough patches, metal discs, and bumps."""
    v, u = torch.meshgrid(*[torch.arange(TEXTURE_SIZE) / TEXTURE_SIZE] * 2, indexing="ij")
    waves = [torch.sin(2 * torch.pi * (a * u + b * v) + c) for a, b, c in ((6, 2, 0.0), (4, -3, 1.0), (9, 1, 2.0))]
    color = 0.45 + 0.3 * torch.stack(waves, -1)
    disc = ((12 * u % 1 - 0.5).square() + (6 * v % 1 - 0.5).square()).sqrt()
    metallic = ((0.33 - disc) * 20).sigmoid()
    roughness = 0.5 + 0.25 * torch.sin(2 * torch.pi * (3 * u + 2 * v))
    slope = 0.25 * torch.stack([torch.sin(40 * torch.pi * u), torch.sin(20 * torch.pi * v), torch.ones_like(u) * 4], -1)
    normal = geometry.safe_normalize(slope) / 2 + 0.5
    return dr.Material(color, metallic[..., None], roughness[..., None], normal=normal)


# --- what came of it ------------------------------------------------------------------------------


@torch.no_grad()
def mean_psnr(surfaces, truth, true_light, material, light) -> float:
    """Over the pixels of the object, as they are shown: sRGB, cut off at 1."""
    values = []
    for surface in surfaces:
        pair = (photograph(surface, truth, true_light), photograph(surface, material, light))
        shown = [dr.linear_to_srgb(image.clamp(0, 1))[surface.triangle_id >= 0] for image in pair]
        values.append(dr.metrics.psnr(shown[1], shown[0]))
    return sum(values) / len(values)


def seen_texels(surfaces: list[Surface]) -> Tensor:
    """(Ht, Wt, 1) bool: texels that any fitted view looked at."""
    texels = torch.zeros(TEXTURE_SIZE, TEXTURE_SIZE, 1, requires_grad=True)
    for surface in surfaces:
        values = dr.texture(texels, surface.texcoords, texcoord_derivatives=surface.texcoord_derivatives)
        values[surface.triangle_id >= 0].sum().backward()
    assert texels.grad is not None
    return texels.grad > 0


@torch.no_grad()
def map_error(material: dr.Material, truth: dr.Material, name: str, seen: Tensor) -> float:
    return float((getattr(material, name) - getattr(truth, name)).abs().mean(-1)[seen[..., 0]].mean())


@torch.no_grad()
def write(out: Path, truth: dr.Material, unknown: Unknown, held_out: list[Surface]) -> None:
    """Maps, and two held-out views under both lights: truth, start, result from left to right."""
    out.mkdir(parents=True, exist_ok=True)
    start, result = Unknown(), unknown
    materials = [truth, start.material(), result.material()]
    rows = []
    for name in ("albedo", "roughness", "metallic"):
        maps = [getattr(material, name).expand(-1, -1, 3) for material in materials]
        rows.append(torch.cat([dr.linear_to_srgb(m) if name == "albedo" else m for m in maps], 1))
    dr.save_image(out / "recovered_maps.png", torch.cat(rows, 0), encode="none")
    rows = []
    for surface in held_out[1:4:2]:
        for lights in ([TRUE_LAMP, start.lamp(), result.lamp()], [OTHER_LIGHT] * 3):
            pairs = zip(materials, lights, strict=True)
            rows.append(torch.cat([photograph(surface, material, light)[0] for material, light in pairs], 1))
    dr.save_image(out / "recovered_views.png", torch.cat(rows, 0))
    print(f"wrote {out / 'recovered_maps.png'} and {out / 'recovered_views.png'}: truth, start, result")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", default=".")
    arguments = parser.parse_args()
    main(arguments.steps, arguments.out)
