"""The code blocks of the documentation pages, with the marks before them.

A mark is a comment that a reader does not see::

    <!-- setup            code that the following blocks require
    <!-- needs: gpu -->   what the next block needs: gpu, a package's name, or a key of ELSEWHERE
    <!-- slow -->         the next block runs with the slow tests
    <!-- instead: a | b -->   in the test, b replaces a; may be repeated
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    # Blocks of a changelog may be outdated.
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name != "changelog.md"),
]
# Needs that no test can meet, and why.
ELSEWHERE = {
    "torchrun": "processes that torchrun starts; tests/test_distributed.py has real ones",
    "slurm": "a cluster",
    "server": "a port and a caller; tests/test_serve.py has both",
    "venv": "make, which sets up an environment",
    "yours": "a model, a table or a run of the reader's own",
    "minutes": "more minutes than a test may take",
}
ITEM = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|^<!-- (?P<mark>needs|slow|instead)(?:: (?P<value>.*?))? -->$"
    r"|^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        line: line of the page where its code begins.
        needs: what it needs to run.
    """

    page: Path
    line: int
    language: str
    code: str
    needs: str = ""
    slow: bool = False

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def unmet(self) -> str:
        """Why it cannot run here; empty if it can."""
        if self.needs == "gpu":
            import torch

            return "" if torch.cuda.is_available() else "needs a CUDA device"
        if self.needs in ELSEWHERE:
            return f"needs {ELSEWHERE[self.needs]}"
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"the extra {self.needs!r} is not installed"
        return ""

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block, without variable assignments."""
        lines = self.code.replace("\\\n", " ").splitlines()
        split = (shlex.split(line, comments=True) for line in lines)
        return [
            [word for word in words if not re.match(r"[A-Z_]+=", word)] for words in split if words
        ]


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks of a page in order; hidden setup code is a block of Python."""
    text, blocks = page.read_text(), []
    marks: dict[str, str] = {}
    instead: list[str] = []
    for item in ITEM.finditer(text):
        line = text.count("\n", 0, item.start()) + 2
        if item["mark"] == "instead":
            instead.append(item["value"])
            continue
        if item["mark"]:
            marks[item["mark"]] = item["value"] or ""
            continue
        code = item["setup"] if item["setup"] is not None else item["code"]
        for change in instead:
            old, _, new = change.partition(" | ")
            assert old in code, f"{page.name}:{line} has no {old!r}"
            code = code.replace(old, new)
        language = "python" if item["setup"] is not None else item["language"]
        blocks.append(Block(page, line, language, code, marks.get("needs", ""), "slow" in marks))
        marks, instead = {}, []
    assert not marks, f"{page.name} ends in a mark that no block follows: {marks}"
    assert not instead, f"{page.name} ends in a mark that no block follows: {instead}"
    return blocks


def run(blocks: list[Block]) -> None:
    """Runs the blocks of one page in one namespace; tracebacks have the page's line numbers."""
    names: dict[str, object] = {"__name__": blocks[0].page.stem}
    for block in blocks:
        code = "\n" * (block.line - 1) + block.code
        exec(compile(code, str(block.page), "exec"), names)
