"""The names a user imports: few, all present, and cheap until used."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import staticgraph as sg


def test_every_name_is_there_and_has_one_home():
    for name in sg.__all__:
        assert getattr(sg, name) is not None
        assert name in dir(sg)
    errors = [n for n in sg.__all__ if getattr(sg.errors, n, None) is not None]
    assert len(errors) == 8
    assert len(sg.__all__) - len(errors) <= 26


def test_a_name_that_left_the_front_door_works_and_says_what_to_write():
    for name in sorted(set(sg._MOVED) - set(sg.__all__)):
        vars(sg).pop(name, None)
        with pytest.warns(DeprecationWarning, match=rf"staticgraph\.{name} is deprecated: write"):
            value = getattr(sg, name)
        assert getattr(sg, name) is value, "the second time, without a warning"
    assert sg.preflight is sg.check
    assert issubclass(sg.GraphTooLarge, sg.PlanMismatch)
    with pytest.raises(AttributeError, match="has no attribute 'Prefligt'"):
        sg.Prefligt  # noqa: B018


def test_every_error_has_a_base_that_can_be_caught():
    values = vars(sg.errors).values()
    kinds = [kind for kind in values if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 25
    for kind in kinds:
        assert issubclass(kind, sg.StaticGraphError)
        copied = pickle.loads(pickle.dumps(kind("why")))
        assert (type(copied), str(copied)) == (kind, "why")


def test_the_stub_is_all_there_is():
    tree = ast.parse(Path(sg.__file__).with_suffix(".pyi").read_text())
    names = [a for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names]
    assert sorted(a.name for a in names) == sg.__all__ == sorted(set(sg.__all__))
    assert all(a.asname == a.name for a in names)  # re-exported for type checkers


def test_every_name_is_in_the_reference():
    pages = (Path(__file__).parents[1] / "docs" / "reference").glob("*.md")
    described = set(re.findall(r"^::: (\S+)$", "\n".join(p.read_text() for p in pages), re.M))
    for name in sg.__all__:
        value = getattr(sg, name)
        if not isinstance(value, ModuleType):
            assert f"{value.__module__}.{value.__qualname__}" in described


def test_help_waits_for_neither_torch_nor_pyg():
    program = (
        "import sys, staticgraph.cli; app = staticgraph.cli.make_app('plan');"
        "app.assemble_argument_collection();"
        "print([name for name in ('torch', 'torch_geometric', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]"), done.stderr
