"""Vertices and cameras through rasterize, interpolate and antialias together: the gradient of what people optimise."""

import pytest
import torch

import diffrender as dr
from tests.support.scenes import cube, icosphere, perspective, random_rotations, rigid, to_clip
from tests.support.vocabulary import aa, fd, g, itp, ras, relative_error, rnd, uniform

F64 = torch.float64
SIZE = (8, 9)


def tetrahedron():
    vertices = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=F64)
    return vertices, torch.tensor([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]])


def open_sheet():
    """Four triangles with a border, folded, so that it covers parts of itself."""
    vertices = torch.tensor([[-1, -1, 0], [1, -0.8, 0.3], [1.1, 1, 0], [-0.9, 1, 0.4], [0.2, 0.1, 1.2]], dtype=F64)
    return vertices, torch.tensor([[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]])


def two_tetrahedra():
    """One in front of the other: silhouettes over a surface, and a triangle of each behind the other."""
    vertices, triangles = tetrahedron()
    return torch.cat([vertices, 0.7 * vertices + torch.tensor([0.4, 0.3, 2.0])]), torch.cat([triangles, triangles + 4])


MESHES = {
    "tetrahedron": tetrahedron(),
    "cube": cube(0.9, dtype=F64),
    "open sheet": open_sheet(),
    "two tetrahedra": two_tetrahedra(),
    "icosahedron": icosphere(0, dtype=F64),
}


def render_all(vertices, clip_from_world, attributes, triangles, size=SIZE):
    """Antialiased attributes, their screen-space derivatives and depth: every differentiable output of the stages."""
    clip = to_clip(vertices, clip_from_world)
    r = ras(clip, triangles, *size, derivatives=True)
    values, steps = itp(attributes, r, triangles, derivatives="all")
    return aa(torch.cat([values, r.fragments.depth[..., None], 0.1 * steps], -1), r, clip, triangles)


