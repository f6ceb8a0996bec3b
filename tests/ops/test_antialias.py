"""What is special to antialias(method="pairs"): weights on known edges, silhouettes, convex mixes, known areas."""

import itertools
import math

import pytest
import torch

import diffrender as dr
from tests.reference import antialias as reference
from tests.reference.topology import edge_topology
from tests.support.scenes import icosphere, perspective, random_scene, rigid, to_clip
from tests.support.vocabulary import P, aa, g, mask, ras, relative_error, rnd, uniform

F64 = torch.float64
TRIANGLE = torch.tensor([[0, 1, 2]])


def mask_sum(positions, triangles, size):
    """Sum of the antialiased mask: the area that the picture shows."""
    r = ras(positions, triangles, *size)
    return aa(mask(r, positions.dtype), r, positions, triangles).sum()


def in_pixels(points, size, dtype=F64):
    p = P(*size)
    return torch.tensor([p(*xy) for xy in points], dtype=dtype)


def pixel_gradient(loss, points, size):
    """Gradient of loss(clip positions) by pixel coordinates of the corners (w = 1): (V, 2), x right and y down."""
    grad = g(loss, in_pixels(points, size))
    return torch.stack([grad[:, 0] * 2 / size[1], -grad[:, 1] * 2 / size[0]], -1)


# --- closed forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.1, 0.3, 0.49, 0.51, 0.7, 0.95])
@pytest.mark.parametrize("side", ["left", "right", "top", "bottom"])
def test_straight_edge_blends_by_its_distance(side, shift):
    """A half-plane whose edge lies `shift` pixels past the centres of line 4, in all four directions."""
    size = (9, 11)
    place = 4.5 + shift
    points = {
        "right": [(place, -90), (place, 90), (-200, 0)],
        "left": [(place, -90), (place, 90), (200, 0)],
        "bottom": [(-90, place), (90, place), (0, -200)],
        "top": [(-90, place), (90, place), (0, 200)],
    }[side]
    positions = in_pixels(points, size)
    r = ras(positions, TRIANGLE, *size)
    blended = aa(mask(r, F64), r, positions, TRIANGLE)[0, ..., 0]
    if side in ("top", "bottom"):
        blended = blended.T
    # The pixel that the edge is in shows the part that is covered, if "in" is meant by halves between centres.
    covered = torch.where(torch.arange(blended.shape[1]) < 4.9, 1.0, 0.0).double()
    if shift < 0.5:
        covered[4] = 0.5 + shift
    else:
        covered[5] = shift - 0.5
    if side in ("left", "top"):
        covered = 1 - covered
    torch.testing.assert_close(blended, covered.expand_as(blended), rtol=0, atol=1e-12)


