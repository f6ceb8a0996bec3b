"""Cases R: memory, processes, threads, odd inputs, at the level of the renderer.

R01, R02 and R17 need a GPU (tests/ops/test_cuda.py, tests/ops/test_shade_cuda.py); R07, R10 and R11 are in
tests/test_autograd.py and tests/test_pipeline.py, R13 and R14 in tests/test_packing.py.
"""

import concurrent.futures
import copy
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import diffrender as dr
from diffrender import geometry
from tests.support.lit_scene import SIZE, four_lights, lit_camera, lit_mesh, poses, weights
from tests.support.render_dataset import Views

F32, F64 = torch.float32, torch.float64
ROOT = Path(__file__).resolve().parents[2]


def optimise(step_count, size=SIZE, **options):
    """A generator of optimisation steps on shape, maps, lamp and pose; yields after each."""
    mesh = lit_mesh(F32)
    camera = lit_camera(F32).scaled(size[0] / SIZE[0])
    albedo = mesh.material.albedo.clone().requires_grad_()
    vertices, lamp = mesh.vertices.clone().requires_grad_(), torch.tensor([2.0, 2.0, 3.0], requires_grad=True)
    twist = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.Adam([albedo, vertices, lamp, twist], lr=1e-4)
    renderer = dr.Renderer(size, background=0.3, **options)
    target = torch.rand(1, *size, 3)
    for _ in range(step_count):
        shown = mesh.with_vertices(vertices).replace(material=mesh.material.replace(albedo=albedo))
        color = renderer(shown, camera.moved(twist), [dr.PointLight(lamp, 12.0), *four_lights()[1:]]).color
        loss = (color - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss, color, shown
        yield


# --- R04 layouts ----------------------------------------------------------------------------------


def test_r04_permuted_inputs_survive_reuse_of_memory():
    """While blocks of the same sizes come and go, strided inputs and cotangents give the bits of dense ones."""
    mesh, camera = lit_mesh(F32), lit_camera(F32)
    renderer = dr.Renderer(SIZE, background=0.3)

    def run(vertices, albedo, cotangent):
        leaves = [vertices.detach().requires_grad_(), albedo.detach().requires_grad_()]
        shown = mesh.with_vertices(leaves[0]).replace(material=mesh.material.replace(albedo=leaves[1]))
        color = renderer(shown, camera, four_lights()).color
        assert color.is_contiguous()
        return [color, *torch.autograd.grad(color, leaves, cotangent)]

    def permuted(x):
        return x.transpose(0, -1).contiguous().transpose(0, -1)

    inputs = [mesh.vertices, mesh.material.albedo, weights(dtype=F32)]
    truth = run(*inputs)
    strided = [permuted(x) for x in inputs]
    assert not any(x.is_contiguous() for x in strided[:2])
    for _ in range(50):
        for x in truth:
            torch.rand_like(x).mul_(9)
        assert all(torch.equal(a, b) for a, b in zip(run(*strided), truth, strict=True))


# --- R05 memory -----------------------------------------------------------------------------------


def resident_bytes():
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")


def growth(steps, warm_up):
    """Bytes that the process has grown by between step `warm_up` and the last."""
    before = 0
    for k, _ in enumerate(steps):
        if k == warm_up:
            before = resident_bytes()
    return resident_bytes() - before


@needs_proc
@pytest.mark.parametrize("recompute", [True, *(pytest.param(r, marks=pytest.mark.slow) for r in (False, "tiles"))])
def test_r05_memory_stays_flat_over_steps(recompute):
    assert growth(optimise(90, recompute=recompute), 30) < 5e6


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"recompute": False}, {"edges": "pairs"}, {"samples": 2}], ids=str)
def test_r05_memory_stays_flat_over_1000_steps(options):
    size = (4 * SIZE[0], 4 * SIZE[1]) if "samples" not in options else SIZE
    assert growth(optimise(1000, size=size, **options), 100) < 5e6


@needs_proc
def test_r05_memory_stays_flat_without_backward_passes():
    """Forwards under no_grad, forwards whose result is dropped, and many resolutions."""
    mesh, lights = lit_mesh(F32), four_lights()
    vertices = mesh.vertices.clone().requires_grad_()

    def forwards():
        renderer, camera = dr.Renderer(SIZE), lit_camera(F32)
        for k in range(90):
            with torch.set_grad_enabled(k % 2 == 0):
                renderer(mesh.with_vertices(vertices), camera, lights)
            yield

    def sizes():
        for k in range(90):
            size = (16 + k % 40, 20 + k % 37)
            camera = dr.Camera.perspective(fov_y_deg=32, width=size[1], height=size[0]).look_at([0.7, 2.2, 3.0])
            dr.Renderer(size)(mesh.with_vertices(vertices), camera, lights).color.sum().backward()
            yield

    assert growth(forwards(), 30) < 5e6
    assert growth(sizes(), 45) < 5e6


