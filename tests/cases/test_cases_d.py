"""Cases D: gradients. Each test carries the id of its case and says the fault it guards against."""

import itertools
import math

import numpy as np
import pytest
import torch

import diffrender as dr
from tests.support.scenes import cube, icosphere, perspective, rigid, to_clip
from tests.support.vocabulary import P, aa, fd, g, itp, mask, ras, relative_error, render, rnd, uniform

F64 = torch.float64
SQUARE = [(0, 1, 2), (0, 2, 3)]


def square(height, width, left, top, right, bottom, z=0.0, dtype=torch.float32):
    """Corners of a screen-aligned rectangle in pixels: left top, right top, right bottom, left bottom."""
    p = P(height, width)
    corners = [p(left, top, z=z), p(right, top, z=z), p(right, bottom, z=z), p(left, bottom, z=z)]
    return torch.tensor(corners, dtype=dtype)


def small_scene(dtype=F64, batch=1, seed=0):
    """Clip positions (B, V, 4), triangles, attributes (B, V, 3) of a coarse sphere, one camera each, 22 x 26."""
    vertices, triangles = icosphere(0, dtype=F64)
    poses = rnd(batch, 6, seed=seed, dtype=F64) * 0.3 + torch.tensor([0, 0, -3.2, 0, 0, 0], dtype=F64)
    camera = perspective(50, 22, 26)
    clip = torch.stack([to_clip(vertices, camera @ rigid(pose)) for pose in poses]).to(dtype)
    return clip, triangles, uniform(batch, len(vertices), 3, seed=seed + 1, dtype=dtype)


def small_render(clip, attributes):
    return render(clip, icosphere(0)[1], attributes, 22, 26)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_d01_silhouette_gradient_has_the_right_size(dtype):
    """Fault: a mask loss gives vertices no gradient, or one of the wrong size."""
    positions = square(32, 32, 8.3, 9.2, 20.6, 22.9, dtype=dtype)

    def loss(pos):
        r = ras(pos, SQUARE, 32, 32)
        return aa(mask(r, dtype), r, pos, SQUARE).sum()

    grad_x = g(loss, positions)[:, 0]
    # 14 rows x 16 pixels per NDC unit = 224 for a row-wise blend; the true edge is 13.7 rows long: 219.
    assert abs(grad_x[[1, 2]].sum() - 219) < 10
    assert abs(grad_x[[0, 3]].sum() + 219) < 10
    assert abs(grad_x.sum()) < 1e-2
    assert abs(loss(positions).item() - 12.3 * 13.7) < 0.02 * 12.3 * 13.7


def test_d02_inner_occlusion_edge_moves_the_front_only():
    """Fault: edges of one surface over another get no gradient, or the hidden surface gets it."""
    front = square(32, 32, 8.3, 9.2, 20.6, 22.9, z=-0.2)
    back = square(32, 32, -2, -2, 34, 34, z=0.3)
    positions = torch.cat([back, front])
    triangles = SQUARE + [(4, 5, 6), (4, 6, 7)]
    values = torch.tensor([0.2] * 4 + [0.9] * 4)[:, None]
    grad_x = g(lambda pos: render(pos, triangles, values, 32, 32).sum(), positions)[:, 0]
    truth = 0.7 * 13.7 * 16
    assert abs(grad_x[[5, 6]].sum() - truth) < 0.05 * truth
    assert abs(grad_x[[4, 7]].sum() + truth) < 0.05 * truth
    assert grad_x[:4].abs().max() < 1e-4


