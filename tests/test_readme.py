"""Every python block in README.md and docs/*.md runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = [ROOT / "examples", ROOT / "benchmarks"]


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """(line number, code) of every fenced block marked python."""
    text = page.read_text()
    return [
        (text.count("\n", 0, match.start(1)), match.group(1))
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


EXAMPLES = [
    pytest.param(page, line, code, id=f"{page.name}:{line}") for page in PAGES for line, code in python_blocks(page)
][1:]  # the first one, README's, has a test of its own


@pytest.mark.parametrize(("page", "line", "code"), EXAMPLES)
def test_documented_example_runs(page, line, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    padding = "\n" * line  # a traceback then shows the line of the page
    exec(compile(padding + code, str(page), "exec"), {"__name__": "__main__"})


def test_readme_example_is_short_and_finds_the_object():
    _, code = python_blocks(ROOT / "README.md")[0]
    assert len([line for line in code.splitlines() if line]) <= 20
    names: dict[str, Any] = {}
    exec(code, names)
    torch.testing.assert_close(names["offset"].detach(), torch.tensor([0.3, -0.1, 0.2]), atol=0.01, rtol=0)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_script_of_a_folder_is_named_on_its_page(folder):
    text = (folder / "README.md").read_text()
    names = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert names
    assert [name for name in names if name not in text] == []


PAGES_OF_ALL = [*PAGES, *(folder / "README.md" for folder in FOLDERS)]


@pytest.mark.parametrize("page", PAGES_OF_ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_inside_the_project_exist(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", prose)
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
