"""The texture benchmark runs in a tiny configuration, and both contestants compute the same. No times here."""

import json

import pytest
import torch

from benchmarks import texture

QUICK = ["--lookups", "16", "--sizes", "8", "--channels", "1", "3", "--threads", "1", "--rounds", "1"]
QUIET, LOUD = 1.0, 1.3  # controls, where the least of the run is 1


def test_script_runs_on_a_tiny_texture(tmp_path, capsys):
    threads = torch.get_num_threads()
    try:
        paths = [tmp_path / "texture.json", tmp_path / "texture.md"]
        assert texture.main([*QUICK, "--json", str(paths[0]), "--markdown", str(paths[1])]) == 0
    finally:
        torch.set_num_threads(threads)
    record = json.loads(paths[0].read_text())
    assert [c["label"] for c in record["cells"]] == ["8 1 turned 1", "8 1 random 1", "8 3 turned 1", "8 3 random 1"]
    assert all(len(cell["slots"]) >= texture.SLOTS for cell in record["cells"])
    assert paths[1].read_text().count("\n| 8 |") == len(record["cells"])
    assert "ours forward at most 1.0 x torch forward" in capsys.readouterr().out


@pytest.mark.parametrize("pattern", texture.PATTERNS)
def test_contestants_compute_the_same(pattern):
    """One channel: there both layouts are the same memory."""
    calls = texture.make_contestants(texture.make_texels(16, 1), 16, 1, pattern, 12)
    assert torch.allclose(calls["ours forward"]().flatten(), calls["torch forward"]().flatten(), atol=1e-5)
    ours, theirs = calls["ours texels"]()[0], calls["torch texels"]()[0]
    assert torch.allclose(ours.flatten(), theirs.flatten(), atol=1e-4)
    # Coordinates of grid_sample run from -1 to 1.
    ours, theirs = calls["ours coordinates"]()[2], 2 * calls["torch coordinates"]()[1]
    assert torch.allclose(ours.flatten(), theirs.flatten(), atol=1e-4, rtol=1e-4)


def slot(control=QUIET, **times):
    names = [f"{who} {action}" for who in ("ours", "torch", "trilinear") for action in texture.ACTIONS]
    return texture.Slot(control, {name: times.get(name.replace(" ", "_"), 1.0) for name in names})


def cell_of(*slots, pattern="turned"):
    return texture.Cell(64, 1, pattern, 1, list(slots))


def test_goals_are_judged_cell_by_cell():
    fast = cell_of(*[slot(torch_forward=1.5, torch_coordinates=3.0, torch_texels=2.0)] * 3)
    assert texture.markdown([fast], {1: QUIET}).count("all 1 cells") == 6
    slow = cell_of(*[slot(torch_forward=0.5, trilinear_texels=3.0)] * 3, pattern="random")
    text = texture.markdown([fast, slow], {1: QUIET})
    assert "- ours forward at most 1.0 x torch forward: MISS in 64 1 random 1 (2.00); largest 2.00" in text
    assert "- trilinear texels at most 2.5 x ours texels: MISS in 64 1 random 1 (3.00); largest 3.00" in text


def test_disturbed_slots_count_nowhere_even_if_all_of_a_cell_are():
    pair = ("ours forward", "torch forward")
    mixed = cell_of(slot(ours_forward=0.5), slot(LOUD, ours_forward=9.0), slot(LOUD, ours_forward=9.0))
    assert mixed.ratio(*pair, least=QUIET) == 0.5
    assert mixed.ratio(*pair, least=LOUD) == 9.0  # as if the neighbour had stayed through the run
    loud = cell_of(slot(LOUD, ours_forward=2.0), slot(2 * LOUD, ours_forward=9.0))
    assert loud.quiet(pair, QUIET) == []
    assert loud.ratio(*pair, least=QUIET) == 2.0
    assert "undisturbed slots in some comparison: 64 1 turned 1 (0)" in texture.markdown([loud], {1: QUIET})


def test_close_comparisons_get_more_slots_than_decided_ones():
    forward = ("ours forward", "torch forward", 1.0)
    for ratio, wanted, at_first in ((0.2, 3, 0), (0.8, 7, 3), (1.4, 7, 3), (2.0, 3, 0)):
        cell = cell_of(slot(ours_forward=ratio), slot(LOUD, ours_forward=ratio))
        assert cell.lacks(*forward, QUIET, brief=False) == wanted - 1
        assert cell.lacks(*forward, QUIET, brief=True) == max(0, at_first - 1)
    # A lookup forward is close, the others are decided and have what they need: those two run alone.
    done = cell_of(*[slot(ours_forward=0.8, torch_coordinates=4.0, torch_texels=4.0)] * 3)
    assert done.missing(QUIET) == ({"ours forward", "torch forward"}, 4)
    assert cell_of().missing(QUIET) == (set(slot().ms), texture.SLOTS)
