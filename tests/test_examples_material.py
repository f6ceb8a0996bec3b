"""The example that recovers a material and a lamp, with few steps."""

import importlib.util
from pathlib import Path

import pytest

imread = pytest.importorskip("imageio.v3").imread

ROOT = Path(__file__).resolve().parents[1]


def load_example():
    spec = importlib.util.spec_from_file_location("recover_material", ROOT / "examples" / "recover_material.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["asset", "made"])
def example(request, monkeypatch, tmp_path):
    """The example with the asset, where there is one, and without."""
    example = load_example()
    if request.param == "made":
        monkeypatch.setenv("DIFFRENDER_TEST_DATA", str(tmp_path))
    elif example.asset_path() is None:
        pytest.skip("needs gltf/avocado (set DIFFRENDER_TEST_DATA)")
    return example


def test_few_steps_bring_the_pictures_nearer(example, tmp_path, monkeypatch):
    for name, value in (("IMAGE_SIZE", 64), ("VIEWS", 8), ("TEXTURE_SIZE", 64), ("PYRAMID", (1, 8, 64))):
        monkeypatch.setattr(example, name, value)
    quality = example.main(steps=30, out=tmp_path)
    assert quality["result, lamp"] > quality["start, lamp"] + 4
    assert quality["result, other light"] > quality["start, other light"] + 2
    assert imread(tmp_path / "recovered_maps.png").shape == (3 * 64, 3 * 64, 3)
    assert imread(tmp_path / "recovered_views.png").shape == (4 * 64, 3 * 64, 3)


@pytest.mark.acceptance
def test_held_out_views_and_light_reach_30_decibels(example, tmp_path):
    quality = example.main(out=tmp_path)
    assert quality["start, lamp"] < 20
    assert quality["result, lamp"] > 30
    assert quality["result, other light"] > 30
