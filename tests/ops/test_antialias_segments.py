"""What is special to antialias(method="segments"): closed forms (the oracles O1 to O12 of the design), symmetries,
edges cut by the view volume, broken meshes, and what the options do.

Colours are constant per surface in the closed forms, so the blend is the exact mean over each pixel and the gradient is
the exact derivative of it: tolerances are rounding, not model error.
"""

import itertools
import math

import pytest
import torch

import diffrender as dr
from tests.support.scenes import cube, icosphere, perspective, rigid, to_clip
from tests.support.vocabulary import P, g, rnd, uniform

F64 = torch.float64
QUAD = [[0, 1, 2], [0, 2, 3]]
FAN = torch.tensor([[0, 1, 2]])


def in_pixels(points, size, z=0.0, dtype=F64):
    p = P(*size)
    depths = z if isinstance(z, list) else [z] * len(points)
    return torch.tensor([p(x, y, z=d) for (x, y), d in zip(points, depths, strict=True)], dtype=dtype)


def picture(positions, triangles, size, colors, background=0.0, **options):
    """Antialiased picture (H, W) in which every triangle has a colour of its own."""
    fragments = dr.rasterize(positions, triangles, size)
    values = torch.as_tensor(colors, dtype=positions.dtype)
    shown = fragments.triangle_id[..., None]
    image = torch.where(shown < 0, torch.full((), background, dtype=positions.dtype), values[shown.clamp(min=0).long()])
    return dr.antialias(image, fragments, positions, triangles, **options)[0, ..., 0]


def pixel_gradient(loss, positions, size):
    """(V, 2) gradient by the pixel position of every corner (w = 1), y down."""
    grad = g(loss, positions)
    return torch.stack([grad[:, 0] * 2 / size[1], -grad[:, 1] * 2 / size[0]], -1)


def close(value, truth, atol=1e-9):
    torch.testing.assert_close(value, torch.as_tensor(truth, dtype=value.dtype), rtol=0, atol=atol)


def area_of(positions, triangles, size, **options):
    return picture(positions, triangles, size, [1.0] * len(triangles), **options).sum()


# --- oracles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("forward", ["area", "identity"])
def test_o1_area_of_a_triangle(forward):
    """Half the turned opposite edge; and the area itself."""
    size = (24, 24)
    positions = in_pixels([(4, 3), (20, 6), (9, 17)], size)
    if forward == "area":
        close(area_of(positions, FAN, size), 104.5)
    grad = pixel_gradient(lambda x: area_of(x, FAN, size, forward=forward), positions, size)
    close(grad, [(-5.5, -5.5), (7.0, -2.5), (-1.5, 8.0)])


def test_o2_invariance_to_translation_and_rotation():
    size = (25, 31)
    points = torch.tensor([(4.31, 3.77), (20.2, 6.9), (9.45, 17.12)], dtype=F64)
    positions = in_pixels(points.tolist(), size)
    grad = pixel_gradient(lambda x: area_of(x, FAN, size), positions, size)
    close(grad.sum(0), [0.0, 0.0])
    close((grad * torch.stack([-points[:, 1], points[:, 0]], -1)).sum(), 0.0)
    close((grad * points).sum(), 2 * area_of(positions, FAN, size))


@pytest.mark.parametrize("s", [0.3, 0.5, 0.9, 1.1, 1.3, 1.75])
def test_o3_corner_of_a_pixel(s):
    """The half-plane x + y < 4 + s covers s^2 / 2 or 1 - (2 - s)^2 / 2 of the third pixel of the third row."""
    size = (5, 5)
    positions = in_pixels([(-20, s + 24), (s + 24, -20), (-30, -30)], size)
    shown = picture(positions, FAN, size, [1.0])
    close(shown[2, 2], s * s / 2 if s <= 1 else 1 - (2 - s) ** 2 / 2)
    grad = pixel_gradient(lambda x: picture(x, FAN, size, [1.0])[2, 2], positions, size)
    # Moving both ends of the edge by (d, 0) makes s grow by d.
    close(grad[:2, 0].sum(), s if s <= 1 else 2 - s)


def test_o3_vertical_edge():
    size = (3, 9)
    positions = in_pixels([(5.3, -40), (5.3, 40), (-90, 0)], size)
    close(picture(positions, FAN, size, [1.0])[:, 5], [0.3] * 3)
    grad = pixel_gradient(lambda x: area_of(x, FAN, size), positions, size)
    close(grad[:2, 0].sum(), 3.0)


