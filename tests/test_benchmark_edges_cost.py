"""The benchmark of the edge ops runs in a tiny configuration. No times here."""

import json

import pytest
import torch

from benchmarks import edges_cost


def test_script_measures_table_and_sweeps(tmp_path, capsys):
    threads = torch.get_num_threads()
    path = tmp_path / "edges.json"
    arguments = ["--size", "16", "--level", "1", "--threads", "1", "--repeat", "1", "--json", str(path)]
    arguments += ["--levels", "0", "1", "--sizes", "8", "16", "--noise", "0", "0.1"]
    assert edges_cost.main(arguments) == 0
    assert torch.get_num_threads() == threads
    results = json.loads(path.read_text())
    (record,) = results["table"]
    assert set(record["ms"]) == set(edges_cost.make_calls(0, 4))
    assert record["triangles"] == 80
    assert len(results["sweeps"]) == 3 * len(edges_cost.SWEPT)
    assert all(len(curve["ms"]) == len(curve["work"]) == 2 for curve in results["sweeps"])
    assert "coverage / (rasterize + segments)" in capsys.readouterr().out


def test_sweeps_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    curves = [
        {"axis": axis, "op": op, "work": [1, 2], "ms": [1.0, 3.0]} for axis in ("triangles", "noise") for op in "ab"
    ]
    edges_cost.draw(curves, tmp_path / "edges.png")
    assert (tmp_path / "edges.png").stat().st_size > 1000
