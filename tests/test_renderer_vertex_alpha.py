"""The alpha of vertex colors: it multiplies the material's where that has one that counts, as in glTF 2.0 (3.7.2.1)."""

import pytest
import torch

import diffrender as dr
from diffrender import geometry

SIZE = (20, 26)
CAMERA = dr.Camera.perspective(fov_y_deg=40, width=26, height=20).look_at([0.3, 0.2, 4.0]).to(torch.float64)
NO_EDGES = {"edges": None, "background": 0.25}


def plate(alpha_mode: str, colors: torch.Tensor | None = None) -> dr.Mesh:
    generator = torch.Generator().manual_seed(3)
    quad = geometry.quad(2.0, 2.0).to(torch.float64)
    texture = torch.rand(6, 6, 4, generator=generator, dtype=torch.float64)
    if colors is None:
        colors = torch.rand(4, 4, generator=generator, dtype=torch.float64)
    material = dr.Material(texture, alpha_mode=alpha_mode, alpha_cutoff=0.25)
    return dr.Mesh(quad.vertices, quad.triangles, texcoords=quad.texcoords, colors=colors, material=material)


def samples(mesh: dr.Mesh) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """By the stages: covered (1, H, W, 1), albedo and alpha of texture times vertices."""
    fragments = dr.rasterize(CAMERA.clip_positions(mesh.vertices), mesh.triangles, SIZE, derivatives=True)
    uv, slopes = dr.interpolate(mesh.texcoords, mesh.triangles, fragments, derivatives="all")
    colors = dr.interpolate(mesh.colors, mesh.triangles, fragments)
    texels = dr.texture(mesh.material.albedo, uv, texcoord_derivatives=slopes)
    product = colors * texels
    return (fragments.triangle_id >= 0).unsqueeze(-1), product[..., :3], product[..., 3:]


@pytest.mark.parametrize("recompute", [True, False, "tiles"])
def test_blended_surfaces_are_as_opaque_as_texture_times_vertices(recompute: bool | str) -> None:
    mesh = plate("BLEND")
    mesh.colors.requires_grad_()
    covered, albedo, alpha = samples(mesh)
    expected = {"color": torch.where(covered, alpha * albedo + (1 - alpha) * 0.25, 0.25), "alpha": alpha * covered}
    result = dr.Renderer(SIZE, outputs=("color", "alpha"), recompute=recompute, **NO_EDGES)(mesh, CAMERA)
    assert covered.sum() > 100
    for name, picture in expected.items():
        ours = getattr(result, name)
        torch.testing.assert_close(ours, picture, rtol=1e-12, atol=1e-12)
        cotangent = torch.randn(picture.shape, generator=torch.Generator().manual_seed(1), dtype=picture.dtype)
        gradients = [torch.autograd.grad(p, mesh.colors, cotangent, retain_graph=True)[0] for p in (ours, picture)]
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
        assert (gradients[0][:, 3].abs() > 1e-3).all()


def test_outputs_without_color_know_the_vertices_alpha_too() -> None:
    mesh = plate("BLEND")
    both = dr.Renderer(SIZE, outputs=("color", "alpha"), **NO_EDGES)(mesh, CAMERA)
    alone = dr.Renderer(SIZE, outputs=("alpha",), **NO_EDGES)(mesh, CAMERA)
    assert torch.equal(both.alpha, alone.alpha)


def test_masks_discard_where_texture_times_vertices_is_below_the_cutoff() -> None:
    mesh = plate("MASK")
    covered, albedo, alpha = samples(mesh)
    kept = covered & (alpha >= 0.25)
    by_texture_alone = covered & (samples(mesh.replace(colors=torch.ones_like(mesh.colors)))[2] >= 0.25)
    assert 30 < kept.sum() < by_texture_alone.sum() - 30
    result = dr.Renderer(SIZE, outputs=("color", "mask"), **NO_EDGES)(mesh, CAMERA)
    assert torch.equal(result.mask, kept)
    torch.testing.assert_close(result.color, torch.where(kept, albedo, 0.25), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("alpha_mode", ["MASK", "BLEND"])
def test_among_several_materials_opaque_ones_stay_opaque(alpha_mode: str) -> None:
    one = plate(alpha_mode)
    wall = 5 * one.vertices + torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64)
    mesh = dr.Mesh(
        torch.cat([one.vertices, wall]), torch.cat([one.triangles, one.triangles + 4]),
        texcoords=one.texcoords.repeat(2, 1), colors=one.colors.repeat(2, 1),
        material=[one.material, dr.Material().to(torch.float64)], material_ids=torch.tensor([0, 0, 1, 1]),
    )  # fmt: skip
    result = dr.Renderer(SIZE, outputs=("color", "alpha"), **NO_EDGES)(mesh, CAMERA)
    assert (result.alpha == 1).all()  # the second plate is larger than the view
    covered, albedo, alpha = samples(one)
    behind = dr.Renderer(SIZE, outputs=("color",), **NO_EDGES)(
        dr.Mesh(wall, one.triangles, colors=one.colors[:, :3]), CAMERA
    ).color
    weight = alpha if alpha_mode == "BLEND" else (alpha >= 0.25).double()
    expected = torch.where(covered, weight * albedo + (1 - weight) * behind, behind)
    torch.testing.assert_close(result.color, expected, rtol=1e-12, atol=1e-12)


def test_mips_of_a_masked_material_are_made_once(monkeypatch) -> None:
    from diffrender.ops import build_mips

    calls, real = [], build_mips.pack_mips
    monkeypatch.setattr(build_mips, "pack_mips", lambda *args: calls.append(args) or real(*args))
    mesh, renderer = plate("MASK"), dr.Renderer(SIZE, **NO_EDGES)
    pictures = [renderer(mesh, CAMERA).color for _ in range(3)]
    assert len(calls) == 2  # of the texture for what is shown, and for what is discarded
    assert torch.equal(pictures[0], pictures[2])
    mesh.material.albedo.mul_(0.5)
    changed = renderer(mesh, CAMERA).color
    assert len(calls) == 4
    assert torch.equal(changed, renderer(mesh.replace(material=mesh.material.replace()), CAMERA).color)
    assert not torch.equal(changed, pictures[0])
    mesh.material.albedo.requires_grad_()
    renderer(mesh, CAMERA)
    assert mesh.material._frozen._kept == mesh.material._frozen_alpha._kept == {}, "nothing is kept of what is trained"
