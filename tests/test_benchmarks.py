"""The benchmark scripts run in a tiny configuration and mean what they say. No test here looks at a time."""

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import operations, report, run, scaling, scenes, yardsticks

ROOT = Path(__file__).resolve().parents[1]


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("name", "count"), [("level0", 20), ("level3", 1280), ("5k", 5120), ("80k", 81920), ("big", 2)]
)
def test_scene_has_the_promised_triangles(name, count):
    scene = scenes.make_scene(name)
    assert scene.triangles.shape == (count, 3)
    assert scene.triangles.dtype == np.int32
    assert scene.clip_positions.dtype == np.float32
    assert scene.triangles.min() == 0
    assert scene.triangles.max() == len(scene.vertices) - 1
    assert scene.colors.min() >= 0
    assert scene.colors.max() <= 1


def test_sphere_is_closed_and_faces_outwards():
    scene = scenes.make_scene("level3")
    edges = scene.triangles[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2)
    directed = {(int(a), int(b)) for a, b in edges}
    assert len(directed) == len(edges)
    assert directed == {(b, a) for a, b in directed}
    a, b, c = scene.vertices[scene.triangles].astype(np.float64).transpose(1, 0, 2)
    assert (np.einsum("ij,ij->i", np.cross(a, b), c) > 0).all()


