"""The example that learns a texture, with few steps."""

import importlib.util
from pathlib import Path

import pytest
import torch

imread = pytest.importorskip("imageio.v3").imread

ROOT = Path(__file__).resolve().parents[1]


def load_example():
    spec = importlib.util.spec_from_file_location("learn_texture", ROOT / "examples" / "learn_texture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_few_steps_improve_the_texture_and_write_both_pictures(tmp_path, monkeypatch):
    example = load_example()
    monkeypatch.setattr(example, "VIEWS", 4)
    monkeypatch.setattr(example, "NEAREST", 2.5)
    monkeypatch.setattr(example, "IMAGE_SIZE", 96)
    quality = example.main(steps=40, out=tmp_path)
    mesh, truth = example.load_scene()
    seen = example.observed_texels([example.make_view(mesh, truth, c) for c in example.random_cameras()], "samples")
    start = example.psnr(torch.full_like(truth, 0.5), truth, seen)
    assert quality["mips"] > start + 1
    assert quality["mips"] > quality["no mips"]
    for name in ("mips", "no_mips"):
        assert imread(tmp_path / f"learned_texture_{name}.png").shape == (512, 1024, 3)


@pytest.mark.acceptance
def test_mips_are_three_decibels_better(tmp_path):
    quality = load_example().main(out=tmp_path)
    assert quality["mips"] - quality["no mips"] >= 3
