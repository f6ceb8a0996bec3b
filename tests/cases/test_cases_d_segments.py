"""Cases D for antialias(method="segments"), with both ways to decide visibility where they differ. The contract table
asks of this method too what cases ask of layouts, subsets of gradients and in-place changes."""

import functools
import itertools

import pytest
import torch

import diffrender as dr
from tests.cases.test_cases_d import sliver_and_star_scene
from tests.support.cases_d import F64, SQUARE, layouts, small_scene, square
from tests.support.scenes import cube, icosphere, perspective, rigid, to_clip
from tests.support.vocabulary import P, as_index, fd, g, itp, mask, ras, rnd, uniform

both = pytest.mark.parametrize("visibility", ["window", "exact"])


def aa(image, r, positions, triangles, **options):
    return dr.antialias(image, r.fragments, positions, as_index(triangles), **options)


def render(positions, triangles, attributes, height, width, **options):
    r = ras(positions, triangles, height, width)
    return aa(itp(attributes, r, triangles), r, positions, triangles, **options)


@both
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_d01_silhouette_gradient_has_the_right_size(dtype, visibility):
    """Fault: a mask loss gives vertices no gradient, or one of the wrong size. Here it is the true one."""
    positions = square(32, 32, 8.3, 9.2, 20.6, 22.9, dtype=dtype)

    def loss(pos):
        r = ras(pos, SQUARE, 32, 32)
        return aa(mask(r, dtype), r, pos, SQUARE, visibility=visibility).sum()

    grad_x = g(loss, positions)[:, 0]
    assert abs(grad_x[[1, 2]].sum() - 13.7 * 16) < 1e-3
    assert abs(grad_x[[0, 3]].sum() + 13.7 * 16) < 1e-3
    assert abs(grad_x.sum()) < 1e-3
    assert abs(loss(positions).item() - 12.3 * 13.7) < 1e-3


@both
def test_d02_inner_occlusion_edge_moves_the_front_only(visibility):
    """Fault: edges of one surface over another get no gradient, or the hidden surface gets it."""
    front, back = square(32, 32, 8.3, 9.2, 20.6, 22.9, z=-0.2), square(32, 32, -2, -2, 34, 34, z=0.3)
    positions = torch.cat([back, front])
    triangles = SQUARE + [(4, 5, 6), (4, 6, 7)]
    values = torch.tensor([0.2] * 4 + [0.9] * 4)[:, None]
    grad_x = g(lambda pos: render(pos, triangles, values, 32, 32, visibility=visibility).sum(), positions)[:, 0]
    truth = 0.7 * 13.7 * 16
    assert abs(grad_x[[5, 6]].sum() - truth) < 1e-3
    assert abs(grad_x[[4, 7]].sum() + truth) < 1e-3
    assert grad_x[:4].abs().max() < 1e-4


def test_d04_range_of_the_result_is_what_the_documentation_says():
    """Fault: corrections of several edges in one pixel are summed. A star alone keeps its mask in [0, 1]; slivers that
    show at no centre, and hide each other there, leave it, and the documentation of the op says so."""
    positions, triangles = sliver_and_star_scene()
    star = triangles[200:]
    r = ras(positions, star, 64, 64)
    blended = aa(mask(r), r, positions, star)
    assert (blended != mask(r)).sum() > 50
    assert blended.min() >= -1e-6
    assert blended.max() <= 1 + 1e-6
    r = ras(positions, triangles, 64, 64)
    constant = torch.full((1, 64, 64, 3), 0.3)
    assert (aa(constant, r, positions, triangles) - 0.3).abs().max() < 1e-6
    blended = aa(mask(r), r, positions, triangles)
    outside = (blended < -1e-6) | (blended > 1 + 1e-6)
    assert outside.any()
    assert "outside of the range of the input" in " ".join((dr.antialias.__doc__ or "").split())


