"""Alpha mode "MASK": what it discards shows in no output, and what is behind takes its place."""

import pytest
import torch

import diffrender as dr
from diffrender import geometry

SIZE = (24, 30)
OUTPUTS = ("color", "alpha", "depth", "normal", "position", "texcoord", "albedo", "mask", "triangle_id", "material_id")
CAMERA = dr.Camera.perspective(fov_y_deg=40, width=30, height=24).look_at([0.3, 0.2, 4.0]).to(torch.float64)


def leaf(seed: int, size: int = 6) -> dr.Material:
    """Random alpha, so that the cutoff makes holes of all shapes."""
    texture = torch.rand(size, size, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return dr.Material(texture, alpha_mode="MASK", alpha_cutoff=0.5)


def plates(*layers: tuple[float, dr.Material]) -> dr.Mesh:
    """Squares at depths z, one material each, larger than the view but for the last one."""
    quad = geometry.quad(6.0, 6.0).to(torch.float64)
    scales = [1.0] * (len(layers) - 1) + [0.3]
    places = zip(scales, layers, strict=True)
    vertices = torch.cat([quad.vertices * scale + torch.tensor([0.0, 0.0, z]) for scale, (z, _) in places])
    triangles = torch.cat([quad.triangles + 4 * k for k in range(len(layers))])
    ids = torch.arange(len(layers)).repeat_interleave(2)
    texcoords = quad.texcoords.repeat(len(layers), 1)
    return dr.Mesh(
        vertices, triangles, texcoords=texcoords, material=[material for _, material in layers], material_ids=ids
    )


def opaque(mesh: dr.Mesh, *kept: int) -> dr.Mesh:
    """Some plates alone, without holes."""
    rows = torch.cat([torch.arange(2 * k, 2 * k + 2) for k in kept])
    materials = [material.replace(alpha_mode="OPAQUE") for material in mesh.material]
    return dr.Mesh(
        mesh.vertices, mesh.triangles[rows], texcoords=mesh.texcoords, texcoord_triangles=mesh.texcoord_triangles[rows],
        material=materials, material_ids=mesh.material_ids[rows],
    )  # fmt: skip


def holes_of(mesh: dr.Mesh, k: int) -> torch.Tensor:
    """(1, H, W) bool, by the stages: where plate k alone is seen and discarded."""
    alone = opaque(mesh, k)
    fragments = dr.rasterize(CAMERA.clip_positions(alone.vertices), alone.triangles, SIZE, derivatives=True)
    uv, slopes = dr.interpolate(alone.texcoords, alone.texcoord_triangles, fragments, derivatives="all")
    return (mesh.material[k].evaluate(uv, slopes).alpha[..., 0] == 0) & (fragments.triangle_id >= 0)


@pytest.mark.parametrize("recompute", [True, False, "tiles"])
def test_discarded_pixels_show_what_is_behind_in_every_output(recompute: bool | str) -> None:
    """Two leaves before a small plate: every pixel is that of the first plate that is kept there, alone."""
    mesh = plates((0.5, leaf(0)), (0.0, leaf(1)), (-0.5, dr.Material((0.2, 0.4, 0.6)).to(torch.float64)))
    lamp = dr.PointLight(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), 20.0)
    renderer = dr.Renderer(SIZE, edges=None, outputs=OUTPUTS, recompute=recompute)
    result = renderer(mesh, CAMERA, lamp, background=0.25)
    first, second = holes_of(mesh, 0), holes_of(mesh, 1)
    shown = {0: ~first, 1: first & ~second, 2: first & second}
    for k, pixels in shown.items():
        assert pixels.sum() > 20
        alone = renderer(opaque(mesh, k), CAMERA, lamp, background=0.25)
        for name in OUTPUTS:
            expected = getattr(alone, name)
            if name == "triangle_id":
                expected = torch.where(expected >= 0, expected + 2 * k, -1).to(torch.int32)
            torch.testing.assert_close(getattr(result, name)[pixels], expected[pixels], rtol=1e-12, atol=1e-12)
    is_open = shown[2] & ~result.mask[..., 0]
    assert is_open.any()
    for name in ("alpha", "depth", "normal", "position", "texcoord", "albedo"):
        assert (getattr(result, name)[is_open] == 0).all()


def test_one_material_leaves_background_in_its_holes() -> None:
    quad = geometry.quad(2.0, 2.0).to(torch.float64)
    mesh = dr.Mesh(quad.vertices, quad.triangles, texcoords=quad.texcoords, material=leaf(2))
    result = dr.Renderer(SIZE, edges=None, outputs=OUTPUTS)(mesh, CAMERA)
    whole = dr.Renderer(SIZE, edges=None, outputs=OUTPUTS)(opaque_of(mesh), CAMERA)
    assert 0.2 < result.mask.sum() / whole.mask.sum() < 0.8
    assert torch.equal(result.depth, torch.where(result.mask, whole.depth, 0))
    assert torch.equal(result.alpha, result.mask.double())
    gone = dr.Material((1.0, 1.0, 1.0, 0.3), alpha_mode="MASK").to(torch.float64)
    assert not dr.Renderer(SIZE, edges=None, outputs="mask")(mesh.replace(material=gone), CAMERA).mask.any()


def opaque_of(mesh: dr.Mesh) -> dr.Mesh:
    return mesh.replace(material=mesh.material.replace(alpha_mode="OPAQUE"))


