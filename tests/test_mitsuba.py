"""The same lit scene in Mitsuba 3: an independent renderer has to give the same radiance.

One mesh, a point and a directional light, one bounce. Mitsuba averages 16 jittered rays per pixel and the rasterizer
takes its centre, so pixels at the silhouette are left out; so are those that hardly any light reaches, where a relative
difference says nothing.
"""

import numpy as np
import pytest
import torch

import diffrender as dr

mi = pytest.importorskip("mitsuba", reason="mitsuba is not installed: pip install diffrender-torch[test]")

SIZE = 96
EYE = [0.4, 0.5, 3.2]
SUN = (-0.6, -0.5, -0.8)
SUN_COLOR, LAMP_COLOR = [1.2, 1.0, 0.7], [4.0, 5.0, 7.0]
LAMP = [1.5, 1.2, 2.2]
# Mitsuba masks and shadows microfacets one after the other (separable Smith), glTF and this project by their common
# height; the difference grows with roughness and is left well below the tolerance by this one.
CONDUCTOR_ROUGHNESS = 0.4


@pytest.fixture(scope="module")
def mesh():
    sphere = dr.geometry.icosphere(5)
    scale = torch.tensor([1.0, 0.8, 0.9])
    return dr.Mesh(sphere.vertices * scale, sphere.triangles)


def frame(mesh):
    """Position, normal and mask per pixel."""
    camera = dr.Camera.perspective(fov_x_deg=45, width=SIZE, height=SIZE).look_at(EYE, [0.0, 0.0, 0.0])
    outputs = ("position", "normal", "mask")
    result = dr.Renderer((SIZE, SIZE), edges=None, outputs=outputs)(mesh, camera)
    return result.position, result.normal, result.mask[..., 0]


def mitsuba_radiance(mesh, bsdf):
    mi.set_variant("scalar_rgb")
    vertices, triangles = mesh.vertices.numpy(), mesh.triangles.numpy()
    shape = mi.Mesh("mesh", len(vertices), len(triangles), has_vertex_normals=True, props=properties(bsdf))
    parameters = mi.traverse(shape)
    parameters["vertex_positions"] = vertices.ravel()
    parameters["vertex_normals"] = mesh.vertex_normals().numpy().ravel()
    parameters["faces"] = triangles.astype(np.uint32).ravel()
    parameters.update()
    transform = mi.ScalarTransform4f().look_at(origin=EYE, target=[0, 0, 0], up=[0, 1, 0])
    film = {"type": "hdrfilm", "width": SIZE, "height": SIZE, "rfilter": {"type": "box"}, "pixel_format": "rgb"}
    scene = mi.load_dict({
        "type": "scene",
        "integrator": {"type": "direct"},
        "sensor": {"type": "perspective", "fov": 45, "fov_axis": "x", "to_world": transform, "film": film,
                   "sampler": {"type": "stratified", "sample_count": 16}},
        "sun": {"type": "directional", "direction": list(SUN), "irradiance": {"type": "rgb", "value": SUN_COLOR}},
        "lamp": {"type": "point", "position": LAMP, "intensity": {"type": "rgb", "value": LAMP_COLOR}},
        "shape": shape,
    })  # fmt: skip
    return torch.from_numpy(np.array(mi.render(scene)))


def properties(bsdf):
    result = mi.Properties()
    result["mesh_bsdf"] = mi.load_dict(bsdf)
    return result


def mean_relative_difference(ours, theirs, mask):
    inner = mask.clone()
    for axis in (0, 1):
        for step in (1, 2, -1, -2):
            inner &= mask.roll(step, axis)
    luminance = theirs.mean(-1)
    used = inner & (luminance > 1e-3 * luminance[inner].max())
    assert used.sum() > 0.2 * mask.sum()
    return ((ours - theirs).abs().mean(-1)[used] / luminance[used]).mean().item()


CASES = {
    "diffuse": (
        {"type": "diffuse", "reflectance": {"type": "rgb", "value": [0.6, 0.4, 0.2]}},
        lambda *frame, **view: dr.shade_lambert(*frame, torch.tensor([0.6, 0.4, 0.2]), lights(), **view),
    ),
    "white rough conductor": (
        {"type": "roughconductor", "material": "none", "distribution": "ggx", "alpha": CONDUCTOR_ROUGHNESS**2},
        lambda *frame, **view: dr.shade_metallic_roughness(*frame, 1.0, 1.0, CONDUCTOR_ROUGHNESS, lights(), **view),
    ),
    "principled metal": (
        {"type": "principled", "base_color": {"type": "rgb", "value": [0.9, 0.6, 0.3]}, "metallic": 1.0,
         "roughness": CONDUCTOR_ROUGHNESS},
        lambda *frame, **view: dr.shade_metallic_roughness(
            *frame, torch.tensor([0.9, 0.6, 0.3]), 1.0, CONDUCTOR_ROUGHNESS, lights(), **view
        ),
    ),
}  # fmt: skip


def lights():
    return [dr.DirectionalLight(SUN, SUN_COLOR), dr.PointLight(LAMP, LAMP_COLOR)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_radiance_equals_that_of_mitsuba(mesh, name):
    bsdf, shade = CASES[name]
    position, normal, mask = frame(mesh)
    ours = shade(position, normal, camera_position=EYE, mask=mask)[0]
    theirs = mitsuba_radiance(mesh, bsdf)
    assert mean_relative_difference(ours, theirs, mask[0]) < 0.02