def sliver_and_star_scene():
    """200 random slivers 0.2 to 1.5 pixels wide and a star of five points, in a frame of 64 x 64."""
    rng = np.random.default_rng(4)
    p = P(64, 64)
    vertices, triangles = [], []
    for _ in range(200):
        a, angle = rng.uniform(0, 64, 2), rng.uniform(0, 2 * math.pi)
        along, across = np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])
        corners = (a, a + rng.uniform(5, 40) * along, a + rng.uniform(0.2, 1.5) * across)
        triangles.append([len(vertices) + k for k in range(3)])
        vertices += [p(*xy, z=rng.uniform(-0.9, 0.9)) for xy in corners]
    centre = len(vertices)
    tips = [2 * math.pi * k / 10 for k in range(10)]
    vertices.append(p(32.2, 31.7))
    vertices += [
        p(32.2 + (28 if k % 2 == 0 else 6) * math.sin(t), 31.7 - (28 if k % 2 == 0 else 6) * math.cos(t))
        for k, t in enumerate(tips)
    ]
    triangles += [[centre, centre + 1 + k, centre + 1 + (k + 1) % 10] for k in range(10)]
    return torch.tensor(vertices, dtype=torch.float32), torch.tensor(triangles)


def test_d04_antialias_stays_in_the_range_of_its_input():
    """Fault: corrections of several edges in one pixel are summed, and a mask leaves [0, 1]."""
    positions, triangles = sliver_and_star_scene()
    r = ras(positions, triangles, 64, 64)
    blended = aa(mask(r), r, positions, triangles)
    assert (blended != mask(r)).sum() > 1000
    assert blended.min() >= -1e-6
    assert blended.max() <= 1 + 1e-6
    constant = torch.full((1, 64, 64, 3), 0.3)
    assert (aa(constant, r, positions, triangles) - 0.3).abs().max() < 1e-6


def test_d05_split_vertices_are_no_silhouettes():
    """Fault: vertices that a loader split at uv seams make the edge op blend, and leak gradient, across inner edges."""
    vertices, triangles = icosphere(1)
    camera = perspective(45, 48, 48).float() @ rigid(torch.tensor([0.1, 0.05, -3.0, 0.3, 0.2, 0.1]))
    shared = to_clip(vertices, camera)
    ramp = 0.5 + 0.5 * vertices
    index = triangles.long().reshape(-1)
    split, split_ramp, split_triangles = shared[index], ramp[index], torch.arange(len(index)).reshape(-1, 3)
    cotangent = rnd(1, 48, 48, 3)

    image = render(shared, triangles, ramp, 48, 48)
    split_image = render(split, split_triangles, split_ramp, 48, 48)
    assert (image - split_image).abs().max() < 1e-5

    grad = g(lambda pos: (cotangent * render(pos, triangles, ramp, 48, 48)).sum(), shared)
    split_grad = g(lambda pos: (cotangent * render(pos, split_triangles, split_ramp, 48, 48)).sum(), split)
    summed = torch.zeros_like(shared).index_add(0, index, split_grad)
    # float32 sums of the same terms in another order.
    assert relative_error(summed, grad) < 1e-5


def test_d07_normals_of_degenerate_elements_have_no_wild_gradient():
    """Fault: normalising a zero vector gives NaN, or a gradient of 1e12. An isolated vertex and a zero-area face."""
    vertices = torch.tensor([[-1, -1, 0], [1, -0.8, 0.4], [0.1, 1, -0.2], [3, 3, 3], [2, 0, 0], [2, 0, 0], [2.5, 0, 0]])
    good, everything = torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1, 2], [4, 5, 6]])
    light = torch.nn.functional.normalize(torch.tensor([0.3, 0.5, 0.8]), dim=0)
    clip_from_world = perspective(60, 32, 32).float() @ rigid(torch.tensor([0, 0, -3.0, 0.1, 0.2, 0]))
    cotangent = rnd(1, 32, 32, 1)

    def shaded(x, triangles):
        normals = dr.Mesh(x, triangles).vertex_normals()
        assert torch.isfinite(normals).all()
        clip = to_clip(x, clip_from_world)
        r = ras(clip, triangles, 32, 32)
        lambert = (dr.geometry.safe_normalize(itp(normals, r, triangles)) @ light).clamp(min=0)
        return (cotangent * aa(lambert[..., None], r, clip, triangles)).sum()

    grad, grad_good = g(lambda x: shaded(x, everything), vertices), g(lambda x: shaded(x, good), vertices)
    assert torch.isfinite(grad).all()
    assert grad_good[:3].any()
    assert grad.abs().max() < 1e3 * grad_good.abs().max()
    assert (grad[3] == 0).all()
    torch.testing.assert_close(grad[:3], grad_good[:3], rtol=1e-5, atol=1e-6)


