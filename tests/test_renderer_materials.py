"""Renderer with materials, lights and transparency: what a pixel holds, and that recomputation changes no bit of it."""

import math

import pytest
import torch

import diffrender as dr
from diffrender import geometry
from diffrender.recompute import saved_bytes

CAMERA = dr.Camera.perspective(fov_y_deg=40, width=40, height=32).look_at([1.0, 1.5, 3.5])
FRONT = dr.Camera.perspective(fov_y_deg=40, width=40, height=32).look_at([0.0, 0.0, 4.0])
OUTPUTS = ("color", "alpha", "depth", "normal", "position", "texcoord", "albedo")


def textured_mesh(**options) -> dr.Mesh:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_()

    material = dr.Material(
        random(16, 16, 3), random(8, 8, 1), random(8, 8, 1), normal=random(16, 16, 3),
        emissive=random(3).detach() * 0.1, occlusion=random(4, 4, 1), **options,
    )  # fmt: skip
    sphere = geometry.icosphere(2).to(torch.float64)
    quad_uv = torch.rand((sphere.vertex_count, 2), generator=generator, dtype=torch.float64)
    vertices = sphere.vertices.clone().requires_grad_()
    return dr.Mesh(vertices, sphere.triangles, texcoords=quad_uv, material=material)


def lights() -> list:
    return [
        dr.AmbientLight(torch.tensor([0.2, 0.3, 0.1], dtype=torch.float64).requires_grad_()),
        dr.DirectionalLight(torch.tensor([0.3, -1.0, -0.5], dtype=torch.float64)),
        dr.PointLight(torch.tensor([2.0, 2.0, 2.0], dtype=torch.float64).requires_grad_(), 9.0),
    ]


def loss_gradients(renderer: dr.Renderer, mesh: dr.Mesh, lamps: list, camera: dr.Camera) -> tuple[list, list]:
    """Float outputs and their gradients under fixed random cotangents."""
    result = renderer(mesh, camera, lamps, background=0.25)
    images = [getattr(result, name) for name in OUTPUTS]
    images = [image for image in images if image.requires_grad]  # alpha of an opaque surface without edges is constant
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(image.shape, generator=generator, dtype=image.dtype) for image in images]
    leaves = [mesh.vertices, *mesh.material.parameters(), *lamps[0].parameters(), *lamps[2].parameters()]
    return images, list(torch.autograd.grad(images, leaves, cotangents))


