"""The documents' code, as a reader's type checker sees it.

pyright reads the Python blocks of every page in its standard strictness. Two of its rules are left
out, since they judge the model of an example and not this library: PyG's and torch's own
``forward`` has other parameter names, and a loop variable may be unbound after the loop.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, blocks_of

LEFT_OUT = ("reportIncompatibleMethodOverride", "reportPossiblyUnboundVariable")
# Uses the repository's package, whichever one is installed.
SETTINGS = {
    "typeCheckingMode": "standard",
    "extraPaths": [str(ROOT)],
    "pythonVersion": "3.11",
    **dict.fromkeys(LEFT_OUT, "none"),
}


def complaints(folder: Path) -> list[str]:
    """The errors that pyright reports for the files of a folder."""
    (folder / "pyrightconfig.json").write_text(json.dumps(SETTINGS))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run([*command, "-p", str(folder)], capture_output=True, text=True)
    assert done.stdout, done.stderr
    return [
        f"{Path(each['file']).stem}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_type_checker_takes_the_code_of_every_page(tmp_path):
    pytest.importorskip("pyright")
    for page in PAGES:
        # Blocks that run elsewhere use names that the page leaves to its reader.
        blocks = [b for b in blocks_of(page) if b.language == "python" and not b.needs]
        lines: list[str] = []
        for block in blocks:  # on the lines that it has in the page
            lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
        if lines:
            name = str(page.relative_to(ROOT).with_suffix("")).replace("/", "_")
            (tmp_path / f"{name}_page.py").write_text("\n".join(lines) + "\n")
    assert complaints(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wrong_call_is_a_complaint(tmp_path):
    pytest.importorskip("pyright")
    (tmp_path / "page.py").write_text(
        "import staticgraph as sg\n\nsg.MemoryBudget('20GiB')\nsg.MemoryBudget([20])\n"
    )
    (found,) = complaints(tmp_path)
    assert found.startswith("page:4: ")
