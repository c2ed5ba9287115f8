"""Every named function, Triton kernels and layers included, says what it is for and what it raises;
the names in its docstring exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import staticgraph

ROOT = Path(staticgraph.__file__).parent
Function = ast.FunctionDef | ast.AsyncFunctionDef


def named_functions(node: ast.AST) -> Iterator[Function]:
    """Functions and methods whose name does not begin with ``_``, including those of private
    classes and those inside other functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function) and not child.name.startswith("_"):
            yield child
        yield from named_functions(child)


def is_overload(function: Function) -> bool:
    """Whether a function is a typing overload, which another function of its name documents."""
    return any("overload" in ast.dump(decorator) for decorator in function.decorator_list)


def without_words(source: str) -> list[tuple[int, str]]:
    """Line and name of each function without a docstring."""
    return [
        (function.lineno, function.name)
        for function in named_functions(ast.parse(source))
        if not ast.get_docstring(function) and not is_overload(function)
    ]


def test_named_functions_say_what_they_do():
    found = [
        f"{path.relative_to(ROOT)}:{line} {name} has no docstring"
        for path in sorted(ROOT.rglob("*.py"))
        for line, name in without_words(path.read_text())
    ]
    assert found == []


def test_a_function_without_words_is_seen():
    source = '''
def said():
    """Says it."""
    def inside(): ...

def _own(): ...

if True:
    def unsaid(): ...

class Layer:
    def forward(self): ...

class _Hidden:
    def hidden(self): ...
    def _own(self): ...
'''
    unsaid = ["inside", "unsaid", "forward", "hidden"]
    assert [name for _, name in without_words(source)] == unsaid


# Python's protocols prescribe what these raise.
PROTOCOL = {"__getattr__", "__setattr__", "__getitem__"}


def raised_in(node: ast.AST) -> Iterator[str]:
    """The exceptions that a function creates and does not catch itself."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(child, ast.Try) and child.handlers:
            for part in (*child.handlers, *child.orelse, *child.finalbody):
                yield from raised_in(part)
            continue
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call):
            yield ast.unparse(child.exc.func).rpartition(".")[2]
        yield from raised_in(child)


def callables(node: ast.AST, words: str = "") -> Iterator[tuple[Function, str]]:
    """Public functions, methods and constructors, each with its docstring; a constructor's includes
    that of its class."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            if not child.name.startswith("_"):
                yield from callables(child, ast.get_docstring(child) or "")
        elif isinstance(child, Function):
            own = ast.get_docstring(child) or ""
            if child.name in ("__init__", "__post_init__"):
                yield child, words + own
            elif child.name.startswith("__") or not child.name.startswith("_"):
                yield child, own


def unsaid_errors(source: str) -> list[tuple[int, str, str]]:
    """Line, function and exception, where the docstring names neither it nor where it is named."""
    return [
        (function.lineno, function.name, error)
        for function, words in callables(ast.parse(source))
        for error in dict.fromkeys(raised_in(function))
        if error[0].isupper()  # otherwise a function that makes an error
        and error not in words
        and "what it raises" not in words
        and function.name not in PROTOCOL
        and error != "AssertionError"
    ]


def test_public_functions_say_what_they_raise():
    found = [
        f"{path.relative_to(ROOT)}:{line} {name} does not say that it raises {error}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, name, error in unsaid_errors(path.read_text())
    ]
    assert found == []


def test_an_error_that_is_not_said_is_seen():
    source = '''
def said():
    """Raises ValueError."""
    raise ValueError("no")

def unsaid():
    """Does it."""
    if True:
        raise TypeError("no")

def caught():
    """Does it."""
    try:
        raise KeyError("no")
    except KeyError:
        return

class Checked:
    """Raises TypeError."""
    def __post_init__(self):
        raise TypeError("no")
    def method(self):
        """Does it."""
        raise TypeError("no")
'''
    found = [(name, error) for _, name, error in unsaid_errors(source)]
    assert found == [("unsaid", "TypeError"), ("method", "TypeError")]


def named(words: str, section: str) -> list[str]:
    """The names that a section of a docstring describes; ``a, b: words`` describes two."""
    found = re.search(rf"^{section}:\n((?:(?: {{4}}.*)?\n)*)", words + "\n", re.MULTILINE)
    entries = re.findall(r"^ {4}([*\w]+(?:, [*\w]+)*):", found[1] if found else "", re.MULTILINE)
    return [name.lstrip("*") for entry in entries for name in entry.split(", ")]


def parameters_of(function: Function) -> set[str]:
    """The names of a function's parameters."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {one.arg for one in every if one is not None}


def attributes_of(kind: ast.ClassDef) -> set[str]:
    """Everything that a class defines, annotates or sets as an attribute."""
    found = set()
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, Function | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def not_there(source: str) -> list[tuple[int, str, str]]:
    """Line, function or class, and each name in its docstring that it does not have."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            has = {"Args": parameters_of(node)}
        elif isinstance(node, ast.ClassDef):
            made = [f for f in node.body if isinstance(f, Function) and f.name == "__init__"]
            own = attributes_of(node)
            has = {"Args": set().union(*map(parameters_of, made)) or own, "Attributes": own}
        else:
            continue
        words = ast.get_docstring(node) or ""
        for section, names in has.items():
            missing = (name for name in named(words, section) if name not in names)
            found += [(node.lineno, node.name, name) for name in missing]
    return found


def test_words_name_parameters_and_attributes_that_are_there():
    found = [
        f"{path.relative_to(ROOT)}:{line} {owner} has no {name}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, owner, name in not_there(path.read_text())
    ]
    assert found == []


def test_a_name_that_is_gone_is_seen():
    source = '''
def run(x, *rest):
    """Runs.

    Args:
        x, y: numbers.
        rest: others.
    """

class Kept:
    """Keeps.

    Args:
        size: of it.

    Attributes:
        here: is there.
        gone: was there.
    """
    def __init__(self, size):
        self.here = size
'''
    assert [(owner, name) for _, owner, name in not_there(source)] == [
        ("run", "y"),
        ("Kept", "gone"),
    ]
