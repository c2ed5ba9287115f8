"""Runs the command line and returns its exit status, as a shell sees it."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cyclopts.argument import Argument

from staticgraph import cli


def status_of(argv: Sequence[str]) -> int:
    """Runs a command in this process and returns its exit status."""
    try:
        return cli.main(list(argv))
    except SystemExit as stop:
        return int(stop.code or 0)


def arguments_of(command: str) -> list[Argument]:
    """Every option and argument of a command, as cyclopts reads it."""
    collection = cli.make_app(command).assemble_argument_collection(parse_docstring=True)
    return [argument for argument in collection if argument.name != "*"]


def help_of(command: str = "") -> str:
    """What ``--help`` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert status_of([*command.split(), "--help"]) == 0
    return out.getvalue()


def refusal(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Asserts that a command is refused with exit status 2; returns what it says."""
    assert status_of(argv) == cli.FAILED
    return capsys.readouterr().err


def printed_json(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    """Asserts that a command works; returns the JSON that it prints."""
    assert status_of(argv) == 0
    return json.loads(capsys.readouterr().out)


def write_module(name: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes a user's module in a folder, and works there as the command line does."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)  # left by another test