def test_d08_backward_knows_the_batch_item():
    """Fault: backward reads image 0 for every item. Gradients of a batch are those of its items, for each op alone."""
    clip, triangles, attributes = small_scene(batch=3)
    cotangent = rnd(3, 22, 26, 3, dtype=F64)
    r = ras(clip, triangles, 22, 26, derivatives=True)
    one = [ras(clip[b : b + 1], triangles, 22, 26, derivatives=True) for b in range(3)]
    assert not torch.equal(r.id[0], r.id[1])
    image = itp(attributes, r, triangles)

    def depth_and_derivatives(x):
        f = ras(x, triangles, 22, 26, derivatives=True).fragments
        return torch.cat([f.depth[..., None], f.barycentrics], -1) + f.derivatives[..., :3]

    runs = {
        "rasterize": (depth_and_derivatives, clip, None),
        "interpolate": (lambda x, r=r: itp(x, r, triangles), attributes, lambda x, b: itp(x, one[b], triangles)),
        "antialias image": (
            lambda x: aa(x, r, clip, triangles),
            image,
            lambda x, b: aa(x, one[b], clip[b : b + 1], triangles),
        ),
        "antialias positions": (
            lambda x: aa(image, r, x, triangles),
            clip,
            lambda x, b: aa(image[b : b + 1], one[b], x, triangles),
        ),
        "pipeline": (
            lambda x: small_render(x, attributes),
            clip,
            lambda x, b: small_render(x, attributes[b : b + 1]),
        ),
    }
    for name, (op, argument, single) in runs.items():
        whole = g(lambda x, op=op: (cotangent * op(x)).sum(), argument)
        for b in range(3):
            call = (lambda x, op=op: op(x)) if single is None else (lambda x, single=single, b=b: single(x, b))
            part = g(lambda x, call=call, b=b: (cotangent[b : b + 1] * call(x)).sum(), argument[b : b + 1])
            assert part.any(), name
            torch.testing.assert_close(whole[b : b + 1], part, rtol=1e-9, atol=1e-9, msg=f"{name}, item {b}")


def test_d10_pose_gradient_has_the_right_sign_and_size():
    """Fault: the camera's inverse is used, or row 0 is flipped in backward only. Six numbers of a cube's pose.

    Colours are continuous over the cube's edges: "pairs" gives silhouettes a gradient, not breaks of colour on a
    surface. What it misses (corners, grazing edges) depends on where edges lie between pixels, so the loss is a mean
    over 16 poses around one, and a component may be off by 5 percent of the largest of its kind: with weights of both
    signs some components nearly cancel.
    """
    size = 128
    vertices, triangles = cube(0.6, dtype=F64)
    colours = uniform(8, 3, seed=2, dtype=F64)
    camera = perspective(50, size, size)
    noise = rnd(1, 3, size + 4, size + 4, seed=3, dtype=F64)
    weights = torch.nn.functional.avg_pool2d(noise, 5, stride=1).permute(0, 2, 3, 1)
    pose = torch.tensor([0.1, -0.15, -3.0, 0.5, 0.7, -0.3], dtype=F64)
    around = 0.02 * rnd(16, 6, seed=5, dtype=F64)

    def loss(pose):
        clip = torch.stack([to_clip(vertices, camera @ rigid(p)) for p in pose + around])
        return (weights * render(clip, triangles, colours, size, size)).sum() / 16

    gradient = g(loss, pose)
    numeric = torch.stack([fd(loss, pose, direction, 1e-2) for direction in torch.eye(6, dtype=F64)])
    for kind in (slice(0, 3), slice(3, 6)):
        largest = numeric[kind].abs().max()
        clear = numeric[kind].abs() > 0.1 * largest
        assert (gradient[kind].sign() == numeric[kind].sign())[clear].all(), f"{gradient} against {numeric}"
        assert (gradient[kind] - numeric[kind]).abs().max() < 0.05 * largest, f"{gradient} against {numeric}"