def test_oblique_edge_gets_its_length_once_over_both_axes():
    """n_x^2 + n_y^2 = 1: the sum over both kinds of pairs gives the area's derivative for every slope."""
    size = (64, 64)
    for degrees in range(0, 360, 15):
        angle = math.radians(degrees + 1.3)
        centre, radius = (32.17, 31.71), 19.3
        quarters = [angle + k * math.pi / 2 for k in range(4)]
        points = [(centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in quarters]
        square = torch.tensor([[0, 1, 2], [0, 2, 3]])
        grad = pixel_gradient(lambda x, s=square: mask_sum(x, s, size), points, size)
        outward = torch.tensor(points, dtype=F64) - torch.tensor(centre, dtype=F64)
        growth = (grad * outward).sum()  # d(area) / d(log scale) = 2 area
        area = 2 * radius**2
        assert abs(growth / (2 * area) - 1) < 0.03
        # Moving the square changes nothing. What is left are pairs at its corners.
        assert grad.sum(0).abs().max() < 0.1 * radius


@pytest.mark.parametrize("corners", [12, 64])
def test_area_and_scale_gradient_of_a_regular_polygon(corners):
    """An n-gon of radius 9: dA/dr = n r sin(2 pi / n), 56.46 for n = 64; a turn changes nothing.

    With 64 corners the triangles of the fan are less than a pixel wide: many pairs reach the outline through spokes.
    """
    size = (32, 32)
    angles = [2 * math.pi * k / corners + 0.1 for k in range(corners)]
    centre, radius = (16.23, 15.81), 9.0
    points = [centre, *((centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in angles)]
    fan = torch.tensor([[0, 1 + k, 1 + (k + 1) % corners] for k in range(corners)])
    grad = pixel_gradient(lambda x: mask_sum(x, fan, size), points, size)
    outward = (torch.tensor(points, dtype=F64) - torch.tensor(centre, dtype=F64)) / radius
    along = torch.stack([-outward[:, 1], outward[:, 0]], -1)
    truth = corners * radius * math.sin(2 * math.pi / corners)
    assert abs((grad * outward).sum() - truth) < 0.03 * truth
    assert abs((grad * along).sum()) < 0.03 * truth
    assert (grad[0] == 0).all()  # the hub is on no silhouette


def test_mean_over_subpixel_shifts_is_unbiased():
    """One-pixel sweep of a 10-pixel triangle against the gradient of its area (O1, O13).

    What is missing are the corners, where a pair's way out is through the other edge: 6 percent of the growth here.
    """
    size = (24, 24)
    base = [(7.0, 6.0), (17.0, 8.0), (10.0, 17.0)]
    a, b, c = (torch.tensor(v, dtype=F64) for v in base)

    def turned(v):
        return torch.stack([v[1], -v[0]])

    truth = torch.stack([turned(c - b), turned(a - c), turned(b - a)]) / 2
    truth = -truth if (truth * torch.stack([a, b, c])).sum() < 0 else truth
    total = torch.zeros(3, 2, dtype=F64)
    steps = 12
    for i, j in itertools.product(range(steps), repeat=2):
        shifted = [(x + (i + 0.37) / steps, y + (j + 0.61) / steps) for x, y in base]
        total += pixel_gradient(lambda x: mask_sum(x, TRIANGLE, size), shifted, size)
    assert relative_error(total / steps**2, truth) < 0.1
    growth = ((total / steps**2) * torch.tensor(base, dtype=F64)).sum()
    area_growth = (truth * torch.tensor(base, dtype=F64)).sum()
    assert abs(growth / area_growth - 1) < 0.06


@pytest.mark.parametrize("slant", [-5e-4, 0.0, 5e-4])
@pytest.mark.parametrize("hair", [-1e-3, 1e-3])
def test_edge_that_a_pair_runs_along_is_not_its_exit(hair, slant):
    """Coverage is decided on snapped corners, so a top edge may lie a hair below the centres of its first row. The
    pairs of that row at the right side still belong to the right side.
    """
    size = (16, 16)
    points = [(3.2, 4.5 + hair - slant), (9.3, 4.5 + hair + slant), (9.3, 11.5), (3.2, 11.5)]
    square = torch.tensor([[0, 1, 2], [0, 2, 3]])
    positions = in_pixels(points, size)
    r = ras(positions, square, *size)
    assert (r.id[0, 4, 3:9] >= 0).all()
    grad = pixel_gradient(lambda x: mask_sum(x, square, size), points, size)
    torch.testing.assert_close(grad[[1, 2], 0].sum(), torch.tensor(7.0, dtype=F64), rtol=1e-3, atol=0)


# --- silhouettes ----------------------------------------------------------------------------------


def test_inner_edges_of_a_closed_mesh_change_nothing():
    """With a different colour on every face of a sphere only pixels at its outline change, and only outline vertices
    get a gradient."""
    size = (40, 40)
    vertices, triangles = icosphere(1, dtype=F64)
    positions = to_clip(vertices, perspective(45, *size) @ rigid(torch.tensor([0.05, 0, -3.0, 0.3, 0.2, 0], dtype=F64)))
    r = ras(positions, triangles, *size)
    colour = uniform(len(triangles) + 1, 3, dtype=F64)[r.id]
    blended = aa(colour, r, positions, triangles)
    changed = (blended != colour).any(-1)
    outside = torch.nn.functional.max_pool2d((r.id < 0).double(), 3, stride=1, padding=1) > 0
    assert changed.sum() > 60
    assert not (changed & ~outside).any()

    facing = facing_triangles(positions, triangles)
    on_outline = torch.zeros(len(vertices), dtype=torch.bool)
    on_outline[list(set(triangles[facing].flatten().tolist()) & set(triangles[~facing].flatten().tolist()))] = True
    grad = g(lambda x: (aa(colour, r, x, triangles) * rnd(*colour.shape, dtype=F64)).sum(), positions)
    assert (grad[~on_outline] == 0).all()
    assert grad[on_outline].any()
    assert (grad[:, 2] == 0).all()  # depth moves no outline


def facing_triangles(positions, triangles):
    p = positions[triangles.long()][..., [0, 1, 3]]
    return torch.linalg.det(p) > 0


def test_front_surface_owns_the_edge_over_a_back_surface():
    """Two squares at different depth, listed in both orders: only the front one's vertices get a gradient."""
    size = (20, 20)
    p = P(*size)
    front = [p(5.3, 4.2, z=-0.5), p(13.4, 4.2, z=-0.5), p(13.4, 12.7, z=-0.5), p(5.3, 12.7, z=-0.5)]
    back = [p(-9, -9, z=0.5), p(30, -9, z=0.5), p(30, 30, z=0.5), p(-9, 30, z=0.5)]
    for order in ((front, back), (back, front)):
        positions = torch.tensor(order[0] + order[1], dtype=F64)
        triangles = torch.tensor([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]])
        first = slice(0, 4) if order[0] is front else slice(4, 8)
        r = ras(positions, triangles, *size)
        is_front = ((r.id < 2) == (order[0] is front)).double()[..., None]
        grad = g(lambda x, r=r, i=is_front, t=triangles: aa(i, r, x, t).sum(), positions)
        assert grad[first].any()
        rest = torch.ones(8, dtype=torch.bool)
        rest[first] = False
        assert (grad[rest] == 0).all()


def test_topology_once_per_mesh_equals_topology_per_call():
    vertices, triangles = icosphere(1, dtype=F64)
    pose = torch.tensor([0.05, 0, -3.0, 0.3, 0.2, 0], dtype=F64)
    positions = to_clip(vertices, perspective(45, 30, 30) @ rigid(pose))
    r = ras(positions, triangles, 30, 30)
    image = uniform(1, 30, 30, 3, dtype=F64)
    once = dr.edge_topology(triangles)
    assert torch.equal(once, dr.edge_topology(triangles.long()))
    for topology in (once, once.long()):
        assert torch.equal(aa(image, r, positions, triangles, topology=topology), aa(image, r, positions, triangles))


# --- convex mix -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_random_scenes_equal_the_reference(dtype):
    """Value and both gradients on scenes with every kind of bad triangle, under a random cotangent."""
    active = 0
    for seed in range(40):
        positions, triangles, size = random_scene(seed, dtype)
        r = ras(positions, triangles, *size)
        if (r.id == -1).all():
            continue
        image, cotangent = uniform(1, *size, 2, seed=seed, dtype=dtype), rnd(1, *size, 2, seed=seed, dtype=dtype)
        blended = aa(image, r, positions, triangles)
        assert torch.isfinite(blended).all()
        for c in range(2):
            assert image[..., c].min() - 1e-6 <= blended[..., c].min()
            assert blended[..., c].max() <= image[..., c].max() + 1e-6
        if dtype == torch.float32:
            continue  # near ties and grazing edges choose differently in single precision; ranges are what has to hold
        topology = edge_topology(triangles, positions)
        truth = reference.antialias(image, r.fragments, positions, triangles, topology)
        assert (blended - truth).abs().max() < 1e-9, seed
        active += int((truth != image).any(-1).sum())
        for which, leaf in enumerate((image, positions)):

            def both(x, which=which, image=image, positions=positions):
                return (x, positions) if which == 0 else (image, x)

            value = g(lambda x, b=both, r=r, t=triangles, w=cotangent: (w * aa(b(x)[0], r, b(x)[1], t)).sum(), leaf)
            expected = g(
                lambda x, b=both, r=r, t=triangles, w=cotangent, e=topology: (
                    w * reference.antialias(b(x)[0], r.fragments, b(x)[1], t, e)
                ).sum(),
                leaf,
            )
            finite = torch.isfinite(expected)
            assert torch.isfinite(value).all(), seed
            assert relative_error(torch.where(finite, value, 0.0), torch.where(finite, expected, 0.0)) < 1e-7, seed
    if dtype == F64:
        assert active > 1000


def test_image_gradient_is_the_adjoint_and_sums_are_kept():
    """The blend is linear in the image with rows that add to one: <J x, y> = <x, J^T y>, J 1 = 1."""
    positions, triangles, size = random_scene(12, F64)
    r = ras(positions, triangles, *size)
    x, y = rnd(1, *size, 3, dtype=F64), rnd(1, *size, 3, seed=1, dtype=F64)
    forward = (aa(x, r, positions, triangles) * y).sum()
    backward = (x * g(lambda image: (aa(image, r, positions, triangles) * y).sum(), torch.zeros_like(x))).sum()
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=1e-12)
    ones = torch.ones(1, *size, 1, dtype=F64)
    torch.testing.assert_close(aa(ones, r, positions, triangles), ones, rtol=0, atol=1e-15)


