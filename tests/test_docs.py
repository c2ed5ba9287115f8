"""The documents: every code block runs or says what it needs, every command parses, links and the
site's table of contents lead somewhere, and the reference has every public name."""

from __future__ import annotations

import ast
import itertools
import os
import re
from pathlib import Path

import pytest
from support.pages import ELSEWHERE, LANGUAGES, PAGES, ROOT, Block, blocks_of, run

from staticgraph import cli

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
# Its loops run one by one in test_loops.
APART = ROOT / "docs" / "loops.md"
PYTHON = [block for block in BLOCKS if block.language == "python" and block.page != APART]
SHELL = [block for block in BLOCKS if block.language == "bash"]
RUNNABLE = [block for block in SHELL if not block.needs]
ELSEWHERE_BLOCKS = [block for block in (*PYTHON, *SHELL) if block.needs]
# Pages that print a runner's report.
REPORTING = ("README.md", "quickstart.md", "hetero.md", "losses.md", "serving.md")


def named(block: Block) -> str:
    return block.name


def named_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_with(blocks: list[Block]) -> list:
    pages = dict.fromkeys(block.page for block in blocks)
    return [pytest.param(page, id=named_page(page)) for page in pages]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder to write into, where the repository's data has its usual path."""
    for name in ("examples", "bench", "tests"):
        os.symlink(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def here(page, *, slow: bool) -> list[Block]:
    return [b for b in PYTHON if b.page == page and not b.unmet and (slow or not b.slow)]


@pytest.mark.parametrize("page", pages_with([b for b in PYTHON if not (b.unmet or b.slow)]))
def test_the_python_of_a_page_runs(page, elsewhere, capsys):
    run(here(page, slow=False))
    printed = capsys.readouterr().out
    if page.name in REPORTING:
        assert "nodes filled" in printed, "the report is printed"
    if page.name == "exported.md":
        assert printed.count("tensor(") == 2
        assert sorted(os.listdir("exported/esol")) == ["bucket-0.pt2", "export.json"]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with([b for b in PYTHON if b.slow and not b.unmet]))
def test_the_slow_python_of_a_page_runs(page, elsewhere):
    run(here(page, slow=True))


@pytest.mark.slow
@pytest.mark.parametrize("block", RUNNABLE, ids=named)
def test_the_commands_of_a_page_run(block, elsewhere):
    for words in block.commands:
        assert words[0] == "staticgraph", f"{block.name}: mark what {words[0]} needs"
        if "--epochs" in words:  # one epoch shows whether it runs
            words[words.index("--epochs") + 1] = "1"
        assert cli.main(words[1:]) == 0


@pytest.mark.parametrize("block", ELSEWHERE_BLOCKS, ids=named)
def test_a_block_that_needs_something_says_what(block):
    """A block that cannot run is skipped by name; one that can was run by its page's test."""
    if block.unmet:
        pytest.skip(block.unmet)
    assert block.needs not in ELSEWHERE


def spoken(block: Block) -> list[list[str]]:
    """The commands of a block that this library's command line must parse."""
    found = []
    for words in block.commands:
        if words[0] == "staticgraph":
            found.append(words[1:])
        elif "staticgraph.cli" in words:
            found.append(words[words.index("staticgraph.cli") + 1 :])
    return found


# Commands in table cells and sentences count too, where options come with them.
COMMANDS = [(block.name, words) for block in SHELL for words in spoken(block)] + [
    (f"{page} {number}", said.split()[1:])
    for page in ("README.md", "docs/cli.md")
    for number, said in enumerate(re.findall(r"`(staticgraph [^`]+)`", (ROOT / page).read_text()))
]


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=[f"{page} {words[0]}" for page, words in COMMANDS]
)
def test_a_command_is_understood(page, words):
    """The options that a page names exist and take those values."""
    words = [word.replace("$DATA", "x").replace("$", "") for word in words]
    cli.make_app().parse_args(words, print_error=False, exit_on_error=False)


def test_the_page_of_the_command_line_has_every_command():
    text = (ROOT / "docs" / "cli.md").read_text()
    for name in cli.COMMANDS:
        assert f"`staticgraph {name} " in text


@pytest.mark.parametrize("block", BLOCKS, ids=named)
def test_a_block_says_its_language(block):
    assert block.language in LANGUAGES, f"{block.name}: one of {', '.join(LANGUAGES)}"


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "docs" / "changelog.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "docs" / "changelog.md"], ids=lambda page: page.name
)
def test_a_list_begins_after_an_empty_line(page):
    """The site would join it to the paragraph before it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    item = re.compile(r"(- |\* |1\. )")
    for before, line in itertools.pairwise(text.split("\n")):
        within = not before or before.startswith((" ", "- ", "* ")) or re.match(r"\d+\. ", before)
        assert within or not item.match(line), f"{page.name}: {before!r} and then {line!r}"


@pytest.mark.parametrize("page", PAGES, ids=named_page)
def test_names_with_underscores_are_code(page):
    """Elsewhere the site would show ``__inc__`` in bold."""
    text = re.sub(r"^```.*?^```$|`[^`]+`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\b__\w+__", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)) == []


FOLDERS = "staticgraph|tests|bench|docs|examples|tools"
ROOMS = "|".join(each.name for each in (ROOT / "staticgraph").iterdir() if each.is_dir())


@pytest.mark.parametrize("page", PAGES, ids=named_page)
def test_what_a_page_names_is_there(page):
    """Files by their path from root or package, modules to run, make targets."""
    text = page.read_text()
    for path in re.findall(rf"`((?:{FOLDERS})/[\w/.-]*[\w/])(?:::\w+)?`", text):
        assert path.endswith("_") or (ROOT / path).exists(), path
    for path in re.findall(rf"`((?:{ROOMS})/[\w/.-]*[\w/])`", text):
        assert (ROOT / path).exists() or (ROOT / "staticgraph" / path).exists(), path
    for module in re.findall(r"python -m ((?:staticgraph|tests|bench|docs)[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    made = re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
        assert target in made, f"make {target}"


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.parent == ROOT / "docs"],
    ids=lambda page: page.name,
)
def test_a_guide_begins_with_what_its_reader_can_do_after_it(page):
    title, first = page.read_text().split("\n\n")[:2]
    assert title.startswith("# ")
    assert first.startswith("After this page you ")


def test_every_page_is_in_the_table_of_contents_once():
    named = re.findall(r"([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(there)


def described() -> set[str]:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    return {
        name
        for page in pages
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize(
    ("module", "but"),
    [
        # Modules, whose names are described individually.
        ("staticgraph/__init__.pyi", {"datasets", "models", "outofcore"}),
        ("staticgraph/outofcore/__init__.py", {"data"}),
        ("staticgraph/models/__init__.py", {"NAMES", "POOLS"}),
    ],
)
def test_the_reference_has_every_public_name(module, but):
    public = {
        alias.asname or alias.name
        for node in ast.parse((ROOT / module).read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    missing = public - but - {name.rpartition(".")[2] for name in described()}
    assert not missing, f"docs/reference lacks {', '.join(sorted(missing))}"


def test_the_reference_describes_what_is_there():
    for name in described():
        module, _, last = name.rpartition(".")
        folder = ROOT / module.replace(".", "/")
        path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        assert path.is_file(), name
        tree = ast.parse(path.read_text())
        kinds = (ast.FunctionDef, ast.ClassDef)
        assert any(isinstance(node, kinds) and node.name == last for node in tree.body), name