def test_d11_background_pixels_never_poison_the_gradient():
    """Fault: 0/0 on background is masked in forward, and backward gives 0 * inf = NaN to every vertex.

    The shading here is the unsafe one on purpose: what backward receives at background pixels is NaN, and no op may
    let that through to a vertex.
    """
    p = P(64, 64)
    positions = torch.tensor([p(20, 22, 2.0, 0.3), p(33, 25, 1.5, 0.2), p(24, 37, 1.0, 0.4)], dtype=F64)
    normals = rnd(3, 3, dtype=F64) + torch.tensor([0, 0, 3.0], dtype=F64)
    cotangent = rnd(1, 64, 64, 4, dtype=F64)

    def shade(pos, attributes, cover_only):
        r = ras(pos, [(0, 1, 2)], 64, 64)
        hit = r.id >= 0
        normal, depth, weight = itp(attributes, r, [(0, 1, 2)]), r.fragments.depth, cotangent
        if cover_only:
            normal, depth, weight = normal[hit], depth[hit], cotangent[hit]
        colour = normal / normal.norm(dim=-1, keepdim=True)
        fog = ((1 - depth) / (1 - depth)).sqrt() * (1 - depth).log() * depth
        shaded = torch.cat([colour, fog[..., None]], -1)
        if not cover_only:
            assert torch.isnan(shaded[~hit]).any()
            shaded = torch.where(hit[..., None], shaded, 0.0)
        return (weight * shaded).sum()

    for argument, call in (
        (positions, lambda x, only: shade(x, normals, only)),
        (normals, lambda x, only: shade(positions, x, only)),
    ):
        masked, covered = (g(lambda x, call=call, only=only: call(x, only), argument) for only in (False, True))
        assert torch.isfinite(masked).all()
        torch.testing.assert_close(masked, covered, rtol=1e-10, atol=1e-10)


def test_d11_the_renderers_own_shading_is_safe_on_background():
    """Of D11: normals are unit vectors, depth is metric; log, square root and division of them only where covered."""
    vertices = torch.tensor([[-0.4, -0.3, 0.1], [0.3, -0.35, 0.0], [0.0, 0.4, -0.2]], dtype=F64)
    triangles = torch.tensor([[0, 1, 2]])
    camera = dr.Camera.perspective(fov_y_deg=50, width=64, height=64, dtype=F64).look_at([0.2, 0.3, 4.0])
    renderer = dr.Renderer((64, 64), edges=None, outputs=("normal", "depth", "mask"))
    weights = rnd(1, 64, 64, 4, dtype=F64)

    def loss(x, cover_only):
        result = renderer(dr.Mesh(x, triangles), camera)
        hit = result.mask[..., 0]
        assert torch.isfinite(result.normal).all()
        depth = result.depth[hit] if cover_only else torch.where(result.mask, result.depth, 1.0)
        normal = result.normal[hit] if cover_only else result.normal
        shaded = torch.cat([normal, depth.log() + depth.sqrt() / depth], -1)
        if cover_only:
            return (weights[hit] * shaded).sum()
        return (weights * torch.where(result.mask, shaded, 0.0)).sum()

    masked, covered = (g(lambda x, only=only: loss(x, only), vertices) for only in (False, True))
    assert covered.any()
    assert torch.isfinite(masked).all()
    torch.testing.assert_close(masked, covered, rtol=1e-9, atol=1e-9)


def layouts(x):
    """The same values as permuted, sliced, offset views of other storage."""
    yield x.transpose(-1, -2).contiguous().transpose(-1, -2)
    yield torch.stack([x, x * 0 + 9], -1)[..., 0]
    yield torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view(x.shape)


