"""Both rasterizer algorithms and the reference show the same triangle at every pixel; so do all instruction sets."""

import os
import subprocess
import sys

import pytest
import torch

import diffrender as dr
from tests.reference import rasterize as reference
from tests.support.drivers import DTYPES, gpu_driver, same
from tests.support.scenes import (
    cube,
    icosphere,
    perspective,
    random_scene,
    rigid,
    to_clip,
)
from tests.support.vocabulary import uniform

F64 = torch.float64
# Two surfaces closer than this in depth may swap in float32: keys are sums of products with a relative error of a few
# 2^-24, after differences of coordinates that cost up to 8 bits more on the small or slanted triangles of these scenes.
FLOAT32_KEY_TOLERANCE = 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_drivers_and_reference_agree_on_random_scenes(dtype):
    """200 scenes with degenerate, huge, behind-camera, coincident, NaN and infinite triangles."""
    covered = near_ties = 0
    for seed in range(200):
        positions, triangles, size = random_scene(seed, dtype)
        cull = (None, "back", "front")[seed % 3]
        native = dr.rasterize(positions, triangles, size, cull=cull, derivatives=True)
        assert same(native, gpu_driver(positions, triangles, size, cull=cull, derivatives=True)), seed
        assert all(torch.isfinite(x).all() for x in native[1:])
        triangle_id, margin = reference.visible_triangles(positions, triangles, size, cull=cull)
        covered += int((triangle_id >= 0).sum())
        if dtype == F64:
            assert torch.equal(native.triangle_id, triangle_id), seed
            continue
        # A tie of copies (margin exactly 0) is decided by the index in every precision.
        unsure = (margin > 0) & (margin < FLOAT32_KEY_TOLERANCE)
        near_ties += int(unsure.sum())
        assert torch.equal(native.triangle_id >= 0, triangle_id >= 0), seed
        assert torch.equal(native.triangle_id[~unsure], triangle_id[~unsure]), seed
    assert covered > 10_000
    assert near_ties < 0.01 * covered


@pytest.mark.parametrize("dtype", DTYPES)
def test_drivers_and_reference_agree_on_peeled_layers(dtype):
    for seed in range(200, 230):
        positions, triangles, size = random_scene(seed, dtype)
        above = None
        for layer in range(4):
            native = dr.rasterize(positions, triangles, size, beneath=above, derivatives=True)
            assert same(native, gpu_driver(positions, triangles, size, beneath=above, derivatives=True)), (seed, layer)
            if dtype == F64:
                over_id = None if above is None else above.triangle_id
                truth, _ = reference.visible_triangles(positions, triangles, size, beneath=over_id)
                assert torch.equal(native.triangle_id, truth), (seed, layer)
            above = native


@pytest.mark.parametrize("dtype", DTYPES)
def test_drivers_agree_on_a_large_scene(dtype):
    """Sizes that take several tiles and pieces, tiny and screen-filling triangles together, in a batch."""
    positions = uniform(2, 600, 4, low=-1.3, high=1.3, seed=3, dtype=dtype)
    positions[..., 3] = 1 + 0.4 * positions[..., 3]
    near = torch.arange(600).repeat(3)[:, None]
    triangles = torch.cat([near, (near * 7 + 3) % 600, (near * 11 + 5) % 600], 1).int()
    small = positions.clone()
    small[:, ::3, :2] *= 0.1
    for clip in (positions, small):
        size = (211, 317)
        native = dr.rasterize(clip, triangles, size, derivatives=True)
        assert same(native, gpu_driver(clip, triangles, size, derivatives=True))


def test_peeling_visits_every_layer_once():
    """Layers of a sphere inside a cube seen through: as many layers at a pixel as triangles cover it alone."""
    sphere, sphere_triangles = icosphere(1, dtype=F64)
    box, box_triangles = cube(1.2, dtype=F64)
    camera = perspective(60, 25, 31) @ rigid(torch.tensor([0.1, 0, -4, 0.2, 0.5, 0], dtype=F64))
    positions = to_clip(torch.cat([sphere, box]), camera)
    triangles = torch.cat([sphere_triangles, box_triangles + len(sphere)])
    each = torch.stack([torch.arange(len(triangles)), torch.ones(len(triangles), dtype=torch.long)], -1)
    count = (dr.rasterize(positions, triangles, (25, 31), ranges=each).triangle_id >= 0).sum(0)
    layers, fragments, depth = 0, None, torch.full((1, 25, 31), -torch.inf, dtype=F64)
    while True:
        fragments = dr.rasterize(positions, triangles, (25, 31), beneath=fragments)
        hit = fragments.triangle_id >= 0
        if not hit.any():
            break
        layers = layers + hit[0].int()
        assert (fragments.depth[hit] >= depth[hit] - 1e-12).all()
        depth = fragments.depth
    assert torch.equal(layers, count)
    assert count.max() == 4


def test_instruction_sets_agree_bit_for_bit():
    """Every built level that this CPU runs gives the same numbers: no contraction, no reassociation."""
    from diffrender import _library

    script = (
        "import hashlib, torch, diffrender as dr\n"
        "from tests.support.scenes import random_scene\n"
        "digest = hashlib.sha256()\n"
        "for seed in range(40):\n"
        "    for dtype in (torch.float32, torch.float64):\n"
        "        p, t, size = random_scene(seed, dtype)\n"
        "        p.requires_grad_()\n"
        "        f = dr.rasterize(p, t, size, derivatives=True)\n"
        "        (f.barycentrics.sum() + f.depth.sum() + f.derivatives.sum()).backward()\n"
        "        for x in (*f, p.grad):\n"
        "            digest.update(x.detach().numpy().tobytes())\n"
        "print(digest.hexdigest())\n"
    )
    levels = [level for level in _library.built_levels() if level in _library.supported_levels()]
    if len(levels) < 2:
        pytest.skip(f"needs two built levels that this CPU runs, there is {levels}: make build")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    digests = set()
    for level in levels:
        environment = {**os.environ, "DIFFRENDER_CPU_LEVEL": level, "PYTHONPATH": root}
        result = subprocess.run(
            [sys.executable, "-c", script], env=environment, cwd=root, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, result.stderr
        digests.add(result.stdout)
    assert len(digests) == 1