def view(name, seed):
    """clip_from_world of a generic pose: no silhouette through a pixel centre."""
    pose = rnd(6, seed=seed, dtype=F64) * torch.tensor([0.2, 0.2, 0.2, 1, 1, 1])
    return perspective(60, *SIZE) @ rigid(
        pose + torch.tensor([0, 0, -4.0 if name != "two tetrahedra" else -6.0, 0, 0, 0])
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", MESHES)
def test_gradcheck_of_the_whole_pipeline(name, seed):
    """Vertices, camera matrix and attributes to every output, across silhouettes, in float64."""
    vertices, triangles = MESHES[name]
    arguments = [vertices, view(name, seed), rnd(len(vertices), 2, seed=seed, dtype=F64)]
    leaves = [x.clone().requires_grad_() for x in arguments]
    image = render_all(*leaves, triangles)
    assert (image[..., :2] != 0).any(-1).sum() > 8
    # Every entry of the Jacobian once per mesh, random projections of it for the other pose.
    assert torch.autograd.gradcheck(lambda *x: render_all(*x, triangles), leaves, fast_mode=seed > 0)


@pytest.mark.parametrize("name", MESHES)
def test_image_loss_agrees_with_finite_differences(name):
    """Mean squared error against another view, ten poses, each along a random direction of vertices and of camera."""
    vertices, triangles = MESHES[name]
    colours = uniform(len(vertices), 3, dtype=F64)
    background = torch.tensor([0.2, 0.5, 0.3], dtype=F64)
    target = uniform(1, 24, 26, 3, seed=9, dtype=F64)

    def loss(vertices, matrix):
        clip = to_clip(vertices, matrix)
        r = ras(clip, triangles, 24, 26)
        image = torch.where((r.id >= 0)[..., None], itp(colours, r, triangles), background)
        return (aa(image, r, clip, triangles) - target).square().sum()

    for seed in range(10):
        matrix = view(name, seed)
        direction, turn = rnd(*vertices.shape, seed=seed, dtype=F64), rnd(4, 4, seed=seed, dtype=F64)
        slope = (g(lambda x, m=matrix: loss(x, m), vertices) * direction).sum()
        numeric = fd(lambda x, m=matrix: loss(x, m), vertices, direction, 1e-7)
        assert abs(slope - numeric) < 1e-5 * abs(slope) + 1e-6, seed
        slope = (g(lambda m: loss(vertices, m), matrix) * turn).sum()
        numeric = fd(lambda m: loss(vertices, m), matrix, turn, 1e-7)
        assert abs(slope - numeric) < 1e-5 * abs(slope) + 1e-6, seed


@pytest.mark.parametrize("behind", ["background", "another surface"])
@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_silhouette_gradient_follows_a_moving_mesh(levels, behind):
    """The mean gradient along a path of eight pixels is the change of the loss along it (O14), to 1 percent.

    From 20 triangles to 1280 of less than a pixel: near the outline most own no pixel centre, and their gradient
    is only found by looking past the triangle that a pixel shows.
    """
    vertices, triangles = icosphere(levels, dtype=F64)
    moving = torch.ones(len(vertices), 1, dtype=F64)
    if behind == "another surface":
        wall = torch.tensor([[-40, -40, -6], [40, -40, -6], [40, 40, -6], [-40, 40, -6]], dtype=F64)
        triangles = torch.cat([triangles, torch.tensor([[0, 1, 2], [0, 2, 3]], dtype=torch.int32) + len(vertices)])
        vertices, moving = torch.cat([vertices, wall]), torch.cat([moving, torch.zeros(4, 1, dtype=F64)])
    spheres = 20 * 4**levels
    start = torch.tensor([0, 0, -4.0, 0.3, 0.2, 0.1], dtype=F64)
    matrix = perspective(45, 48, 48) @ rigid(start)
    ramp = torch.arange(48.0, dtype=F64) / 48  # moving right raises the sum
    weights = ramp.expand(1, 48, 48)[..., None]
    topology = dr.edge_topology(triangles)

    def loss(shift):
        clip = to_clip(vertices + moving * torch.stack([shift, 0.3 * shift, 0 * shift]), matrix)
        r = ras(clip, triangles, 48, 48)
        sphere = ((r.id >= 0) & (r.id < spheres)).double()[..., None]
        return (weights * aa(sphere, r, clip, triangles, topology=topology)).sum()

    half = 0.3
    places = ((torch.arange(48, dtype=F64) + 0.5) / 48 * 2 - 1) * half
    mean = torch.stack([g(loss, place) for place in places]).mean()
    change = (loss(torch.tensor(half, dtype=F64)) - loss(torch.tensor(-half, dtype=F64))) / (2 * half)
    assert change > 100
    assert abs(mean - change) < 0.01 * change


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_batch_of_views_equals_single_views(dtype):
    """One mesh, four cameras, one call: images are those of four calls, gradients their sum."""
    vertices, triangles = (x.to(dtype) if x.is_floating_point() else x for x in icosphere(1, dtype=F64))
    poses = [rigid(torch.cat([torch.tensor([0, 0, -4.0], dtype=F64), rnd(3, seed=k, dtype=F64)])) for k in range(4)]
    matrices = (perspective(50, 30, 28) @ torch.stack(poses)).to(dtype)
    attributes = uniform(len(vertices), 3, dtype=dtype)
    cotangent = rnd(4, 30, 28, 3, dtype=dtype)

    def image(vertices, matrices):
        clip = to_clip(vertices, matrices)
        r = ras(clip, triangles, 30, 28)
        return aa(itp(attributes, r, triangles), r, clip, triangles)

    batch = image(vertices, matrices)
    # Products with one matrix and with four may be rounded differently, hence no torch.equal.
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for k in range(4):
        assert relative_error(batch[k], image(vertices, matrices[k])[0]) < tolerance
    grad = g(lambda x: (cotangent * image(x, matrices)).sum(), vertices)
    parts = [g(lambda x, k=k: (cotangent[k] * image(x, matrices[k])).sum(), vertices) for k in range(4)]
    assert relative_error(grad, sum(parts)) < tolerance


def test_one_and_two_threads_are_bit_identical(set_threads):
    vertices, triangles = icosphere(3)
    camera = perspective(45, 200, 240).float()
    matrices = torch.stack([camera @ rigid(torch.tensor([0, 0, -3.0, 0.3 * k, 0.2, 0])) for k in range(3)])
    attributes = uniform(len(vertices), 3)
    cotangent = rnd(3, 200, 240, 3)
    results = []
    for threads in (1, 2):
        set_threads(threads)
        leaf, colours = vertices.clone().requires_grad_(), attributes.clone().requires_grad_()
        clip = to_clip(leaf, matrices)
        r = ras(clip, triangles, 200, 240)
        image = aa(itp(colours, r, triangles), r, clip, triangles)
        # By the inputs of the stages: what torch's own matrix products do with threads is not ours.
        results.append([image, *torch.autograd.grad((image * cotangent).sum(), [clip, colours])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_views_of_rotated_meshes_and_cameras_agree():
    """Turning the mesh or turning the camera the other way gives the same picture and the same loss gradient."""
    vertices, triangles = MESHES["icosahedron"]
    attributes = uniform(len(vertices), 3, dtype=F64)
    weights = rnd(1, 20, 22, 3, dtype=F64)
    camera = perspective(50, 20, 22)
    for rotation in random_rotations(3):
        turn = torch.eye(4, dtype=F64)
        turn[:3, :3] = rotation
        start = rigid(torch.tensor([0, 0, -4.0, 0, 0, 0], dtype=F64))

        def loss(x, matrix):
            clip = to_clip(x, matrix)
            r = ras(clip, triangles, 20, 22)
            return (weights * aa(itp(attributes, r, triangles), r, clip, triangles)).sum()

        mesh_turned = g(lambda x, m=camera @ start, f=loss: f(x, m), vertices @ rotation.T)
        camera_turned = g(lambda x, m=camera @ start @ turn, f=loss: f(x, m), vertices)
        torch.testing.assert_close(mesh_turned @ rotation, camera_turned, rtol=1e-8, atol=1e-8)


def test_gradcheck_through_renderer_and_camera():
    """Through the public classes: vertices, colours, pose and focal length to random sums over all that is rendered.

    An error in any pixel shows in four sums, which take a fortieth of the time of single pixels."""
    mesh_vertices, triangles = MESHES["cube"]
    renderer = dr.Renderer(
        SIZE,
        edges="pairs",
        outputs=("color", "alpha", "depth", "normal", "position"),
        smooth=("color", "alpha", "depth", "normal"),
        background=0.3,
    )

    def pictures(vertices, colors, pose, focal):
        camera = dr.Camera.perspective(focal_px=focal, width=SIZE[1], height=SIZE[0], camera_from_world=rigid(pose))
        result = renderer(dr.Mesh(vertices, triangles, colors=colors), camera)
        names = ("color", "alpha", "depth", "normal", "position")
        return tuple(w @ getattr(result, name).flatten() for name, w in zip(names, sums, strict=True))

    pixels = SIZE[0] * SIZE[1]
    sums = [rnd(4, c * pixels, seed=seed, dtype=F64) for seed, c in enumerate((3, 1, 1, 3, 3))]
    arguments = [
        mesh_vertices,
        uniform(8, 3, dtype=F64),
        torch.tensor([0.05, -0.1, -3.6, 0.5, 0.7, -0.3], dtype=F64),
        torch.tensor(9.3, dtype=F64),
    ]
    leaves = [x.clone().requires_grad_() for x in arguments]
    assert torch.autograd.gradcheck(pictures, leaves)


def views_and_attributes(batch):
    """Clip positions (B, V, 4) and attributes (B, V, 3) of an icosahedron in different poses, and its triangles."""
    vertices, triangles = MESHES["icosahedron"]
    clip = torch.stack([to_clip(vertices, view("icosahedron", seed)) for seed in range(batch)])
    return clip, uniform(batch, len(vertices), 3, seed=batch, dtype=F64), triangles


def picture(clip, attributes, triangles, topology=None):
    f = dr.rasterize(clip, triangles, SIZE)
    image = dr.interpolate(attributes, triangles, f)
    return dr.antialias(image, f, clip, triangles, method="pairs", topology=topology)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_r10_compiled_with_a_dynamic_batch():
    """Fault: the fake kernels report other shapes or strides than the real ones. One graph serves every batch size."""

    def loss(clip, attributes, triangles):
        return picture(clip, attributes, triangles).square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 3, 5):
        clip, attributes, triangles = views_and_attributes(batch)
        for view_of in (torch.clone, lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)):
            leaves, eager = ([view_of(x).requires_grad_() for x in (clip, attributes)] for _ in range(2))
            value, truth = compiled(*leaves, triangles), loss(*eager, triangles)
            torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)
            value.backward()
            truth.backward()
            for leaf, true_leaf in zip(leaves, eager, strict=True):
                torch.testing.assert_close(leaf.grad, true_leaf.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("given", [True, False], ids=["topology given", "topology made inside"])
def test_r11_vmap_and_grad_over_the_whole_pipeline(given):
    """vmap of the pipeline equals a loop, and so do per-sample gradients."""
    clip, attributes, triangles = views_and_attributes(3)
    topology = dr.edge_topology(triangles) if given else None

    def single(clip, attributes):
        return picture(clip, attributes, triangles, topology)[0]

    images = torch.func.vmap(single)(clip, attributes)
    assert torch.equal(images, picture(clip, attributes, triangles, topology))
    weights = rnd(*SIZE, 3, dtype=F64)
    grad = torch.func.grad(lambda c, a: (weights * single(c, a)).sum(), argnums=(0, 1))
    batched = torch.func.vmap(grad)(clip, attributes)
    for k in range(3):
        for value, truth in zip(batched, grad(clip[k], attributes[k]), strict=True):
            torch.testing.assert_close(value[k], truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_r07_half_attributes_under_autocast(half):
    """A network under autocast hands over half attributes: geometry stays float32, gradients come back in half."""
    clip, attributes, triangles = views_and_attributes(2)
    clip, attributes = clip.float(), attributes.to(half)
    truth = picture(clip, attributes.float(), triangles)
    leaf = attributes.clone().requires_grad_()
    with torch.autocast("cpu", dtype=half):
        image = picture(clip, leaf, triangles)
    assert image.dtype == torch.float32
    assert torch.equal(image, truth)
    image.sum().backward()
    assert leaf.grad.dtype == half
    assert leaf.grad.any()
    with pytest.raises(TypeError, match="attributes must be float32 or float64"):
        picture(clip, attributes, triangles)