def test_o4_border_of_the_image():
    """Nothing comes from outside of the frame."""
    size = (24, 24)
    positions = in_pixels([(10, -8), (10, 40), (-60, 40), (-60, -8)], size)
    close(area_of(positions, torch.tensor(QUAD), size), 240.0)
    grad = pixel_gradient(lambda x: area_of(x, torch.tensor(QUAD), size), positions, size)
    close(grad, [(14.0, 0.0), (10.0, 0.0), (0.0, 0.0), (0.0, 0.0)])


def test_o5_o6_flat_colours_with_seams():
    """Triangles of different colours side by side: sum of (c_f - c_bg) dA_f. Without seams only the outline counts, and
    with equal colours inner vertices get exactly nothing."""
    size = (26, 28)
    points = [(3.3, 4.1), (24.2, 3.2), (22.7, 22.9), (4.4, 21.6), (13.2, 11.7)]
    positions = in_pixels(points, size)
    fan = torch.tensor([[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]])
    colors, background = [0.9, 0.2, 0.65, 0.4], 0.1
    corners = torch.tensor(points, dtype=F64, requires_grad=True)
    areas = [
        ((corners[b] - corners[a])[0] * (corners[c] - corners[a])[1] - (corners[b] - corners[a])[1]
         * (corners[c] - corners[a])[0]).abs() / 2
        for a, b, c in fan.tolist()
    ]  # fmt: skip
    total = sum(a * (c - background) for a, c in zip(areas, colors, strict=True))
    (truth,) = torch.autograd.grad(total, corners)
    seams = torch.arange(4).repeat_interleave(3).reshape(4, 3)

    def loss(x):
        return picture(x, fan, size, colors, background, seams=seams).sum()

    close(loss(positions), total.detach() + background * 26 * 28)
    close(pixel_gradient(loss, positions, size), truth)
    uniform_grad = pixel_gradient(lambda x: picture(x, fan, size, [0.7] * 4, 0.1, seams=seams).sum(), positions, size)
    assert uniform_grad[:4].abs().min() > 1
    assert (uniform_grad[4] == 0).all()
    without = pixel_gradient(lambda x: picture(x, fan, size, colors, background).sum(), positions, size)
    assert (without[4] == 0).all()


def test_o7_swap_of_a_shared_edge():
    size = (20, 20)
    positions = in_pixels([(3.2, 2.1), (16.8, 4.3), (15.1, 17.4), (4.7, 14.9)], size)
    results = [
        (picture(positions, t, size, [1.0, 1.0]), g(lambda x, t=t: area_of(x, t, size) ** 2, positions))
        for t in (torch.tensor(QUAD), torch.tensor([[0, 1, 3], [1, 2, 3]]))
    ]
    close(results[0][0], results[1][0], atol=1e-12)
    close(results[0][1], results[1][1], atol=1e-8)


def rectangle(left, top, right, bottom):
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


TWO_QUADS = torch.tensor([*QUAD, [4, 5, 6], [4, 6, 7]])


def test_o8_occlusion():
    """Near rectangle of colour 1 over a far one of colour 1/2, edges inside of pixels."""
    size = (18, 22)
    near, far = rectangle(4.0, 4.0, 10.0, 12.0), rectangle(8.0, 6.0, 18.0, 14.0)
    positions = in_pixels(near + far, size, z=[-0.5] * 4 + [0.5] * 4)
    colors = [1.0, 1.0, 0.5, 0.5]
    close(picture(positions, TWO_QUADS, size, colors).sum(), 82.0)
    # Edges on the lines between pixels belong to one side; a hair off them the answer is unique.
    positions = in_pixels([(x + 0.01, y + 0.02) for x, y in near + far], size, z=[-0.5] * 4 + [0.5] * 4)
    close(picture(positions, TWO_QUADS, size, colors).sum(), 82.0)
    grad = pixel_gradient(lambda x: picture(x, TWO_QUADS, size, colors).sum(), positions, size)
    close(grad[[1, 2], 0].sum(), 5.0)
    close(grad[[4, 7], 0].sum(), -1.0)
    close(grad[[4, 5], 1].sum(), -4.0)
    close(grad[[6, 7], 1].sum(), 5.0)


def test_o9_hidden_objects_get_nothing():
    size = (20, 20)
    near, far = rectangle(3.2, 3.4, 16.7, 17.1), rectangle(6.3, 6.6, 13.2, 12.9)
    positions = in_pixels(near + far, size, z=[-0.5] * 4 + [0.5] * 4)
    grad = pixel_gradient(lambda x: picture(x, TWO_QUADS, size, [1.0, 1.0, 0.3, 0.3]).sum(), positions, size)
    assert (grad[4:] == 0).all()
    assert grad[:4].abs().max() > 1
    # The small one in front: the large one gets the gradient of its own outline only.
    positions = in_pixels(near + far, size, z=[0.5] * 4 + [-0.5] * 4)
    alone = pixel_gradient(lambda x: area_of(x[:4], torch.tensor(QUAD), size), positions, size)
    grad = pixel_gradient(lambda x: picture(x, TWO_QUADS, size, [1.0, 1.0, 0.3, 0.3]).sum(), positions, size)
    close(grad[:4], alone[:4])


