"""The example that learns a texture, with few steps."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("imageio")

ROOT = Path(__file__).resolve().parents[1]


def load_example():
    spec = importlib.util.spec_from_file_location("learn_texture", ROOT / "examples" / "learn_texture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_few_steps_improve_the_texture_and_write_both_pictures(tmp_path):
    example = load_example()
    quality = example.main(steps=10, out=tmp_path)
    grey = example.load_scene()[1] * 0 + 0.5
    views = [example.make_view(*example.load_scene(), camera) for camera in example.random_cameras()]
    seen = example.observed_texels(views)
    start = example.psnr(grey, example.load_scene()[1], seen)
    assert quality["mips"] > start + 0.5
    for name in ("mips", "no_mips"):
        path = tmp_path / f"learned_texture_{name}.png"
        from imageio.v3 import imread

        assert imread(path).shape == (512, 1024, 3)


@pytest.mark.acceptance
def test_mips_are_three_decibels_better(tmp_path):
    quality = load_example().main(out=tmp_path)
    assert quality["mips"] - quality["no mips"] >= 3