def test_scene_from_the_cache_equals_a_fresh_one(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fresh, cached = scenes.make_scene("level2"), scenes.make_scene("level2")
    assert len(list(tmp_path.rglob("*.npz"))) == 1
    np.testing.assert_array_equal(fresh.vertices, cached.vertices)
    np.testing.assert_array_equal(fresh.triangles, cached.triangles)


def test_unknown_scene_is_refused():
    with pytest.raises(ValueError, match=r"make_scene: name must be one of 5k, 80k, 1\.3M, big or levelN, got '7k'"):
        scenes.make_scene("7k")


def test_camera_rays_go_through_pixel_centres():
    size = 6
    origins, directions = scenes.camera_rays(size)
    points = np.concatenate([origins + 2.5 * directions, np.ones((size * size, 1))], axis=1)
    x, y, _, w = scenes.clip_from_world() @ points.T
    row, column = np.divmod(np.arange(size * size), size)
    # float32 directions: a few roundings of 6e-8
    np.testing.assert_allclose(w, 2.5, rtol=1e-6)
    np.testing.assert_allclose(x / w, (2 * column + 1) / size - 1, atol=1e-6)
    np.testing.assert_allclose(y / w, 1 - (2 * row + 1) / size, atol=1e-6)


@pytest.mark.parametrize(("name", "coverage"), [("5k", 0.66), ("80k", 0.66), ("big", 1.0)])
def test_scene_covers_its_share_of_the_image(name, coverage):
    inputs = operations.Inputs(scenes.make_scene(name), 128)
    covered = (inputs.rasterize().triangle_id >= 0).double().mean().item()
    assert covered == pytest.approx(coverage, abs=0.005)


def test_whole_step_moves_the_picture_towards_the_target():
    """Descending along the gradient that `forward_backward` returns lowers the loss it differentiates."""
    inputs = operations.Inputs(scenes.make_scene("level2"), 64)
    call = operations.make_operation("forward_backward", inputs).call
    image, grad_vertices = call()
    before = (image - inputs.target).square().mean()
    # A step whose first-order gain is 1 percent of the loss.
    inputs.vertices = inputs.vertices - 0.01 * before / grad_vertices.square().sum() * grad_vertices
    after_image, _ = operations.make_operation("forward_backward", inputs).call()
    assert (after_image - inputs.target).square().mean() < before


def test_run_reports_every_contestant(tmp_path):
    operation_names = operations.OPERATION_NAMES
    available = yardsticks.available()
    options = ["--scenes", "level3", "big", "--sizes", 32, "--batch-size", 8, "--threads", 1, 2, "--repeat", 2]
    done = run_script("run", *options, "--json", tmp_path / "r.json", "--markdown", tmp_path / "r.md")
    results = json.loads((tmp_path / "r.json").read_text())
    names = {(r["scene"], r["threads"], r["name"]) for r in results["records"]}
    for scene in ("level3", "big"):
        for threads in (1, 2):
            for name in operation_names:
                assert (scene, threads, name) in names
                assert (scene, threads, f"memcpy:{name}") in names
            assert (scene, threads, "control") in names
            assert (scene, threads, "image_loss") in names
            assert (scene, threads, "batch:forward_backward") in names
        for name, missing in available.items():
            assert ((scene, 1, name) in names) == (missing is None)
    for record in results["records"]:
        assert len(record["wall_ms"]) == len(record["cpu_ms"]) == 2
        assert min(record["wall_ms"]) > 0
        # Small triangles in a small image: a tenth of the pixels may lie near an edge, the picture must be the same.
        assert record.get("same_triangle", 1.0) > 0.9
    rasterized = next(r for r in results["records"] if r["name"] == "rasterize")
    assert rasterized["output_bytes"] == 16 * 32 * 32
    text = (tmp_path / "r.md").read_text()
    assert text.strip() == done.stdout.strip()
    for title in ("### Goals", "### Operations", "### Yardsticks", "### Batch of 8"):
        assert title in text


@pytest.mark.parametrize(("module", "name"), [("embreex", "embree"), ("moderngl", "llvmpipe")])
def test_missing_yardstick_is_left_out_with_a_cure(monkeypatch, module, name):
    monkeypatch.setitem(sys.modules, module, None)
    line = yardsticks.available()[name]
    assert line == f"{name} left out: {module} is not installed. pip install {module}"


def record(name: str, milliseconds: list[float], threads: int = 1, size: int = 1024, scene: str = "5k") -> dict:
    times = {"wall_ms": milliseconds, "cpu_ms": milliseconds}
    return {"scene": scene, "size": size, "threads": threads, "name": name, **times}


def test_ratios_are_taken_within_a_slot():
    # The machine is ten times slower in the second slot; ours takes a quarter of embree's time in each.
    table = report.Table({"records": [record("rasterize", [1.0, 10.0, 2.0]), record("embree", [4.0, 40.0, 8.0])]})
    assert table.ratio("5k", 1024, 1, "rasterize", "embree") == pytest.approx(0.25)


@pytest.mark.parametrize(("milliseconds", "reached"), [(4.9, True), (5.1, False)])
def test_goal_is_one_twentieth_of_embree_for_few_triangles(milliseconds, reached):
    records = [record("rasterize", [milliseconds]), record("embree", [100.0])]
    (goal,) = report.goals(report.Table({"records": records}))
    assert goal.reached == reached


@pytest.mark.parametrize(("two_threads", "reached"), [(5.0, True), (6.0, False)])
def test_goal_for_two_threads_is_a_gain_of_1_7(two_threads, reached):
    records = [record("rasterize", [10.0, 12.0]), record("rasterize", [two_threads, 9.0], threads=2)]
    records += [record("control", [2.0]), record("control", [1.0], threads=2)]
    (goal,) = report.goals(report.Table({"records": records}))
    assert goal.reached == reached
    assert not goal.open


def test_goal_for_two_threads_stays_open_without_a_second_core():
    records = [record(name, [5.0], threads) for name in ("rasterize", "control") for threads in (1, 2)]
    (goal,) = report.goals(report.Table({"records": records}))
    assert goal.open


def test_tables_go_between_the_marker_lines(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"# Title\n{run.BEGIN}\nold\n{run.END}\nlast line\n")
    assert run._placed("new", path) == f"# Title\n{run.BEGIN}\n\nnew\n\n{run.END}\nlast line\n"
    path.write_text("no markers\n")
    assert run._placed("new", path) == "new\n"


def test_goals_against_embree_are_decided_at_1024_only():
    records = [record("rasterize", [1.0], size=256), record("embree", [100.0], size=256)]
    assert report.goals(report.Table({"records": records})) == []


def test_scaling_and_its_plot_run(tmp_path):
    options = ["--sizes", 8, 16, "--levels", 0, 1, "--size", 16, "--level", 1, "--repeat", 2]
    run_script("scaling", *options, "--json", tmp_path / "scaling.json")
    sweeps = json.loads((tmp_path / "scaling.json").read_text())
    assert [(s["axis"], s["operation"]) for s in sweeps] == [
        ("pixels", "rasterize"),
        ("pixels", "forward_backward"),
        ("triangles", "rasterize"),
        ("triangles", "forward_backward"),
    ]
    assert sweeps[0]["work"] == [64, 256]
    assert sweeps[2]["work"] == [20, 80]
    if find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed: pip install diffrender-torch[fit]")
    run_script("plot", tmp_path / "scaling.json", tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("factor", "verdict"), [(3.9, "pass"), (4.6, "MISS")])
def test_growth_faster_than_the_work_is_reported(factor, verdict):
    sweep = {"axis": "pixels", "operation": "rasterize", "work": [100, 400], "cpu_ms": [1.0, factor]}
    assert f", {verdict} (" in scaling._verdict(sweep)


def test_loop_repeats_an_operation():
    done = run_script("loop", "rasterize", "level1", 16, "--seconds", 0)
    assert done.stdout.startswith("rasterize, level1, 16: ")
