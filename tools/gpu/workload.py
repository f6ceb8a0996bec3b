"""One call of every op with gradients, for checks that look at how calls run rather than at what they return.

The calls are the first examples of the contract table, so a new op is checked as soon as it has its row, and some more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Fragments of the scene of the renderer that a list has room for: three times as many as there are.
CAPACITY = 3000
# Examples that take another way than the first one of their row.
FURTHER_EXAMPLES = ("all triangles asked",)


@dataclass(frozen=True)
class Call:
    """`run(*inputs)` returns outputs and gradients.

    `ragged`: sizes depend on values, so it waits for the device. `layered`: waits for how many layers there are, unless
    a CUDA graph is captured, which holds all of them.
    """

    name: str
    inputs: list[Tensor]
    run: Callable[..., list[Tensor]]
    ragged: bool
    layered: bool = False


def calls(device: str, dtype: torch.dtype = torch.float32) -> list[Call]:
    """One call per row of the contract table, with all tensors on `device`."""
    torch.set_default_device(device)  # before the rows are made, which happens at import
    from tests.ops.contract import CONTRACTS
    from tests.support.vocabulary import rnd

    result: list[Call] = []
    for contract in CONTRACTS:
        further = [example for example in contract.examples[1:] if example.label in FURTHER_EXAMPLES]
        for example in [contract.examples[0], *further]:
            module = example.call.__module__.rsplit(".", 1)[-1]  # tells two rows of one op apart
            name = module if module.startswith(contract.name) else contract.name
            name += f" {example.label}" if example in further else ""
            name += " 2" if name in [call.name for call in result] else ""
            inputs = example.tensors(dtype)
            weights = [rnd(*x.shape, seed=i, dtype=dtype) for i, x in enumerate(example.call(*inputs))]

            def run(*tensors: Tensor, example=example, weights=weights) -> list[Tensor]:
                leaves = [x.detach().requires_grad_() for x in tensors]
                outputs = example.call(*leaves)
                return [*outputs, *torch.autograd.grad(outputs, leaves, weights)]

            result.append(Call(name, inputs, run, contract.ragged))
    return result


def renderer_calls(device: str, dtype: torch.dtype = torch.float32) -> list[Call]:
    """The whole renderer with textures and lights, by each treatment of edges that waits for nothing."""
    from diffrender import Renderer
    from tests.support.lit_scene import SIZE, four_lights, lit_camera, lit_mesh, several_materials, weights

    with torch.device("cpu"):  # where the random numbers of the scene come from
        made = lit_camera(dtype), four_lights(), weights(dtype=dtype)
        one, several = lit_mesh(dtype), several_materials(dtype=dtype)
        layers = several_materials("MASK", "BLEND", dtype=dtype)
    camera, cotangent = made[0].to(device), made[2].to(device)
    lights = [light.to(device) for light in made[1]]

    def call(mesh: Any, name: str = "", layered: bool = False, **options: Any) -> Call:
        renderer = Renderer(SIZE, background=0.2, max_layers=3, **options)
        mesh = mesh.to(device)

        def run(vertices: Tensor, albedo: Tensor) -> list[Tensor]:
            leaves = [x.detach().requires_grad_() for x in (vertices, albedo)]
            materials = list(mesh.materials)
            materials[0] = materials[0].replace(albedo=leaves[1])
            shown = mesh.with_vertices(leaves[0]).replace(material=materials[0] if len(materials) == 1 else materials)
            color = renderer(shown, camera, lights).color
            assert color is not None
            return [color, *torch.autograd.grad((color * cotangent).sum(), leaves)]

        inputs = [mesh.vertices, mesh.materials[0].albedo]
        return Call(f"Renderer {name}{options}", inputs, run, ragged=False, layered=layered)

    return [
        call(one, edges="segments"),
        call(one, edges="segments", interior="flow", recompute=False),
        call(one, edges="pairs", recompute="tiles"),
        call(one, edges="coverage", capacity=CAPACITY),
        call(several, "several materials ", edges="segments"),
        call(several, "several materials ", edges="coverage", capacity=CAPACITY),
        call(layers, "masked and blended ", layered=True, edges="segments"),
    ]


def main() -> None:
    """Every op once, in both types and with both ways to sum: what compute-sanitizer looks at.

    Arguments: the device, and how many ops.
    """
    device, count = sys.argv[1], int(sys.argv[2])
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        for dtype in (torch.float32, torch.float64):
            for call in calls(device, dtype)[:count]:
                for value in call.run(*call.inputs):
                    float(value.sum())
    print("workload: done")


if __name__ == "__main__":
    main()
