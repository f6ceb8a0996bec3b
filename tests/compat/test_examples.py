"""The scripts in examples/nvdiffrast: shortened ones with assets that they make, whole ones against their goals."""

import importlib.util
import statistics
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "nvdiffrast"


@pytest.fixture
def example(monkeypatch):
    """Loads an example by name, as Python does for a script: its folder is where it imports from."""
    monkeypatch.syspath_prepend(FOLDER)

    def load(name, made=False):
        scenes = importlib.import_module("scenes")
        if made:
            monkeypatch.setattr(scenes, "SAMPLES", FOLDER / "no such folder")
        spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.main

    yield load
    sys.modules.pop("scenes", None)


# --- shortened -------------------------------------------------------------------------------------


def test_triangle_covers_20706_pixels(example, tmp_path):
    output = tmp_path / "triangle.png"
    assert example("triangle")(str(output)) == 20706
    assert output.stat().st_size > 1000


def test_cube_is_found_with_antialiasing_only(example, tmp_path):
    """Corners start 0.45 away."""
    main = example("cube", made=True)
    assert main(resolution=16, steps=200, output=str(tmp_path / "cube.png")) < 0.1
    assert main(resolution=16, steps=200, antialias=False, output="") > 0.3


def test_pose_is_found(example, tmp_path):
    assert example("pose", made=True)(steps=240, output=str(tmp_path / "pose.png"), size=64) < 5


def test_environment_and_highlight_approach_the_truth(example, tmp_path):
    main = example("envphong", made=True)
    output = str(tmp_path / "envphong.png")
    exponent, _, environment = main(1, 48, 16, output="")
    exponent_later, _, environment_later = main(120, 48, 16, output=output)
    assert exponent_later < 0.9 * exponent
    assert environment_later < 0.6 * environment


def test_texture_is_learned_better_with_mips(example, tmp_path):
    with_mips, without = example("texture")(60, 48, 64, output=str(tmp_path / "texture.png"))
    assert with_mips > without + 0.5
    assert with_mips > 9


# --- whole -----------------------------------------------------------------------------------------


@pytest.mark.acceptance
@pytest.mark.parametrize(("resolution", "bound"), [(16, 1e-3), (8, 0.02), (4, 0.25)])
def test_cube_goal(example, resolution, bound):
    assert example("cube")(resolution, steps=1000, output="") < bound


@pytest.mark.acceptance
@pytest.mark.parametrize(("kind", "seed"), [("c", 1), ("d", 0)])
def test_cube_goal_with_another_seed_and_colors_per_face(example, kind, seed):
    main = example("cube")
    if kind == "d" and sys.modules["scenes"].load("cube_d") is None:
        pytest.skip("needs nvdiffrast_samples/cube_d.npz (DIFFRENDER_TEST_DATA)")
    assert main(16, steps=1000, seed=seed, output="", kind=kind) < 1e-3


@pytest.mark.acceptance
def test_cube_does_not_converge_without_antialiasing(example):
    assert example("cube")(16, steps=1000, antialias=False, output="") > 0.3


@pytest.mark.acceptance
def test_pose_goal(example):
    main = example("pose")
    assert statistics.median(main(1000, seed, "") for seed in range(5)) < 0.5


@pytest.mark.acceptance
def test_envphong_goal(example):
    assert example("envphong")(output="")[0] < 0.02


@pytest.mark.acceptance
def test_texture_goal(example):
    with_mips, without = example("texture")(output="")
    assert with_mips > without + 3