def test_d13_layout_of_inputs_and_cotangents_does_not_matter():
    """Fault: a raw pointer is read as dense; image or gradient are silently wrong."""
    clip, triangles, attributes = small_scene(batch=2)
    cotangent = rnd(2, 22, 26, 3, dtype=F64)

    def image(clip, attributes, triangles):
        return render(clip, triangles, attributes, 22, 26)

    def weighted(x):
        return (cotangent * x).sum()

    arguments = (clip, attributes, triangles)
    dense = image(*arguments)
    dense_grads = [g(lambda x: weighted(image(x, attributes, triangles)), clip)]
    dense_grads += [g(lambda x: weighted(image(clip, x, triangles)), attributes)]
    for which in range(3):
        for view in layouts(arguments[which]):
            changed = [*arguments[:which], view, *arguments[which + 1 :]]
            assert torch.equal(image(*changed), dense)
            if which < 2:
                grad = g(lambda x, c=changed, k=which: weighted(image(*c[:k], x, *c[k + 1 :])), view)
                torch.testing.assert_close(grad, dense_grads[which], rtol=1e-12, atol=1e-12)

    # Cotangents: stride 0 from sum(), and a permuted one from an NCHW loss.
    weights = rnd(2, 3, 22, 26, dtype=F64)
    for head, dense_cotangent in (
        (lambda x: x.sum(), torch.ones(2, 22, 26, 3, dtype=F64)),
        (lambda x: (x.permute(0, 3, 1, 2) * weights).sum(), weights.permute(0, 2, 3, 1).contiguous()),
    ):
        for which in range(2):
            call = [lambda x: image(x, attributes, triangles), lambda x: image(clip, x, triangles)][which]
            value = g(lambda x, call=call, head=head: head(call(x)), arguments[which])
            leaf = arguments[which].detach().requires_grad_()
            (truth,) = torch.autograd.grad(call(leaf), leaf, dense_cotangent)
            torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)


def test_d13_expanded_inputs_equal_their_copies():
    """Of D13: an expanded batch axis (stride 0) reads the same item again, forward and backward."""
    clip, _, attributes = small_scene(batch=1)
    clip3, attributes3 = clip.expand(3, -1, -1), attributes.expand(3, -1, -1)
    cotangent = rnd(3, 22, 26, 3, dtype=F64)
    assert torch.equal(small_render(clip3, attributes3), small_render(clip3.contiguous(), attributes3.contiguous()))
    grad = g(lambda x: (cotangent * small_render(x.expand(3, -1, -1), attributes3)).sum(), clip)
    truth = g(lambda x: (cotangent * small_render(x, attributes3.contiguous())).sum(), clip3.contiguous())
    torch.testing.assert_close(grad, truth.sum(0, keepdim=True), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("head", [lambda o: o.sum(), lambda o: (o**2).sum()], ids=["sum", "square"])
def test_d14_second_derivative_by_positions_raises(head):
    """Fault: it is silently wrong. The cotangent of sum() needs no gradient, so an error must hang on the inputs."""
    clip, _, attributes = small_scene()
    x = clip.clone().requires_grad_()
    loss = head(small_render(x, attributes)) + (x**3).sum()
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(NotImplementedError, match="rasterize|antialias"):
        (grad**2).sum().backward()


@pytest.mark.parametrize("head", [lambda o: o.sum(), lambda o: (o**2).sum()], ids=["sum", "square"])
def test_d14_second_derivative_by_attributes_is_right(head):
    """Of D14: interpolation has a true second derivative; here against a plain-torch gather."""
    clip, triangles, attributes = small_scene()
    r = ras(clip, triangles, 22, 26)
    b = r.fragments.barycentrics
    weights = torch.cat([b, 1 - b.sum(-1, keepdim=True)], -1) * (r.id >= 0)[..., None]

    def gathered(x):
        corners = x[0][triangles.long()[r.id.clamp(min=0)]]
        return (weights[..., None] * corners).sum(-2)

    results = []
    for op in (lambda x: itp(x, r, triangles), gathered):
        x = attributes.clone().requires_grad_()
        (grad,) = torch.autograd.grad(head(op(x)) + (x**3).sum(), x, create_graph=True)
        (grad**2).sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_d16_inputs_are_left_alone_and_later_changes_are_noticed():
    """Fault: an op edits its input, or keeps it where autograd cannot see that the user changed it."""
    clip, triangles, attributes = small_scene()
    before = [t.clone() for t in (clip, triangles, attributes)]
    x = clip.clone().requires_grad_()
    y = attributes.clone().requires_grad_()
    small_render(x, y).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, (x.detach(), triangles, y.detach()), strict=True))

    for which in range(2):
        leaf = (clip, attributes)[which].clone().requires_grad_()
        changed = leaf * 1
        loss = small_render(changed, attributes).sum() if which == 0 else small_render(x, changed).sum()
        with torch.no_grad():
            changed.mul_(10)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            loss.backward()


