"""Cases D: gradients. Each test carries the id of its case and says the fault it guards against."""

import math

import numpy as np
import pytest
import torch

import diffrender as dr
from tests.support.cases_d import F64, SQUARE, small_render, small_scene, square
from tests.support.scenes import cube, icosphere, perspective, rigid, to_clip
from tests.support.vocabulary import P, aa, fd, g, itp, mask, ras, relative_error, render, rnd, uniform


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
