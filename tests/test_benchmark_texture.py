"""The texture benchmark runs in a tiny configuration, and both contestants compute the same. No times here."""

import json

import pytest
import torch

from benchmarks import texture

QUICK = ["--lookups", "16", "--sizes", "8", "--channels", "1", "3", "--repeat", "1", "--threads", "1"]


def test_script_runs_on_a_tiny_texture(tmp_path, capsys):
    threads = torch.get_num_threads()
    try:
        paths = [tmp_path / "texture.json", tmp_path / "texture.md"]
        assert texture.main([*QUICK, "--json", str(paths[0]), "--markdown", str(paths[1])]) == 0
    finally:
        torch.set_num_threads(threads)
    records = json.loads(paths[0].read_text())
    assert [r["label"] for r in records] == ["8 1 turned 1", "8 1 random 1", "8 3 turned 1", "8 3 random 1"]
    assert paths[1].read_text().count("\n| 8 |") == len(records)
    assert "faster than grid_sample in every cell" in capsys.readouterr().out


@pytest.mark.parametrize("pattern", texture.PATTERNS)
def test_contestants_compute_the_same(pattern):
    """One channel: there both layouts are the same memory."""
    calls = texture.make_contestants(16, 1, pattern, 12)
    assert torch.allclose(calls["ours forward"]().flatten(), calls["torch forward"]().flatten(), atol=1e-5)
    ours, theirs = calls["ours texels"]()[0], calls["torch texels"]()[0]
    assert torch.allclose(ours.flatten(), theirs.flatten(), atol=1e-4)
    # Coordinates of grid_sample run from -1 to 1.
    ours, theirs = calls["ours coordinates"]()[2], 2 * calls["torch coordinates"]()[1]
    assert torch.allclose(ours.flatten(), theirs.flatten(), atol=1e-4, rtol=1e-4)


def test_goals_are_judged_cell_by_cell():
    def record(label, **times):
        names = [f"{who} {action}" for who in ("ours", "torch", "trilinear") for action in texture.ACTIONS]
        cell = {"size": 1, "channels": 1, "pattern": "turned", "threads": 1}
        return {"label": label, **cell, "ms": {name: times.get(name.replace(" ", "_"), [1.0, 1.0]) for name in names}}

    fast = record("fast", torch_forward=[1.5, 1.5], torch_coordinates=[3.0, 3.0], torch_texels=[2.0, 2.0])
    assert texture.markdown([fast]).count("pass") == 6
    slow = record("slow", torch_forward=[0.5, 0.5], torch_coordinates=[2.0, 2.0], torch_texels=[2.0, 2.0],
                  trilinear_texels=[3.0, 3.0])  # fmt: skip
    text = texture.markdown([fast, slow])
    assert "forward faster than grid_sample in every cell: MISS in slow (largest ratio 2.00)" in text
    assert "texels, trilinear at most 2.5 x linear: MISS in slow (largest 3.00)" in text