@pytest.mark.parametrize("degrees", [0, 15, 45, 77, 90])
def test_o10_interpenetration(degrees):
    """Two rectangles over each other, sloping in opposite directions. Shifting one in depth moves the line of crossing:
    length / |grad(z_A - z_B)|, whatever the angle."""
    size = (40, 40)
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=F64)
    half = torch.tensor([(-12.0, -4.0), (12.0, -4.0), (12.0, 4.0), (-12.0, 4.0)], dtype=F64)
    points = (half @ turn.T + torch.tensor([20.13, 19.87], dtype=F64)).tolist()
    # z from -0.12 to +0.12 along the long side for A, the opposite for B: the difference has the slope 0.02.
    depths = [-0.12, 0.12, 0.12, -0.12, 0.12, -0.12, -0.12, 0.12]
    positions = in_pixels(points + points, size, z=depths)
    colors = [1.0, 1.0, 0.0, 0.0]
    # A shows where it is nearer, left of the crossing: half of 24 x 8. Both outlines lie in one place: a pixel at their
    # corners, in which neither shows at the centre, may count a corner twice.
    close(picture(positions, TWO_QUADS, size, colors).sum(), 96.0, atol=0.25)
    grad = g(lambda x: picture(x, TWO_QUADS, size, colors).sum(), positions)[:, 2]
    close(grad[:4].sum(), -8 / 0.02, atol=1e-6)
    close(grad[4:].sum(), 8 / 0.02, atol=1e-6)


def test_o11_pinhole_scaling():
    size, focal = (48, 48), 32.0

    def project(side, distance, shift):
        corners = torch.tensor(rectangle(-0.5, -0.5, 0.5, 0.5), dtype=F64) * side
        x, y = corners[:, 0] + shift, corners[:, 1]
        w = distance.expand(4)
        return torch.stack([x * focal * 2 / size[1], -y * focal * 2 / size[0], 0.3 * w, w], -1)

    side, distance, shift = (torch.tensor(v, dtype=F64, requires_grad=True) for v in (1.0, 2.0, 0.003))
    area = area_of(project(side, distance, shift), torch.tensor(QUAD), size)
    close(area.detach(), 256.0)
    grads = torch.autograd.grad(area, (side, distance, shift))
    close(torch.stack(grads), [512.0, -256.0, 0.0], atol=1e-8)


def test_o12_regular_polygon():
    size, corners, radius = (32, 32), 64, 9.0
    angles = torch.arange(corners, dtype=F64) * (2 * math.pi / corners) + 0.1
    outward = torch.stack([angles.cos(), angles.sin()], -1)
    points = [(16.23, 15.81), *(outward * radius + torch.tensor([16.23, 15.81], dtype=F64)).tolist()]
    fan = torch.tensor([[0, 1 + k, 1 + (k + 1) % corners] for k in range(corners)])
    grad = pixel_gradient(lambda x: area_of(x, fan, size), in_pixels(points, size), size)[1:]
    close((grad * outward).sum(), 56.45787282982691, atol=1e-9)
    close((grad * torch.stack([-outward[:, 1], outward[:, 0]], -1)).sum(), 0.0)


# --- symmetry -------------------------------------------------------------------------------------


def ball_and_box(dtype=F64):
    """A cube that cuts through a sphere; no edge on a line between pixels or through a centre."""
    ball, ball_triangles = icosphere(1, dtype=F64)
    box, box_triangles = cube(0.55, dtype=F64)
    pose = rigid(torch.tensor([0.03, -0.02, -3.1, 0.4, 0.6, -0.2], dtype=F64))
    vertices = torch.cat([ball, box + torch.tensor([0.6, 0.2, 0.4], dtype=F64)])
    clip = to_clip(vertices, perspective(50, 32, 32) @ pose)
    return (
        clip.to(dtype),
        torch.cat([ball_triangles, box_triangles + len(ball)]),
        rnd(len(vertices), 3, seed=3).to(dtype),
    )