@both
def test_d05_split_vertices_are_no_silhouettes(visibility):
    """Fault: vertices split at uv seams make the edge op blend, and leak gradient, across inner edges."""
    vertices, triangles = icosphere(1)
    camera = perspective(45, 48, 48).float() @ rigid(torch.tensor([0.1, 0.05, -3.0, 0.3, 0.2, 0.1]))
    shared, ramp, index = to_clip(vertices, camera), 0.5 + 0.5 * vertices, triangles.long().reshape(-1)
    split_triangles = torch.arange(len(index)).reshape(-1, 3)
    weights = rnd(1, 48, 48, 3, seed=1)

    def loss(pos, tri, attributes):
        return (weights * render(pos, tri, attributes, 48, 48, visibility=visibility)).sum()

    whole = g(lambda pos: loss(pos, triangles, ramp), shared)
    parts = g(lambda pos: loss(pos, split_triangles, ramp[index]), shared[index])
    assert abs(loss(shared, triangles, ramp) - loss(shared[index], split_triangles, ramp[index])) < 1e-3
    summed = torch.zeros_like(whole).index_add(0, index, parts)
    assert (summed - whole).abs().max() < 1e-4 * whole.abs().max()


@both
def test_d08_backward_knows_the_batch_item(visibility):
    """Fault: backward reads image 0 for every item."""
    clip, triangles, attributes = small_scene(batch=3)
    cotangent = rnd(3, 22, 26, 3, dtype=F64)

    def loss(x, items):
        return (cotangent[items] * render(x, triangles, attributes[items], 22, 26, visibility=visibility)).sum()

    whole = g(lambda x: loss(x, slice(0, 3)), clip)
    for b in range(3):
        part = g(lambda x, b=b: loss(x, slice(b, b + 1)), clip[b : b + 1])
        assert part.any()
        torch.testing.assert_close(whole[b : b + 1], part, rtol=1e-9, atol=1e-9)


@both
def test_d10_pose_gradient_has_the_right_sign_and_size(visibility):
    """Fault: the camera's inverse is used, or row 0 is flipped in backward only. One pose, not a mean over several."""
    size = 128
    vertices, triangles = cube(0.6, dtype=F64)
    colours = uniform(8, 3, seed=2, dtype=F64)
    camera = perspective(50, size, size)
    weights = torch.nn.functional.avg_pool2d(rnd(1, 3, size + 4, size + 4, seed=3, dtype=F64), 5, stride=1)
    weights = weights.permute(0, 2, 3, 1)

    def loss(pose):
        clip = to_clip(vertices, camera @ rigid(pose))
        return (weights * render(clip, triangles, colours, size, size, visibility=visibility)).sum()

    pose = torch.tensor([0.1, -0.15, -3.0, 0.5, 0.7, -0.3], dtype=F64)
    gradient = g(loss, pose)
    numeric = torch.stack([fd(loss, pose, direction, 1e-2) for direction in torch.eye(6, dtype=F64)])
    for kind in (slice(0, 3), slice(3, 6)):
        largest = numeric[kind].abs().max()
        assert (gradient[kind] - numeric[kind]).abs().max() < 0.05 * largest, f"{gradient} against {numeric}"


def test_d11_background_pixels_never_poison_the_gradient():
    """Fault: what is NaN on background, and masked, reaches the vertices. The image's own gradient is the caller's."""
    p = P(64, 64)
    positions = torch.tensor([p(20, 22, 2.0, 0.3), p(33, 25, 1.5, 0.2), p(24, 37, 1.0, 0.4)], dtype=F64)
    cotangent = rnd(1, 64, 64, 1, dtype=F64)

    def loss(pos):
        r = ras(pos, [(0, 1, 2)], 64, 64)
        depth = r.fragments.depth[..., None]
        fog = torch.where(mask(r, F64) > 0, ((1 - depth) / (1 - depth)).sqrt() * depth, 0.0)
        return (cotangent * aa(fog, r, pos, [(0, 1, 2)])).sum()

    assert torch.isfinite(g(loss, positions)).all()


@pytest.mark.parametrize("head", [lambda o: o.sum(), lambda o: (o**2).sum()], ids=["sum", "square"])
def test_d14_second_derivative_raises(head):
    """Fault: a gradient penalty gets a second derivative that ignores the renderer."""
    clip, triangles, attributes = small_scene()
    leaf = clip.requires_grad_()
    objective = head(render(leaf, triangles, attributes, 22, 26)) + (leaf**3).sum()
    (grad,) = torch.autograd.grad(objective, leaf, create_graph=True)
    with pytest.raises(NotImplementedError):
        (grad**2).sum().backward()


