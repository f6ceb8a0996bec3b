"""The same kernels on a GPU: CPU and CUDA agree, streams and deterministic sums work, bad indices stay harmless."""

import pytest
import torch

import diffrender as dr
from tests.ops.rows.base import many_triangles
from tests.support.scenes import icosphere, perspective, random_scene, rigid, to_clip
from tests.support.vocabulary import P, relative_error, rnd, uniform

F64 = torch.float64

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def pipeline(positions, triangles, size, device, weights=None):
    """All outputs of the three ops on a device, and the gradients of positions and attributes; results on the CPU."""
    leaf = positions.detach().to(device).requires_grad_()
    triangles = triangles.to(device)
    count = positions.shape[-2]
    attributes = uniform(count, 3, dtype=positions.dtype).to(device).requires_grad_()
    f = dr.rasterize(leaf, triangles, size, derivatives=True)
    values, steps = dr.interpolate(attributes, triangles, f, derivatives="all")
    image = dr.antialias(values, f, leaf, triangles, method="pairs")
    outputs = [f.barycentrics, f.depth, f.derivatives, values, steps, image]
    cotangents = [rnd(*x.shape, seed=k, dtype=x.dtype).to(device) for k, x in enumerate(outputs)]
    grads = torch.autograd.grad(outputs, [leaf, attributes], cotangents)
    return f.triangle_id.cpu(), [x.detach().cpu() for x in (*outputs, *grads)]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_r17_cpu_and_cuda_agree_on_random_scenes(dtype):
    """Fault: fused multiply-add, another edge rule, another clamp. Ids are equal everywhere, also next to edges."""
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    for seed in range(200):
        positions, triangles, size = random_scene(seed, dtype)
        ids, results = pipeline(positions, triangles, size, "cpu")
        cuda_ids, cuda_results = pipeline(positions, triangles, size, "cuda")
        assert torch.equal(ids, cuda_ids), seed
        for k, (value, cuda_value) in enumerate(zip(results, cuda_results, strict=True)):
            assert torch.isfinite(cuda_value).all(), (seed, k)
            assert relative_error(cuda_value, value) < tolerance, (seed, k)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_cpu_and_cuda_agree_on_a_large_scene(dtype):
    """Large triangles are cut into pieces of work, small ones are drawn at once; a batch of two."""
    positions, triangles, _ = many_triangles()
    size = (611, 517)
    ids, results = pipeline(positions.to(dtype), triangles, size, "cpu")
    cuda_ids, cuda_results = pipeline(positions.to(dtype), triangles, size, "cuda")
    assert torch.equal(ids, cuda_ids)
    for value, cuda_value in zip(results, cuda_results, strict=True):
        assert relative_error(cuda_value, value) < (1e-3 if dtype == torch.float32 else 1e-9)


def test_one_huge_triangle_fills_the_frame():
    p = P(1080, 1920)
    corners = torch.tensor([p(-2000, -2000), p(6000, -2000), p(-2000, 6000)], device="cuda")
    triangles = torch.tensor([[0, 1, 2]], device="cuda")
    assert (dr.rasterize(corners, triangles, (1080, 1920)).triangle_id == 0).all()


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_deterministic_gradients_are_bit_identical(dtype):
    positions, triangles, size = many_triangles()
    runs = [pipeline(positions.to(dtype), triangles, size, "cuda")[1] for _ in range(5)]
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))
    truth = pipeline(positions.to(dtype), triangles, size, "cpu")[1]
    for value, true_value in zip(runs[0], truth, strict=True):
        assert relative_error(value, true_value) < (1e-3 if dtype == torch.float32 else 1e-9)


def test_r02_kernels_run_on_the_current_stream():
    """Fault: a launch on the default stream reads stale inputs. The side stream is kept busy before it writes them."""
    positions, triangles, size = random_scene(12)
    target = positions.cuda()
    truth = pipeline(positions, triangles, size, "cuda")[1]
    busy = torch.randn(4096, 4096, device="cuda")
    stream = torch.cuda.Stream()
    faces = triangles.cuda()
    for _ in range(20):
        late = torch.zeros_like(target)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(10):
                busy = (busy @ busy).clamp(-1, 1)
            late.copy_(target)
            fragments = dr.rasterize(late, faces, size, derivatives=True)
        stream.synchronize()
        assert torch.equal(fragments.barycentrics.cpu(), truth[0])


def test_r04_permuted_inputs_survive_reuse_of_memory():
    vertices, triangles = icosphere(1)
    clip = to_clip(vertices, perspective(45, 32, 32).float() @ rigid(torch.tensor([0, 0, -3.0, 0.3, 0.2, 0]))).cuda()
    permuted, faces = clip.T.contiguous().T, triangles.cuda()
    truth = dr.rasterize(clip, faces, (32, 32)).barycentrics
    for _ in range(200):
        scratch = [torch.full_like(clip, float("nan")) for _ in range(3)]
        fragments = dr.rasterize(permuted, faces, (32, 32))
        del scratch
        assert torch.equal(fragments.barycentrics, truth)
        assert fragments.barycentrics.is_contiguous()


def test_inputs_on_different_devices_are_refused():
    positions, triangles, size = random_scene(12)
    with pytest.raises(ValueError, match="is on cpu but .* is on cuda"):
        dr.rasterize(positions.cuda(), triangles, size)


def test_bad_index_is_harmless_and_checked_on_demand():
    """No silent device synchronisation: the check is off by default, and then nothing foreign is read."""
    positions, triangles, size = random_scene(12)
    wrong = triangles.clone()
    wrong[0, 1], wrong[1, 2] = 10**9, -5
    clean = dr.rasterize(positions.cuda(), triangles[2:].cuda(), size).triangle_id
    shown = dr.rasterize(positions.cuda(), wrong.cuda(), size).triangle_id
    assert torch.equal(shown, torch.where(clean >= 0, clean + 2, -1))
    dr.set_checks(True)
    try:
        with pytest.raises(ValueError, match="triangles refers to vertex -5"):
            dr.rasterize(positions.cuda(), wrong.cuda(), size)
    finally:
        dr.set_checks(False)


@pytest.mark.slow
def test_r01_more_than_two_to_the_31_elements():
    """Fault: an offset wraps in int32. 23172 squared pixels with four derivatives each; rows at the end are right."""
    side = 23172
    p = P(side, side)
    corners = torch.tensor([p(-1e4, -1e4, z=0.1), p(7e4, -1e4, z=0.5), p(-1e4, 7e4, z=0.9)], device="cuda")
    triangles = torch.tensor([[0, 1, 2]], device="cuda")
    fragments = dr.rasterize(corners, triangles, (side, side), derivatives=True)
    assert (fragments.triangle_id[0, -8:] == 0).all()
    last = fragments.barycentrics[0, -1, -1].cpu().double()
    # In a frame of one pixel around the last one the same triangle has the same barycentrics.
    q = P(1, 1)
    shifted = [
        q(x - (side - 1), y - (side - 1), z=z) for x, y, z in ((-1e4, -1e4, 0.1), (7e4, -1e4, 0.5), (-1e4, 7e4, 0.9))
    ]
    small = dr.rasterize(torch.tensor(shifted, dtype=F64), triangles.cpu(), (1, 1)).barycentrics[0, 0, 0]
    assert (last - small).abs().max() < 1e-4
