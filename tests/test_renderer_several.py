"""Several materials on one mesh, evaluated without a look at values, as on a GPU: the same pictures and gradients as
where the pixels of each material are put side by side."""

import pytest
import torch

import diffrender as dr
from diffrender import _checks
from tests.support.lit_scene import SIZE, four_lights, lit_camera, several_materials
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64


def pictures_and_gradients(mesh: dr.Mesh, camera: dr.Camera, **options: object) -> list[torch.Tensor]:
    """Color, albedo and their gradients to vertices and to everything of the materials."""
    vertices = mesh.vertices.detach().clone().requires_grad_()
    materials = [
        material.replace(
            **{name: value.detach().clone().requires_grad_() for name, value in material.tensors() if value.dim() > 0}
        )
        for material in mesh.materials
    ]
    leaves = [vertices, *(value for material in materials for value in material.parameters())]
    shown = mesh.with_vertices(vertices).replace(material=materials)
    renderer = dr.Renderer(SIZE, background=0.2, outputs=("color", "albedo"), max_layers=4, **options)
    result = renderer(shown, camera, four_lights())
    images = [result.color, result.albedo]
    cotangents = [rnd(*image.shape, seed=k, dtype=F64) for k, image in enumerate(images)]
    return [*images, *torch.autograd.grad(images, leaves, cotangents)]


CASES = {
    "segments": ({}, {}),
    "pairs in bands": ({"edges": "pairs", "recompute": "tiles"}, {}),
    "coverage": ({"edges": "coverage"}, {}),
    "constants": ({}, {"textured": False}),
    "masked": ({}, {"first": "MASK"}),
    "blended": ({}, {"first": "BLEND", "second": "BLEND"}),
    "masked and blended": ({"recompute": False}, {"first": "MASK", "second": "BLEND"}),
}


@pytest.mark.parametrize("case", CASES)
def test_whole_pictures_of_each_material_equal_its_own_pixels(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, kinds = CASES[case]
    mesh = several_materials(**kinds)
    camera = lit_camera()
    camera = dr.Camera.stack([camera, camera.moved(0.1 * rnd(6, seed=3, dtype=F64))])
    expected = pictures_and_gradients(mesh, camera, **options)
    monkeypatch.setattr(_checks, "can_read", lambda tensor: False)
    whole = pictures_and_gradients(mesh, camera, **options)
    assert all(value.any() for value in expected[:3])
    for value, truth in zip(whole, expected, strict=True):
        assert relative_error(value, truth) < 1e-12


@pytest.mark.parametrize("name", ["albedo", "albedo_factor", "roughness"])
@pytest.mark.parametrize("readable", [True, False])
def test_materials_that_differ_between_items_are_refused_where_there_are_several(name, readable, monkeypatch) -> None:
    monkeypatch.setattr(_checks, "can_read", lambda tensor: readable)
    mesh = several_materials()
    batched = {"albedo": torch.ones(2, 4, 4, 3), "albedo_factor": torch.ones(2, 3), "roughness": torch.ones(2, 1)}
    materials = [mesh.materials[0], dr.Material(**{name: batched[name].double()}), mesh.materials[2]]
    camera = dr.Camera.stack([lit_camera(), lit_camera()])
    with pytest.raises(ValueError, match=f"materials that the batch shares .*, got a batched {name}"):
        dr.Renderer(SIZE)(mesh.replace(material=materials), camera)
