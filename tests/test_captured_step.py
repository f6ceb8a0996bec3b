"""A whole step of an optimisation (camera, picture, loss, backward pass, optimiser) as a CUDA graph would hold it.

A graph replays what was started while it was captured. So a step may read nothing back and copy nothing from the host,
and must start the same operators with the same constants and shapes whatever its tensors hold. All of that is seen on
the CPU; that no host function of a kernel waits or asks CUDA for memory, tests/test_cuda_sources.py reads in sources.
"""

from collections.abc import Callable

import pytest
import torch

import diffrender as dr
from diffrender import _autograd
from diffrender.losses import l1, laplacian, ssim
from diffrender.optim import AdamUniform, LaplacianPreconditioner
from tests.support.lit_scene import SIZE, four_lights, lit_camera, lit_mesh, poses, several_materials
from tests.support.reads import Reads, watched

F32 = torch.float32

# Arguments of the renderer, and what is seen.
STEPS = {
    "segments": ({"edges": "segments"}, {}),
    "segments, exact visibility": ({"edges": "segments", "visibility": "exact", "recompute": False}, {}),
    "segments, flow": ({"edges": "segments", "interior": "flow"}, {"batch": 2}),
    "pairs in bands": ({"edges": "pairs", "recompute": "tiles"}, {"batch": 2}),
    "samples": ({"edges": None, "samples": 2}, {}),
    "coverage": ({"edges": "coverage", "capacity": 3000}, {"batch": 2}),
    "environment": ({"edges": "segments"}, {"environment": True}),
    "several materials": ({"edges": "segments"}, {"modes": ("OPAQUE", "OPAQUE"), "batch": 2}),
    "several materials, coverage": ({"edges": "coverage", "capacity": 3000}, {"modes": ("OPAQUE", "OPAQUE")}),
    "masked and blended": ({"edges": "segments", "max_layers": 3}, {"modes": ("MASK", "BLEND")}),
}


def make_step(options: dict, *, batch: int = 1, environment: bool = False, modes: tuple | None = None) -> tuple:
    """A step, and the tensors that it starts from: vertices, textures, a light or the sky, and the poses of cameras."""
    mesh = lit_mesh(F32) if modes is None else several_materials(*modes, dtype=F32)
    vertices = mesh.vertices.clone().requires_grad_()
    textures = [material.albedo.clone().requires_grad_() for material in mesh.materials]
    twists = poses(batch, F32).requires_grad_()
    lights = [light.to(F32) for light in four_lights()]
    lights[0].color.requires_grad_()
    leaves = [vertices, *textures, twists, lights[0].color]
    if environment:
        sky = torch.rand(8, 16, 3, generator=torch.Generator().manual_seed(2)).requires_grad_()
        leaves = [vertices, *textures, twists, sky]
    target = torch.rand(batch, *SIZE, 3, generator=torch.Generator().manual_seed(1))
    renderer = dr.Renderer(SIZE, background=0.2, **options)
    camera = lit_camera(F32)
    optimisers = [AdamUniform(leaves[:1], lr=1e-3), torch.optim.SGD(leaves[1:], lr=0.1, momentum=0.9)]

    def step() -> torch.Tensor:
        for leaf in leaves:
            leaf.grad = None
        materials = [m.replace(albedo=x) for m, x in zip(mesh.materials, textures, strict=True)]
        shown = mesh.with_vertices(vertices, material=materials[0] if len(materials) == 1 else materials)
        around = [dr.EnvironmentLight(sky, size=8, diffuse_size=4)] if environment else lights
        color = renderer(shown, camera.moved(twists), around).color
        loss = l1(color, target) + 0.2 * (1 - ssim(color, target)) + 0.1 * laplacian(shown)
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
        return loss

    return step, leaves


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """As while a graph is captured."""
    monkeypatch.setattr(_autograd, "is_captured", lambda tensor: True)
    return watched(monkeypatch)


def operators_of(step: Callable[[], torch.Tensor], reads: Reads) -> list[str]:
    with reads:
        step()
    assert reads.found == []
    return list(reads.operators)


@pytest.mark.parametrize("name", STEPS)
def test_every_step_starts_the_same_operators_and_reads_nothing(name: str, captured: Reads) -> None:
    options, scene = STEPS[name]
    step, leaves = make_step(options, **scene)
    before = [leaf.detach().clone() for leaf in leaves]
    step()  # tables and topologies are made once, as before a capture
    assert all(leaf.grad.any() for leaf in leaves)
    assert not any(torch.equal(leaf, old) for leaf, old in zip(leaves, before, strict=True))
    first = operators_of(step, captured)
    with torch.no_grad():  # other pixels, triangles and layers show
        leaves[0].mul_(0.7).add_(0.05 * torch.randn(leaves[0].shape, generator=torch.Generator().manual_seed(6)))
    assert operators_of(step, captured) == first
    kernels = {operator.split()[0] for operator in first if operator.startswith("diffrender.")}
    assert sum("backward" in kernel for kernel in kernels) >= 4


def test_preconditioned_steps_read_nothing(captured: Reads) -> None:
    sphere = dr.geometry.icosphere(1)
    preconditioner = LaplacianPreconditioner(sphere.triangles, sphere.vertex_count, solver="cg")
    parameters = preconditioner.to_parameters(sphere.vertices).requires_grad_()
    optimiser = AdamUniform([parameters])

    def step() -> torch.Tensor:
        parameters.grad = None
        loss = (preconditioner.to_vertices(parameters) - 1).square().sum()
        loss.backward()
        optimiser.step()
        return loss

    step()
    assert operators_of(step, captured) == operators_of(step, captured)


def test_a_constant_that_changes_from_step_to_step_is_seen(captured: Reads) -> None:
    """What a graph would repeat wrongly: the count of a step as a number."""
    x, count = torch.ones(3), [0]

    def step() -> torch.Tensor:
        count[0] += 1
        return x * (1 - 0.9 ** count[0])

    assert operators_of(step, captured) != operators_of(step, captured)
