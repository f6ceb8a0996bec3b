"""coverage of meshes with shared vertices, which takes short ways inside of surfaces and at their outlines, against the
same triangles with corners of their own, which are clipped one by one: areas, middles, depths, and both gradients."""

import pytest
import torch

import diffrender as dr
from tests.support.scenes import icosphere, perspective, rigid, to_clip

F64 = torch.float64
SIZES = [(12, 12), (5, 31), (24, 9), (17, 17), (1, 40)]
KINDS = ("whole", "holes", "mixed windings", "faces twice", "inside out", "faces at random", "on the grid", "near")


def randn(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=F64)


def surface(generator):
    """A sphere that is whole, noisy enough to cut through itself, bumpy, or nearly flat."""
    vertices, triangles = icosphere(int(torch.randint(0, 4, (), generator=generator)), dtype=F64)
    shape = int(torch.randint(0, 4, (), generator=generator))
    size = float(torch.rand((), generator=generator))
    if shape == 1:
        vertices = vertices * (1 + 0.6 * size * randn(generator, len(vertices), 1))
    elif shape == 2:
        vertices = vertices * (1 + 0.4 * (9 * size * vertices[:, :1]).sin() * (7 * vertices[:, 1:2] + size).sin())
    elif shape == 3:
        vertices = vertices * torch.tensor([1.0, 1.0, 0.02 + 0.3 * size], dtype=F64)
    return vertices, triangles.long()


def scene(seed, kind):
    """Clip positions, triangles and size of one to three surfaces."""
    generator = torch.Generator().manual_seed(seed)
    vertices, triangles, count = [], [], 0
    for _ in range(1 + seed % 3):
        points, faces = surface(generator)
        scale = 0.2 + torch.rand(1, generator=generator, dtype=F64)
        vertices.append(points * scale + 0.7 * randn(generator, 1, 3))
        triangles.append(faces + count)
        count += len(points)
    v, f = torch.cat(vertices), torch.cat(triangles)
    chance = torch.rand(len(f), generator=generator)
    if kind == "holes":
        f = f[chance < 0.8]
    elif kind == "mixed windings":
        f = torch.where((chance < 0.2)[:, None], f[:, [0, 2, 1]], f)
    elif kind == "faces twice":
        f = torch.cat([f, f[chance < 0.1]])
    elif kind == "inside out":
        f = f[:, [0, 2, 1]]
    elif kind == "faces at random":
        f = torch.cat([f, torch.randint(len(v), (10, 3), generator=generator)])
    height, width = SIZES[seed % len(SIZES)]
    if kind == "on the grid":  # corners on centres and borders of pixels, upright edges, faces without area
        v = (v * 8).round() / 8
        scale = torch.tensor([16 / width, 16 / height, 0.2], dtype=F64)
        return torch.nn.functional.pad(v * scale, (0, 1), value=1.0), f.int(), (height, width)
    away = torch.tensor([-0.6 if kind == "near" else -4.0], dtype=F64)
    pose = rigid(torch.cat([0.2 * randn(generator, 2), away, randn(generator, 3)]))
    return to_clip(v, perspective(50, height, width, near=0.1) @ pose), f.int(), (height, width)


def measured(positions, triangles, size, **options):
    """What each fragment adds to pixels, by (pixel, triangle), and the gradients of areas and of the rest."""
    found = dr.coverage(positions, triangles, size, **options)
    place = found.pixel.double() * 12.9898 + found.triangle_id.double() * 78.233
    a, b, c, d = (torch.sin(place * (k + 1) + k) for k in range(4))  # cotangents, the same in any order of fragments
    # The middle of next to nothing is unsure; what counts is its product with the area.
    middle = b * found.barycentrics[:, 0] + c * found.barycentrics[:, 1] + d * found.depth
    grads = [
        torch.autograd.grad(x.sum(), positions, retain_graph=True)[0] for x in (a * found.weight, found.weight * middle)
    ]
    key = found.pixel * max(1, len(triangles)) + found.triangle_id.long()
    values = torch.cat([torch.ones(len(key), 1, dtype=F64), found.barycentrics, found.depth[:, None]], 1)
    return key, (values * found.weight[:, None]).detach(), grads