def test_masks_between_blended_layers() -> None:
    """Glass, a leaf, glass, a wall: the second glass counts only in the leaf's holes, and for color alone."""
    glass = dr.Material((0.0, 0.0, 0.0, 0.25), alpha_mode="BLEND").to(torch.float64)
    wall = dr.Material((1.0, 1.0, 1.0)).to(torch.float64)
    mesh = plates((0.6, glass), (0.4, leaf(3)), (0.2, glass), (0.0, wall), (-9.0, wall))
    result = dr.Renderer(SIZE, edges=None, outputs=("color", "material_id", "alpha"))(mesh, CAMERA)
    assert (result.material_id == 0).all()
    assert (result.alpha == 1).all()
    holes = holes_of(mesh, 1)
    assert holes.any()
    torch.testing.assert_close(result.color[holes], torch.full_like(result.color[holes], 0.75**2))
    albedo = dr.Renderer(SIZE, edges=None, outputs="albedo")(opaque(mesh, 1), CAMERA).albedo
    torch.testing.assert_close(result.color[~holes], 0.75 * albedo[~holes])


def test_gradients_go_to_the_surfaces_that_show() -> None:
    mesh = plates((0.5, leaf(0)), (0.0, dr.Material().to(torch.float64)), (-9.0, dr.Material().to(torch.float64)))
    start = mesh.vertices
    holes = holes_of(mesh, 0)[..., None]

    def depth(vertices: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return (
            dr.Renderer(SIZE, edges=None, outputs="depth")(mesh.with_vertices(vertices), CAMERA).depth * where
        ).sum()

    vertices = start.clone().requires_grad_()
    (through,) = torch.autograd.grad(depth(vertices, holes), vertices)
    (kept,) = torch.autograd.grad(depth(vertices, ~holes), vertices)
    assert (through[:4] == 0).all()
    assert (kept[4:] == 0).all()
    assert kept[:4].abs().max() > 0.1
    # Moving a plate along the axis changes its depth by as much at every pixel that shows it.
    torch.testing.assert_close(through[4:8, 2].sum(), -holes.sum().double(), rtol=0.2, atol=0)
    step = torch.zeros_like(start)
    step[4:8, 2] = 1e-6
    difference = (depth(start + step, holes) - depth(start - step, holes)) / 2e-6
    torch.testing.assert_close((through * step / 1e-6).sum(), difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("edges", ["segments", "pairs", None])
def test_recomputed_gradients_are_the_same_bits(edges: str | None) -> None:
    mesh = plates((0.5, leaf(0)), (0.0, leaf(1)), (-0.5, dr.Material((0.2, 0.4, 0.6)).to(torch.float64)))
    names = ("color", "alpha", "depth", "normal", "position")

    def gradient(recompute: bool) -> torch.Tensor:
        vertices = mesh.vertices.clone().requires_grad_()
        renderer = dr.Renderer(SIZE, edges=edges, outputs=names, smooth=names, recompute=recompute)
        result = renderer(mesh.with_vertices(vertices), CAMERA, dr.AmbientLight(1.0), background=0.5)
        generator = torch.Generator().manual_seed(0)
        images = [getattr(result, name) for name in names]
        cotangents = [torch.randn(image.shape, generator=generator, dtype=image.dtype) for image in images]
        pairs = [(i, c) for i, c in zip(images, cotangents, strict=True) if i.requires_grad]
        return torch.autograd.grad([i for i, _ in pairs], vertices, [c for _, c in pairs])[0]

    kept = gradient(False)
    assert kept.abs().max() > 0
    assert torch.equal(kept, gradient(True))


def test_a_silhouette_within_a_hole_has_its_gradient() -> None:
    """A ball seen through a large hole: the frame around it changes nothing."""
    ball = geometry.icosphere(3).to(torch.float64)
    quad = geometry.quad(6.0, 6.0).to(torch.float64)
    alpha = torch.ones(16, 16, 4, dtype=torch.float64)
    alpha[6:10, 6:10, 3] = 0
    offset = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def gradient(with_frame: bool) -> torch.Tensor:
        vertices, triangles, ids = 0.6 * ball.vertices + offset, ball.triangles, torch.zeros(ball.triangle_count)
        texcoords = ball.vertices.new_zeros(ball.vertex_count, 2)
        if with_frame:
            vertices = torch.cat([vertices, quad.vertices + torch.tensor([0.0, 0.0, 1.5])])
            triangles = torch.cat([triangles, quad.triangles + ball.vertex_count])
            ids, texcoords = torch.cat([ids, torch.ones(2)]), torch.cat([texcoords, quad.texcoords])
        materials = [dr.Material().to(torch.float64), dr.Material(alpha, alpha_mode="MASK")]
        mesh = dr.Mesh(vertices, triangles, texcoords=texcoords, material=materials, material_ids=ids.to(torch.int32))
        alpha_image = dr.Renderer(SIZE, outputs="alpha")(mesh, CAMERA).alpha
        ramp = torch.linspace(0, 1, SIZE[1], dtype=torch.float64)[:, None]
        return torch.autograd.grad((alpha_image * ramp).sum(), offset)[0]

    alone = gradient(False)
    assert alone.abs().max() > 1
    torch.testing.assert_close(gradient(True), alone, rtol=1e-9, atol=1e-9)


def test_exact_areas_take_no_masks() -> None:
    mesh = plates((0.5, leaf(0)), (0.0, leaf(1)))
    with pytest.raises(ValueError, match="Renderer: mesh must hold opaque materials only"):
        dr.Renderer(SIZE, edges="coverage")(mesh, CAMERA)