@both
def test_d17_shared_inputs_get_the_sum_over_views(visibility):
    """Fault: one mesh shown several times gets the gradient of one view, or the mean."""
    clip, triangles, attributes = small_scene()
    cotangent = rnd(3, 22, 26, 3, dtype=F64)
    r = ras(clip.expand(3, -1, -1), triangles, 22, 26)
    image = itp(attributes.expand(3, -1, -1), r, triangles) * uniform(3, 1, 1, 1, dtype=F64)

    def loss(pos):
        return (cotangent * aa(image, r, pos, triangles, visibility=visibility)).sum()

    repeated = g(loss, clip.repeat(3, 1, 1))
    for shared in (clip, clip[0]):
        grad = g(loss, shared)
        assert grad.shape == shared.shape
        torch.testing.assert_close(grad.reshape(repeated[0].shape), repeated.sum(0), rtol=1e-9, atol=1e-9)


def test_d20_any_subset_of_inputs_may_need_a_gradient():
    """Fault: a crash, a wrong value or wasted work when only some inputs need one."""
    clip, triangles, attributes = small_scene()
    r = ras(clip, triangles, 22, 26)
    cotangent, image = rnd(1, 22, 26, 3, dtype=F64), itp(attributes, r, triangles)

    def grads(needs, **options):
        leaves = [x.detach().clone().requires_grad_(n) for x, n in zip((image, clip), needs, strict=True)]
        blended = aa(leaves[0], r, leaves[1], triangles, **options)
        assert blended.requires_grad == any(needs)
        if any(needs):
            (cotangent * blended).sum().backward()
        return [leaf.grad for leaf in leaves]

    for options in ({}, {"forward": "identity"}, {"visibility": "exact"}):
        full = grads((True, True), **options)
        for needs in itertools.product((False, True), repeat=2):
            for need, value, truth in zip(needs, grads(needs, **options), full, strict=True):
                assert (value is None) != need
                assert value is None or torch.equal(value, truth)


def test_d22_paths_add_up_and_nothing_is_remembered():
    """Fault: a path is lost or counted twice, or a result of the first render is used after the positions changed."""
    clip, triangles, attributes = small_scene()
    cotangent = rnd(1, 22, 26, 3, dtype=F64)
    topology = dr.edge_topology(triangles, clip)
    draw = functools.partial(aa, triangles=triangles, topology=topology)

    def loss(pixels, edges):
        r = ras(pixels, triangles, 22, 26)
        return (cotangent * draw(itp(attributes, r, triangles), r, edges)).sum()

    total = g(lambda x: loss(x, x), clip)
    paths = g(lambda x: loss(x, clip), clip) + g(lambda x: loss(clip, x), clip)
    torch.testing.assert_close(total, paths, rtol=1e-9, atol=1e-9)
    leaf = clip.clone().requires_grad_()
    for times in (1, 2):
        loss(leaf, leaf).backward()
        torch.testing.assert_close(leaf.grad, times * total, rtol=1e-12, atol=1e-12)
    moved = clip * torch.tensor([1.0, 0.9, 1.0, 1.0], dtype=F64)
    with torch.no_grad():
        leaf.copy_(moved)
    leaf.grad = None
    loss(leaf, leaf).backward()
    torch.testing.assert_close(leaf.grad, g(lambda x: loss(x, x), moved), rtol=1e-12, atol=1e-12)


def test_d07_degenerate_elements_neither_get_nor_change_a_gradient():
    """Fault: normalising a zero vector (here the direction of an edge) gives NaN. An isolated vertex, a triangle of one
    point and one whose corners lie on a line."""
    size = (24, 24)
    good = torch.tensor([[-0.7, -0.6, 0.1, 1.0], [0.8, -0.5, 0.2, 1.1], [0.1, 0.7, -0.1, 0.9]], dtype=F64)
    bad = torch.tensor([[0.9, 0.9, 0, 1]] + [[0.3, 0.2, -0.3, 1]] * 3, dtype=F64)
    line = torch.tensor([[-0.5, 0.5, -0.3, 1], [0, 0.25, -0.3, 1], [0.5, 0, -0.3, 1]], dtype=F64)
    positions, triangle = torch.cat([good, bad, line]), torch.tensor([[0, 1, 2]])
    everything = torch.cat([triangle, torch.tensor([[4, 5, 6], [7, 8, 9]])])
    values, weights = uniform(len(positions), 3, seed=1, dtype=F64), rnd(1, *size, 3, seed=2, dtype=F64)

    def gradient(triangles, visibility):
        return g(lambda x: (weights * render(x, triangles, values, *size, visibility=visibility)).sum(), positions)

    for visibility in ("window", "exact"):
        grad, grad_good = gradient(everything, visibility), gradient(triangle, visibility)
        assert grad_good[:3].any()
        assert (grad[3:] == 0).all()
        torch.testing.assert_close(grad[:3], grad_good[:3], rtol=1e-12, atol=1e-12)


