"""The documents: every code block runs or says what it needs, with options that the commands have.

Links, tables of contents and names in the reference are checked by ``make docs``, which builds the
site strictly.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, Block, blocks_of, run

from staticgraph import cli

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
# Its loops run one by one in test_loops.
APART = ROOT / "docs" / "loops.md"
PYTHON = [block for block in BLOCKS if block.language == "python" and block.page != APART]
SHELL = [block for block in BLOCKS if block.language == "bash"]
# Pages that print a runner's report.
REPORTING = ("README.md", "quickstart.md", "hetero.md", "losses.md", "serving.md")
OPTIONS = json.loads((ROOT / "tests" / "data" / "frozen.json").read_text())["options"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder to write into, where the repository's data has its usual path."""
    for name in ("examples", "bench", "tests"):
        os.symlink(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)


def pages_with(slow: bool) -> list[Path]:
    """The pages of which a block runs only with the slow tests, or of which all do without."""
    return [
        page for page in PAGES if slow in {b.slow for b in PYTHON if b.page == page and not b.unmet}
    ]


@pytest.mark.parametrize(
    ("page", "slow"),
    [
        pytest.param(
            page,
            slow,
            marks=pytest.mark.slow if slow else (),
            id=f"{page.relative_to(ROOT)}{' slow' * slow}",
        )
        for slow in (False, True)
        for page in pages_with(slow)
    ],
)
def test_the_python_of_a_page_runs(page, slow, capsys):
    run([b for b in PYTHON if b.page == page and not b.unmet and (slow or not b.slow)])
    printed = capsys.readouterr().out
    if page.name in REPORTING:
        assert "nodes filled" in printed, "the report is printed"
    if page.name == "serving.md":
        assert printed.count("tensor(") == 1
        assert sorted(os.listdir("exported/esol")) == ["bucket-0.pt2", "export.json"]


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in SHELL if not b.needs], ids=lambda b: b.name)
def test_the_commands_of_a_page_run(block: Block):
    for words in block.commands:
        assert words[0] == "staticgraph", f"{block.name}: mark what {words[0]} needs"
        if "--epochs" in words:  # one epoch shows whether it runs
            words[words.index("--epochs") + 1] = "1"
        assert cli.main(words[1:]) == 0


def test_every_option_that_a_page_names_is_one_of_its_command():
    """In blocks that run elsewhere and in sentences, too."""
    unknown = [
        f"{page.name}: {command} {option}"
        for page in PAGES
        for command, rest in re.findall(
            r"(?:staticgraph|staticgraph\.cli) ([a-z][\w-]*)((?:[^`\n]|\\\n)*)", page.read_text()
        )
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest)
        if f"{command} {option}" not in OPTIONS
    ]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES[:2], ids=lambda page: page.name)
def test_links_of_pages_outside_the_site_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        assert link.startswith("http") or (page.parent / link).exists(), link
