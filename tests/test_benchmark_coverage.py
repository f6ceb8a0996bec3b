"""The coverage benchmark runs in a tiny configuration, and its adapter makes the right picture. No times here."""

import json

import torch

from benchmarks import coverage
from benchmarks.fidelity_coverage import render


def test_script_runs_on_a_tiny_scene(tmp_path, capsys):
    threads = torch.get_num_threads()
    try:
        path = tmp_path / "coverage.json"
        arguments = ["--size", "16", "--scenes", "level1", "--threads", "1", "--repeat", "1", "--json", str(path)]
        assert coverage.main(arguments) == 0
    finally:
        torch.set_num_threads(threads)
    (record,) = json.loads(path.read_text())
    assert set(record["ms"]) == set(coverage.make_calls("level1", 4))
    assert "times the yardstick" in capsys.readouterr().out


def test_adapter_averages_over_pixels():
    corners = torch.tensor([[-1.0, -1.0, 0, 1], [1.0, -1.0, 0, 1], [-1.0, 1.0, 0, 1]])
    image = render(corners, torch.tensor([[0, 1, 2]]), torch.ones(3, 3), 1, 1, torch.zeros(3))
    torch.testing.assert_close(image, torch.full((1, 1, 3), 0.5))