def test_d17_shared_inputs_get_the_sum_over_views():
    """Fault: one mesh seen by B cameras gets the gradient of one view, the mean, or 1/B of it."""
    clip, triangles, attributes = small_scene(batch=4)
    vertices = icosphere(0, dtype=F64)[0]
    camera = perspective(50, 22, 26)
    poses = rnd(4, 6, dtype=F64) * 0.3 + torch.tensor([0, 0, -3.2, 0, 0, 0], dtype=F64)
    matrices = torch.stack([camera @ rigid(pose) for pose in poses])
    shared = attributes[0]
    cotangent = rnd(4, 22, 26, 3, dtype=F64)

    def loss(vertices, attributes):
        return (cotangent * small_render(to_clip(vertices, matrices), attributes)).sum()

    repeated = [vertices.expand(4, -1, -1).contiguous(), shared.expand(4, -1, -1).contiguous()]
    grad_vertices = g(lambda x: loss(x, repeated[1]), repeated[0])
    grad_attributes = g(lambda x: loss(repeated[0], x), repeated[1])
    torch.testing.assert_close(g(lambda x: loss(x, shared), vertices), grad_vertices.sum(0))
    torch.testing.assert_close(g(lambda x: loss(vertices, x), shared), grad_attributes.sum(0))
    one = shared[None]
    torch.testing.assert_close(
        g(lambda x: loss(vertices, x.expand(4, -1, -1)), one), grad_attributes.sum(0, keepdim=True)
    )

    # Clip positions (V, 4) that the rows of `ranges` share.
    ranges = torch.tensor([[0, 20], [3, 9], [5, 0]], dtype=torch.int32)
    clip_cotangent = rnd(3, 22, 26, 3, dtype=F64)

    def packed(x, attributes):
        return (clip_cotangent * render(x, triangles, attributes, 22, 26, ranges=ranges)).sum()

    three = clip[0].expand(3, -1, -1).contiguous()
    grad_three = g(lambda x: packed(x, shared), three)
    assert (grad_three[2] == 0).all()
    torch.testing.assert_close(g(lambda x: packed(x, shared), clip[0]), grad_three.sum(0))


def test_d19_every_float_output_has_its_own_gradient():
    """Fault: an output is in the graph but its cotangent is ignored. Each alone, against central differences."""
    clip, triangles, attributes = small_scene()
    direction = rnd(*clip.shape, dtype=F64)
    colour_direction = rnd(*attributes.shape, seed=1, dtype=F64)

    def outputs(x, a):
        r = ras(x, triangles, 22, 26, derivatives=True)
        values, steps = itp(a, r, triangles, derivatives="all")
        blended = aa(values, r, x, triangles)
        f = r.fragments
        return [f.barycentrics, f.depth, f.derivatives, values, steps, blended], f.triangle_id

    results, triangle_id = outputs(clip.clone().requires_grad_(), attributes)
    assert not triangle_id.requires_grad
    for k, result in enumerate(results):
        assert result.requires_grad
        weight = rnd(*result.shape, seed=k, dtype=F64)

        def loss(x, a=attributes, k=k, weight=weight):
            return (weight * outputs(x, a)[0][k]).sum()

        slope = (g(loss, clip) * direction).sum()
        numeric = fd(loss, clip, direction, 1e-7)
        # No id changes within the step: the seed is chosen so. A step of 1e-7 leaves 1e-6 of relative error.
        assert abs(slope - numeric) < 1e-5 * abs(numeric), f"output {k}: {slope} against {numeric}"
        if k >= 3:
            colour_slope = (g(lambda a, loss=loss: loss(clip, a), attributes) * colour_direction).sum()
            numeric = fd(lambda a, loss=loss: loss(clip, a), attributes, colour_direction, 1e-3)
            assert abs(colour_slope - numeric) < 1e-8 * abs(numeric), f"output {k}: {colour_slope} against {numeric}"