def test_identity_leaves_the_image_and_keeps_the_gradient_of_the_positions():
    for seed in range(8):
        positions, triangles, size = random_scene(seed, F64)
        r = ras(positions, triangles, *size)
        image, cotangent = uniform(1, *size, 2, seed=seed, dtype=F64), rnd(1, *size, 2, seed=seed, dtype=F64)
        image.requires_grad_()
        leaf = positions.clone().requires_grad_()
        options = {"method": "pairs", "topology": dr.edge_topology(triangles, positions)}
        same = dr.antialias(image, r.fragments, leaf, triangles, forward="identity", **options)
        assert torch.equal(same, image)
        grad_image, grad = torch.autograd.grad((same * cotangent).sum(), (image, leaf), retain_graph=True)
        assert torch.equal(grad_image, cotangent)
        assert torch.equal(torch.autograd.grad((same * cotangent).sum(), image)[0], cotangent)  # alone as well
        blended = dr.antialias(image, r.fragments, leaf, triangles, **options)
        assert torch.equal(torch.autograd.grad((blended * cotangent).sum(), leaf)[0], grad), seed
    assert (blended - image).abs().max() > 0.1
    assert grad.abs().max() > 0.1


def test_mirrored_scenes_give_mirrored_results():
    """Flipping x, y or both axes of the scene flips image and gradients: last rows and columns take part too."""
    positions, triangles, size = random_scene(14, F64)
    finite = torch.isfinite(positions).all(-1)
    triangles = triangles[finite[triangles.long()].all(-1)]
    image, cotangent = uniform(1, *size, 2, dtype=F64), rnd(1, *size, 2, dtype=F64)

    def run(flip):
        sign = torch.tensor([-1.0 if 2 in flip else 1.0, -1.0 if 1 in flip else 1.0, 1.0, 1.0], dtype=F64)
        x = (positions * sign).requires_grad_()
        r = ras(x, triangles, *size)
        blended = aa(image.flip(flip), r, x, triangles)
        (grad,) = torch.autograd.grad((blended * cotangent.flip(flip)).sum(), x)
        return r.id.flip(flip), blended.flip(flip), grad * sign

    plain = run([])
    for flip in ([1], [2], [1, 2]):
        ids, blended, grad = run(flip)
        assert torch.equal(ids, plain[0])
        torch.testing.assert_close(blended, plain[1], rtol=1e-9, atol=1e-9)
        assert relative_error(grad[finite], plain[2][finite]) < 1e-7


def test_nothing_changes_without_an_edge_in_the_frame():
    """A triangle over everything, and one outside: the image comes back bit for bit, and the border is no edge."""
    size = (7, 9)
    image = uniform(1, *size, 3, dtype=F64)
    for points in ([(-30, -30), (60, -30), (-30, 60)], [(20, 20), (30, 20), (20, 30)]):
        positions = in_pixels(points, size)
        r = ras(positions, TRIANGLE, *size)
        assert torch.equal(aa(image, r, positions, TRIANGLE), image)
        grad = g(lambda x, r=r: (aa(image, r, x, TRIANGLE) * image).sum(), positions)
        assert (grad == 0).all()
