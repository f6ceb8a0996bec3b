"""Every python block in README.md and docs/*.md runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """(line number, code) of every fenced block marked python."""
    text = page.read_text()
    return [
        (text.count("\n", 0, match.start(1)), match.group(1))
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


EXAMPLES = [
    pytest.param(page, line, code, id=f"{page.name}:{line}") for page in PAGES for line, code in python_blocks(page)
]


@pytest.mark.parametrize(("page", "line", "code"), EXAMPLES)
def test_documented_example_runs(page, line, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    padding = "\n" * line  # a traceback then shows the line of the page
    exec(compile(padding + code, str(page), "exec"), {"__name__": "__main__"})


def test_readme_has_a_short_first_example():
    line_counts = [code.count("\n") for _, code in python_blocks(ROOT / "README.md")]
    assert line_counts
    assert line_counts[0] <= 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_inside_the_project_exist(page):
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
