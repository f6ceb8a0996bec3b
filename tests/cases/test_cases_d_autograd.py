"""Cases D, what autograd sees: layouts, second derivatives, in-place changes, shared and frozen inputs, memory. Each
test carries the id of its case and says the fault it guards against."""

import itertools

import pytest
import torch

from tests.support.cases_d import F64, layouts, small_render, small_scene
from tests.support.scenes import icosphere, perspective, rigid, to_clip
from tests.support.vocabulary import aa, fd, g, itp, ras, render, rnd, uniform


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
