"""Time and memory of the shading ops next to the same formulas in plain torch, eager and compiled.

    python -m benchmarks.shade --size 1024 --threads 2 --repeat 5

One call is forward and backward of a picture with gradients to every input: positions, normals, camera, material and
the values of all lights. The three ways take turns, and a figure is the shortest of the repeats (wall time; other
programs only ever add to it). Saved bytes are what autograd keeps for the backward pass, each storage counted once.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

import diffrender as dr

# Factors that the ops have to reach against eager torch.
SPEED_GOAL, BYTES_GOAL = 5.0, 5.0
OPERATIONS = ("shade_lambert", "shade_blinn_phong", "shade_metallic_roughness", "irradiance_sh")


# --- the same formulas in plain torch -------------------------------------------------------------


def plain_shade(
    model: Callable, positions: Tensor, normals: Tensor, camera: Tensor, lights: Tensor, *maps: Tensor
) -> Tensor:
    """Directional, point, spot and ambient light in turn, as rows of the packed table."""
    n = torch.nn.functional.normalize(normals, dim=-1)
    v = torch.nn.functional.normalize(camera - positions, dim=-1)
    n = torch.where((n * v).sum(-1, keepdim=True).detach() < 0, -n, n)
    total = torch.zeros_like(positions)
    for k in range(lights.shape[1]):
        row = lights[0, k]
        kind = k % 4
        if kind == 3:
            total = total + maps[0] * row[:3]
            continue
        if kind == 0:
            to_light, irradiance = (-row[6:9]).expand_as(positions), row[:3]
        else:
            offset = row[3:6] - positions
            squared = (offset * offset).sum(-1, keepdim=True)
            to_light = offset / squared.sqrt()
            irradiance = row[:3] / squared.clamp(min=1e-6)
            if kind == 2:
                x = ((-(to_light * row[6:9]).sum(-1, keepdim=True) - row[11]) / (row[10] - row[11])).clamp(0, 1)
                irradiance = irradiance * x * x * (3 - 2 * x)
        total = total + model(n, v, to_light, *maps) * irradiance
    return total


def plain_lambert(n: Tensor, v: Tensor, to_light: Tensor, albedo: Tensor) -> Tensor:
    return albedo / math.pi * (n * to_light).sum(-1, keepdim=True).clamp(min=0)


def plain_blinn_phong(
    n: Tensor, v: Tensor, to_light: Tensor, albedo: Tensor, specular: Tensor, shininess: Tensor
) -> Tensor:
    cosine = (n * to_light).sum(-1, keepdim=True).clamp(min=0)
    half = torch.nn.functional.normalize(v + to_light, dim=-1)
    power = (n * half).sum(-1, keepdim=True).clamp(min=1e-6) ** shininess
    return cosine * (albedo / math.pi + specular * (shininess + 8) / (8 * math.pi) * power)


def plain_metallic_roughness(
    n: Tensor, v: Tensor, to_light: Tensor, albedo: Tensor, metallic: Tensor, roughness: Tensor
) -> Tensor:
    half = torch.nn.functional.normalize(v + to_light, dim=-1)
    nl = (n * to_light).sum(-1, keepdim=True).clamp(min=0)
    nv = (n * v).sum(-1, keepdim=True).clamp(min=1e-4)
    nh, vh = (n * half).sum(-1, keepdim=True), (v * half).sum(-1, keepdim=True)
    a2 = roughness.clamp(min=0.045) ** 4
    distribution = a2 / (math.pi * (nh * nh * (a2 - 1) + 1) ** 2)
    visibility = 0.5 / (nl * (nv * nv * (1 - a2) + a2).sqrt() + nv * (nl * nl * (1 - a2) + a2).sqrt())
    specular = distribution * visibility
    grazing = (1 - vh) ** 5
    fresnel = 0.04 + 0.96 * grazing
    dielectric = (1 - fresnel) * albedo / math.pi + fresnel * specular
    metal = specular * (albedo + (1 - albedo) * grazing)
    return nl * torch.lerp(dielectric, metal, metallic)


def plain_irradiance_sh(coefficients: Tensor, normals: Tensor) -> Tensor:
    x, y, z = torch.nn.functional.normalize(normals, dim=-1).unbind(-1)
    basis = [
        0.282095 + 0 * x, 0.488603 * y, 0.488603 * z, 0.488603 * x,
        1.092548 * x * y, 1.092548 * y * z, 0.315392 * (3 * z * z - 1), 1.092548 * x * z, 0.546274 * (x * x - y * y),
    ]  # fmt: skip
    factors = [math.pi] + [2 * math.pi / 3] * 3 + [math.pi / 4] * 5
    weights = torch.stack([f * b for f, b in zip(factors, basis, strict=True)], -1)
    return weights @ coefficients


# --- cases ----------------------------------------------------------------------------------------


class Case:
    """One operation: its inputs, and the fused and the plain call on them."""

    def __init__(self, name: str, size: int, light_count: int) -> None:
        if name not in OPERATIONS:
            raise ValueError(f"Case: name must be one of {', '.join(OPERATIONS)}, got {name!r}.")
        generator = torch.Generator().manual_seed(0)

        def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
            return low + (high - low) * torch.rand(*shape, generator=generator)

        picture = (1, size, size)
        positions, normals = uniform(*picture, 3, low=-1), uniform(*picture, 3, low=-0.5, high=0.5)
        normals[..., 2] += 1
        camera, table = torch.tensor([0.3, -0.2, 4.0]), make_lights(light_count)
        colors = [uniform(*picture, 3, low=0.1, high=0.9) for _ in range(2)]
        scalars = [uniform(*picture, 1, low=0.1, high=0.9) for _ in range(2)]
        maps = {
            "shade_lambert": colors[:1],
            "shade_blinn_phong": [*colors, 50 * scalars[0] + 1],
            "shade_metallic_roughness": [colors[0], *scalars],
        }
        if name == "irradiance_sh":
            self.inputs = [uniform(9, 3), normals]
            self._fused, self._plain = dr.irradiance_sh, plain_irradiance_sh
        else:
            self.inputs = [positions, normals, camera, table.values, *maps[name]]
            op, model = getattr(dr, name), globals()[name.replace("shade", "plain")]

            def fused(positions: Tensor, normals: Tensor, camera: Tensor, values: Tensor, *material: Tensor) -> Tensor:
                lights = dr.PackedLights(table.types, values)
                return op(positions, normals, *material, lights, camera_position=camera)

            self._fused = fused
            self._plain = lambda *inputs: plain_shade(model, *inputs)
        self.inputs = [x.requires_grad_() for x in self.inputs]
        self.cotangent = uniform(*picture, 3, low=-1)

    def forward(self, way: str) -> Callable[[], Tensor]:
        """`way`: fused, eager or compiled."""
        function = self._fused if way == "fused" else self._plain
        if way == "compiled":
            function = torch.compile(function, fullgraph=True)
        return lambda: function(*self.inputs)

    def step(self, way: str) -> Callable[[], tuple[Tensor, ...]]:
        """Forward and backward."""
        forward = self.forward(way)
        return lambda: torch.autograd.grad(forward(), self.inputs, self.cotangent, allow_unused=True)


def make_lights(count: int) -> dr.PackedLights:
    """Directional, point, spot, ambient, and again."""
    kinds = [
        dr.DirectionalLight((0.3, 0.2, -1.0), 2.0),
        dr.PointLight((0.8, 0.5, 2.5), 6.0),
        dr.SpotLight((-0.7, 0.4, 3.0), (0.2, -0.1, -1.0), 9.0, 15.0, 40.0),
        dr.AmbientLight(0.2),
    ]
    return dr.pack_lights([kinds[k % 4] for k in range(count)])


def saved_bytes(forward: Callable[[], Tensor], inputs: Sequence[Tensor]) -> tuple[int, int]:
    """Bytes that autograd keeps for the backward pass: all of them, and those that are no inputs."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    known = {x.untyped_storage().data_ptr() for x in inputs}
    return sum(storages.values()), sum(size for key, size in storages.items() if key not in known)


