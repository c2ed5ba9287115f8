"""The names a user imports: few, all present, and cheap until used."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import staticgraph as sg


def test_every_name_is_there_and_has_one_home():
    for name in sg.__all__:
        assert getattr(sg, name) is not None
        assert name in dir(sg)
    errors = [
        n for n in sg.__all__ if getattr(getattr(sg, n), "__module__", "") == "staticgraph.errors"
    ]
    assert len(sg.__all__) - len(errors) <= 33


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


def own_doc(value: Any) -> str:
    """A member's own docstring, whatever kind of member it is."""
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "func", getattr(value, "__func__", value))  # cached; classmethod
    return (getattr(value, "__doc__", None) or "").strip()


def undescribed(name: str, value: Any) -> Iterator[str]:
    """The names without a docstring: the public name itself, and its methods and properties that
    this library defines. Anything else (a field's default, a constant) is described with its
    class."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return
    # A dataclass without a docstring of its own gets its signature as one.
    if not own_doc(value) or own_doc(value).startswith(f"{getattr(value, '__name__', '')}("):
        yield name
    for kind in value.__mro__ if inspect.isclass(value) else ():
        if not kind.__module__.startswith("staticgraph"):
            continue
        for key, member in vars(kind).items():
            plain = isinstance(member, property | classmethod | staticmethod | cached_property)
            public = not key.startswith("_") and (plain or inspect.isfunction(member))
            if public and not own_doc(member):
                yield f"{name}.{key}"


def test_every_name_is_described_and_so_are_its_methods():
    named = {name: getattr(sg, name) for name in sg.__all__}
    for module in (sg.datasets, sg.models, sg.outofcore, sg.outofcore.data):
        public = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
        for name in public:
            value = getattr(module, name)
            if getattr(value, "__module__", "").startswith("staticgraph"):
                named[f"{module.__name__}.{name}"] = value
    assert len(named) > 70
    assert [each for name, value in named.items() for each in undescribed(name, value)] == []


def test_what_is_not_described_is_found():
    class Described:
        """It is."""

        def method(self): ...

        @cached_property
        def number(self): ...

        @classmethod
        def made(cls): ...

    Described.__module__ = "staticgraph.somewhere"
    assert [*undescribed("D", Described)] == ["D.method", "D.number", "D.made"]
    assert [*undescribed("f", lambda: None)] == ["f"]
    assert [*undescribed("P", make_dataclass("P", ["x"]))] == ["P"]


def test_help_waits_for_neither_torch_nor_pyg():
    program = (
        "import sys, staticgraph.cli; app = staticgraph.cli.make_app('plan');"
        "app['plan'].assemble_argument_collection();"
        "print([name for name in ('torch', 'torch_geometric', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]"), done.stderr