@pytest.mark.parametrize(
    ("edges", "alpha_mode"),
    [
        ("segments", "OPAQUE"),
        ("segments", "BLEND"),
        ("pairs", "OPAQUE"),
        ("pairs", "BLEND"),
        (None, "OPAQUE"),
        (None, "BLEND"),
        ("coverage", "OPAQUE"),
    ],
)
def test_recomputed_pictures_and_gradients_are_the_same_bits(edges: str | None, alpha_mode: str) -> None:
    mesh = textured_mesh(alpha_mode=alpha_mode, albedo_factor=(1.0, 1.0, 1.0, 0.5))
    lamps, camera = lights(), CAMERA.to(torch.float64)
    options = {"edges": edges, "outputs": OUTPUTS, "max_layers": 3}
    kept = loss_gradients(dr.Renderer((32, 40), recompute=False, **options), mesh, lamps, camera)
    again = loss_gradients(dr.Renderer((32, 40), recompute=True, **options), mesh, lamps, camera)
    bands = loss_gradients(dr.Renderer((32, 40), recompute="tiles", **options), mesh, lamps, camera)
    for images, others in zip(kept, again, strict=True):
        for a, b in zip(images, others, strict=True):
            assert torch.equal(a, b)
    for a, b in zip(kept[0], bands[0], strict=True):
        assert torch.equal(a, b)
    for a, b in zip(kept[1], bands[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("edges", ["segments", "pairs", None, "coverage"])
@pytest.mark.parametrize("outputs", [("color",), OUTPUTS])
def test_recomputation_keeps_four_bytes_a_pixel(edges: str | None, outputs: tuple[str, ...]) -> None:
    mesh, lamps = textured_mesh(), lights()
    camera = CAMERA.to(torch.float64).scaled(8)
    pixels = camera.height * camera.width

    def kept(recompute: bool | str) -> float:
        renderer = dr.Renderer((camera.height, camera.width), edges=edges, outputs=outputs, recompute=recompute)
        return saved_bytes(lambda: renderer(mesh, camera, lamps)) / pixels

    small = {name: kept(name) for name in (True, "tiles", False)}
    assert small[True] <= 5
    assert small["tiles"] <= 5
    assert small[False] > {"segments": 200, "pairs": 200, None: 150, "coverage": 130}[edges]
    with torch.no_grad():
        assert kept(True) == 0


def test_changed_texture_before_backward_raises() -> None:
    mesh = textured_mesh()
    color = dr.Renderer((32, 40), edges="pairs")(mesh, CAMERA.to(torch.float64), lights()).color
    with torch.no_grad():
        mesh.material.albedo.mul_(0.5)
    with pytest.raises(RuntimeError, match=r"shape \(16, 16, 3\) was changed in place"):
        color.sum().backward()


def test_lit_color_is_that_of_the_stages() -> None:
    mesh, lamps, camera = textured_mesh(), lights(), CAMERA.to(torch.float64)
    color = dr.Renderer((32, 40), edges=None)(mesh, camera, lamps).color
    fragments = dr.rasterize(camera.clip_positions(mesh.vertices), mesh.triangles, (32, 40), derivatives=True)
    uv, slopes = dr.interpolate(mesh.texcoords, mesh.triangles, fragments, derivatives="all")
    at = mesh.material.evaluate(uv, slopes)
    positions = dr.interpolate(mesh.vertices, mesh.triangles, fragments)
    normals = dr.interpolate(mesh.vertex_normals(), mesh.triangles, fragments)
    tangents, rows = mesh.vertex_tangents()
    bent = dr.perturb_normals(
        normals, dr.interpolate(tangents, rows, fragments), at.normal, view_directions=camera.eye - positions,
        mask=fragments.triangle_id,
    )  # fmt: skip
    options = {"camera_position": camera.eye, "geometric_normals": normals, "mask": fragments.triangle_id}
    surface = (positions, bent, at.albedo, at.metallic, at.roughness)
    direct = dr.shade_metallic_roughness(*surface, lamps[1:], **options)
    ambient = dr.shade_metallic_roughness(*surface, lamps[:1], **options)
    expected = direct + at.occlusion * ambient + at.emissive * (fragments.triangle_id >= 0)[..., None]
    torch.testing.assert_close(color, expected, rtol=1e-12, atol=1e-12)


def plates(*layers: tuple[float, dr.Material]) -> dr.Mesh:
    """Squares that fill the view at depths z, one material each."""
    quad = geometry.quad(6.0, 6.0)
    vertices = torch.cat([quad.vertices + torch.tensor([0.0, 0.0, z]) for z, _ in layers])
    triangles = torch.cat([quad.triangles + 4 * k for k in range(len(layers))])
    ids = torch.arange(len(layers)).repeat_interleave(2)
    return dr.Mesh(vertices, triangles, material=[material for _, material in layers], material_ids=ids)


@pytest.mark.parametrize("recompute", [True, False, "tiles"])
def test_layers_are_blended_in_order_of_depth(recompute: bool | str) -> None:
    red = dr.Material(torch.tensor([1.0, 0.0, 0.0, 0.25]), alpha_mode="BLEND")
    green = dr.Material(torch.tensor([0.0, 1.0, 0.0, 0.5]), alpha_mode="BLEND")
    gone = dr.Material(torch.tensor([1.0, 1.0, 1.0, 0.3]), alpha_mode="MASK")
    blue = dr.Material(torch.tensor([0.0, 0.0, 1.0, 0.0]))  # OPAQUE: alpha counts as 1
    # Not in the order of depth.
    mesh = plates((-1.0, blue), (1.0, red), (0.0, green), (0.5, gone))
    outputs = ("color", "alpha", "material_id")
    result = dr.Renderer((32, 40), edges=None, outputs=outputs, recompute=recompute)(mesh, FRONT)
    expected = torch.tensor([0.25, 0.75 * 0.5, 0.75 * 0.5])
    torch.testing.assert_close(result.color[0, 16, 20], expected)
    assert result.alpha[0, 16, 20] == 1
    assert (result.material_id == 1).all()

    open_mesh = plates((1.0, red), (0.0, green))
    result = dr.Renderer((32, 40), edges=None, outputs=outputs, recompute=recompute)(open_mesh, FRONT, background=1.0)
    below = 0.5 * torch.tensor([0.0, 1.0, 0.0]) + 0.5
    torch.testing.assert_close(result.color[0, 16, 20], 0.25 * torch.tensor([1.0, 0.0, 0.0]) + 0.75 * below)
    torch.testing.assert_close(result.alpha[0, 16, 20], torch.tensor([0.25 + 0.75 * 0.5]))
    one = dr.Renderer((32, 40), edges=None, outputs=outputs, max_layers=1)(open_mesh, FRONT)
    torch.testing.assert_close(one.color[0, 16, 20], torch.tensor([0.25, 0.0, 0.0]))


def test_gradient_of_opacity_reaches_all_layers() -> None:
    front = torch.tensor([1.0, 0.0, 0.0, 0.25], dtype=torch.float64, requires_grad=True)
    back = torch.tensor([0.0, 1.0, 0.0, 0.5], dtype=torch.float64, requires_grad=True)

    def color(front: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        mesh = plates((1.0, dr.Material(front, alpha_mode="BLEND")), (0.0, dr.Material(back, alpha_mode="BLEND")))
        camera = dr.Camera.perspective(fov_y_deg=40, width=3, height=2).look_at([0.0, 0.0, 4.0]).to(torch.float64)
        return dr.Renderer((2, 3), edges="pairs")(mesh.to(torch.float64), camera, background=0.5).color

    assert torch.autograd.gradcheck(color, (front, back))


def test_a_silhouette_behind_glass_has_its_gradient() -> None:
    """A ball seen through a plate of opacity a moves (1 - a) times as much picture as without the plate."""
    ball = geometry.icosphere(3)
    glass = dr.Material(torch.tensor([0.0, 0.0, 0.0, 0.25]), alpha_mode="BLEND")
    quad = geometry.quad(6.0, 6.0)
    offset = torch.zeros(3, requires_grad=True)

    def gradient(with_glass: bool) -> torch.Tensor:
        vertices, triangles, ids = ball.vertices + offset, ball.triangles, torch.zeros(ball.triangle_count)
        if with_glass:
            vertices = torch.cat([vertices, quad.vertices + torch.tensor([0.0, 0.0, 2.0])])
            triangles = torch.cat([triangles, quad.triangles + ball.vertex_count])
            ids = torch.cat([ids, torch.ones(2)])
        mesh = dr.Mesh(vertices, triangles, material=[dr.Material(), glass], material_ids=ids.to(torch.int32))
        color = dr.Renderer((32, 40), edges="pairs")(mesh, FRONT).color
        ramp = torch.linspace(0, 1, 40)[:, None].expand(32, 40, 3)
        return torch.autograd.grad((color * ramp).sum(), offset)[0]

    alone = gradient(False)
    assert alone.abs().max() > 1
    torch.testing.assert_close(gradient(True), 0.75 * alone, rtol=1e-4, atol=1e-4)


def test_samples_average_the_picture() -> None:
    mesh, lamps, camera = textured_mesh(), lights(), CAMERA.to(torch.float64)
    options = {"outputs": ("color", "alpha", "triangle_id", "mask"), "edges": None}
    result = dr.Renderer((32, 40), samples=3, **options)(mesh, camera, lamps, background=0.25)
    fine = dr.Renderer((96, 120), **options)(mesh, camera.scaled(3), lamps, background=0.25)
    mean = fine.color.reshape(1, 32, 3, 40, 3, 3).mean((2, 4))
    torch.testing.assert_close(result.color, mean)
    assert torch.equal(result.triangle_id, fine.triangle_id[:, 1::3, 1::3])
    assert torch.equal(result.mask[..., 0], result.triangle_id >= 0)


def test_several_materials_equal_one_each() -> None:
    """A cube of two materials shows at each pixel what a cube of that material alone shows."""
    cube = geometry.cube()
    texcoords = torch.rand((cube.vertex_count, 2), generator=torch.Generator().manual_seed(0))
    a = dr.Material(torch.rand(8, 8, 3), roughness=torch.rand(4, 4, 1), normal=torch.rand(8, 8, 3))
    b = dr.Material((0.2, 0.9, 0.4), metallic=1.0, roughness=0.3)
    ids = (torch.arange(cube.triangle_count) % 3 == 0).to(torch.int32)
    lamps = [dr.PointLight((1.0, 2.0, 3.0), 20.0)]

    def color(material, material_ids=None) -> torch.Tensor:
        mesh = dr.Mesh(cube.vertices, cube.triangles, texcoords=texcoords, material=material, material_ids=material_ids)
        result = dr.Renderer((32, 40), edges=None, outputs=("color", "material_id"))(mesh, CAMERA, lamps)
        return result.color, result.material_id

    both, shown = color([a, b], ids)
    assert (shown == 0).any()
    assert (shown == 1).any()
    for k, material in enumerate((a, b)):
        torch.testing.assert_close(both[shown == k], color(material)[0][shown == k])


def test_white_furnace() -> None:
    mesh = dr.Mesh(geometry.icosphere(2).vertices, geometry.icosphere(2).triangles, material=dr.Material(1.0))
    color = dr.Renderer((32, 40), edges=None, outputs=("color", "mask"))(mesh, CAMERA, dr.AmbientLight(0.7))
    torch.testing.assert_close(color.color[color.mask[..., 0]].unique(), torch.tensor([0.7]))


def test_orthographic_view_is_lit() -> None:
    camera = dr.Camera.orthographic(half_height=1.5, width=40, height=32).look_at([0.0, 0.0, 4.0])
    quad = geometry.quad(2.0, 2.0)
    mesh = dr.Mesh(quad.vertices, quad.triangles, material=dr.Material(0.5, roughness=1.0))
    color = dr.Renderer((32, 40), edges=None)(mesh, camera, dr.DirectionalLight((0.0, 0.0, -1.0), math.pi)).color
    inside = color[0, 10:22, 12:28]
    torch.testing.assert_close(inside, inside[0, 0].expand_as(inside))
    assert 0.4 < float(inside[0, 0, 0]) < 0.6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "Renderer: samples must be an int of at least 1, got 0"),
        ({"max_layers": 1.5}, "Renderer: max_layers must be an int of at least 1, got 1.5"),
        ({"recompute": "bands"}, "Renderer: recompute must be True, False or \"tiles\", got 'bands'"),
    ],
)
def test_wrong_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dr.Renderer((8, 8), edges=None, **options)


