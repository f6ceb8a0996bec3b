"""Recovering shapes from pictures: the pieces, and short and full runs."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import diffrender as dr
from diffrender import fit, fit_report, geometry

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("DIFFRENDER_TEST_DATA", ROOT.parent / "shared" / "data"))
SPOT = DATA / "spot" / "spot.obj"
STAR_KNOT = ROOT / "assets" / "star_knot.obj"

needs_spot = pytest.mark.skipif(not SPOT.is_file(), reason=f"needs {SPOT} (set DIFFRENDER_TEST_DATA)")


@pytest.fixture(autouse=True)
def _small_and_single_threaded(request, set_threads, monkeypatch):
    """At these sizes a second thread brings nothing, and on a busy machine waiting for it costs a lot.

    Few samples do for the Chamfer distance of the small runs. An F-score needs them all: at 10 000, two samplings of
    one surface already score 0.86, because their points lie as far apart as the threshold.
    """
    set_threads(1)
    if request.node.get_closest_marker("acceptance") is None:
        monkeypatch.setattr(fit_report, "SURFACE_SAMPLES", 10_000)


def prepare(path: Path, size: int, views: int = 16) -> tuple[dr.Mesh, fit.Pictures, fit.Pictures]:
    source, _ = fit.normalize(dr.load_mesh(path))
    radius = float(source.vertices.norm(dim=-1).max())
    with torch.no_grad():
        fitted, unseen = (
            fit.photograph(source, fit.cameras_around(directions, size, radius), radius)
            for directions in (fit.spread_directions(views), fit.spread_directions(4, turn_rad=1.0))
        )
    return source, fitted, unseen


# Pieces ---------------------------------------------------------------------------------------------------------------


def test_normalize_centres_scales_and_can_be_undone():
    torus = geometry.torus()
    moved = torus.with_vertices(torus.vertices * 7 + torch.tensor([100.0, -3.0, 5.0]))
    unused = dr.Mesh(torch.cat([moved.vertices, torch.full((1, 3), 1e4)]), moved.triangles)
    normalized, placement = fit.normalize(unused)
    used = normalized.vertices[:-1]
    assert float((used.amax(0) - used.amin(0)).max()) == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(used.amax(0), -used.amin(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        used.double() * placement.scale + placement.center, moved.vertices.double(), atol=1e-4, rtol=0
    )


def test_normalize_turns_shapes_the_right_way_round():
    sphere = geometry.icosphere(1)
    inside_out = sphere.replace(triangles=sphere.triangles.flip(-1))
    for mesh in (sphere, inside_out):
        normalized, _ = fit.normalize(mesh)
        assert ((normalized.vertex_normals() * normalized.vertices).sum(-1) > 0).all()


def test_normalize_refuses_what_has_no_place():
    with pytest.raises(ValueError, match="mesh must have finite vertices, got NaN or infinity"):
        fit.normalize(dr.Mesh(torch.full((3, 3), math.nan), torch.tensor([[0, 1, 2]])))
    with pytest.raises(ValueError, match="mesh must have an extent, got one point"):
        fit.normalize(dr.Mesh(torch.ones(3, 3), torch.tensor([[0, 1, 2]])))


def test_unseen_views_are_far_from_fitted_ones():
    cosines = fit.spread_directions(16) @ fit.spread_directions(4, turn_rad=1.0).T
    assert math.degrees(math.acos(float(cosines.max()))) > 8
    directions = fit.spread_directions(16)
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones(16))
    assert directions.mean(0).norm() < 0.05


def test_cameras_see_the_whole_scene_sphere():
    cameras = fit.cameras_around(fit.spread_directions(5), 64, 0.8)
    points = geometry.icosphere(3, radius=0.8).vertices
    pixels, depth = cameras.project(points), cameras.depth(points)
    assert pixels.min() > 0
    assert pixels.max() < 64
    assert (depth > cameras.near[:, None]).all()
    assert (depth < cameras.far[:, None]).all()


def test_shrunk_pictures_are_block_means_seen_by_matching_cameras():
    _, pictures, _ = prepare(STAR_KNOT, size=64, views=2)
    small = pictures.shrunk(2)
    assert small.silhouette.shape == (2, 32, 32, 1)
    torch.testing.assert_close(small.shading[1, 3, 4], pictures.shading[1, 6:8, 8:10].mean((0, 1)))
    points = torch.randn(5, 3)
    torch.testing.assert_close(small.cameras.project(points) * 2, pictures.cameras.project(points))
    # Averaging pictures of double size comes close to taking them at that size.
    _, direct, _ = prepare(STAR_KNOT, size=32, views=2)
    assert small.difference(direct).max() < 0.02
    with pytest.raises(ValueError, match="picture sides must be multiples of 3, got 64 x 64"):
        pictures.shrunk(3)


def test_pictures_of_the_source_differ_by_nothing():
    source, pictures, _ = prepare(STAR_KNOT, size=32, views=3)
    again = fit.photograph(source, pictures.cameras, pictures.scene_radius)
    assert again.difference(pictures).tolist() == [0, 0, 0]
    assert pictures.silhouette.min() >= 0
    assert pictures.silhouette.max() <= 1
    # Depth counts from the front of the scene sphere and is 0 on background.
    inside = pictures.silhouette == 1
    assert pictures.depth[inside].min() > 0
    assert pictures.depth[inside].max() < 2 * pictures.scene_radius
    assert (pictures.depth[pictures.silhouette == 0] == 0).all()


@pytest.mark.parametrize("steps", [0, 1, 7, 1000])
def test_stages_share_all_steps(steps):
    assert sum(fit._stage_steps(fit.FitSettings(steps=steps))) == steps


# Runs -----------------------------------------------------------------------------------------------------------------

SHORT = fit.FitSettings(
    steps=240,
    learning_rate=0.025,
    stages=(
        fit.Stage(0.2, None, shrink=1, batch=4, smoothing=20.0),
        fit.Stage(0.3, 0.06, shrink=1, batch=4, smoothing=16.0),
        fit.Stage(0.5, 0.035, shrink=1, batch=4, smoothing=10.0),
    ),
)


@pytest.mark.parametrize("path", [STAR_KNOT, pytest.param(SPOT, marks=needs_spot)], ids=["star_knot", "spot"])
def test_a_short_run_comes_much_closer(path):
    """A quarter of the steps at a quarter of the size, a few seconds: the code of the full run, which goes further."""
    source, fitted, unseen = prepare(path, size=64)
    recovery = fit.recover(fitted, SHORT)
    start = fit_report.measure(recovery.snapshots[0], source, fitted, unseen)
    final = fit_report.measure(recovery.mesh, source, fitted, unseen)
    assert recovery.steps == len(recovery.history) == 240
    assert final["chamfer"] < start["chamfer"] / 6
    assert min(final["silhouette_iou_unseen"]) > 0.7
    assert final["f_score"] > start["f_score"] + 0.3
    for name in ("silhouette", "depth", "shading"):
        assert final["image_error_unseen"][name] < start["image_error_unseen"][name] / 4
    # The surface is still a closed sphere.
    mesh = recovery.mesh
    assert mesh.edges().triangle_count.unique().tolist() == [2]
    assert mesh.vertex_count - len(mesh.edges().vertices) + mesh.triangle_count == 2


def test_same_seed_same_shape_other_seed_another():
    _, fitted, _ = prepare(STAR_KNOT, size=32, views=6)
    settings = replace(SHORT, steps=8)
    first, second = fit.recover(fitted, settings), fit.recover(fitted, settings)
    other = fit.recover(fitted, replace(settings, seed=1))
    assert torch.equal(first.mesh.vertices, second.mesh.vertices)
    assert first.history == second.history
    assert first.history != other.history or not torch.equal(first.mesh.vertices, other.mesh.vertices)


@pytest.mark.parametrize(
    "options", [{"edges": "segments"}, {"edges": "segments", "interior": "flow"}, {"edges": "coverage"}], ids=str
)
def test_other_treatments_of_edges_come_closer_too(options):
    source, fitted, unseen = prepare(STAR_KNOT, size=32, views=6)
    shapes = []
    settings = replace(SHORT, steps=30, **options)
    recovery = fit.recover(fitted, settings, on_shape=lambda step, mesh: shapes.append((step, mesh)))
    assert [step for step, _ in shapes] == list(range(1, 31))
    # The first step renders the start itself.
    torch.testing.assert_close(shapes[0][1].vertices, recovery.snapshots[0].vertices, atol=1e-5, rtol=0)
    assert not shapes[-1][1].vertices.requires_grad
    start = fit_report.measure(recovery.snapshots[0], source, fitted, unseen)
    final = fit_report.measure(recovery.mesh, source, fitted, unseen)
    assert final["chamfer"] < start["chamfer"] / 1.5
    with_pairs = fit.recover(fitted, replace(SHORT, steps=30))
    assert with_pairs.history != recovery.history


def test_point_samples_photograph_means_of_them():
    """Many samples in every pixel approach the exact areas."""
    source, exact, _ = prepare(STAR_KNOT, size=32, views=2)
    exact = fit.photograph(source, exact.cameras, exact.scene_radius, edges="coverage")
    sampled = fit.photograph(source, exact.cameras, exact.scene_radius, edges=None, samples=8)
    assert sampled.difference(exact).max() < 2e-3
    single = fit.photograph(source, exact.cameras, exact.scene_radius, edges=None)
    assert single.difference(exact).max() > 1e-2


def test_stopping_keeps_the_shape_of_that_moment():
    _, fitted, _ = prepare(STAR_KNOT, size=32, views=6)
    seen = []
    recovery = fit.recover(
        fitted, SHORT, on_step=lambda step, difference: seen.append(step), should_stop=lambda: len(seen) == 5
    )
    assert seen == [1, 2, 3, 4, 5]
    assert recovery.steps == 5
    sphere = geometry.icosphere(3, radius=0.5)
    assert (recovery.mesh.vertices - sphere.vertices).abs().max() > 0.005
    untouched = fit.recover(fitted, SHORT, should_stop=lambda: True)
    assert untouched.steps == 0
    torch.testing.assert_close(untouched.mesh.vertices, sphere.vertices, atol=1e-5, rtol=0)


def test_a_perfect_recovery_scores_one_with_the_samples_of_the_report(monkeypatch):
    """The F-score measures the surfaces, not the spacing of their samples."""
    monkeypatch.undo()
    source, _ = fit.normalize(dr.load_mesh(STAR_KNOT))
    assert fit_report.SURFACE_SAMPLES == 100_000
    assert fit_report._surface_distance(source, source).f_score > 0.999


@pytest.mark.acceptance
@needs_spot
def test_the_whole_job_on_spot():
    source, fitted, unseen = prepare(SPOT, size=256)
    recovery = fit.recover(fitted, fit.FitSettings())
    start = fit_report.measure(recovery.snapshots[0], source, fitted, unseen)
    final = fit_report.measure(recovery.mesh, source, fitted, unseen)
    assert final["chamfer"] < start["chamfer"] / 10
    assert min(final["silhouette_iou_unseen"]) >= 0.98
    assert final["f_score"] > 0.99


def test_the_asset_is_a_closed_sphere_of_a_moderate_size():
    mesh = dr.load_mesh(STAR_KNOT)
    assert mesh.edges().triangle_count.unique().tolist() == [2]
    assert mesh.vertex_count - len(mesh.edges().vertices) + mesh.triangle_count == 2
    assert STAR_KNOT.stat().st_size < 300_000
    # Non-trivial in every view: far from the convex outline of a ball.
    _, fitted, _ = prepare(STAR_KNOT, size=64)
    ball = fit.photograph(geometry.icosphere(4, radius=0.5), fitted.cameras, fitted.scene_radius)
    assert dr.metrics.mask_iou(ball.mask, fitted.mask).max() < 0.6


@pytest.mark.slow
def test_assets_are_what_their_script_makes(tmp_path):
    script = ROOT / "tools" / "make_assets.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script, tmp_path], check=True, env=environment, capture_output=True)
    for name in ("star_knot.obj", "bird_cage.obj"):
        made, kept = dr.load_mesh(tmp_path / name), dr.load_mesh(STAR_KNOT.parent / name)
        assert torch.equal(made.triangles, kept.triangles)
        torch.testing.assert_close(made.vertices, kept.vertices, atol=2e-5, rtol=0)
