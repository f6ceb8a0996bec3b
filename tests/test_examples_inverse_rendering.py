"""The example that recovers shape, paint, gloss and light together, with few steps."""

import importlib.util
import sys
from pathlib import Path

import pytest

imread = pytest.importorskip("imageio.v3").imread
pytest.importorskip("scipy")
pytest.importorskip("trimesh")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("inverse_rendering", ROOT / "examples" / "inverse_rendering.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_few_steps_bring_the_pictures_nearer(example, tmp_path, monkeypatch):
    monkeypatch.setattr(example, "STAGES", ((0.5, None, 1, 4, 20.0), (0.5, 0.12, 1, 4, 20.0)))
    quality = example.main(steps=40, views=8, size=32, out=tmp_path)
    assert quality["result, held-out views, dB"] > quality["start, held-out views, dB"] + 3
    assert quality["Chamfer distance"] < 0.18  # 0.19 at the start
    assert imread(tmp_path / "views.png").shape == (3 * 32, 3 * 32, 3)
    assert imread(tmp_path / "relit.png").shape == (2 * 32, 3 * 32, 3)
    assert imread(tmp_path / "environments.png").shape == (2 * 96, 192, 3)
    assert (tmp_path / "mesh.glb").is_file()


@pytest.mark.acceptance
def test_all_four_are_found(example, tmp_path):
    quality = example.main(out=tmp_path)
    assert quality["start, held-out views, dB"] < 12
    assert quality["result, held-out views, dB"] > 26
    assert quality["result, other light, dB"] > 25
    assert quality["Chamfer distance"] < 0.009
    assert abs(quality["roughness"] - 0.35) < 0.08