def gradient_of(clip, triangles, colors, weights, **options):
    clip, colors = clip.clone().requires_grad_(), colors.clone().requires_grad_()
    fragments = dr.rasterize(clip, triangles, (32, 32), cull=options.get("cull"))
    image = dr.antialias(dr.interpolate(colors, triangles, fragments), fragments, clip, triangles, **options)
    return image.detach(), *torch.autograd.grad((image * weights).sum(), (clip, colors))


@pytest.mark.parametrize("turn", ["mirror x", "mirror y", "transpose"])
def test_turned_scenes_give_turned_results(turn):
    clip, triangles, colors = ball_and_box()
    weights = rnd(1, 32, 32, 3, seed=4).double()
    image, grad, grad_colors = gradient_of(clip, triangles, colors, weights)
    matrix = torch.diag(torch.tensor([-1.0, 1, 1, 1] if turn == "mirror x" else [1.0, -1, 1, 1], dtype=F64))
    move = (lambda x: x.flip(2)) if turn == "mirror x" else (lambda x: x.flip(1))
    if turn == "transpose":  # rows run down and y up: x and -y change places
        matrix = torch.tensor([[0, -1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=F64)
        move = lambda x: x.transpose(1, 2)  # noqa: E731
    other_image, other_grad, other_colors = gradient_of(clip @ matrix.T, triangles, colors, move(weights).contiguous())
    close(move(other_image), image, atol=1e-9)
    close(other_grad @ matrix, grad, atol=1e-7)
    close(other_colors, grad_colors, atol=1e-9)


def test_shift_by_whole_pixels_shifts_the_result():
    size, triangle = (32, 32), FAN
    points = [(6.37, 5.21), (17.84, 8.46), (10.11, 19.73)]
    here, there = (in_pixels([(x + d, y + 2 * d) for x, y in points], size) for d in (0, 5))
    first, second = (picture(p, triangle, size, [1.0]) for p in (here, there))
    close(second[10:, 5:], first[:-10, :-5], atol=1e-12)
    grads = [pixel_gradient(lambda x: area_of(x, triangle, size), p, size) for p in (here, there)]
    close(grads[0], grads[1])


def test_order_of_triangles_corners_and_vertices_does_not_matter():
    clip, triangles, colors = ball_and_box()
    weights = rnd(1, 32, 32, 3, seed=4).double()
    image, grad, _ = gradient_of(clip, triangles, colors, weights)
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        order = torch.randperm(len(clip), generator=generator)
        place = torch.argsort(order)
        moved = place[triangles.long()][torch.randperm(len(triangles), generator=generator)]
        moved = moved.roll(1, dims=1)
        moved[::2] = moved[::2].flip(1)  # the other winding
        other_image, other_grad, _ = gradient_of(clip[order], moved, colors[order], weights)
        close(other_image, image, atol=1e-9)
        close(other_grad[place], grad, atol=1e-7)


def test_split_vertices_and_copies_behind_change_nothing():
    """uv seams are no silhouettes (D05), and a degenerate triangle or a second layer far behind adds no edge."""
    clip, triangles, colors = ball_and_box()
    weights = rnd(1, 32, 32, 3, seed=4).double()
    image, grad, _ = gradient_of(clip, triangles, colors, weights)
    index = triangles.long().reshape(-1)
    split_image, split_grad, _ = gradient_of(
        clip[index], torch.arange(len(index)).reshape(-1, 3), colors[index], weights
    )
    close(split_image, image, atol=1e-9)
    close(torch.zeros_like(grad).index_add(0, index, split_grad), grad, atol=1e-7)
    degenerate = torch.cat([triangles, triangles[:5, [0, 0, 1]]])
    other_image, other_grad, _ = gradient_of(clip, degenerate, colors, weights)
    close(other_image, image, atol=1e-12)
    close(other_grad, grad, atol=1e-9)


def test_edge_of_several_triangles_counts_once():
    """A face listed twice, and a fin on an inner edge: by area and gradient the same as without them."""
    size = (24, 24)
    positions = in_pixels([(4, 3), (20, 6), (9, 17)], size)
    twice = torch.cat([FAN, FAN.flip(1)])
    close(area_of(positions, twice, size), 104.5)
    close(pixel_gradient(lambda x: area_of(x, twice, size), positions, size), [(-5.5, -5.5), (7.0, -2.5), (-1.5, 8.0)])
    points = [(3.2, 4.1), (20.3, 3.4), (19.7, 18.2), (4.4, 20.1), (13.1, 6.3)]
    positions = in_pixels(points, size, z=[0.1] * 4 + [0.2])
    finned = torch.tensor([*QUAD, [0, 2, 4]])  # the fin lies behind the quad, on its diagonal
    for a, b in zip(*(
        (area_of(positions, t, size), pixel_gradient(lambda x, t=t: area_of(x, t, size), positions, size))
        for t in (finned, torch.tensor(QUAD))
    ), strict=True):  # fmt: skip
        close(a, b)


def test_middle_between_two_pixels_takes_the_colour_of_its_own_side():
    """An edge from side to side of a pixel has its middle as near to the left as to the right neighbour: the one that
    lies deeper on the side that is looked for gives the colour, also where the scene is mirrored."""
    size = (5, 5)
    positions = in_pixels([(-10.0, 2.98 + 10.5 * 0.3), (15.0, 2.98 - 14.5 * 0.3), (2.0, -30.0)], size)
    ids = dr.rasterize(positions, FAN, size)
    image = torch.arange(25, dtype=F64).reshape(1, 5, 5, 1)
    mirrored_positions = positions * torch.tensor([-1.0, 1, 1, 1], dtype=F64)
    mirrored = dr.rasterize(mirrored_positions, FAN, size)
    there = dr.antialias(image.flip(2).contiguous(), mirrored, mirrored_positions, FAN)
    close(there.flip(2), dr.antialias(image, ids, positions, FAN))


def test_gradient_is_the_same_for_any_number_of_channels():
    """Copies of a channel with copies of the cotangent: twice the gradient, and the same blend."""
    clip, triangles, colors = ball_and_box()
    weights = rnd(1, 32, 32, 3, seed=4).double()
    image, grad, _ = gradient_of(clip, triangles, colors, weights)
    double_image, double_grad, _ = gradient_of(clip, triangles, colors.repeat(1, 5), weights.repeat(1, 1, 1, 5))
    close(double_image, image.repeat(1, 1, 1, 5), atol=1e-12)
    close(double_grad, 5 * grad, atol=1e-8)


def test_float32_agrees_with_float64():
    clip, triangles, colors = ball_and_box(torch.float32)
    weights = rnd(1, 32, 32, 3, seed=4)
    single = gradient_of(clip, triangles, colors, weights)
    double = gradient_of(clip.double(), triangles, colors.double(), weights.double())
    for a, b in zip(single, double, strict=True):
        assert (a.double() - b).norm() < 1e-4 * b.norm()


# --- edges that leave the view volume, broken meshes ------------------------------------------------


def test_edge_with_one_end_behind_the_eye():
    """A floor that runs from behind the camera to the horizon: its left and right edges end on screen."""
    size = (32, 32)
    floor = torch.tensor([[-1.0, -0.5, 1.0], [1.0, -0.5, 1.0], [1.0, -0.5, -6.0], [-1.0, -0.5, -6.0]], dtype=F64)

    def loss(vertices):
        return area_of(to_clip(vertices, perspective(60, *size)), torch.tensor(QUAD), size)

    grad = g(loss, floor)
    assert torch.isfinite(grad).all()
    for k, axis in ((0, 0), (1, 0), (2, 0), (3, 1), (2, 2)):
        step = torch.zeros_like(floor)
        step[k, axis] = 1e-5
        difference = (loss(floor + step) - loss(floor - step)) / 2e-5
        assert abs(difference - grad[k, axis]) < 1e-4 * grad.abs().max()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30, -1e30, 0.0])
