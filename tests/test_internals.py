"""Private APIs of torch: none is used outside ``internals/``, and each name does what it is used
for. With a new torch, failures here and in the ``test_internals_*`` files (tracing,
Inductor, hooks) show what changed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import staticgraph

ROOT = Path(staticgraph.__file__).parent
ROOMS = ("internals", "dryrun/stubs")
PRIVATE = re.compile(r"^torch(\.\w+)*\._[a-z]\w*|^torch\._[A-Z]\w*")


def private_names(source: str) -> list[tuple[int, str]]:
    """Lines and names of private torch APIs, imported or reached by attribute access."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            names = [ast.unparse(node)]
            if node.attr == "_version":
                names.append("torch._version")
        else:
            continue
        found += [(node.lineno, name) for name in names if PRIVATE.match(name)]
    return found


def test_private_names_of_torch_stand_in_their_rooms():
    files = [p for p in ROOT.rglob("*.py") if not str(p.relative_to(ROOT)).startswith(ROOMS)]
    assert len(files) > 300
    found = [
        f"{path}:{line} says {name}: it belongs in internals/"
        for path in files
        for line, name in private_names(path.read_text())
    ]
    assert found == []
