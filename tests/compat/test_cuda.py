"""The functions on a GPU: the same values and gradients as on the CPU, in both modes."""

import pytest
import torch

from diffrender.compat import nvdiffrast as dr
from tests.compat.scenes import loose_triangles, sphere
from tests.support.vocabulary import relative_error, rnd, uniform

F64 = torch.float64

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def everything(pos, tri, device, exact_legacy):
    """All outputs of all functions, and gradients of all arguments, on the CPU. Inputs are made from seeds there."""
    leaves = {
        "pos": pos,
        "attr": rnd(pos.shape[1], 3, seed=1, dtype=F64),
        "uv": uniform(pos.shape[1], 2, seed=2, dtype=F64),
        "tex": rnd(1, 16, 32, 3, seed=3, dtype=F64),
        "cube": rnd(1, 6, 8, 8, 3, seed=4, dtype=F64),
        "level": rnd(1, 6, 4, 4, 3, seed=5, dtype=F64),
    }
    leaves = {name: value.detach().to(device).requires_grad_() for name, value in leaves.items()}
    tri = tri.to(device)
    glctx = dr.RasterizeCudaContext(device=device)
    options = {"exact_legacy": exact_legacy}
    with dr.DepthPeeler(glctx, leaves["pos"], tri, (23, 30), **options) as peeler:
        layers = [peeler.rasterize_next_layer() for _ in range(2)]
    rast, rast_db = dr.rasterize(glctx, leaves["pos"], tri, (23, 30), **options)
    color, _ = dr.interpolate(leaves["attr"], rast, tri, **options)
    st, st_da = dr.interpolate(leaves["uv"], rast, tri, rast_db, "all", **options)
    mip = dr.texture_construct_mip(leaves["tex"])
    direction = torch.cat([st, torch.ones_like(st[..., :1])], -1)
    bias = torch.full(rast.shape[:3], 0.7, dtype=F64, device=device)
    topology = dr.antialias_construct_topology_hash(tri)
    outputs = [*layers[1], rast, rast_db, color, st_da, dr.texture(leaves["tex"], st, st_da, mip=mip)]
    outputs.append(dr.texture(leaves["cube"], direction, None, bias, [leaves["level"]], "auto", "cube"))
    outputs.append(dr.antialias(color, rast, leaves["pos"], tri, topology, 2.0, **options))
    ranges = torch.tensor([[0, 3], [2, 4]])
    outputs.append(dr.rasterize(glctx, leaves["pos"][0], tri, (9, 9), ranges, **options)[0])
    cotangents = [rnd(*x.shape, seed=k, dtype=F64).to(device) for k, x in enumerate(outputs)]
    grads = torch.autograd.grad(outputs, list(leaves.values()), cotangents)
    return [x.detach().cpu() for x in (*outputs, *grads)]


@pytest.mark.parametrize("exact_legacy", [False, True], ids=["ours", "legacy"])
@pytest.mark.parametrize("kind", ["loose", "sphere"])
def test_cpu_and_cuda_agree(kind, exact_legacy):
    pos, tri = loose_triangles(70) if kind == "loose" else sphere(70)
    cpu, cuda = (everything(pos, tri, device, exact_legacy) for device in ("cpu", "cuda"))
    for index, (value, truth) in enumerate(zip(cuda, cpu, strict=True)):
        assert relative_error(value, truth) < 1e-8, index


def test_ranges_and_contexts_may_live_anywhere():
    pos, tri = loose_triangles(71, batch=1)
    ranges = torch.tensor([[0, 3], [2, 4]], dtype=torch.int32)
    results = [
        dr.rasterize(dr.RasterizeCudaContext("cpu"), pos[0].cuda(), tri.cuda(), (9, 9), r)[0]
        for r in (ranges, ranges.cuda())
    ]
    assert torch.equal(*results)
