"""Outlines of triangles about as small as pixels: narrow folds that show at no pixel's centre must not count twice."""

from pathlib import Path

import pytest
import torch

import diffrender as dr
from diffrender import fit

STAR = Path(__file__).resolve().parents[1] / "assets" / "star_knot.obj"


@pytest.fixture(scope="module")
def star() -> dr.Mesh:
    return fit.normalize(dr.load_mesh(STAR))[0].to(torch.float64)


def error(mesh: dr.Mesh, size: int, **options) -> tuple[float, float, int]:
    """Root of the mean square, and largest, of the difference to exact areas; how many pixels are off by 0.2."""
    cameras = fit.cameras_around(fit.spread_directions(3, turn_rad=1.0).double(), size, 0.65)
    ours, exact = (
        dr.Renderer((size, size), outputs=("alpha",), **chosen)(mesh, cameras).alpha
        for chosen in (options, {"edges": "coverage"})
    )
    difference = (ours - exact).detach().abs()
    return difference.square().mean().sqrt().item(), difference.max().item(), int((difference > 0.2).sum())


@pytest.mark.parametrize("visibility", ["window", "exact"])
@pytest.mark.parametrize(
    ("size", "window", "exact"), [(64, 0.008, 0.002), (128, 0.0025, 0.0008), (256, 0.0015, 0.0006)]
)
def test_outline_of_a_fine_mesh(star, size, window, exact, visibility):
    """Without the triangles around an edge: 0.013 and 39 pixels at 128 x 128, values above 1.3 among them. Where the
    background stands in for a surface behind that shows nowhere: 0.0037, and 0.0034 with exact visibility."""
    mean, largest, count = error(star, size, visibility=visibility)
    assert mean < (exact if visibility == "exact" else window), mean
    assert largest < (0.2 if visibility == "exact" else 0.6), largest
    assert count <= (0 if visibility == "exact" else 4), count


@pytest.mark.parametrize(("noise", "window", "exact"), [(0.003, 0.008, 0.002), (0.01, 0.0125, 0.004)])
def test_outline_of_a_mesh_with_noise(star, noise, window, exact):
    """Folds everywhere, and triangles that cut through their neighbours. With the background in the place of surfaces
    that show nowhere: 0.0098 and 0.0138, with exact visibility 0.0082 and 0.0105."""
    moved = noise * torch.randn(star.vertices.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    noisy = dr.Mesh(star.vertices + moved, star.triangles)
    assert error(noisy, 128)[0] < window
    assert error(noisy, 128, visibility="exact")[0] < exact


def fold(shift: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A square that ends at x = 0.2 in a strip folded back behind it by a part of a pixel: (V, 4), (T, 3).

    Seen from the front the strip is hidden; `shift` > 0 lets it look out by so much of a pixel of 32 x 32.
    """
    x = 0.2
    front = [(-0.8, -0.6, 0.0), (x, -0.6, 0.0), (x, 0.6, 0.0), (-0.8, 0.6, 0.0)]
    strip = [(x + shift / 16, -0.6, 0.3), (x + shift / 16, 0.6, 0.3)]
    points = torch.tensor(front + strip, dtype=torch.float64)
    triangles = torch.tensor([[0, 1, 2], [0, 2, 3], [1, 4, 5], [1, 5, 2]], dtype=torch.int32)
    return torch.cat([points, torch.ones(6, 1, dtype=torch.float64)], -1), triangles


@pytest.mark.parametrize("shift", [-0.4, -0.1, 0.1, 0.4])
def test_a_strip_narrower_than_a_pixel_counts_once(shift):
    """Turned back (negative shift) its border is hidden by the square; looking out, the fold is hidden by nothing but
    is no outline: only the border is. Area and gradient are those of one edge at the outermost x."""
    positions, triangles = fold(shift)
    positions.requires_grad_()
    fragments = dr.rasterize(positions[None], triangles, (32, 32))
    mask = (fragments.triangle_id >= 0).double().unsqueeze(-1)
    picture = dr.antialias(mask, fragments, positions[None], triangles)
    outermost = max(0.2, 0.2 + shift / 16)
    area = (outermost + 0.8) * 16 * 1.2 * 16
    assert picture.sum().item() == pytest.approx(area, rel=1e-6)
    (gradient,) = torch.autograd.grad(picture.sum(), positions)
    moving = [1, 2] if shift < 0 else [4, 5]
    expected = torch.zeros(6, dtype=torch.float64)
    expected[moving] = 1.2 * 16 * 16 / 2
    expected[[0, 3]] = -1.2 * 16 * 16 / 2
    torch.testing.assert_close(gradient[:, 0], expected, rtol=1e-6, atol=1e-6)
