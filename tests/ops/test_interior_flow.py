"""interior_flow: which neighbours a visible edge parts, and the gradient from picture differences, against the
reference (tests/reference/interior_flow.py)."""

import pytest
import torch

import diffrender as dr
from diffrender.ops.interior_flow import interior_flow
from tests.ops.rows.antialias_segments import crossing_triangles
from tests.ops.rows.base import SIZE, turned_cube, two_layers
from tests.reference import interior_flow as reference
from tests.support.vocabulary import relative_error, rnd, uniform

F64 = torch.float64
SCENES = {
    "cube": (*turned_cube(), SIZE, {}),
    "two cubes": (*turned_cube(batch=2), SIZE, {}),
    "two layers": (*two_layers(), SIZE, {}),
    "crossing triangles": (*crossing_triangles(), SIZE, {}),
    "seams of a cube": (*turned_cube(), SIZE, {"seams": torch.arange(36).reshape(12, 3)}),
    "ranges": (turned_cube()[0], turned_cube()[1], SIZE, {"ranges": torch.tensor([[0, 12], [3, 7]])}),
}


def prepared(name, dtype=F64):
    positions, triangles, size, options = SCENES[name]
    positions = positions.to(dtype)
    drawing = {key: options[key] for key in ("ranges",) if key in options}
    fragments = dr.rasterize(positions, triangles, size, **drawing)
    image = uniform(*fragments.triangle_id.shape, 3, seed=4, dtype=dtype)
    return positions, triangles, fragments, image, dr.edge_topology(triangles), options


def flow(image, fragments, positions, triangles, topology, options, visibility="window"):
    drawing = {key: value.int() if key == "ranges" else value for key, value in options.items()}
    return interior_flow(image, fragments, positions, triangles, topology, visibility=visibility, **drawing)


def parted_pairs(positions, triangles, fragments, topology, options, visibility):
    shared = positions if positions.dim() == 3 else positions[None]
    ranges, seams = (None if key not in options else options[key].int() for key in ("ranges", "seams"))
    mesh = (fragments.triangle_id, shared, triangles.int(), topology, ranges, seams, 0)
    return torch.ops.diffrender.segments_parted(*mesh, visibility == "exact") != 0


@pytest.mark.parametrize("visibility", ["window", "exact"])
@pytest.mark.parametrize("name", SCENES)
def test_value_stays_and_gradients_equal_the_reference(name, visibility):
    positions, triangles, fragments, image, topology, options = prepared(name)
    parted = reference.parted_pairs(fragments.triangle_id, positions, triangles, visibility=visibility, **options)
    assert parted.any()
    assert torch.equal(parted_pairs(positions, triangles, fragments, topology, options, visibility), parted)
    leaves, true_leaves = ([x.clone().requires_grad_() for x in (image, positions)] for _ in range(2))
    moved = flow(leaves[0], fragments, leaves[1], triangles, topology, options, visibility)
    assert torch.equal(moved, image)
    weights = rnd(*image.shape, seed=7, dtype=F64)
    grads = torch.autograd.grad(moved, leaves, weights)
    truth = reference.interior_flow(true_leaves[0], fragments, true_leaves[1], triangles, parted)
    true_grads = torch.autograd.grad(truth, true_leaves, weights)
    assert torch.equal(grads[0], weights)
    assert true_grads[1].any()
    assert relative_error(grads[1], true_grads[1]) < 1e-11


def test_float32_agrees_with_float64():
    grads = []
    for dtype in (torch.float32, F64):
        positions, triangles, fragments, image, topology, options = prepared("cube", dtype)
        leaf = positions.clone().requires_grad_()
        moved = flow(image, fragments, leaf, triangles, topology, options)
        grads.append(torch.autograd.grad(moved, leaf, rnd(*image.shape, seed=7, dtype=dtype))[0])
    assert relative_error(grads[0], grads[1]) < 2e-4


def test_gradient_of_a_plane_that_slides_is_the_slope_of_its_picture():
    """A picture that grows by 0.3 per pixel to the right and 0.1 downwards on one triangle that covers the frame: with
    the surface one pixel further right each pixel loses 0.3. The frame's first and last columns count one neighbour."""
    width, height = 8, 6
    positions = torch.tensor([[-3.0, -3, 0, 1], [9, -3, 0, 1], [-3, 9, 0, 1]], dtype=F64, requires_grad=True)
    triangles = torch.tensor([[0, 1, 2]])
    fragments = dr.rasterize(positions.detach(), triangles, (height, width))
    image = 0.3 * torch.arange(width, dtype=F64) + 0.1 * torch.arange(height, dtype=F64)[:, None]
    moved = flow(image[None, ..., None], fragments, positions, triangles, dr.edge_topology(triangles), {})
    (grad,) = torch.autograd.grad(moved.sum(), positions)
    # One pixel is 2 / width of clip space, y points up.
    expected = torch.tensor([-0.3 * width / 2, 0.1 * height / 2], dtype=F64) * (width * height)
    torch.testing.assert_close(grad[:, :2].sum(0), expected, rtol=1e-12, atol=1e-12)
