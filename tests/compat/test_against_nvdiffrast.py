"""Values and gradients next to those of nvdiffrast itself, where it is installed and a GPU is there.

Only its public functions are called, as the description of its behaviour has them. exact_legacy=True is compared, so
that differences are those of rounding: ids may differ at single pixels next to an edge, and the rest agrees
elsewhere.
"""

import importlib
import importlib.metadata
import importlib.util

import pytest
import torch

from diffrender.compat import nvdiffrast as ours
from tests.compat.scenes import loose_triangles, sphere
from tests.support.vocabulary import relative_error, rnd, uniform


def installed():
    names = ("nvdiffrast", "diffrp-nvdiffrast")
    if not torch.cuda.is_available():
        return False
    return any(name in {d.metadata["Name"] for d in importlib.metadata.distributions()} for name in names)


pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not installed(), reason="needs a CUDA device and the extra nvdiffrast"),
]


@pytest.fixture(scope="module")
def peer():
    """(module, context): the package itself, not what install_as_nvdiffrast puts in its place."""
    name = "nvdiffrast.torch" if importlib.util.find_spec("nvdiffrast") else "diffrp_nvdiffrast.torch"
    module = importlib.import_module(name)
    assert module is not ours
    return module, module.RasterizeCudaContext()


def cuda_scene(kind, seed, size):
    pos, tri = loose_triangles(seed) if kind == "loose" else sphere(seed, levels=2)
    return pos.float().cuda(), tri.cuda(), size


SCENES = pytest.mark.parametrize(("kind", "seed", "size"), [("loose", 1, (64, 72)), ("sphere", 2, (80, 64))])


@SCENES
def test_rasterize(peer, kind, seed, size):
    module, context = peer
    pos, tri, size = cuda_scene(kind, seed, size)
    results = []
    for library, glctx, options in ((module, context, {}), (ours, ours.RasterizeCudaContext(), {"exact_legacy": True})):
        leaf = pos.clone().requires_grad_()
        rast, rast_db = library.rasterize(glctx, leaf, tri, size, **options)
        results.append((leaf, rast, rast_db))
    (_, rast, rast_db), (_, mine, mine_db) = results
    same = (rast[..., 3] == mine[..., 3]) & (rast[..., 3] > 0)
    assert ((rast[..., 3] > 0) | (mine[..., 3] > 0)).sum() - same.sum() <= 2
    assert (rast[same] - mine[same]).abs().max() < 1e-5
    assert relative_error(mine_db[same], rast_db[same]) < 1e-3
    weights = [rnd(*rast.shape, seed=k).cuda() * same[..., None] for k in (1, 2)]
    grads = [torch.autograd.grad([r, db], leaf, weights)[0] for leaf, r, db in results]
    assert relative_error(grads[1], grads[0]) < 1e-3


@SCENES
def test_interpolate(peer, kind, seed, size):
    module, context = peer
    pos, tri, size = cuda_scene(kind, seed, size)
    rast, rast_db = module.rasterize(context, pos, tri, size)
    attr = rnd(pos.shape[1], 5).cuda()
    results = []
    for library in (module, ours):
        leaves = [x.detach().clone().requires_grad_() for x in (attr, rast, rast_db)]
        values = library.interpolate(leaves[0], leaves[1], tri, rast_db=leaves[2], diff_attrs=[0, -1, 3])
        weights = [rnd(*x.shape, seed=k).cuda() for k, x in enumerate(values)]
        results.append((*values, *torch.autograd.grad(values, leaves, weights)))
    for value, truth in zip(results[1], results[0], strict=True):
        assert relative_error(value, truth) < 1e-4


@pytest.mark.parametrize("boundary_mode", ["wrap", "clamp", "zero", "cube"])
@pytest.mark.parametrize("filter_mode", ["nearest", "linear", "linear-mipmap-nearest", "linear-mipmap-linear"])
def test_texture(peer, filter_mode, boundary_mode):
    module, _ = peer
    cube = boundary_mode == "cube"
    tex = (rnd(1, 6, 16, 16, 3) if cube else rnd(1, 16, 32, 3)).cuda()
    uv = (rnd(1, 40, 50, 3, seed=1) if cube else uniform(1, 40, 50, 2, seed=1, low=-1, high=2)).cuda()
    uv_da = 0.1 * rnd(1, 40, 50, 6 if cube else 4, seed=2).cuda()
    bias = rnd(1, 40, 50, seed=3).cuda()
    results = []
    for library in (module, ours):
        leaves = [x.clone().requires_grad_() for x in (tex, uv, uv_da, bias)]
        if "mipmap" in filter_mode:
            value = library.texture(*leaves, filter_mode=filter_mode, boundary_mode=boundary_mode)
        else:
            value = library.texture(*leaves[:2], filter_mode=filter_mode, boundary_mode=boundary_mode)
        grads = torch.autograd.grad(value, leaves, rnd(*value.shape, seed=4).cuda(), allow_unused=True)
        results.append((value, *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))))
    for value, truth in zip(results[1], results[0], strict=True):
        # Single lookups may fall on the other side of a texel's centre or of a level.
        off = (value - truth).abs() > 1e-3 * truth.abs().max().clamp(min=1e-3)
        assert off.sum() <= 0.002 * off.numel() + 3


@SCENES
def test_antialias(peer, kind, seed, size):
    module, context = peer
    pos, tri, size = cuda_scene(kind, seed, size)
    rast, _ = module.rasterize(context, pos, tri, size)
    color = uniform(*rast.shape[:3], 3).cuda()
    results = []
    for library, options in ((module, {}), (ours, {"exact_legacy": True})):
        leaves = [x.clone().requires_grad_() for x in (color, pos)]
        topology = library.antialias_construct_topology_hash(tri)
        image = library.antialias(leaves[0], rast.detach(), leaves[1], tri, topology, 2.0, **options)
        results.append((image, *torch.autograd.grad(image, leaves, rnd(*image.shape).cuda())))
    (image, to_color, to_pos), (mine, my_color, my_pos) = results
    assert ((image - mine).abs() > 1e-4).any(-1).sum() <= 4
    assert ((to_color - my_color).abs() > 1e-4).any(-1).sum() <= 8
    assert relative_error(my_pos, to_pos) < 0.05


def test_depth_peeler(peer):
    module, context = peer
    pos, tri, size = cuda_scene("loose", 5, (48, 48))
    my_peeler = ours.DepthPeeler(ours.RasterizeCudaContext(), pos, tri, size, exact_legacy=True)
    with module.DepthPeeler(context, pos, tri, size) as theirs, my_peeler as mine:
        for _ in range(4):
            a, b = theirs.rasterize_next_layer()[0], mine.rasterize_next_layer()[0]
            assert (a[..., 3] != b[..., 3]).sum() <= 6