def compare(seed, kind):
    """Number of places compared."""
    positions, triangles, size = scene(seed, kind)
    flat = triangles.long().reshape(-1)
    own = torch.arange(len(flat), dtype=torch.int32).reshape(-1, 3)
    options = {"cull": (None, "back", "front")[seed // 3 % 3]}
    shared, split = positions.clone().requires_grad_(), positions[flat].requires_grad_()
    key, values, grads = measured(shared, triangles, size, **options)
    own_key, own_values, own_grads = measured(split, own, size, **options)
    if kind == "on the grid":
        # Which of two triangles that lie on each other is seen, and on which side of a border an edge on it moves, is
        # decided by rounding; how much of the pixel is covered is not.
        key, own_key = key // len(triangles), own_key // len(triangles)
        values, own_values = values[:, :1], own_values[:, :1]
    places = torch.unique(torch.cat([key, own_key]))
    tables = [
        torch.zeros(len(places), x.shape[1], dtype=F64).index_add(0, torch.searchsorted(places, k), x)
        for k, x in ((key, values), (own_key, own_values))
    ]
    torch.testing.assert_close(*tables, rtol=0, atol=1e-9, msg=f"seed {seed}, {kind}")
    for grad, own_grad in zip(grads, own_grads, strict=True):
        assert torch.isfinite(grad).all(), (seed, kind)
        truth = torch.zeros_like(grad).index_add(0, flat, own_grad)
        if kind != "on the grid":
            assert (grad - truth).abs().max() < 1e-6 * (1 + truth.abs().max()), (seed, kind)
    return len(places)


@pytest.mark.parametrize("kind", KINDS)
def test_short_ways_give_what_clipping_gives(kind):
    assert sum(compare(seed, kind) for seed in range(6)) > 300


@pytest.mark.parametrize("seed", [43, 47, 65, 127])
def test_centres_on_edges_do_not_show_what_lies_behind(seed):
    """Two neighbours that meet at a centre, behind another surface: neither seemed to have it, and both were shown."""
    compare(seed, "on the grid")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_short_ways_give_what_clipping_gives_in_many_scenes(kind):
    assert sum(compare(seed, kind) for seed in range(6, 106)) > 3000


@pytest.mark.parametrize("kind", ["whole", "holes", "mixed windings", "near"])
@pytest.mark.parametrize("merge", [False, True])
def test_pixels_taken_four_at_once_have_the_gradient_of_pixels_one_by_one(kind, merge):
    """The order-free sum takes every pixel by the kernel that clips, on the CPU too."""
    op, kinds_found = torch.ops.diffrender, set()
    for seed in range(5):
        positions, triangles, _ = scene(seed, kind)
        positions, size = positions[None], (48, 67)  # many pixels inside of triangles and across one edge
        found = op.coverage_fragments(positions, triangles, None, *size, 0, merge, True, -1, -1, -1)
        triangle_id, weight, _, _, offsets, kinds, counts = found
        kinds_found.update(kinds.tolist())
        generator = torch.Generator().manual_seed(seed)
        # The middle of next to nothing is unsure; what counts is its product with the area.
        cotangents = (
            randn(generator, len(weight)),
            weight[:, None] * randn(generator, len(weight), 2),
            weight * randn(generator, len(weight)),
        )
        lists = (positions, triangles, offsets, triangle_id, kinds, int(counts[2]), *size)
        for k in range(4):
            given = [x if k in (n, 3) else None for n, x in enumerate(cotangents)]
            together, alone = (op.coverage_backward(*lists, *given, order_free) for order_free in (0, 1))
            assert torch.isfinite(together).all()
            assert (together - alone).abs().max() <= 1e-9 * alone.abs().max(), (seed, kind, k)
    assert kinds_found >= ({0, 2} if merge else {0, 2, 3})


def test_fan_whose_corner_lies_on_the_border_of_two_pixels_has_a_gradient():
    """One row of pixels, an upright edge through the border between two of them."""
    corners = [
        [0.1, 2, -0.2],
        [0.3, 2, -0.2],
        [0.2, 0, -0.25],
        [0.05, -4, -0.225],
        [0.2, -6, -0.25],
        [0.35, -4, -0.225],
    ]
    positions = torch.nn.functional.pad(torch.tensor(corners, dtype=F64), (0, 1), value=1.0).requires_grad_()
    triangles = torch.tensor([[0, 1, 2], [0, 2, 3], [3, 2, 4], [2, 1, 5], [5, 4, 2]])
    found = dr.coverage(positions, triangles, (1, 40))
    weights = torch.rand(found.weight.shape, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert torch.isfinite(torch.autograd.grad(found.weight, positions, weights)[0]).all()