def scene_of_arguments():
    """What antialias takes, with something to see, and a cotangent."""
    clip, triangles, attributes = small_scene(batch=2)
    fragments = dr.rasterize(clip, as_index(triangles), (22, 26))
    image = dr.interpolate(attributes, as_index(triangles), fragments).detach()
    return image, fragments, clip, as_index(triangles), rnd(2, 22, 26, 3, seed=5, dtype=F64)


@both
def test_d13_layout_of_inputs_and_cotangents_does_not_matter(visibility):
    """Fault: a raw pointer is read as dense; image or gradient are silently wrong."""
    image, fragments, clip, triangles, weights = scene_of_arguments()

    def results(image, ids, clip, triangles, head):
        leaves = [x.detach().requires_grad_() for x in (image, clip)]
        blended = dr.antialias(
            leaves[0], fragments._replace(triangle_id=ids), leaves[1], triangles, visibility=visibility
        )
        return blended.detach(), *torch.autograd.grad(head(blended), leaves)

    permuted = weights.permute(0, 3, 1, 2).contiguous()
    arguments = (image, fragments.triangle_id, clip, triangles)
    for head, same in (
        (lambda x: x.sum(), lambda x: (x * torch.ones_like(weights)).sum()),
        (lambda x: (x.permute(0, 3, 1, 2) * permuted).sum(), lambda x: (x * weights).sum()),
    ):
        dense = results(*arguments, same)
        assert all(torch.equal(a, b) for a, b in zip(results(*arguments, head), dense, strict=True))
        for which, argument in enumerate(arguments):
            for view in layouts(argument):
                changed = results(*arguments[:which], view, *arguments[which + 1 :], head)
                assert all(torch.equal(a, b) for a, b in zip(changed, dense, strict=True)), which


@both
def test_d16_inputs_are_left_alone_and_later_changes_are_noticed(visibility):
    """Fault: the op edits its input, or keeps it where autograd cannot see that the user changed it."""
    image, fragments, clip, triangles, weights = scene_of_arguments()
    before = [t.clone() for t in (image, fragments.triangle_id, clip, triangles)]
    for which in range(2):
        leaves = [x.clone().requires_grad_() for x in (image, clip)]
        changed = [x * 1 for x in leaves]
        blended = dr.antialias(changed[0], fragments, changed[1], triangles, visibility=visibility)
        torch.autograd.grad(blended, leaves, weights, retain_graph=True)
        with torch.no_grad():
            changed[which].mul_(10)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            torch.autograd.grad(blended, leaves, weights)
    after = (image, fragments.triangle_id, clip, triangles)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_d19_the_picture_is_the_only_output_and_has_its_gradient():
    """Fault: an output is in the graph but its cotangent is ignored. The one that the op has, to both of its inputs:
    the blend is linear in the image, and moving what has one colour against black is exact."""
    image, fragments, clip, triangles, weights = scene_of_arguments()
    direction = rnd(*image.shape, seed=6, dtype=F64)

    def loss(x):
        return (weights * dr.antialias(x, fragments, clip, triangles)).sum()

    slope = (g(loss, image) * direction).sum()
    assert abs(slope - fd(loss, image, direction, 1e-3)) < 1e-8 * abs(slope)
    positions, move = square(32, 32, 8.3, 9.2, 20.6, 22.9, dtype=F64), rnd(4, 4, seed=7, dtype=F64)
    move[:, 2:] = 0

    def area(pos):
        r = ras(pos, SQUARE, 32, 32)
        return aa(mask(r, F64), r, pos, SQUARE).sum()

    slope = (g(area, positions) * move).sum()
    assert abs(slope - fd(area, positions, move, 1e-4)) < 1e-5 * abs(slope)