# --- R08 processes, threads, copies ---------------------------------------------------------------


def test_r08_import_starts_no_cuda_and_no_threads():
    code = (
        "import torch, threading, diffrender as dr; dr.Renderer((8, 8)); "
        "print(torch.cuda.is_initialized(), threading.active_count(), len(__import__('os').listdir('/proc/self/task')))"
        if Path("/proc/self/task").exists()
        else "import torch, threading, diffrender; print(torch.cuda.is_initialized(), threading.active_count(), 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.split() == ["False", "1", "1"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork of a process with threads, from Python 3.12 on
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_r08_workers_of_a_data_loader_render(method, set_threads):
    """Workers, started after the parent has rendered on several threads."""
    if method not in torch.multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} on this system")
    set_threads(2)
    views = Views()
    truth = [views[k] for k in range(len(views))]
    loader = DataLoader(
        views, batch_size=None, num_workers=2 if method == "fork" else 1, timeout=60, multiprocessing_context=method
    )
    found = list(loader)
    assert len(found) == len(truth)
    for (color, grad), (true_color, true_grad) in zip(found, truth, strict=True):
        assert torch.equal(color, true_color)
        assert torch.equal(grad, true_grad)


def test_r08_threads_render_at_once():
    """Eight threads with scenes of their own, forward and backward, against one after the other."""
    views, order = Views(), [k % 4 for k in range(16)]
    truth = [views[k] for k in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(views.__getitem__, order))
    for k, (color, grad) in zip(order, found, strict=True):
        assert torch.equal(color, truth[k][0])
        assert torch.equal(grad, truth[k][1])


