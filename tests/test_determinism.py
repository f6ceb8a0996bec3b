"""The same inputs give the same bits of pictures and gradients, for any number of threads, in every mode."""

import pytest
import torch

import diffrender as dr
from tests.support.lit_scene import SIZE, four_lights, lit_camera, lit_mesh, poses

SCALE = 6  # enough pixels that several threads get work
MODES = [
    {"edges": "segments"},
    {"edges": "pairs"},
    {"edges": None},
    {"edges": "coverage"},
    *(
        pytest.param({"edges": "segments", **options}, marks=pytest.mark.slow)
        for options in (
            {"samples": 2},
            {"interior": "flow"},
            {"recompute": False},
            {"recompute": "tiles"},
            {"max_layers": 3, "transparent": True},
        )
    ),
]


def run(mesh, sky, *, transparent=False, **options):
    """All float outputs, and the gradients to shape, maps, lights and poses, of two views."""
    size = (SIZE[0] * SCALE, SIZE[1] * SCALE)
    batch = 1 if options["edges"] == "coverage" else 2
    if options["edges"] == "coverage" or options.get("samples", 1) > 1:
        size, scale = (size[0] // 2, size[1] // 2), SCALE / 2
    else:
        scale = SCALE
    vertices, radiance = mesh.vertices.clone().requires_grad_(), sky.clone().requires_grad_()
    maps = {name: getattr(mesh.material, name).clone().requires_grad_() for name in ("albedo", "roughness", "normal")}
    mode = {"alpha_mode": "BLEND", "albedo_factor": (1.0, 1.0, 1.0, 0.5)} if transparent else {}
    shown = mesh.with_vertices(vertices).replace(material=mesh.material.replace(**maps, **mode))
    lamp = torch.tensor([2.0, 2.0, 3.0]).requires_grad_()
    twist = poses(batch, torch.float32).requires_grad_()
    lights = [dr.PointLight(lamp, 12.0), *four_lights()[1:]]
    if options["edges"] != "coverage":
        lights.append(dr.EnvironmentLight(radiance))
    outputs = ("color", "alpha", "depth", "normal", "texcoord", "albedo", "triangle_id")
    renderer = dr.Renderer(size, background=0.3, outputs=outputs, **options)
    result = renderer(shown, lit_camera(torch.float32, scale=scale).moved(twist[0] if batch == 1 else twist), lights)
    images = [getattr(result, name) for name in outputs]
    floats = [image for image in images if image.requires_grad]
    generator = torch.Generator().manual_seed(4)
    cotangents = [torch.randn(image.shape, generator=generator) for image in floats]
    leaves = [vertices, *maps.values(), lamp, twist, radiance]
    grads = torch.autograd.grad(floats, leaves, cotangents, allow_unused=True)
    assert sum(grad is not None for grad in grads) >= 6
    return [image.detach() for image in images], [grad for grad in grads if grad is not None]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_one_two_and_three_threads_give_the_same_bits(options, set_threads):
    mesh, sky = lit_mesh(torch.float32, texels=64), torch.rand(16, 32, 3)
    runs = []
    for threads in (1, 2, 3):
        set_threads(threads)
        runs.append(run(mesh, sky, **options))
    for images, grads in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(images, runs[0][0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(grads, runs[0][1], strict=True))
    assert all(grad.any() for grad in runs[0][1])
