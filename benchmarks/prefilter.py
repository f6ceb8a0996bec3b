"""Time to filter an environment for `EnvironmentLight`, forward and backward.

    python -m benchmarks.prefilter --size 256 --threads 1

One call filters a cube map for all roughness levels and the diffuse map; figures are the shortest of the repeats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch

import diffrender as dr


def shortest(call: Callable[[], object], repeat: int) -> float:
    """Seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="side of the cube map")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    sky = torch.rand(6, options.size, options.size, 3, generator=generator).requires_grad_()
    light = dr.EnvironmentLight(torch.nn.Parameter(sky.detach()))
    panorama = torch.rand(2 * options.size, 4 * options.size, 3, generator=generator)

    filtered = light.prefilter()
    results = [*filtered.levels, filtered.diffuse]
    cotangents = [torch.ones_like(x) for x in results]

    def backward() -> None:
        torch.autograd.grad(results, light.map, cotangents, retain_graph=True)

    sizes = ", ".join(str(x.shape[1]) for x in filtered.levels)
    print(
        f"cube of side {options.size}: levels {sizes}; diffuse {filtered.diffuse.shape[1]}; {options.threads} threads"
    )
    print(
        f"cube_from_lat_long   {shortest(lambda: dr.cube_from_lat_long(panorama, options.size), options.repeat):.2f} s"
    )
    print(f"prefilter forward    {shortest(light.prefilter, options.repeat):.2f} s")
    print(f"prefilter backward   {shortest(backward, options.repeat):.2f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