def measure(name: str, size: int, lights: int, repeat: int, ways: Sequence[str]) -> dict:
    case = Case(name, size, lights)
    steps = {way: case.step(way) for way in ways}
    for way, step in steps.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own code while it compiles
            step()
        check(case, steps["fused"](), step(), way)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeat):
        for way, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[way].append(time.perf_counter() - start)
    record: dict = {"operation": name, "size": size, "lights": lights, "threads": torch.get_num_threads()}
    for way in ways:
        record[way] = {"ms": min(seconds[way]) * 1e3}
        record[way]["saved_bytes"], record[way]["saved_bytes_beside_inputs"] = saved_bytes(
            case.forward(way), case.inputs
        )
    return record


def check(case: Case, results: Sequence[Tensor | None], others: Sequence[Tensor | None], way: str) -> None:
    """All ways compute the same gradients; otherwise the comparison would mean nothing."""
    for k, (grad, other) in enumerate(zip(results, others, strict=True)):
        grad, other = (torch.zeros_like(case.inputs[k]) if x is None else x for x in (grad, other))
        scale = float(other.abs().max())
        # Highlights of roughness 0.1 lose some digits in the plain form.
        if float((grad - other).abs().max()) > 1e-2 * max(scale, 1e-6):
            raise RuntimeError(f"{way}: gradient {k} differs from the fused one")


def report(records: Sequence[dict]) -> str:
    """A Markdown table."""
    lines = [
        "| operation | fused, ms | eager | compiled | saved, MB | eager | compiled | faster | fewer bytes | goals |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in records:
        ways = [r.get(way) for way in ("fused", "eager", "compiled")]
        times = ["" if w is None else f"{w['ms']:.1f}" for w in ways]
        megabytes = ["" if w is None else f"{w['saved_bytes'] / 1e6:.0f}" for w in ways]
        speed, fewer = (r["eager"][key] / r["fused"][key] for key in ("ms", "saved_bytes"))
        reached = speed >= SPEED_GOAL and fewer >= BYTES_GOAL
        if "compiled" in r:
            reached = reached and r["fused"]["ms"] < r["compiled"]["ms"]
        cells = [r["operation"], *times, *megabytes, f"{speed:.1f}", f"{fewer:.1f}", "pass" if reached else "**MISS**"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--lights", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which needs a C++ compiler")
    parser.add_argument("--json", type=Path, help="also write the records to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    ways = ["fused", "eager"] + ([] if options.no_compile else ["compiled"])
    records = [measure(name, options.size, options.lights, options.repeat, ways) for name in options.only]
    print(report(records))
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