def equal(a, b):
    """Whether two objects hold the same tensors, numbers and objects."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.requires_grad == b.requires_grad and a.dtype == b.dtype
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if type(a).__module__.startswith("diffrender"):
        return type(a) is type(b) and equal(state(a), state(b))
    return a == b


def state(value):
    """What an object consists of, without what it keeps to save work."""
    if isinstance(value, torch.nn.Module):
        return dict(value.state_dict())
    return {name: part for name, part in vars(value).items() if name not in ("_cache", "_frozen", "_frozen_alpha")}


def objects():
    mesh, camera = lit_mesh(F32), lit_camera(F32).moved(poses(2, F32))
    sky = dr.EnvironmentLight(torch.rand(8, 16, 3), intensity=2.0)
    renderer = dr.Renderer(SIZE, background=0.3, recompute=False, outputs=("color", "depth", "mask", "triangle_id"))
    lights = [*four_lights(), sky]
    with torch.no_grad():
        result = renderer(mesh, camera, lights)
    fisheye = dr.Camera.from_opencv(
        torch.tensor([[60.0, 0, 12], [0, 60, 10], [0, 0, 1]]), torch.eye(3), torch.zeros(3), *SIZE[::-1],
        distortion=torch.tensor([0.1, 0.0, 0.0, 0.0]), fisheye=True,
    )  # fmt: skip
    trained = dr.Material(albedo=torch.rand(4, 4, 3).requires_grad_(), alpha_mode="MASK")
    return {
        "mesh": mesh, "camera": camera, "fisheye": fisheye, "renderer": renderer, "material": mesh.material,
        "trained material": trained, "point": lights[0], "directional": lights[1], "spot": lights[2],
        "ambient": lights[3], "environment": sky, "table": dr.pack_lights(lights[:4]), "result": result,
        "fragments": result.fragments,
    }  # fmt: skip


@pytest.mark.parametrize("name", list(objects()))
def test_r08_objects_pickle_and_copy(name):
    original = objects()[name]
    for twin in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert twin is not original
        assert equal(twin, original)


def test_r08_copies_render_the_same_and_are_their_own():
    mesh, camera, lights = lit_mesh(F32), lit_camera(F32), four_lights()
    renderer = dr.Renderer(SIZE, background=0.3)
    truth = renderer(mesh, camera, lights).color  # fills the caches, which travel too
    for make in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        twins = make([renderer, mesh, camera, lights])
        assert torch.equal(twins[0](*twins[1:]).color, truth)
        twins[1].vertices.mul_(0.5)
        twins[3][0].color.mul_(0.5)
        assert not torch.equal(twins[0](*twins[1:]).color, truth)
        assert torch.equal(renderer(mesh, camera, lights).color, truth)


# --- R16 bad vertices -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("edges", ["segments", "pairs", None])
def test_r16_bad_vertices_poison_nothing(edges, bad):
    """Triangles with corners that are no numbers draw nothing, and huge ones only what they cover; the others keep
    their pixels, and their gradients."""
    clean = lit_mesh(F32)
    count = clean.vertex_count
    # The same ring, and two triangles that share a vertex with it.
    more = torch.tensor([[0, count, count + 1], [5, count + 1, count]])
    shapeless = torch.tensor([[bad, bad, 1.0], [1.0, bad, bad]])
    normals = clean.vertex_normals()
    results = []
    for points, triangles, own in (
        (clean.vertices, clean.triangles, normals),
        (
            torch.cat([clean.vertices, shapeless]),
            torch.cat([clean.triangles, more]),
            torch.cat([normals, normals[:2]]),
        ),
    ):
        leaf = points.clone().requires_grad_()
        mesh = dr.Mesh(leaf, triangles, normals=own, colors=0.5 + 0.4 * own)
        result = dr.Renderer(SIZE, edges=edges, background=0.3, outputs=("color", "triangle_id"))(
            mesh, lit_camera(F32), four_lights()
        )
        (result.color * weights(dtype=F32)).sum().backward()
        results.append((result.color.detach(), result.triangle_id, leaf.grad[:count]))
    (color, ids, grad), (bad_color, bad_ids, bad_grad) = results
    touched = bad_ids >= clean.triangle_count
    assert torch.equal(ids[~touched], bad_ids[~touched])
    if bad != 1e38:
        assert not touched.any()
        assert torch.equal(color, bad_color)
        assert torch.equal(grad, bad_grad)
    elif edges is None:
        assert torch.equal(color[~touched], bad_color[~touched])
        rest = torch.ones(count, dtype=torch.bool)
        rest[[0, 5]] = False
        rest[clean.triangles[ids[touched & (ids >= 0)].long()].long().unique()] = False
        assert torch.equal(grad[rest], bad_grad[rest])


# --- R19 inference mode, many triangles -----------------------------------------------------------


@pytest.mark.parametrize("edges", ["segments", "pairs", None])
def test_r19_what_inference_mode_made_serves_training(edges):
    """A mesh and a first picture made inside of inference mode, which fills all caches; training outside."""
    sky = dr.EnvironmentLight(torch.rand(8, 16, 3, generator=torch.Generator().manual_seed(2)))
    camera, lights = lit_camera(F32), [*four_lights(), sky]
    renderer = dr.Renderer(SIZE, edges=edges, background=sky)
    with torch.inference_mode():
        mesh = geometry.torus(segments=16, tube_segments=10)
        renderer(mesh, camera, lights)
    vertices = lit_mesh(F32).vertices.clone().requires_grad_()
    renderer(mesh.with_vertices(vertices), camera, lights).color.sum().backward()
    assert vertices.grad.any()
    fresh = lit_mesh(F32).vertices.clone().requires_grad_()
    own = geometry.torus(segments=16, tube_segments=10).with_vertices(fresh)
    renderer(own, camera, lights).color.sum().backward()
    assert torch.equal(vertices.grad, fresh.grad)


def test_r19_a_big_frame_of_many_triangles_equals_its_quarters():
    """1024 x 1024 pixels and 100 thousand triangles, whole and as four crops."""
    ring = geometry.torus(segments=360, tube_segments=140)
    assert ring.triangle_count > 100_000
    camera = dr.Camera.perspective(fov_y_deg=32, width=1024, height=1024).look_at([0.7, 2.2, 3.0])
    whole = dr.Renderer((1024, 1024), edges=None, outputs=("triangle_id", "depth"))(ring, camera)
    quarter = dr.Renderer((512, 512), edges=None, outputs=("triangle_id", "depth"))
    different = 0
    for top in (0, 512):
        for left in (0, 512):
            part = quarter(ring, camera.cropped((left, top, left + 512, top + 512)))
            rows, columns = slice(top, top + 512), slice(left, left + 512)
            same = part.triangle_id[0] == whole.triangle_id[0, rows, columns]
            different += int((~same).sum())
            depth = whole.depth[0, rows, columns]
            torch.testing.assert_close(part.depth[0][same], depth[same], rtol=1e-5, atol=1e-5)
    # Clip positions of the crop round differently: a pixel centre within 1/512 pixel of an edge may change sides.
    assert different < 1e-4 * 1024**2
