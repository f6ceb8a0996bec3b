"""The benchmark of recomputation, with a small picture: what it claims holds there too."""

import json
import sys

import pytest

from benchmarks import recompute


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
@pytest.mark.parametrize("edges", ["segments"])
def test_recomputation_keeps_little_and_changes_no_bit(tmp_path, edges, capsys):
    recompute.main(["--size", "384", "--edges", edges, "--json", str(tmp_path / "records.json")])
    plain, again, tiles = json.loads((tmp_path / "records.json").read_text())
    printed = capsys.readouterr().out
    assert printed.count("pass  ") >= 4, printed
    assert [record["setting"] for record in (plain, again, tiles)] == ["False", "True", "tiles"]
    for record in (again, tiles):
        assert 4 <= record["saved"] <= 5
        assert record["picture"] == plain["picture"]
        assert record["forwards"] == 2
    assert plain["forwards"] == 1
    assert again["same bits"]
    assert tiles["difference"] < 1e-5
    assert plain["saved"] > 100
    assert all(record["saved under no_grad"] == 0 for record in (plain, again, tiles))
    # A quarter at a million pixels; here the rest of the process counts for more.
    assert tiles["peak"] <= 0.4 * plain["peak"]


@pytest.mark.slow
@pytest.mark.parametrize("edges", ["segments", "pairs", "none"])
def test_a_million_pixels(edges):
    assert recompute.main(["--size", "1024", "--edges", edges]) == 0
