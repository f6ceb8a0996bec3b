"""coverage on a GPU: the same fragments and gradients as on the CPU, also with order-free sums."""

import pytest
import torch

import diffrender as dr
from tests.ops.rows.coverage import picture
from tests.support.scenes import icosphere, perspective, random_scene, rigid, to_clip
from tests.support.vocabulary import relative_error, rnd

F64 = torch.float64

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def run(positions, triangles, size, device, **options):
    leaf = positions.detach().to(device).requires_grad_()
    coverage = dr.coverage(leaf, triangles.to(device), size, **options)
    image = picture(coverage)
    weights = rnd(*image.shape, seed=1, dtype=image.dtype).to(device)
    (grad,) = torch.autograd.grad((image * weights).sum(), leaf)
    return [x.detach().cpu() for x in (*coverage[:5], coverage.pixel, image, grad)]


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_cpu_and_cuda_agree_on_a_mesh(dtype, merge):
    vertices, faces = icosphere(4, dtype=F64)
    pose = torch.tensor([0.1, -0.2, -3.0, 0.4, 0.3, 0.2], dtype=F64)
    clip = to_clip(vertices, perspective(50, 61, 73) @ rigid(pose)).to(dtype)
    on_cpu, on_gpu = (run(clip, faces, (61, 73), device, merge_adjacent=merge) for device in ("cpu", "cuda"))
    assert torch.equal(on_gpu[0], on_cpu[0])
    for value, truth in zip(on_gpu[1:], on_cpu[1:], strict=True):
        assert relative_error(value, truth) < (1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_cpu_and_cuda_agree_on_random_scenes(seed):
    """Pictures, not lists: a fragment of 1e-14 of a pixel may be there on one device only."""
    positions, triangles, size = random_scene(seed, F64)
    on_cpu, on_gpu = (run(positions, triangles, size, device) for device in ("cpu", "cuda"))
    assert relative_error(on_gpu[-2], on_cpu[-2]) < 1e-9
    finite = torch.isfinite(on_cpu[-1])
    assert torch.equal(torch.isfinite(on_gpu[-1]), finite)


def test_order_free_sums_are_the_same_bits():
    vertices, faces = icosphere(3)
    pose = torch.tensor([0.1, -0.2, -3.0, 0.4, 0.3, 0.2], dtype=F64)
    clip = to_clip(vertices, (perspective(50, 61, 73) @ rigid(pose)).float())
    torch.use_deterministic_algorithms(True)
    try:
        grads = [run(clip, faces, (61, 73), "cuda")[-1] for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(grads[1], grads[0])
    assert torch.equal(grads[2], grads[0])
    assert relative_error(grads[0], run(clip, faces, (61, 73), "cpu")[-1]) < 1e-4


@pytest.mark.parametrize("merge", [False, True])
def test_with_a_capacity_nothing_waits_and_nothing_changes(merge):
    vertices, faces = icosphere(3)
    pose = torch.tensor([0.1, -0.2, -3.0, 0.4, 0.3, 0.2], dtype=F64)
    clip = to_clip(vertices, (perspective(50, 61, 73) @ rigid(pose)).float()).cuda()
    faces = faces.cuda()
    truth = dr.coverage(clip, faces, (61, 73), merge_adjacent=merge)
    needed = truth.counts.tolist()
    room = (needed[0] + 100, needed[1] + 100, needed[2] + 10)
    dr.coverage(clip, faces, (61, 73), merge_adjacent=merge, capacity=room)  # loads what is loaded once
    torch.cuda.set_sync_debug_mode("error")
    try:
        coverage = dr.coverage(clip, faces, (61, 73), merge_adjacent=merge, capacity=room)
        pixel, item = coverage.pixel, coverage.item
    finally:
        torch.cuda.set_sync_debug_mode("default")
    coverage.check()
    assert torch.equal(pixel[: needed[0]], truth.pixel)
    assert (pixel[needed[0] :] == 61 * 73 - 1).all()
    assert not item.any()
    for value, expected in zip(coverage[:4], truth[:4], strict=True):
        assert torch.equal(value[: needed[0]], expected)
    assert torch.equal(coverage.offsets, truth.offsets)
    assert (coverage.triangle_id[needed[0] :] == -1).all()
    for k in range(3):
        short = tuple(n - (i == k) for i, n in enumerate(needed))
        with pytest.raises(RuntimeError, match="coverage: capacity must be at least"):
            dr.coverage(clip, faces, (61, 73), merge_adjacent=merge, capacity=short).check()
