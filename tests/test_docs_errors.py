"""What ``docs/errors.md`` quotes from a message is in the source, and its types are errors."""

from __future__ import annotations

import ast
import builtins
import re
from functools import cache
from pathlib import Path

import pytest
from support.pages import ROOT

import staticgraph
from staticgraph import errors

PACKAGE = Path(staticgraph.__file__).parent
# Stands for an expression in a template; any text may take its place.
ANY = "\0"
# Letters of a quotation that must stand in the source literally; all others may be expressions.
LEAST = 12


def is_written(quoted: str) -> bool:
    """Returns whether some message can contain the quotation, whose ``...`` leaves words out."""
    return all(_part_is_written(part.strip()) for part in quoted.split("...") if part.strip())


def _part_is_written(part: str) -> bool:
    """The longest word may be an expression's, so the others are looked up, too."""
    words = sorted({*re.findall(r"[A-Za-z_]{3,}", part)}, key=len, reverse=True)
    return any(_found_by(word, part) for word in words)


def _found_by(word: str, part: str) -> bool:
    return any(
        literal_letters(part, template) >= min(LEAST, len(part))
        for path, source in _sources().items()
        if word in source
        for template in templates(path)
        if word in template
    )


@cache
def _sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def templates(path: Path) -> list[str]:
    """Returns the texts of a module, with :data:`ANY` for each expression in them."""
    tree = ast.parse(path.read_text())
    found = {text for node in ast.walk(tree) if (text := _text(node)) and " " in text}
    return [re.sub(rf"{ANY}+", ANY, re.sub(r"\s+", " ", text)) for text in found]


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or ANY for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_text(node.left), _text(node.right)]
        return None if sides == [None, None] else "".join(side or ANY for side in sides)
    return None


def literal_letters(part: str, template: str) -> int:
    """Returns how many characters of ``part`` stand in the template literally, at most; -1 if no
    message made from the template contains it.

    The positions of the template after which the part read so far may end are followed character
    by character, each with the most literal characters on the way there.
    """
    at = dict.fromkeys(range(len(template) + 1), 0)
    for letter in part:
        after: dict[int, int] = {}
        for position in sorted(at):
            if template[position : position + 1] == ANY:  # it may also be empty, or end here
                at[position + 1] = max(at[position], at.get(position + 1, -1))
        for position, literal in at.items():
            if template[position : position + 1] == ANY:
                after[position] = max(literal, after.get(position, -1))
            elif template[position : position + 1] == letter:
                after[position + 1] = max(literal + 1, after.get(position + 1, -1))
        at = after
        if not at:
            return -1
    return max(at.values())


ROWS = [
    line.split(" | ")[0]
    for line in (ROOT / "docs" / "errors.md").read_text().splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize("row", ROWS)
def test_what_is_quoted_is_in_a_message(row):
    for quoted in re.findall(r'"([^"]+)"', row):
        assert is_written(quoted) or is_written(quoted.replace("`", "")), quoted


@pytest.mark.parametrize("row", ROWS)
def test_what_is_named_is_an_error_or_a_warning(row):
    outside = re.sub(r'"[^"]*"|\([^)]*\)', "", row)
    for name in re.findall(r"`([A-Z]\w+)`", outside):
        kind = getattr(errors, name, getattr(builtins, name, None))
        assert isinstance(kind, type), name
        assert issubclass(kind, BaseException), name
