"""Every shading op near grazing light and grazing view: gradients to every argument at once, against differences."""

import pytest
import torch

import diffrender as dr
from tests.ops.rows.shade import color_map
from tests.support.vocabulary import rnd, uniform

F64 = torch.float64
SIZE = (2, 3)

OPS = {
    "shade_lambert": (dr.shade_lambert, [3]),
    "shade_blinn_phong": (dr.shade_blinn_phong, [3, 3, 1]),
    "shade_metallic_roughness": (dr.shade_metallic_roughness, [3, 1, 1]),
}


def scene(height):
    """A small patch of the plane z = 0, viewer and lights at most `height` radians above it, on several sides."""
    positions = uniform(1, *SIZE, 3, low=-0.1, high=0.1, seed=1, dtype=F64) * torch.tensor([1, 1, 0.01], dtype=F64)
    normals = torch.tensor([0.0, 0.0, 1.0], dtype=F64) + 0.1 * height * rnd(1, *SIZE, 3, seed=2, dtype=F64)
    eye = torch.tensor([4.0, 0.3, 4 * height], dtype=F64)
    places = [torch.tensor([x, y, height * 3], dtype=F64) for x, y in ((-3.0, 0.4), (2.5, -1.5), (-2.0, 2.0))]
    table = dr.pack_lights([
        dr.DirectionalLight(-places[0], uniform(3, seed=3, dtype=F64)),
        dr.PointLight(places[1], 5 * uniform(3, seed=4, dtype=F64)),
        dr.SpotLight(places[2], -places[2], 5 * uniform(3, seed=5, dtype=F64), 2.0, 40.0),
        dr.AmbientLight(torch.tensor([0.1, 0.2, 0.3], dtype=F64)),
    ])  # fmt: skip
    return positions, normals, eye, table


@pytest.mark.parametrize("height", [0.3, 0.02, 0.002])
@pytest.mark.parametrize("name", OPS)
def test_gradients_to_every_argument_near_grazing(name, height):
    op, channels = OPS[name]
    positions, normals, eye, table = scene(height)
    material = [color_map(1, SIZE, seed=6 + k, channels=c) for k, c in enumerate(channels)]
    if name == "shade_blinn_phong":
        material[2] = 20 * material[2] + 2
    leaves = [x.clone().requires_grad_() for x in (positions, normals, *material, table.values, eye)]

    def call(positions, normals, *rest):
        lights = dr.PackedLights(table.types, rest[-2])
        return op(positions, normals, *rest[:-2], lights, camera_position=rest[-1])

    image = call(*leaves)
    assert (image.detach() > 0).all()
    # Slopes grow like 1 / height^2 for the glossy ones, so a step has to be small against the height.
    assert torch.autograd.gradcheck(call, leaves, eps=1e-6 * height, atol=1e-4, rtol=1e-4)
    grads = torch.autograd.grad(image.sum(), leaves)
    # Diffuse reflection does not depend on where the viewer is.
    assert all(grad.any() for grad in grads[: -1 if name == "shade_lambert" else None])