def test_exact_areas_of_lit_materials_are_the_limit_of_many_samples() -> None:
    """Two cameras, each with its own eye: the list of fragments is of both items."""
    sphere, lamps = geometry.icosphere(2).to(torch.float64), lights()
    mesh = dr.Mesh(sphere.vertices, sphere.triangles, material=dr.Material((0.5, 0.6, 0.7), roughness=0.7))
    cameras = dr.Camera.perspective(fov_y_deg=40, width=40, height=32).look_at([[1.0, 1.5, 3.5], [-2.0, 0.5, 3.0]])
    cameras = cameras.to(torch.float64)
    exact = dr.Renderer((32, 40), edges="coverage")(mesh, cameras, lamps, background=0.25).color
    mean = dr.Renderer((32, 40), edges=None, samples=8)(mesh, cameras, lamps, background=0.25).color
    point = dr.Renderer((32, 40), edges=None)(mesh, cameras, lamps, background=0.25).color
    error, point_error = (exact - mean).abs().mean(), (point - mean).abs().mean()
    assert error < 0.15 * point_error  # 64 samples have an error of their own


def test_an_environment_lights_surfaces_and_shows_behind_them() -> None:
    """A constant environment is an ambient light (white furnace) and fills the background; occlusion darkens it."""
    sphere = geometry.icosphere(3)
    uv = torch.rand((sphere.vertex_count, 2), generator=torch.Generator().manual_seed(0))
    sky = dr.EnvironmentLight(torch.full((6, 8, 8, 3), 0.7))
    renderer = dr.Renderer((32, 40), edges=None, outputs=("color", "mask"))

    def picture(occlusion) -> dr.RenderResult:
        mesh = dr.Mesh(
            sphere.vertices, sphere.triangles, texcoords=uv, material=dr.Material(1.0, 1.0, 0.3, occlusion=occlusion)
        )
        return renderer(mesh, CAMERA, sky, background=sky)

    bright = picture(1.0)
    mask = bright.mask[..., 0]
    torch.testing.assert_close(bright.color[~mask], torch.full_like(bright.color[~mask], 0.7))
    assert (bright.color[mask] - 0.7).abs().mean() < 0.04  # a smooth metal loses little between its facets
    dark = picture(torch.full((4, 4, 1), 0.5))
    torch.testing.assert_close(dark.color[mask], 0.5 * bright.color[mask], rtol=1e-4, atol=1e-5)


