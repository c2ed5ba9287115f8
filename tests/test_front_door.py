"""The names a user imports: few, all present, and cheap until used."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import staticgraph as sg


def test_every_name_is_there_and_has_one_home():
    for name in sg.__all__:
        assert getattr(sg, name) is not None
        assert name in dir(sg)
    errors = [
        n for n in sg.__all__ if getattr(getattr(sg, n), "__module__", "") == "staticgraph.errors"
    ]
    assert len(sg.__all__) - len(errors) <= 39


def test_a_name_that_left_the_front_door_says_where_it_is():
    """A name that the front door once exported is found in the module that the error names."""
    for name, home in sg._MOVED.items():
        with pytest.raises(AttributeError, match=rf"staticgraph\.{name} .* {re.escape(home)}"):
            getattr(sg, name)
        assert getattr(importlib.import_module(home), name).__name__ == name
    with pytest.raises(ImportError, match="PreflightReport"):
        exec("from staticgraph import PreflightReport")
    with pytest.raises(AttributeError, match="has no attribute 'Prefligt'"):
        sg.Prefligt  # noqa: B018


def test_every_error_that_can_be_caught_is_there():
    own = {
        n for n, v in vars(sg.errors).items() if getattr(v, "__module__", "") == sg.errors.__name__
    }
    assert own <= set(sg.__all__)


def test_the_stub_is_all_there_is():
    tree = ast.parse(Path(sg.__file__).with_suffix(".pyi").read_text())
    names = [a for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names]
    assert sorted(a.name for a in names) == sg.__all__ == sorted(set(sg.__all__))
    assert all(a.asname == a.name for a in names)  # re-exported for type checkers


def test_help_waits_for_neither_torch_nor_pyg():
    program = (
        "import sys, staticgraph.cli; app = staticgraph.cli.make_app('plan');"
        "app['plan'].assemble_argument_collection();"
        "print([name for name in ('torch', 'torch_geometric', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]"), done.stderr
