"""What recomputation saves: memory between forward and backward, peak memory, and what it costs in time.

    python -m benchmarks.recompute --size 1024 --json recompute.json --markdown recompute.md

One scene with everything that leaves pictures behind: a ring with textured color and roughness, a normal map, four
lights and silhouette edges; gradients to vertices, textures, lights and camera pose. Each setting of
`Renderer(recompute=)` runs in a process of its own. The peak is that of the process's memory over what it held before
(`VmHWM` of Linux; allocated memory on a GPU), forward and backward, so that scratch memory of the kernels counts too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffrender as dr
from diffrender import geometry

SETTINGS = ("False", "True", "tiles")
# At most: bytes a pixel kept with recomputation; peak with tiles, of that without recomputation.
MOST_SAVED, MOST_PEAK = 5.0, 0.25


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all settings; returns the exit code, 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Memory and time of Renderer(recompute=).")
    parser.add_argument("--size", type=int, default=1024, help="side of the square picture")
    parser.add_argument("--edges", choices=("segments", "pairs", "none"), default="segments")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--gradients", type=Path, help="where one setting writes its gradients")
    parser.add_argument("--setting", choices=SETTINGS, help="measure one only and print it as JSON")
    options = parser.parse_args(arguments)
    if options.setting:
        torch.set_num_threads(options.threads)
        record, gradients = measure(options.setting, options.size, options.edges, options.device)
        torch.save(gradients, options.gradients)
        print(json.dumps(record))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{setting}.pt" for setting in SETTINGS]
        records = [in_own_process(setting, file, options) for setting, file in zip(SETTINGS, files, strict=True)]
        gradients = [torch.load(file) for file in files]
    for record, own in zip(records, gradients, strict=True):
        pairs = list(zip(own, gradients[0], strict=True))
        record["difference"] = max(float((a - b).norm() / b.norm()) for a, b in pairs)
        record["same bits"] = all(torch.equal(a, b) for a, b in pairs)
    text = table(records, options.size)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))
    if options.markdown:
        options.markdown.write_text(text)
    plain, again, tiles = records
    goals = {
        f"at most {MOST_SAVED} bytes a pixel saved": max(again["saved"], tiles["saved"]) <= MOST_SAVED,
        "gradients of True are bit for bit those of False": again["same bits"],
        "pictures are the same": len({record["picture"] for record in records}) == 1,
        "the picture is made once and twice": [plain["forwards"], again["forwards"]] == [1, 2],
        f"peak with tiles at most {MOST_PEAK:.0%}": tiles["peak"] <= MOST_PEAK * plain["peak"],
    }
    for goal, holds in goals.items():
        print(f"{'pass' if holds else 'MISS'}  {goal}")
    return 0 if all(goals.values()) else 1


def in_own_process(setting: str, gradients: Path, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.recompute", "--setting", setting, "--size", str(options.size)]
    command += ["--edges", options.edges, "--device", options.device, "--threads", str(options.threads)]
    command += ["--gradients", str(gradients)]
    # Memory that is freed goes back at once, whatever the size of the piece.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"recompute={setting} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(setting: str, size: int, edges: str, device: str) -> tuple[dict[str, Any], list[Tensor]]:
    """Bytes a pixel, milliseconds and a hash of the picture; and the gradients."""
    recompute = {"False": False, "True": True, "tiles": "tiles"}[setting]
    options: dict[str, Any] = {"edges": None if edges == "none" else edges, "recompute": recompute, "background": 0.3}
    run, leaves = make_scene(64, device, options)
    run().sum().backward()  # code, threads and caches that stay
    run, leaves = make_scene(size, device, options)
    forwards = count_forwards()
    with torch.no_grad():
        run()  # makes what the mesh keeps of its topology
        kept_without_gradient = dr.saved_bytes(run)
    saved = dr.saved_bytes(run) / size**2
    weights = torch.rand(1, size, size, 3, generator=torch.Generator().manual_seed(1)).to(device)

    forwards.clear()
    meter = PeakMeter(device)
    begin = time.perf_counter()
    color = run()
    middle = time.perf_counter()
    color.backward(weights)
    end = time.perf_counter()
    peak = meter.peak() / size**2
    record = {
        "setting": setting, "size": size, "edges": edges, "device": device, "saved": saved, "peak": peak,
        "saved under no_grad": kept_without_gradient, "forwards": len(forwards),
        "forward ms": 1000 * (middle - begin), "backward ms": 1000 * (end - middle), "picture": digest(color),
    }  # fmt: skip
    return record, [leaf.grad.cpu() for leaf in leaves if leaf.grad is not None]


def make_scene(size: int, device: str, options: dict[str, Any]) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """What renders the picture, and all tensors that get a gradient."""
    generator = torch.Generator().manual_seed(0)

    def texture(channels: int, low: float, high: float, texels: int = max(size // 4, 8)) -> Tensor:
        values = low + (high - low) * torch.rand(texels, texels, channels, generator=generator)
        return values.to(device).requires_grad_()

    albedo, roughness, normal = texture(3, 0.1, 0.9), texture(1, 0.3, 0.9), texture(3, 0.4, 0.6)
    material = dr.Material(albedo=albedo, roughness=roughness, metallic=0.2, normal=normal)
    ring = geometry.torus(segments=max(size // 10, 12), tube_segments=max(size // 20, 6)).to(device)
    vertices = ring.vertices.clone().requires_grad_()
    mesh = ring.replace(material=material.to(device))
    lamp = torch.tensor([2.0, 2.0, 3.0], device=device).requires_grad_()
    twist = torch.zeros(6, device=device).requires_grad_()
    camera = dr.Camera.perspective(fov_y_deg=32, width=size, height=size, device=device).look_at([0.7, 2.2, 3.0])
    renderer = dr.Renderer((size, size), **options)

    def run() -> Tensor:
        lights = [
            dr.PointLight(lamp, 12.0), dr.DirectionalLight((0.2, -1.0, -0.7), 1.5),
            dr.SpotLight((-2.0, 3.0, 2.0), (0.5, -0.8, -0.5), 20.0), dr.AmbientLight(0.2),
        ]  # fmt: skip
        color = renderer(mesh.with_vertices(vertices), camera.moved(twist), lights).color
        assert color is not None
        return color

    return run, [vertices, albedo, roughness, normal, lamp, twist]


def count_forwards() -> list[str]:
    """A list that grows by one for every time that a renderer makes its pictures."""
    calls: list[str] = []
    images = dr.Renderer._images

    def counted(self: dr.Renderer, frame: Any) -> dict[str, Tensor]:
        calls.append("forward")
        return images(self, frame)

    dr.Renderer._images = counted  # pyright: ignore[reportAttributeAccessIssue]
    return calls


class PeakMeter:
    """Most memory in use since it was made, over what was in use then."""

    def __init__(self, device: str) -> None:
        self.is_cuda = device.startswith("cuda")
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
            self.before = self._status("VmRSS")

    def peak(self) -> int:
        if self.is_cuda:
            return torch.cuda.max_memory_allocated() - self.before
        return self._status("VmHWM") - self.before

    def _status(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def digest(tensor: Tensor) -> str:
    """Of all bits of a tensor."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def table(records: Sequence[dict[str, Any]], size: int) -> str:
    """Markdown."""
    plain = records[0]
    lines = [
        f"{size} x {size} pixels, edges {plain['edges']}, {plain['device']}",
        "",
        "| recompute | saved, bytes a pixel | of False | peak, bytes a pixel | of False | pictures made "
        "| forward, ms | backward, ms | gradients |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        same = "the same bits" if record["same bits"] else f"{record['difference']:.0e} of their norm apart"
        lines.append(
            f"| {record['setting']} | {record['saved']:.2f} | {record['saved'] / plain['saved']:.1%} "
            f"| {record['peak']:.0f} | {record['peak'] / plain['peak']:.0%} | {record['forwards']} "
            f"| {record['forward ms']:.0f} | {record['backward ms']:.0f} | {same} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