def test_bad_vertices_poison_nothing(bad):
    """NaN, infinite, huge and w = 0: finite results, and the good triangle keeps its gradient."""
    size = (24, 24)
    good = in_pixels([(4.2, 3.1), (20.3, 6.2), (9.4, 17.3)], size, z=-0.5)
    alone = g(lambda x: area_of(x, FAN, size), good)
    wild = torch.tensor([[bad, 0.1, 0.2, 1.0], [0.3, bad, 0.1, 1.0], [0.1, 0.2, 0.3, bad]], dtype=F64)
    positions = torch.cat([good, wild])
    triangles = torch.tensor([[0, 1, 2], [3, 4, 5], [3, 3, 4]])
    fragments = dr.rasterize(positions, FAN, size)
    image = (fragments.triangle_id >= 0).double()[..., None]
    leaf = positions.clone().requires_grad_()
    blended = dr.antialias(image, fragments, leaf, triangles)
    assert torch.isfinite(blended).all()
    (grad,) = torch.autograd.grad(blended.sum(), leaf)
    assert torch.isfinite(grad[:3]).all()
    if not math.isfinite(bad):
        close(grad[:3], alone, atol=1e-8)
        assert (grad[3:] == 0).all()


def test_wild_ids_and_topology_read_no_foreign_memory():
    positions, triangles = in_pixels([(2.2, 1.1), (9.3, 2.2), (4.4, 8.3)], (10, 12)), torch.tensor([[0, 1, 2]])
    fragments = dr.rasterize(positions, triangles, (10, 12))
    strange = fragments._replace(triangle_id=torch.where(fragments.triangle_id < 0, -7, fragments.triangle_id))
    image = uniform(1, 10, 12, 3, seed=1, dtype=F64)
    op = torch.ops.diffrender
    mesh = (positions[None], triangles.int())

    def blended(ids, topology, exact=False):
        scene = (ids, *mesh, topology, None, None, 0)
        return op.antialias_segments(image, *scene, exact, *op.segments_marked(*scene))[0]

    for value in (2**31 - 1, -(2**31), 1, 2, -3, -2):
        topology = torch.full((1, 3), value, dtype=torch.int32)
        assert torch.isfinite(blended(strange.triangle_id, topology)).all()
        assert torch.isfinite(blended(strange.triangle_id, topology, True)).all()
    wild = torch.where(fragments.triangle_id < 0, 2**31 - 1, fragments.triangle_id)
    for exact in (False, True):
        assert torch.isfinite(blended(wild, torch.full((1, 3), -1, dtype=torch.int32), exact)).all()


