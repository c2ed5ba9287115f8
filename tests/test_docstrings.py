"""A reader finds what each public function is for, Triton kernels and layers included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import staticgraph

ROOT = Path(staticgraph.__file__).parent
Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(node: ast.AST) -> Iterator[Function]:
    """Functions and methods that a reader may call: no name on the way begins with ``_``, and none
    stands inside another function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if child.name.startswith("_"):
                continue
            if isinstance(child, ast.ClassDef):
                yield from public_functions(child)
            else:
                yield child
        else:
            yield from public_functions(child)


def is_overload(function: Function) -> bool:
    """Whether it only says a type, and another of its name says what it does."""
    return any("overload" in ast.dump(decorator) for decorator in function.decorator_list)


def without_words(source: str) -> list[tuple[int, str]]:
    """Line and name of each public function without a docstring."""
    return [
        (function.lineno, function.name)
        for function in public_functions(ast.parse(source))
        if not ast.get_docstring(function) and not is_overload(function)
    ]


def test_public_functions_say_what_they_do():
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
    def forward(self): ...
'''
    assert [name for _, name in without_words(source)] == ["unsaid", "forward"]