@pytest.mark.parametrize("shape", ["V", "1V", "BV"])
def test_d20_any_subset_of_inputs_may_need_a_gradient(shape):
    """Fault: a crash when only some inputs need one, None where there should be one, or a batched shape."""
    batch = 2
    vertices = icosphere(0, dtype=F64)[0]
    expanded = {"V": vertices, "1V": vertices[None], "BV": vertices.expand(batch, -1, -1)}[shape]
    colours = uniform(len(vertices), 3, dtype=F64)
    colours = {"V": colours, "1V": colours[None], "BV": colours.expand(batch, -1, -1)}[shape]
    poses = rnd(batch, 6, dtype=F64) * 0.3 + torch.tensor([0, 0, -3.2, 0, 0, 0], dtype=F64)
    camera = perspective(50, 22, 26)
    matrices = torch.stack([camera @ rigid(pose) for pose in poses])
    cotangent = rnd(batch, 22, 26, 3, dtype=F64)

    def run(needed):
        leaves = {
            name: value.clone().requires_grad_(name in needed)
            for name, value in {"positions": expanded, "attributes": colours, "camera": matrices}.items()
        }
        clip = to_clip(leaves["positions"], leaves["camera"])
        attributes = leaves["attributes"]
        if shape == "1V":
            attributes = attributes.expand(batch, -1, -1)
        image = small_render(clip, attributes)
        assert image.requires_grad == bool(needed)
        if needed:
            (cotangent * image).sum().backward()
        return leaves

    full = run({"positions", "attributes", "camera"})
    assert all(leaf.grad.any() for leaf in full.values())
    for count in range(3):
        for needed in itertools.combinations(full, count):
            leaves = run(set(needed))
            for name, leaf in leaves.items():
                if name not in needed:
                    assert leaf.grad is None
                    continue
                assert (leaf.grad.shape, leaf.grad.dtype) == (leaf.shape, leaf.dtype)
                torch.testing.assert_close(leaf.grad, full[name].grad, rtol=1e-12, atol=1e-12)


def test_d22_paths_add_up_and_nothing_is_remembered():
    """Fault: one of several uses of a tensor is lost or counted twice, or a first result is served again later."""
    vertices, triangles = icosphere(0, dtype=F64)
    camera = perspective(50, 22, 26)
    poses = torch.tensor([[0, 0, -3, 0.1, 0, 0], [0.1, 0, -3.5, 0, 0.7, 0]], dtype=F64)
    views = [camera @ rigid(pose) for pose in poses]
    weights = [rnd(1, 22, 26, 3, seed=k, dtype=F64) for k in range(2)]

    def loss(x, paths=("rasterize 0", "attribute 0", "antialias 0", "rasterize 1", "attribute 1", "antialias 1")):
        total = 0
        for k, (view, weight) in enumerate(zip(views, weights, strict=True)):
            raster_x, attribute_x, edge_x = (
                x if f"{name} {k}" in paths else x.detach() for name in ("rasterize", "attribute", "antialias")
            )
            r = ras(to_clip(raster_x, view), triangles, 22, 26)
            image = itp(attribute_x, r, triangles)
            total = total + (weight * aa(image, r, to_clip(edge_x, view), triangles)).sum()
        return total

    whole = g(loss, vertices)
    parts = [
        g(lambda x, n=name, k=k: loss(x, (f"{n} {k}",)), vertices)
        for name in ("rasterize", "attribute", "antialias")
        for k in range(2)
    ]
    assert all(part.any() for part in parts)
    torch.testing.assert_close(whole, sum(parts), rtol=1e-10, atol=1e-10)

    leaf = vertices.clone().requires_grad_()
    loss(leaf).backward()
    once = leaf.grad.clone()
    loss(leaf).backward()
    torch.testing.assert_close(leaf.grad, 2 * once, rtol=1e-12, atol=1e-12)

    with torch.no_grad():
        leaf.mul_(1.1)
    assert torch.equal(loss(leaf), loss(leaf.detach().clone()))
    assert loss(leaf) != loss(vertices)
