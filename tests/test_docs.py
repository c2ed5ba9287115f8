"""The code in README and the pages that have some runs as it stands; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "document",
    ["README.md", "docs/quickstart.md", "docs/hetero.md", "docs/losses.md", "docs/serving.md"],
)
def test_code_blocks_run(document, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), document, "exec"), {"__name__": document})
    assert "node eff" in capsys.readouterr().out, "the report is printed"


@pytest.mark.parametrize("document", [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not link.startswith("http"):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
