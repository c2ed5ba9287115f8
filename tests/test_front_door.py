"""The names a user imports: few, all there, and cheap until used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import staticgraph as sg


def test_every_name_is_there_and_has_one_home():
    assert len(sg.__all__) <= 30
    assert sorted(sg._HOMES) == sorted(sg.__all__) == sorted(set(sg.__all__))
    for name in sg.__all__:
        assert getattr(sg, name) is not None
        assert name in dir(sg)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(sg.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(sg.__all__)


def test_help_waits_for_neither_torch_nor_pyg():
    program = (
        "import sys, staticgraph.cli; staticgraph.cli.parser();"
        "print([name for name in ('torch', 'torch_geometric', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
