"""The renderer under autograd at large: graphs used twice, torch.func, forward mode, compile, autocast, checkpoint."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import diffrender as dr
from tests.support.lit_scene import SIZE, four_lights, lit_camera, lit_mesh, poses, weights

F64 = torch.float64
CAMERA = lit_camera()
LIGHTS = four_lights()
MESH = lit_mesh()
MODES = [
    {"edges": "segments"},
    {"edges": "pairs"},
    {"edges": None},
    {"edges": "coverage"},
    {"recompute": False},
    pytest.param({"recompute": "tiles"}, marks=pytest.mark.slow),
    {"edges": "segments", "interior": "flow"},
]
EDGES = MODES[:4]
# Raised inside torch while it traces and generates code.
QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def picture(twist, mesh=MESH, lights=LIGHTS, **options):
    renderer = dr.Renderer(SIZE, background=0.3, **options)
    return renderer(mesh, CAMERA.moved(twist), lights).color


def loss_of(**options):
    fixed = weights()
    return lambda twist, **other: (picture(twist, **other, **options) * fixed).sum()


def scene_leaves():
    """A twist, the vertices and the albedo, all with a gradient, and the mesh that is made of them."""
    twist = poses(1)[0].requires_grad_()
    vertices = MESH.vertices.clone().requires_grad_()
    albedo = MESH.material.albedo.clone().requires_grad_()
    mesh = MESH.with_vertices(vertices).replace(material=MESH.material.replace(albedo=albedo))
    return [twist, vertices, albedo], mesh


# --- one graph, several backward passes -----------------------------------------------------------


@pytest.mark.parametrize("options", MODES, ids=str)
def test_retained_graph_gives_the_same_gradient_again(options):
    leaves, mesh = scene_leaves()
    loss = loss_of(**options)(leaves[0], mesh=mesh)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    second = torch.autograd.grad(loss, leaves)
    for a, b in zip(first, second, strict=True):
        assert a.any()
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_two_losses_on_one_picture_add_up(options):
    """Each backward pass of one render, and both at once."""
    leaves, mesh = scene_leaves()
    renderer = dr.Renderer(SIZE, background=0.3, outputs=("color", "depth"), **options)
    result = renderer(mesh, CAMERA.moved(leaves[0]), LIGHTS)
    losses = [(result.color * weights()).sum(), (result.depth**2 * weights(channels=1)).sum()]
    for loss in losses:
        loss.backward(retain_graph=True)
    apart = [leaf.grad for leaf in leaves]
    together = torch.autograd.grad(losses[0] + losses[1], leaves)
    for a, b in zip(apart, together, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", EDGES, ids=str)
def test_gradients_accumulated_over_views_are_those_of_the_batch(options):
    twists = poses(3)
    renderer = dr.Renderer(SIZE, background=0.3, **options)
    if options["edges"] == "coverage":  # takes no lights that differ from item to item, nor batches of them
        lights = None
    else:
        lights = LIGHTS
    leaves, mesh = scene_leaves()
    for k in range(3):
        (renderer(mesh, CAMERA.moved(twists[k]), lights).color * weights(3)[k : k + 1]).sum().backward()
    leaves_together, mesh_together = scene_leaves()
    (renderer(mesh_together, CAMERA.moved(twists), lights).color * weights(3)).sum().backward()
    for one, other in zip(leaves[1:], leaves_together[1:], strict=True):
        assert one.grad.any()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)


# --- torch.func -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", MODES, ids=str)
def test_r11_grad_and_jacrev_over_a_pose_equal_backward(options):
    loss = loss_of(**options)
    twist = poses(1)[0].requires_grad_()
    truth = torch.autograd.grad(loss(twist), twist)[0]
    torch.testing.assert_close(torch.func.grad(loss)(twist.detach()), truth, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(torch.func.jacrev(loss)(twist.detach()), truth, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("options", [*MODES[:3], *MODES[4:]], ids=str)
def test_r11_vmap_over_poses_equals_a_loop(options):
    loss = loss_of(**options)
    twists = poses(2)
    values = torch.func.vmap(loss)(twists)
    grads = torch.func.vmap(torch.func.grad(loss))(twists)
    for k in range(2):
        torch.testing.assert_close(values[k], loss(twists[k]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(grads[k], torch.func.grad(loss)(twists[k]), rtol=1e-11, atol=1e-12)


def test_r11_vmap_of_exact_areas_is_refused():
    with pytest.raises(NotImplementedError, match="coverage: vmap is not supported"):
        torch.func.vmap(loss_of(edges="coverage"))(poses(2))


def glass():
    """Two layers of a torus, half transparent."""
    return MESH.replace(material=MESH.material.replace(albedo_factor=(1.0, 1.0, 1.0, 0.5), alpha_mode="BLEND"))


def test_r11_vmap_and_grad_through_transparent_layers():
    """The number of layers follows from values, which vmap does not let anyone look at."""
    loss, twists = loss_of(max_layers=4), poses(2)
    mesh = glass()
    batched = torch.func.vmap(torch.func.grad(lambda t: loss(t, mesh=mesh)))(twists)
    for k in range(2):
        single = torch.func.grad(lambda t: loss(t, mesh=mesh))(twists[k])
        torch.testing.assert_close(batched[k], single, rtol=1e-11, atol=1e-12)


# --- forward mode ---------------------------------------------------------------------------------


@QUIET
@pytest.mark.parametrize("recompute", [True, False, pytest.param("tiles", marks=pytest.mark.slow)])
def test_forward_mode_of_the_renderer_is_right(recompute):
    """Pose, shape, texture and lights at once: against the transpose, and against differences of the picture."""
    leaves, _ = scene_leaves()
    inputs = [leaf.detach() for leaf in leaves] + [torch.tensor([2.0, 2.0, 3.0], dtype=F64)]
    tangents = [
        torch.randn(x.shape, dtype=F64, generator=torch.Generator().manual_seed(k)) for k, x in enumerate(inputs)
    ]
    renderer = dr.Renderer(SIZE, edges=None, background=0.3, recompute=recompute, outputs=("color", "depth", "normal"))

    def images(twist, vertices, albedo, position):
        mesh = MESH.with_vertices(vertices).replace(material=MESH.material.replace(albedo=albedo))
        lights = [dr.PointLight(position, 12.0), *LIGHTS[1:]]
        result = renderer(mesh, CAMERA.moved(twist), lights)
        return torch.cat([result.color, result.depth, result.normal], -1)

    value, product = torch.func.jvp(images, tuple(inputs), tuple(tangents))
    assert torch.equal(value, images(*inputs))
    cotangent = weights(channels=7)
    _, transpose = torch.func.vjp(images, *inputs)
    pairs = zip(transpose(cotangent), tangents, strict=True)
    assert (product * cotangent).sum().item() == pytest.approx(sum(float((g * t).sum()) for g, t in pairs), rel=1e-10)
    # Steps so small that no pixel changes its triangle; a pixel next to an edge would.
    ends = [images(*(x + s * 1e-6 * t for x, t in zip(inputs, tangents, strict=True))) for s in (-1, 1)]
    torch.testing.assert_close((ends[1] - ends[0]) / 2e-6, product, rtol=1e-5, atol=1e-5)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        torch.testing.assert_close(forward_ad.unpack_dual(images(*duals)).tangent, product, rtol=1e-12, atol=1e-12)


@QUIET
@pytest.mark.parametrize("options", [{}, {"interior": "flow"}], ids=str)
def test_forward_mode_of_an_environment_is_right(options):
    """Light and background from a trainable map, with the flow of the interior too: the transpose of reverse mode."""
    renderer = dr.Renderer(SIZE, edges=None, **options)

    def image(twist, texels, albedo):
        sky = dr.EnvironmentLight(texels, size=16, levels=3, diffuse_size=8)
        mesh = MESH.replace(material=MESH.material.replace(albedo=albedo, occlusion=torch.tensor([0.8], dtype=F64)))
        return renderer(mesh, CAMERA.moved(twist), [LIGHTS[1], sky], background=sky).color

    inputs = (poses(1)[0], torch.rand(8, 16, 3, dtype=F64), MESH.material.albedo)
    tangents = tuple(torch.randn_like(x) for x in inputs)
    value, product = torch.func.jvp(image, inputs, tangents)
    assert torch.equal(value, image(*inputs))
    _, transpose = torch.func.vjp(image, *inputs)
    pairs = list(zip(transpose(weights()), tangents, strict=True))
    assert all(g.any() for g, _ in pairs)
    backward = sum(float((g * t).sum()) for g, t in pairs)
    assert float((product * weights()).sum()) == pytest.approx(backward, rel=1e-10)


@QUIET
def test_jacfwd_over_a_pose_equals_jacrev():
    covered = dr.Renderer(SIZE, edges=None, outputs="mask")(MESH, CAMERA.moved(poses(1)[0])).mask[0, ..., 0]
    some = covered.flatten().nonzero()[::25, 0]

    def patch(twist):
        return picture(twist, edges=None).flatten(1, 2)[0, some].reshape(-1)

    forward, reverse = torch.func.jacfwd(patch)(poses(1)[0]), torch.func.jacrev(patch)(poses(1)[0])
    assert forward.abs().max() > 0.1
    torch.testing.assert_close(forward, reverse, rtol=1e-9, atol=1e-10)


@QUIET
@pytest.mark.parametrize(
    ("options", "op"),
    [({"edges": "segments"}, "antialias"), ({"edges": "pairs"}, "antialias"), ({"edges": "coverage"}, "coverage")],
    ids=str,
)
def test_forward_mode_through_edges_is_refused_by_name(options, op):
    with pytest.raises(NotImplementedError, match=f"^{op}.* is not implemented in forward mode"):
        torch.func.jvp(loss_of(**options), (poses(1)[0],), (poses(2)[1],))


@QUIET
@pytest.mark.parametrize("edges", ["segments", "pairs"])
def test_forward_mode_of_colors_passes_the_edges(edges):
    """What is linear in the picture has a forward mode."""
    image = picture(poses(1)[0], edges=None)
    clip = CAMERA.moved(poses(1)[0]).clip_positions(MESH.vertices)
    fragments = dr.rasterize(clip, MESH.triangles, SIZE)
    blend = lambda x: dr.antialias(x, fragments, clip, MESH.triangles, method=edges)  # noqa: E731
    _, product = torch.func.jvp(blend, (image,), (weights(),))
    torch.testing.assert_close(product, blend(weights()), rtol=1e-12, atol=1e-12)


@QUIET
def test_second_derivatives_are_refused_in_either_order():
    loss = loss_of(edges=None)
    with pytest.raises(NotImplementedError, match="second derivatives are not implemented"):
        torch.func.jacrev(torch.func.grad(loss))(poses(1)[0])
    with pytest.raises(NotImplementedError, match="is not implemented in forward mode"):
        torch.func.hessian(loss)(poses(1)[0])


# --- torch.compile --------------------------------------------------------------------------------


def compare_compiled(backend, mesh=MESH, **options):
    loss = loss_of(**options)
    torch._dynamo.reset()
    compiled = torch.compile(lambda twist, albedo: loss(
        twist, mesh=mesh.replace(material=mesh.material.replace(albedo=albedo))
    ), fullgraph=True, backend=backend)  # fmt: skip
    results = []
    for call in (compiled, lambda twist, albedo: loss(
        twist, mesh=mesh.replace(material=mesh.material.replace(albedo=albedo))
    )):  # fmt: skip
        leaves = [poses(1)[0].requires_grad_(), mesh.material.albedo.clone().requires_grad_()]
        value = call(*leaves)
        results.append([value.detach(), *torch.autograd.grad(value, leaves)])
    for a, b in zip(*results, strict=True):
        assert b.any()
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@QUIET
def test_r10_compiled_whole_equals_eager():
    compare_compiled("aot_eager", edges="segments")


@QUIET
@pytest.mark.slow
@pytest.mark.parametrize("options", [*MODES[:3], *MODES[4:], {"samples": 2}], ids=str)
def test_r10_all_modes_compiled_whole_equal_eager(options):
    compare_compiled("aot_eager", **options)


@QUIET
@pytest.mark.slow
def test_r10_compiled_with_code_generation_equals_eager():
    compare_compiled("inductor", edges="segments")
    compare_compiled("aot_eager", mesh=glass(), max_layers=3)


# --- autocast -------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_r07_autocast_changes_no_bit_of_the_picture(half):
    """With every kind of light: pictures stay float32, a half texture is widened, gradients keep their type."""
    sky = dr.EnvironmentLight(torch.rand(8, 16, 3), world_from_light=dr.geometry.rotation([1.0, 2.0, 0.5], 0.7)[:3, :3])
    mesh, camera = lit_mesh(torch.float32), lit_camera(torch.float32)
    texels = mesh.material.albedo.to(half)
    lights = [*LIGHTS, sky]
    renderer = dr.Renderer(SIZE, background=sky, outputs=("color", "triangle_id"))

    def render(albedo, vertices):
        shown = mesh.with_vertices(vertices).replace(material=mesh.material.replace(albedo=albedo))
        return renderer(shown, camera, lights)

    plain = [texels.float().requires_grad_(), mesh.vertices.clone().requires_grad_()]
    truth = render(*plain)
    (truth.color * weights(dtype=torch.float32)).sum().backward()
    leaves = [texels.clone().requires_grad_(), mesh.vertices.clone().requires_grad_()]
    with torch.autocast("cpu", dtype=half):
        result = render(*leaves)
    assert result.color.dtype == torch.float32
    assert torch.equal(result.color, truth.color)
    assert torch.equal(result.triangle_id, truth.triangle_id)
    (result.color * weights(dtype=torch.float32)).sum().backward()
    assert [leaf.grad.dtype for leaf in leaves] == [half, torch.float32]
    assert torch.equal(leaves[1].grad, plain[1].grad)
    assert torch.equal(leaves[0].grad, plain[0].grad.to(half))
    with pytest.raises(TypeError, match=r"must be float32 or float64, got .* Convert it with .float\(\)"):
        render(*leaves)


# --- torch.utils.checkpoint -----------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("stage", ["rasterize", "interpolate", "texture", "shade", "antialias", "renderer"])
def test_checkpoint_around_a_stage_changes_no_bit(stage, reentrant):
    def run(function, *args):
        return function(*args)

    def around(function, *args):
        return checkpoint(function, *args, use_reentrant=reentrant)

    results = []
    for wrap in (run, around):
        leaves, mesh = scene_leaves()
        through = dict.fromkeys(("rasterize", "interpolate", "texture", "shade", "antialias"), run) | {stage: wrap}
        if stage == "renderer":
            image = wrap(lambda twist, vertices, albedo: picture(twist, mesh=mesh), *leaves)  # noqa: B023
        else:
            image = by_hand(through, *leaves)
        (image * weights()).sum().backward()
        results.append([image.detach(), *(leaf.grad for leaf in leaves)])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def by_hand(through, twist, vertices, albedo):
    """Rasterize, interpolate, texture, shade and antialias, each called by `through[name](function, tensors...)`."""
    camera = CAMERA.moved(twist)
    clip = camera.clip_positions(vertices)

    def rasterize(clip):
        return tuple(dr.rasterize(clip, MESH.triangles, SIZE))[:3]

    fragments = dr.Fragments(*through["rasterize"](rasterize, clip), None)

    def interpolate(vertices, barycentrics):
        return dr.interpolate(vertices, MESH.triangles, fragments._replace(barycentrics=barycentrics))

    points = through["interpolate"](interpolate, vertices, fragments.barycentrics)
    texcoords = dr.interpolate(MESH.texcoords, MESH.texcoord_triangles, fragments)
    color = through["texture"](dr.texture, albedo, texcoords)
    normals = dr.interpolate(MESH.vertex_normals(), MESH.triangles, fragments)

    def shade(points, normals, color, eye):
        return dr.shade_metallic_roughness(
            points, normals, color, 0.2, 0.5, LIGHTS, camera_position=eye, mask=fragments.triangle_id
        )

    image = through["shade"](shade, points, normals, color, camera.eye)

    def blend(image, clip):
        return dr.antialias(image, fragments, clip, MESH.triangles)

    return through["antialias"](blend, image, clip)


# --- occlusion ------------------------------------------------------------------------------------


def test_an_occlusion_that_starts_at_one_is_trained():
    occlusion = torch.ones(1, dtype=F64, requires_grad=True)
    mesh = MESH.replace(material=MESH.material.replace(occlusion=occlusion))
    with_it = picture(poses(1)[0], mesh=mesh)
    torch.testing.assert_close(with_it, picture(poses(1)[0]), rtol=1e-12, atol=1e-12)
    ambient_share = picture(poses(1)[0], lights=LIGHTS[3:], edges=None, mesh=MESH)
    with_it = picture(poses(1)[0], mesh=mesh, edges=None)
    covered = dr.Renderer(SIZE, edges=None, outputs="mask")(MESH, CAMERA.moved(poses(1)[0])).mask
    (grad,) = torch.autograd.grad((with_it * covered).sum(), occlusion)
    assert grad.item() == pytest.approx(float((ambient_share * covered).sum()), rel=1e-10)


def test_forward_mode_of_forward_mode_is_refused():
    """torch would give zeros: it calls the rule of a Function with forward mode switched off."""
    pixels, texture = torch.rand(1, 2, 3, 2, dtype=torch.float64), torch.rand(4, 4, 1, dtype=torch.float64)
    read = lambda x: dr.texture(texture, x).square().sum()  # noqa: E731
    slope = lambda x: torch.func.jvp(read, (x,), (torch.ones_like(x),))[1]  # noqa: E731
    with pytest.raises(NotImplementedError, match="texture: this derivative is not implemented in forward mode"):
        torch.func.jvp(slope, (pixels,), (torch.ones_like(pixels),))
