"""Cases G: rasterization and geometry. Each test carries the id of its case and says the fault it guards against."""

import itertools

import numpy as np
import pytest
import torch

from tests.support.device import from_numpy
from tests.support.scenes import cube, perspective, pixel_rays, random_rotations, to_clip
from tests.support.vocabulary import P, aa, cov, g, itp, mask, ras, relative_error, rnd

F64 = torch.float64


def test_g01_shared_diagonal_through_pixel_centres_leaves_no_hole():
    """Fault: the rounding of a shared edge depends on vertex order. All 36 orders; NDC is exact, so no tolerance."""
    p = P(16 // 2, 16)
    q = [p(2.5, 1.5), p(7.5, 1.5), p(7.5, 6.5), p(2.5, 6.5)]
    for first, second in itertools.product(itertools.permutations((0, 1, 2)), itertools.permutations((0, 2, 3))):
        a, b = ras(q, [first], 8, 16).id >= 0, ras(q, [second], 8, 16).id >= 0
        both = ras(q, [first, second], 8, 16).id >= 0
        assert not (a & b).any()
        assert (int(a.sum()), int(b.sum())) == (15, 10)
        assert torch.equal(both, a | b)


def test_g02_fan_around_a_pixel_centre_covers_it_once():
    """Fault: a corner on a pixel centre that 8 triangles share is drawn by none or by several."""
    p = P(16, 16)
    ring = [(15.5, 8.5), (15.5, 15.5), (8.5, 15.5), (1.5, 15.5), (1.5, 8.5), (1.5, 1.5), (8.5, 1.5), (15.5, 1.5)]
    vertices = [p(8.5, 8.5)] + [p(*xy) for xy in ring]
    fan = [(0, 1 + k, 1 + (k + 1) % 8) for k in range(8)]
    total = sum((ras(vertices, [face], 16, 16).id >= 0).int() for face in fan)
    assert total.max() == 1
    assert total.sum() == 196
    assert total[0, 8, 8] == 1
    assert torch.equal(ras(vertices, fan, 16, 16).id >= 0, total > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_g04_closed_room_has_no_cracks(dtype):
    """Fault: triangles are clipped on their own, so neighbours lose their common edge points. A cube from inside."""
    height, width, fov = 47, 61, 110.0
    vertices, triangles = cube(dtype=F64)
    eye = torch.tensor([0.1, -0.2, 0.3], dtype=F64)
    clip_from_camera = perspective(fov, height, width, near=0.01, far=10.0)
    world_from_camera = random_rotations(50)
    in_camera = torch.einsum("bji,vj->bvi", world_from_camera, vertices - eye)
    r = ras(to_clip(in_camera, clip_from_camera).to(dtype), triangles, height, width)
    assert (r.id >= 0).all()
    hits = itp(vertices.to(dtype), r, triangles).double()
    rays = torch.einsum("bij,hwj->bhwi", world_from_camera, pixel_rays(fov, height, width))
    t = ((rays.sign() - eye) / rays).amin(-1)
    # A pixel within 1/256 of a fold may get the other wall, which is followed for that bit beyond the room.
    assert (hits - (eye + rays * t[..., None])).abs().max() < 2e-3
    # Whatever the wall, the point is on the ray of the pixel. Of float32, grazing walls cost some digits.
    off = torch.linalg.cross(hits - eye, rays, dim=-1).abs().max()
    assert off < (1e-4 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_g05_ground_that_runs_behind_the_camera(dtype):
    """Fault: the face vanishes, or x/w mirrors it. Depth and its derivative by the plane's height are known."""
    height, width, fov = 48, 64, 90.0
    ground = torch.tensor([[-50, -1, -80], [50, -1, -80], [50, -1, 20], [-50, -1, 20]], dtype=F64)
    triangles = [(0, 1, 2), (0, 2, 3)]
    clip_from_camera = perspective(fov, height, width, near=0.1, far=1000.0)

    def depth_of(y):
        lowered = torch.stack([ground[:, 0], y.double(), ground[:, 2]], -1)
        r = ras(to_clip(lowered, clip_from_camera).to(dtype), triangles, height, width)
        return itp(-ground[:, 2:].to(dtype), r, triangles)[0, :, :, 0], r

    depth, r = depth_of(ground[:, 1])
    dx, dy, _ = pixel_rays(fov, height, width).unbind(-1)
    truth = torch.where(dy < 0, -1 / dy, torch.inf)
    hit = (truth < 80) & ((dx * truth).abs() < 50)
    assert torch.equal(r.id[0] >= 0, hit)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-10
    assert relative_error(depth[hit], truth[hit]) < tolerance
    grad_y = g(lambda y: depth_of(y)[0].sum(), ground[:, 1])
    assert abs(grad_y.sum() + truth[hit].sum()) < tolerance * truth[hit].sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_g07_zero_area_faces_draw_nothing_and_poison_nothing(dtype):
    """Fault: 1/area of a degenerate face is NaN in a pixel or in a whole gradient."""
    p = P(64, 64)
    positions = [
        p(5, 6), p(50, 9), p(20, 58),
        p(10, 50, z=0.1), p(40, 20), p(10, 50, z=0.4),  # edge-on: two corners differ in depth only
        p(8, 8), p(16, 24), p(24, 40),  # collinear on screen
    ]  # fmt: skip
    positions = torch.tensor(positions, dtype=dtype)
    faces = [(0, 1, 2), (0, 0, 1), (3, 4, 5), (6, 7, 8)]
    cotangent = rnd(1, 64, 64, 9, dtype=dtype)

    def outputs(x, triangles):
        r = ras(x, triangles, 64, 64, derivatives=True)
        f = r.fragments
        values = torch.cat([f.barycentrics, f.depth[..., None], f.derivatives], -1)
        return r, torch.cat([values, aa(values[..., :2], r, x, triangles)], -1)

    r, image = outputs(positions, faces)
    assert set(r.id.unique().tolist()) == {-1, 0}
    assert torch.isfinite(image).all()
    grad = g(lambda x: (cotangent * outputs(x, faces)[1]).sum(), positions)
    clean = g(lambda x: (cotangent * outputs(x, faces[:1])[1]).sum(), positions)
    assert (grad[3:] == 0).all()
    torch.testing.assert_close(grad[:3], clean[:3], rtol=1e-6, atol=0)


def test_g08_face_ids_above_two_to_the_24():
    """Fault: an id kept in a float32 rounds to a neighbour, so attributes come from a wrong face."""
    base = 2**24
    triangles = torch.zeros(base + 5, 3, dtype=torch.int32)
    triangles[base + 3] = torch.tensor([0, 1, 2])
    triangles[base + 4] = torch.tensor([3, 4, 5])
    p = P(8, 8)
    quad = [p(-1, -1), p(9, -1), p(-1, 9), p(9, -1), p(9, 9), p(-1, 9)]
    r = ras(quad, triangles, 8, 8)
    assert set(r.id.unique().tolist()) == {base + 3, base + 4}
    values = itp([[0.0]] * 3 + [[1.0]] * 3, r, triangles)[..., 0]
    assert (values - (r.id == base + 4).float()).abs().max() < 1e-6


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (7, 13), (17, 31), (540, 959)])
def test_g10_odd_resolutions(size):
    """Fault: crash, or the last partial tile row or column is dropped."""
    height, width = size
    corners = np.random.default_rng(7).uniform(-0.3, 1.3, (20, 3, 2)) * [width, height]
    covered, distance = cov(corners, height, width)
    p = P(height, width)
    positions = torch.tensor([p(*xy) for xy in corners.reshape(-1, 2)]).requires_grad_()
    triangles = torch.arange(60).reshape(-1, 3)
    r = ras(positions, triangles, height, width)
    far = distance > 1 / 128
    assert torch.equal((r.id[0] >= 0)[far], covered[far])
    r.fragments.barycentrics.sum().backward()
    assert torch.isfinite(positions.grad).all()
    assert positions.grad.any()


def test_g11_triangles_smaller_than_a_pixel():
    """Fault: small faces are skipped by a box test or collapse, so that a fine mesh gets pin-holes."""
    height, width, cells = 40, 48, 256
    p = P(height, width)
    x, y = np.meshgrid(3.3 + 37 * np.arange(cells + 1) / cells, 4.2 + 29 * np.arange(cells + 1) / cells)
    fine = torch.tensor(np.stack(p(x, y, np.ones_like(x), np.zeros_like(x)), -1).reshape(-1, 4), dtype=torch.float32)
    name = np.arange((cells + 1) ** 2).reshape(cells + 1, cells + 1)
    a, b, c, d = (n.reshape(-1) for n in (name[:-1, :-1], name[:-1, 1:], name[1:, 1:], name[1:, :-1]))
    triangles = from_numpy(np.concatenate([np.stack([a, b, c], -1), np.stack([a, c, d], -1)]).astype(np.int32))
    coarse_corners = [name[0, 0], name[0, -1], name[-1, -1], name[-1, 0]]
    coarse = ras(fine[coarse_corners], [(0, 1, 2), (0, 2, 3)], height, width)
    r = ras(fine, triangles, height, width)
    assert torch.equal(r.id >= 0, coarse.id >= 0)
    assert (r.id >= 0).sum() == 37 * 29

    linear = (0.7 * from_numpy(x / width) - 0.4 * from_numpy(y / height)).float().reshape(-1, 1)
    values = itp(linear, r, triangles)[0, :, :, 0]
    row, column = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    truth = 0.7 * column / width - 0.4 * row / height
    hit = r.id[0] >= 0
    assert (values - truth)[hit].abs().max() < 1e-4


def test_g13_coincident_faces_have_one_stable_winner():
    """Fault: a tie in depth is decided by thread order. The lowest index wins, everywhere and always."""
    p = P(64, 64)
    corners = torch.tensor([p(3, 4, 2.0, 0.3), p(60, 10, 1.0, 0.1), p(20, 61, 1.5, -0.2)])
    vertices = torch.cat([corners, corners])
    faces = [(0, 1, 2), (3, 4, 5)]
    first = ras(vertices, faces, 64, 64).id
    assert first[first >= 0].unique().tolist() == [0]
    for _ in range(20):
        assert torch.equal(ras(vertices, faces, 64, 64).id, first)
    assert torch.equal(ras(vertices, faces[::-1], 64, 64).id, first)
    batch = ras(vertices.expand(4, -1, -1), faces, 64, 64).id
    assert torch.equal(batch, first.expand(4, -1, -1))
    second = ras(vertices, faces, 64, 64, beneath=ras(vertices, faces, 64, 64).fragments).id
    assert torch.equal(second, torch.where(first >= 0, 1, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_g14_depth_order_with_a_wide_near_far_ratio(dtype):
    """Fault: depth keys lose their digits. Planes at 10 and 10.02 with near 0.01 and far 1000, tilted by 5 degrees."""
    height, width, fov = 40, 56, 60.0
    tilt = np.tan(np.radians(5.0))
    corners = torch.tensor([[-20.0, -20.0], [20.0, -20.0], [20.0, 20.0], [-20.0, 20.0]], dtype=F64)

    def plane(distance):
        return torch.cat([corners, (-distance + tilt * corners[:, 1:])], -1)

    vertices = torch.cat([plane(10.02), plane(10.0)])  # the far one first
    triangles = [(0, 1, 2), (0, 2, 3), (4, 5, 6), (4, 6, 7)]
    clip = to_clip(vertices, perspective(fov, height, width, near=0.01, far=1000.0)).to(dtype)
    r = ras(clip, triangles, height, width)
    assert (r.id >= 2).all()
    depth = itp(-vertices[:, 2:].to(dtype), r, triangles)[0, :, :, 0]
    _, dy, _ = pixel_rays(fov, height, width).unbind(-1)
    truth = 10 / (1 + tilt * dy)  # z = -10 + tilt y on the ray t (dx, dy, -1)
    assert relative_error(depth, truth) < (1e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("scale", [1e4, 1e6, 1e8])
def test_g16_vertices_far_outside_the_frame(scale):
    """Fault: snapped coordinates overflow and an edge function changes its sign."""
    vertices = [[-scale, -scale, 0, 1], [3 * scale, -scale, 0, 1], [-scale, 3 * scale, 0, 1]]
    r = ras(vertices, [(0, 1, 2)], 17, 33)
    assert (r.id == 0).all()
    weights = itp(torch.eye(3), r, [(0, 1, 2)])[0, 8, 16]
    assert (weights - torch.tensor([0.5, 0.25, 0.25])).abs().max() < 1e-4


def test_g17_interpolation_is_perspective_correct():
    """Fault: attributes are mixed with screen-space weights (0.5 here instead of 0.25)."""
    vertices = [[-1, -1, 0, 1], [3, -3, 0, 3], [-1, 1, 0, 1]]
    r = ras(vertices, [(0, 1, 2)], 2, 5)
    value = itp([[0.0], [1.0], [0.0]], r, [(0, 1, 2)])[0, 1, 2, 0]
    assert abs(value - 0.25) < 1e-6


def test_g10_antialias_runs_on_single_pixel_rows_and_columns():
    """Of the kind of G10 for the edge op: frames of one row, one column, one pixel."""
    for height, width in ((1, 1), (1, 9), (9, 1)):
        p = P(height, width)
        positions = torch.tensor([p(-3, -2), p(0.5 * width + 0.3, -2), p(-3, 0.8 * height + 5)])
        r = ras(positions, [(0, 1, 2)], height, width)
        image = aa(mask(r), r, positions, [(0, 1, 2)])
        assert image.shape == (1, height, width, 1)
        assert image.min() >= 0
        assert image.max() <= 1