def test_gradient_reaches_the_environment_through_light_and_background() -> None:
    sky = torch.rand((6, 4, 4, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sphere = geometry.icosphere(1).to(torch.float64)
    mesh = dr.Mesh(sphere.vertices, sphere.triangles, material=dr.Material(0.6, 0.0, 0.5))
    camera = dr.Camera.perspective(fov_y_deg=60, width=4, height=3).look_at([0.0, 0.5, 3.0]).to(torch.float64)
    light = dr.EnvironmentLight(torch.nn.Parameter(sky))
    weights = torch.randn((1, 3, 4, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def gradient(recompute: bool) -> torch.Tensor:
        color = dr.Renderer((3, 4), recompute=recompute)(mesh, camera, [light], background=light).color
        (color * weights).sum().backward()
        grads = [p.grad.clone() for p in light.parameters() if p.grad is not None]
        for parameter in light.parameters():
            parameter.grad = None
        return torch.cat([grad.reshape(-1) for grad in grads])

    first = gradient(False)
    assert first.abs().max() > 0
    assert torch.equal(first, gradient(True))


def test_pictures_filter_a_trained_environment_once(monkeypatch) -> None:
    """Forward and backward together, transparent layers and background included; bands equal the whole picture."""
    sky = torch.rand((6, 8, 8, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    light = dr.EnvironmentLight(torch.nn.Parameter(sky))
    mesh, camera = textured_mesh(), CAMERA.to(torch.float64)
    glass = mesh.replace(material=dr.Material((0.5, 0.6, 0.7, 0.4), alpha_mode="BLEND").to(torch.float64))
    calls = []
    filtered = dr.EnvironmentLight._filtered
    monkeypatch.setattr(dr.EnvironmentLight, "_filtered", lambda self: calls.append(1) or filtered(self))

    def run(recompute: bool | str, mesh: dr.Mesh = mesh, background=light) -> tuple[torch.Tensor, torch.Tensor, int]:
        calls.clear()
        color = dr.Renderer((32, 40), recompute=recompute)(mesh, camera, [light], background=background).color
        weights = torch.randn(color.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        (grad,) = torch.autograd.grad((color * weights).sum(), light.map)
        return color, grad, len(calls)

    kept, whole, bands = run(False), run(True), run("tiles")
    assert torch.equal(kept[0], whole[0])
    assert torch.equal(kept[1], whole[1])
    assert torch.equal(whole[0], bands[0])
    assert bands[1].abs().max() > 0
    torch.testing.assert_close(whole[1], bands[1], rtol=1e-9, atol=1e-12)
    layers = run(True, glass)
    assert layers[1].abs().max() > 0
    assert kept[2] == whole[2] == bands[2] == layers[2] == 1
    # The background is the same through the prepared light as through another one of the same map.
    other = run(True, background=dr.EnvironmentLight(sky))
    assert torch.equal(other[0], whole[0])
    assert not torch.equal(other[1], whole[1])


def test_wrong_meshes() -> None:
    cube = geometry.cube()
    textured = dr.Mesh(cube.vertices, cube.triangles, material=dr.Material(torch.rand(4, 4, 3)))
    with pytest.raises(ValueError, match="Renderer: mesh must have texcoords for its textures, got none"):
        dr.Renderer((32, 40), edges=None)(textured, CAMERA)
    clear = dr.Mesh(cube.vertices, cube.triangles, material=dr.Material(alpha_mode="BLEND"))
    with pytest.raises(ValueError, match="Renderer: mesh must hold opaque materials only"):
        dr.Renderer((32, 40), edges="coverage")(clear, CAMERA)
    wrong = dr.Mesh(cube.vertices, cube.triangles, material="wood")
    with pytest.raises(TypeError, match=r"Renderer: mesh.material must be dr.Material, got str"):
        dr.Renderer((32, 40), edges=None)(wrong, CAMERA)
