"""coverage with room for a given number of fragments: nothing waits for how many there are. The GPU's way is run on the
CPU, where it does not notice what does not fit either."""

import pytest
import torch

import diffrender as dr
from diffrender.ops import _coverage_lists
from diffrender.ops.coverage import _DRIVER_GPU, _DRIVER_NATIVE, _coverage_with_driver
from tests.ops.rows.base import turned_cube
from tests.ops.rows.coverage import crossing, many_pixels, picture
from tests.support.scenes import icosphere, perspective, rigid, to_clip
from tests.support.vocabulary import rnd, uniform

F64 = torch.float64
SIZE = (11, 13)
DRIVERS = [_DRIVER_NATIVE, _DRIVER_GPU]


def make(positions, triangles, driver, capacity=None, merge=False, size=SIZE):
    return _coverage_with_driver(positions, triangles, size, merge_adjacent=merge, capacity=capacity, driver=driver)


def lists(coverage):
    """All that has one entry per fragment."""
    return (*coverage[:4], coverage.pixel, coverage.item)


def sphere(levels=2):
    vertices, faces = icosphere(levels, dtype=F64)
    pose = torch.tensor([0.1, -0.2, -3.0, 0.4, 0.3, 0.2], dtype=F64)
    return to_clip(vertices, perspective(50, 13, 11) @ rigid(pose)), faces


def two_spheres():
    clip, faces = sphere()
    return torch.stack([clip, clip * 0.9 + 0.05]), faces


SCENES = {"crossing": crossing, "two cubes": lambda: turned_cube(batch=2), "sphere": sphere, "spheres": two_spheres}


def test_counts_tell_what_is_needed():
    clip, faces = two_spheres()
    native, stepwise = (make(clip, faces, driver) for driver in DRIVERS)
    assert native.capacity is None
    assert torch.equal(native.counts, stepwise.counts)
    assert native.counts[0] == len(native.weight)
    assert native.counts[1] > native.counts[0]
    assert native.check() is native


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_fragments_pictures_and_gradients_are_those_without_a_capacity(scene, merge, driver, dtype):
    positions, faces = SCENES[scene]()
    positions = positions.to(dtype)
    truth = make(positions, faces, driver, None, merge)
    room = (len(truth.weight) + 17, int(truth.counts[1]) + 5, int(truth.counts[2]) + 2)
    vertices = positions.shape[-2]
    attributes = (
        uniform(2, vertices, 3, seed=2, dtype=dtype) if positions.dim() == 3 else uniform(vertices, 3, dtype=dtype)
    )
    results = []
    for capacity in (None, room, (room[0] - 17, room[1] - 5, room[2] - 2)):
        leaves = [positions.clone().requires_grad_(), attributes.clone().requires_grad_()]
        coverage = make(leaves[0], faces, driver, capacity, merge).check()
        used = len(truth.weight)
        assert len(coverage.weight) == (used if capacity is None else capacity[0])
        assert torch.equal(coverage.offsets, truth.offsets)
        assert torch.equal(coverage.counts, truth.counts)
        for value, expected in zip(lists(coverage), lists(truth), strict=True):
            assert torch.equal(value[:used], expected)
        batch, pixels = coverage.size[0], SIZE[0] * SIZE[1]
        filling = (-1, 0, 0, 1, batch * pixels - 1, batch - 1)
        assert all((value[used:] == rest).all() for value, rest in zip(lists(coverage), filling, strict=True))
        values = dr.interpolate(leaves[1], faces, coverage)
        image = torch.cat([dr.composite(values, coverage, background=0.3), picture(coverage)], -1)
        cotangent = rnd(*image.shape, seed=1, dtype=dtype)
        results.append([image, *torch.autograd.grad((image * cotangent).sum(), leaves)])
    for other in results[1:]:
        # The CPU splits sums over attributes by the number of rows.
        torch.testing.assert_close(other, results[0], rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0)
        assert torch.equal(other[0], results[0][0])
        assert torch.equal(other[1], results[0][1])