def test_identity_leaves_the_image_and_its_gradient():
    clip, triangles, colors = ball_and_box()
    weights = rnd(1, 32, 32, 3, seed=4).double()
    fragments = dr.rasterize(clip, triangles, (32, 32))
    image = dr.interpolate(colors, triangles, fragments).requires_grad_()
    leaf = clip.clone().requires_grad_()
    same = dr.antialias(image, fragments, leaf, triangles, forward="identity")
    assert torch.equal(same, image)
    grad_image, grad = torch.autograd.grad((same * weights).sum(), (image, leaf))
    assert torch.equal(grad_image, weights)
    blended = dr.antialias(image, fragments, leaf, triangles)
    close(torch.autograd.grad((blended * weights).sum(), leaf)[0], grad, atol=0)


def test_culled_faces_have_no_edges():
    """A closed mesh without its back faces looks the same; a face that is left out moves nothing and hides nothing."""
    clip, triangles, colors = ball_and_box()
    weights = rnd(1, 32, 32, 3, seed=4).double()
    closed = gradient_of(clip, triangles, colors, weights)
    for a, b in zip(closed, gradient_of(clip, triangles, colors, weights, cull="back"), strict=True):
        close(a, b, atol=1e-7)
    size = (20, 20)
    near, far = rectangle(6.2, 6.4, 13.3, 12.9), rectangle(3.1, 3.2, 16.9, 17.3)
    positions = in_pixels(near + far, size, z=[-0.5] * 4 + [0.5] * 4)
    faces = torch.cat([TWO_QUADS[:2], TWO_QUADS[2:].flip(1)])  # opposite windings: one of the two is culled
    cull = "back" if (dr.rasterize(positions, faces, size, cull="back").triangle_id < 2).all() else "front"
    shown = dr.rasterize(positions, faces, size, cull=cull).triangle_id
    hidden = 0 if (shown >= 2).any() else 4
    image = uniform(1, *size, 1, seed=2, dtype=F64)
    fragments = dr.rasterize(positions, faces, size, cull=cull)
    grad = g(lambda x: (dr.antialias(image, fragments, x, faces, cull=cull) ** 2).sum(), positions)
    assert (grad[hidden : hidden + 4] == 0).all()
    assert grad.abs().max() > 0.1


def test_corner_that_touches_the_middle_of_an_edge_hides_nothing():
    """The corner of a near triangle lies on the edge of a far one, where the edge is halfway through a pixel."""
    far, near = [(4.0, 4.0), (20.25, 2.0), (20.25, 15.0)], [(20.25, 8.5), (29.25, 11.5), (26.25, 20.5)]
    positions = in_pixels(far + near, (24, 32), z=[0.5] * 3 + [0.1] * 3)
    triangles = torch.tensor([[0, 1, 2], [3, 4, 5]])
    for visibility in ("window", "exact"):
        image = picture(positions, triangles, (24, 32), [1.0, 0.0], visibility=visibility)
        close(image[6:11, 20], [0.25] * 5)


# --- visibility "exact" -----------------------------------------------------------------------------


def test_exact_visibility_sees_what_no_pixel_shows():
    """A bar between two columns of centres covers the right edge of a quad. No pixel shows the bar, so the window takes
    the edge for visible; it is not, and moves nothing."""
    size = (16, 16)
    quad, bar = rectangle(2.2, 3.1, 9.2, 12.7), rectangle(9.1, 1.0, 9.4, 15.0)
    positions = in_pixels(quad + bar, size, z=[0.5] * 4 + [-0.5] * 4)
    assert (dr.rasterize(positions, TWO_QUADS, size).triangle_id < 2).all()
    for visibility, length in (("window", 9.6), ("exact", 0.0)):
        grad = pixel_gradient(
            lambda x, v=visibility: picture(x, TWO_QUADS, size, [1.0] * 4, visibility=v).sum(), positions, size
        )
        close(grad[[1, 2], 0].sum(), length)
        close(grad[[0, 3], 0].sum(), -9.6)


