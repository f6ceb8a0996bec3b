"""docs/api.md is what the docstrings say, and knows every public name."""

import pytest

import diffrender as dr
from tools import api_page


def test_page_is_up_to_date(capsys):
    assert api_page.main(["--check"]) == 0, capsys.readouterr().err


def test_every_public_name_has_a_row_with_a_sentence():
    rows = [line for line in api_page.PAGE.read_text().splitlines() if "](../diffrender/" in line]
    for name in set(dr.__all__) - api_page.MODULES:
        (found,) = [row for row in rows if f"[`dr.{name}`]" in row]
        assert len(found.rsplit("|", 2)[1].strip()) > 10, name
    assert len(rows) > 150
    assert not [row for row in rows if row.rsplit("|", 2)[1].strip() == ""]


def test_a_stale_page_and_a_forgotten_name_are_noticed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(api_page, "PAGE", tmp_path / "api.md")
    assert api_page.main(["--check"]) == 1
    assert "python -m tools.api_page writes it" in capsys.readouterr().err
    assert api_page.main([]) == 0
    assert api_page.main(["--check"]) == 0
    monkeypatch.setattr(dr, "__all__", [*dr.__all__, "forgotten"])
    with pytest.raises(ValueError, match="forgotten must be named in one of GROUPS"):
        api_page.page()


def test_first_sentences_and_calls():
    def function(first, *, second=2):
        """Levels 1, 2, ... of a thing. More of
        it.

        Args: none."""

    assert api_page.summary(function) == "Levels 1, 2, ... of a thing."
    assert api_page.call(function) == "`(first, *, second=2)`"