def test_shading_and_textures_take_unused_entries():
    clip, faces = two_spheres()
    count = clip.shape[1]
    texels, texcoords = uniform(8, 8, 3, dtype=F64), uniform(count, 2, seed=1, dtype=F64)
    normals, points = rnd(count, 3, seed=2, dtype=F64), rnd(count, 3, seed=3, dtype=F64)
    lamp = dr.DirectionalLight(torch.tensor([0.3, -0.5, -1.0], dtype=F64))
    pictures, grads = [], []
    for capacity in (None, 900):
        leaves = [x.clone().requires_grad_() for x in (clip, texels, texcoords, normals)]
        coverage = make(leaves[0], faces, _DRIVER_GPU, capacity).check()
        albedo = dr.texture(leaves[1], dr.interpolate(leaves[2], faces, coverage))
        bent = dr.interpolate(leaves[3], faces, coverage)
        mask = coverage.fragments.triangle_id
        shaded = dr.shade_metallic_roughness(
            dr.interpolate(points, faces, coverage), bent, albedo, 0.2, 0.5, dr.pack_lights([lamp]),
            camera_position=torch.tensor([0.0, 0.0, 4.0], dtype=F64), mask=mask,
        )  # fmt: skip
        pictures.append(dr.composite(shaded, coverage))
        weights = rnd(*pictures[-1].shape, seed=5, dtype=F64)
        grads.append(torch.autograd.grad((pictures[-1] * weights).sum(), leaves))
    assert pictures[0].any()
    torch.testing.assert_close(pictures[1], pictures[0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-11, atol=1e-12)


def test_unused_entries_hide_what_their_values_are():
    clip, faces = sphere()
    coverage = make(clip, faces, _DRIVER_GPU, 600)
    assert len(coverage.weight) > coverage.counts[0]
    values = torch.where(coverage.triangle_id >= 0, 1.0, torch.nan).unsqueeze(-1).double()
    assert torch.isfinite(dr.composite(values, coverage, background=1.0)).all()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_what_does_not_fit_is_an_error(missing):
    clip, faces = two_spheres()
    needed = make(clip, faces, _DRIVER_NATIVE).counts.tolist()
    room = tuple(n - (k == missing) for k, n in enumerate(needed))
    what = ("fragments", "candidates", "candidates in one pixel")[missing]
    message = rf"coverage: capacity must be at least {needed[missing]} {what}, got {room[missing]}\."
    with pytest.raises(RuntimeError, match=message):
        make(clip, faces, _DRIVER_NATIVE, room)
    leaf = clip.clone().requires_grad_()
    coverage = make(leaf, faces, _DRIVER_GPU, room)
    with pytest.raises(RuntimeError, match=message):
        coverage.check()
    # Until somebody asks it goes on, with fewer fragments.
    image = picture(coverage)
    (grad,) = torch.autograd.grad(image.sum(), leaf)
    assert torch.isfinite(image).all()
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_lists_that_are_far_too_short_stay_within_their_memory(share):
    """All three at once. Sums of areas stay below those of the whole picture, every index is a pixel or a triangle."""
    clip, faces = two_spheres()
    whole = make(clip, faces, _DRIVER_NATIVE)
    room = tuple(int(n * share) for n in whole.counts.tolist())
    leaf = clip.clone().requires_grad_()
    coverage = make(leaf, faces, _DRIVER_GPU, room)
    assert [len(x) for x in lists(coverage)] == [room[0]] * 6
    assert ((coverage.triangle_id >= -1) & (coverage.triangle_id < len(faces))).all()
    assert ((coverage.pixel >= 0) & (coverage.pixel < 2 * SIZE[0] * SIZE[1])).all()
    assert coverage.offsets.max() <= room[0]
    assert (coverage.offsets.diff() >= 0).all()
    (grad,) = torch.autograd.grad(picture(coverage).sum() + 0 * leaf.sum(), leaf)
    assert torch.isfinite(grad).all()
    with pytest.raises(RuntimeError, match="candidates"):
        coverage.check()


def test_nothing_to_see():
    faces = torch.zeros(0, 3, dtype=torch.int32)
    for driver in DRIVERS:
        for clip in (torch.zeros(2, 5, 4, dtype=F64), torch.zeros(0, 5, 4, dtype=F64)):
            for capacity in (0, 9):
                coverage = make(clip, faces, driver, capacity).check()
                assert len(coverage.weight) == capacity
                assert (coverage.triangle_id == -1).all()
                assert torch.equal(coverage.pixel, torch.full((capacity,), max(len(clip) * SIZE[0] * SIZE[1] - 1, 0)))
                assert not picture(coverage).any()


@pytest.fixture
def reads(monkeypatch):
    """How often a value was read back, one entry per read."""
    found = []

    def read(counts):
        found.append(counts)
        return counts.tolist()

    monkeypatch.setattr(_coverage_lists, "_read", read)
    monkeypatch.setattr(_coverage_lists, "_expected", {})
    return found


def test_one_read_per_call_and_a_second_when_lists_grow(reads):
    clip, faces = sphere()
    for _ in range(3):
        make(clip, faces, _DRIVER_GPU)
    assert len(reads) == 3
    small = clip * torch.tensor([0.2, 0.2, 1, 1], dtype=F64)  # most of it in one pixel
    grown = make(small, faces, _DRIVER_GPU)
    assert len(reads) == 5
    again = make(small, faces, _DRIVER_GPU)
    assert len(reads) == 6
    assert torch.equal(grown.weight, again.weight)
    many, triangles = many_pixels()
    crowd = triangles.repeat(40, 1)
    before = len(reads)
    first = make(many, crowd, _DRIVER_GPU)  # lists longer than a first call expects
    assert len(reads) == before + 2
    second = make(many, crowd, _DRIVER_GPU)
    assert len(reads) == before + 3
    native = make(many, crowd, _DRIVER_NATIVE)
    assert torch.equal(first.triangle_id, native.triangle_id)
    assert all(torch.equal(a, b) for a, b in zip(first[:5], second[:5], strict=True))


def test_no_read_with_a_capacity(reads):
    clip, faces = two_spheres()
    leaf = clip.requires_grad_()
    picture(make(leaf, faces, _DRIVER_GPU, 900)).sum().backward()
    assert leaf.grad.any()
    assert reads == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("driver", DRIVERS)
def test_compiled_in_one_graph(driver):
    clip, faces = two_spheres()
    colors = uniform(clip.shape[1], 3, dtype=F64)

    def render(clip, colors):
        if driver == _DRIVER_NATIVE:
            coverage = dr.coverage(clip, faces, SIZE, capacity=900)
        else:
            coverage = make(clip, faces, driver, 900)
        return dr.composite(dr.interpolate(colors, faces, coverage), coverage, background=0.2)

    torch._dynamo.reset()
    compiled = torch.compile(render, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (render, compiled):
        leaves = [clip.clone().requires_grad_(), colors.clone().requires_grad_()]
        image = function(*leaves)
        grads.append([image, *torch.autograd.grad(image.square().sum(), leaves)])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-12, atol=1e-12)
    if driver == _DRIVER_NATIVE:
        with pytest.raises(RuntimeError, match=r"capacity must be at least \d+ candidates in one pixel, got 256\."):
            compiled(clip * torch.tensor([0.05, 0.05, 1, 1], dtype=F64), colors)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("capacity", [None, 900])
def test_pixel_and_item_compiled(capacity):
    clip, faces = two_spheres()
    torch._dynamo.reset()
    coverage = make(clip, faces, _DRIVER_NATIVE, capacity)
    for name in ("pixel", "item"):
        compiled = torch.compile(lambda c, name=name: getattr(c, name) * 2, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(coverage), getattr(coverage, name) * 2)