def test_exact_visibility_takes_the_near_plane_into_account():
    """What lies in front of the near plane hides nothing."""
    size = (16, 16)
    quad, bar = rectangle(2.2, 3.1, 9.2, 12.7), rectangle(9.1, 1.0, 9.4, 15.0)
    positions = in_pixels(quad + bar, size, z=[0.5] * 4 + [-1.5] * 4)
    grad = pixel_gradient(lambda x: picture(x, TWO_QUADS, size, [1.0] * 4, visibility="exact").sum(), positions, size)
    close(grad[[1, 2], 0].sum(), 9.6)


@pytest.mark.parametrize("turn", ["mirror x", "transpose"])
def test_exact_visibility_of_turned_scenes(turn):
    clip, triangles, colors = ball_and_box()
    weights = rnd(1, 32, 32, 3, seed=4).double()
    image, grad, _ = gradient_of(clip, triangles, colors, weights, visibility="exact")
    matrix, move = torch.diag(torch.tensor([-1.0, 1, 1, 1], dtype=F64)), lambda x: x.flip(2)
    if turn == "transpose":
        matrix = torch.tensor([[0, -1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=F64)
        move = lambda x: x.transpose(1, 2)  # noqa: E731
    turned = gradient_of(clip @ matrix.T, triangles, colors, move(weights).contiguous(), visibility="exact")
    close(move(turned[0]), image, atol=1e-9)
    close(turned[1] @ matrix, grad, atol=1e-7)


def crumpled_ball(levels, size, noise=0.05):
    """A sphere whose vertices are moved at random: inner edges turn into silhouettes, and faces cross."""
    vertices, triangles = icosphere(levels, dtype=F64)
    vertices = vertices + noise * uniform(*vertices.shape, low=-1, high=1, seed=1, dtype=F64)
    pose = rigid(torch.tensor([0.03, -0.02, -3.1, 0.4, 0.6, -0.2], dtype=F64))
    return to_clip(vertices, perspective(50, *size) @ pose), triangles


def test_pieces_kept_and_pieces_found_again_give_the_same_gradient():
    """A picture with more pieces than there is room for keeps where they are; the others keep all, also a small picture
    of a mesh with small triangles."""
    op = torch.ops.diffrender
    for levels, size, noise, kept in ((4, (80, 80), 0.15, False), (4, (160, 160), 0.0, True), (6, (96, 96), 0.0, True)):
        clip, triangles = crumpled_ball(levels, size, noise)
        ids = dr.rasterize(clip, triangles, size).triangle_id
        mesh = (ids, clip[None], triangles.int(), dr.edge_topology(triangles, clip).int(), None, None, 0)
        image, grad = (uniform(1, *size, 3, seed=k, dtype=F64) for k in (2, 3))
        marks = op.segments_marked(*mesh)
        for exact in (False, True):
            pieces = op.antialias_segments(image, *mesh, exact, *marks)[1]
            assert (int(pieces[0]) > 100) if kept else (int(pieces[0]) == -2)
            rest = (grad, True, True, True, 0)
            ours, again = (
                op.antialias_segments_backward(image, *mesh, exact, *marks, given, *rest)
                for given in (pieces, pieces[:0])
            )
            assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
            assert (ours[1] != 0).sum() > 100


@pytest.mark.skipif(torch.get_default_device().type != "cpu", reason="threads are of the CPU")
def test_exact_visibility_is_the_same_for_any_number_of_threads():
    size = (150, 170)
    clip, triangles = crumpled_ball(4, size, 0.03)
    clip = clip.float()
    image, weights = (uniform(1, *size, 3, seed=k) for k in (2, 3))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leaf = clip.clone().requires_grad_()
            fragments = dr.rasterize(clip, triangles, size)
            blended = dr.antialias(image, fragments, leaf, triangles, visibility="exact")
            results.append((blended.detach(), torch.autograd.grad(blended, leaf, weights)[0]))
    finally:
        torch.set_num_threads(before)
    assert (results[0][1] != 0).sum() > 1000
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


# --- where a pixel is sampled ---------------------------------------------------------------------


def share_of_a_wedge(a, b):
    """Area of the part of a unit square that lies between two directions from its middle."""
    turn = lambda p, q: p[0] * q[1] - p[1] * q[0]  # noqa: E731
    hits = [tuple(0.5 * x / max(abs(d[0]), abs(d[1])) for x in d) for d in (a, b)]
    corners = [(x, y) for x in (-0.5, 0.5) for y in (-0.5, 0.5)]
    between = [c for c in corners if turn(a, c) * turn(a, b) > 0 and turn(c, b) * turn(a, b) > 0]
    between.sort(key=lambda c: (c[0] * a[0] + c[1] * a[1]) / math.hypot(*c), reverse=True)
    outline = [hits[0], *between, hits[1]]
    return abs(sum(turn(p, q) for p, q in itertools.pairwise(outline))) / 2


@pytest.mark.parametrize("visibility", ["window", "exact"])
def test_corner_on_a_pixels_centre_follows_the_top_left_rule(visibility):
    """Whether the pixel shows the triangle is the rasterizer's choice. The areas hidden from its centre have to be
    those of the same choice, or the pixel is off by 1: of flat edges, too, which belong to the triangle on their
    right."""
    directions = [(x, y) for x, y in ((1, 0), (8, 1), (2, 1), (1, 1), (1, 2), (1, 8))]
    directions = [turned for x, y in directions for turned in ((x, y), (-y, x), (-x, -y), (y, -x))]
    size, shown = (32, 32), []
    for a, b in itertools.combinations(directions, 2):
        if abs(a[0] * b[0] + a[1] * b[1]) > 0.9 * math.hypot(*a) * math.hypot(*b):
            continue
        ends = [[16.5 + 12 * x / max(abs(d[0]), abs(d[1])) for x in d] for d in (a, b)]
        positions = in_pixels([(16.5, 16.5), *ends], size)
        ids = dr.rasterize(positions, FAN, size).triangle_id[0]
        if (ids[15:18, 15:18] < 0).all():
            continue  # the colour of the triangle shows in no pixel around
        shown.append(bool(ids[16, 16] == 0))
        image = picture(positions, FAN, size, [1.0], visibility=visibility)
        close(image[16, 16], share_of_a_wedge(a, b), atol=1e-8)
    assert 40 < sum(shown) < len(shown) - 40


def test_outline_that_bends_at_a_pixels_centre_keeps_both_its_edges():
    """Rounding must not say on which side of the outline that centre is: the pixel shows the surface, at the depth of
    the outline, and would seem to be in front of it. Different w round differently."""
    points = [(1.5, 11.5), (7.5, 12.5), (13.5, 14.5), (3.5, 6.5), (9.5, 8.5), (14.5, 8.5), (0.5, -0.5), (8.5, 0.5)]
    triangles = torch.tensor([[0, 1, 3], [1, 4, 3], [1, 2, 5], [1, 5, 4], [3, 4, 7], [3, 7, 6], [4, 5, 7]])
    depths = uniform(8, low=0.1, high=0.6, seed=5).tolist()
    for seed in range(24):
        w = uniform(8, 1, low=1, high=2, seed=seed, dtype=F64)
        positions = in_pixels(points, (14, 14), depths) * w
        # The outline enters at the bottom, 0.2 to the left of the centre, and leaves at the top, 3/14 to the left.
        close(picture(positions, triangles, (14, 14), [1.0] * 7)[6, 3], 0.5 + (0.2 + 3 / 14) / 4, atol=1e-8)


# --- how far behind an edge "exact" looks -----------------------------------------------------------


@pytest.mark.parametrize("gap", [1e-8, 1e-5, 1e-2])
def test_exact_visibility_looks_close_behind_an_edge(gap):
    """A far quad ends so much right of the outline of a near one. Where its colour shows nearby, 1.6 pixels of the
    outline long, that is what is behind the outline. Elsewhere the near quad's colour stands for it, so that nothing
    changes at the near outline and all of it at the far one."""
    size = (16, 16)
    near, far = rectangle(2.2, 3.1, 9.3, 12.7), rectangle(5.0, 1.0, 9.3 + gap, 15.0)
    positions = in_pixels(near + far, size, z=[-0.5] * 4 + [0.5] * 4)
    colors = [1.0, 1.0, 0.25, 0.25]
    grad = pixel_gradient(lambda x: picture(x, TWO_QUADS, size, colors, visibility="exact").sum(), positions, size)
    close(grad[[1, 2], 0].sum(), 1.6 * (1 - 0.25))
    between = grad[[5, 6], 0].sum() - 1.6 * 0.25 - (14 - 9.6) * 0.25  # without what lies above and below the near quad
    close(between, 8.0)
