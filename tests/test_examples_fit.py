"""The examples that fit a pose and a lens: short on the made asset, in full on the real ones."""

import importlib.util
import sys
from pathlib import Path

import pytest

imread = pytest.importorskip("imageio.v3").imread

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def load_example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fit_pose(monkeypatch):
    example = load_example("fit_pose")
    monkeypatch.setitem(sys.modules, "fit_pose", example)  # where the other one takes its models from
    return example


@pytest.fixture
def fit_camera(fit_pose):
    return load_example("fit_camera")


def needs(example, model: str) -> None:
    if not example.FILES[model].is_file():
        pytest.skip(f"needs the model {model} (set DIFFRENDER_TEST_DATA)")


def test_a_few_steps_find_the_pose(fit_pose, tmp_path, capsys):
    results = fit_pose.main("knot", starts=2, steps=60, out=tmp_path)
    assert all(degrees < 1 and share < 0.01 for degrees, share, _ in results)
    assert "2 of 2" in capsys.readouterr().out
    assert imread(tmp_path / "fit_pose_knot.png").shape == (2 * 128, 4 * 128, 3)


def test_a_few_steps_improve_the_lens(fit_camera, tmp_path):
    error = fit_camera.main("knot", steps=9, out=tmp_path)
    assert error["center"] < 1
    assert error["focal"] < 0.05
    assert imread(tmp_path / "fit_camera_knot.png").shape == (3 * 192, 8 * 192, 3)


@pytest.mark.acceptance
@pytest.mark.parametrize("model", ["avocado", "spot", "knot"])
def test_nearly_all_starts_find_the_pose(fit_pose, tmp_path, model):
    needs(fit_pose, model)
    results = fit_pose.main(model, out=tmp_path)
    assert len(results) == 20
    assert sum(degrees < 1 and share < 0.01 for degrees, share, _ in results) >= 18
    assert max(seconds for _, _, seconds in results) <= 10


@pytest.mark.acceptance
@pytest.mark.parametrize("model", ["avocado", "spot", "knot"])
def test_the_lens_is_found_to_a_tenth_of_a_percent(fit_camera, tmp_path, model):
    needs(fit_camera, model)
    error = fit_camera.main(model, out=tmp_path)
    assert error["focal"] <= 0.001
    assert error["center"] <= 0.2
    assert max(error["k1"], error["k2"]) <= 0.01
