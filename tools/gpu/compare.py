"""Section `compare`: CPU = CUDA. The same ids bit for bit; floats of float32 to 1e-5, of float64 to 1e-11, relative to
the largest value of each tensor.

  scenes   rasterize, interpolate with derivatives, antialias (both methods), texture with mips and shading, outputs and
           gradients, on random scenes with every nuisance that tests/support/scenes.py knows
  raw      every raw kernel call of the contract table
In a dry run the second device is the CPU again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import diffrender as dr
from tests.ops.contract import CONTRACTS
from tests.support.scenes import random_scene
from tests.support.vocabulary import rnd, uniform
from tools.gpu.section import Section, require

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
# Gradients of a scene add up over pixels and corners of huge triangles, whose terms cancel: of a float32 sum that many
# digits more are lost, on both devices.
GRADIENT_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}


def difference(value: Tensor, truth: Tensor) -> float:
    """Largest difference relative to the largest finite true value; inf where one is finite and the other is not."""
    value, truth = value.detach().cpu().double(), truth.detach().cpu().double()
    if truth.numel() == 0:
        return 0.0
    finite = torch.isfinite(truth)
    if not torch.equal(finite, torch.isfinite(value)):
        return float("inf")
    if not finite.any():
        return 0.0
    return float((value - truth)[finite].abs().max() / truth[finite].abs().max().clamp(min=1e-30))


def scene_results(seed: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Outputs and gradients of the stages on one random scene, as a renderer chains them."""
    positions, triangles, size = random_scene(seed, dtype)
    vertices = len(positions)
    leaves = {
        "positions": positions,
        "colors": uniform(vertices, 3, seed=1, dtype=dtype),
        "texcoords": uniform(vertices, 2, seed=2, low=-1, high=2, dtype=dtype),
        "normals": rnd(vertices, 3, seed=3, dtype=dtype),
        "texture": uniform(16, 32, 3, seed=4, dtype=dtype),
    }
    leaves = {name: value.to(device).requires_grad_() for name, value in leaves.items()}
    triangles = triangles.to(device)
    f = dr.rasterize(leaves["positions"], triangles, size, derivatives=True)
    colors = dr.interpolate(leaves["colors"], triangles, f)
    uv, uv_steps = dr.interpolate(leaves["texcoords"], triangles, f, derivatives="all")
    normals = dr.interpolate(leaves["normals"], triangles, f)
    texels = dr.texture(leaves["texture"], uv, texcoord_derivatives=uv_steps, filter="mip_linear")
    lights = dr.pack_lights([dr.DirectionalLight(torch.tensor([0.3, -0.5, -1.0], dtype=dtype, device=device))])
    camera = torch.tensor([0.0, 0.0, 4.0], dtype=dtype, device=device)
    shaded = dr.shade_metallic_roughness(colors, normals, texels, 0.3, 0.4, lights, camera_position=camera)
    pairs = dr.antialias(shaded, f, leaves["positions"], triangles, method="pairs")
    segments = dr.antialias(colors, f, leaves["positions"], triangles, method="segments")
    outputs = {
        "barycentrics": f.barycentrics, "depth": f.depth, "derivatives": f.derivatives, "colors": colors, "uv": uv,
        "uv_steps": uv_steps, "texels": texels, "shaded": shaded, "pairs": pairs, "segments": segments,
    }  # fmt: skip
    chosen = [outputs[name] for name in ("barycentrics", "depth", "texels", "pairs", "segments")]
    cotangents = [rnd(*x.shape, seed=k, dtype=dtype).to(device) for k, x in enumerate(chosen)]
    grads = torch.autograd.grad(chosen, list(leaves.values()), cotangents)
    named = {f"grad_{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {"triangle_id": f.triangle_id, **outputs, **named}


def compare_scenes(section: Section, dtype: torch.dtype, count: int) -> str:
    worst: dict[str, float] = {}
    same_bits: dict[str, int] = {}
    for seed in range(count):
        cpu, other = (scene_results(seed, dtype, device) for device in ("cpu", section.device))
        require(torch.equal(cpu.pop("triangle_id"), other.pop("triangle_id").cpu()), f"ids differ in scene {seed}")
        for name, truth in cpu.items():
            worst[name] = max(worst.get(name, 0.0), difference(other[name], truth))
            same_bits[name] = same_bits.get(name, 0) + int(torch.equal(other[name].cpu(), truth))
    section.data.setdefault("scenes", {})[str(dtype)] = {"scenes": count, "worst": worst, "same_bits": same_bits}
    for name, error in worst.items():
        limit = (GRADIENT_TOLERANCE if name.startswith("grad_") else TOLERANCE)[dtype]
        require(error < limit, f"{name} differs by {error:.2e} (limit {limit:.0e}); all: {worst}")
    return f"{count} scenes, worst difference {max(worst.values()):.1e}"


def raw_calls(dtype: torch.dtype) -> Iterator[tuple[str, Callable, tuple]]:
    for contract in CONTRACTS:
        for op, arguments in contract.dispatcher_calls(dtype):
            yield contract.name, op, arguments


def compare_raw(section: Section, dtype: torch.dtype) -> str:
    worst: dict[str, float] = {}
    calls = 0
    for name, op, arguments in raw_calls(dtype):
        if str(op).startswith("diffrender.coverage_fragments"):
            continue  # a way to make the lists that only the CPU has
        moved = [a.to(section.device) if isinstance(a, Tensor) else a for a in arguments]
        results = [r if isinstance(r, tuple) else (r,) for r in (op(*arguments), op(*moved))]
        calls += 1
        for k, (truth, value) in enumerate(zip(*results, strict=True)):
            key = f"{name}: {op} result {k}"
            if truth.is_floating_point():
                worst[key] = max(worst.get(key, 0.0), difference(value, truth))
            elif not (k == 1 and "antialias_segments.default" in str(op)) and "coverage_fill" not in str(op):
                # Segments keep pieces for the backward pass on the CPU only; the order of candidates is anyone's guess.
                require(torch.equal(value.cpu(), truth), f"{key}: integers differ")
    section.data.setdefault("raw", {})[str(dtype)] = {k: v for k, v in worst.items() if v > 0}
    # Sums over many pixels in one result make float32 lose a little more than a single value does.
    limit = 10 * TOLERANCE[dtype]
    beyond = {key: error for key, error in worst.items() if not error < limit}
    require(not beyond, f"differ by more than {limit:.0e}: {beyond}")
    return f"{calls} calls, worst difference {max(worst.values()):.1e}"


def main() -> None:
    section = Section()
    for dtype in (torch.float32, torch.float64):
        count = 3 if section.dry_run else 200
        section.check(f"random scenes, {dtype}", lambda dtype=dtype, count=count: compare_scenes(section, dtype, count))
        section.check(f"raw kernel calls, {dtype}", lambda dtype=dtype: compare_raw(section, dtype))


if __name__ == "__main__":
    main()
