"""What users rely on, as it is: ``tests/data/frozen.json`` and files that an earlier version wrote.

Names and signatures of the front door, options and defaults of every command, shapes of what
``--json`` prints, layers that pass in the support table, and tests that hold a law. Something added
needs no change here but for signatures and options. Where one of them changes on purpose,
``FREEZE=1 pytest tests/test_frozen.py`` writes it down again, and the changelog says what users do.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from support import saved_kinds
from support.command import status_of
from support.schemas import SHAPES

import staticgraph as sg

ROOT = Path(__file__).parents[1]
FROZEN = ROOT / "tests" / "data" / "frozen.json"
SAVED = ROOT / "tests" / "data" / "saved"
KINDS = (saved_kinds.Plan, saved_kinds.Checkpoint, *saved_kinds.FOLDERS)
NUMBER = 7


def signature_of(function: Callable[..., Any]) -> str:
    """Parameters with their kinds and defaults; annotations may be written another way."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]
    text = str(inspect.Signature(parameters))
    return re.sub(r"<\w+ '?(?:[\w.]+\.)?(\w+)'?(?: at 0x\w+)?>", r"\1", text)


def front_door() -> dict[str, str]:
    """The signature of every function and constructor, and of the methods of classes.

    Also of the names that were public once, which must work until they are removed.
    """
    entries = {}
    for name in sorted({*sg.__all__, *sg._MOVED}):
        value = resolve_name(sg._MOVED.get(name, f"staticgraph:{name}"))
        entries[name] = ""
        if inspect.isclass(value) and issubclass(value, BaseException):
            continue
        if callable(value):
            entries[name] = signature_of(value)
        for member in dir(value) if inspect.isclass(value) else ():
            method = inspect.getattr_static(value, member)
            method = getattr(method, "__func__", method)
            if member.startswith("_") or not hasattr(method, "__module__"):
                continue
            if inspect.isfunction(method) and method.__module__.startswith("staticgraph"):
                entries[f"{name}.{member}"] = signature_of(method)
    return entries


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert status_of([*words, "--help"]) == 0
    return capsys.readouterr().out


def options_in(text: str) -> dict[str, str]:
    """Every option that begins a line of a help text, with the default printed after it."""
    parts = re.split(r"^[^\w\n-]*(?=-)", text, flags=re.MULTILINE)[1:]
    entries = {}
    for part in parts:
        names = re.findall(r"(?<![\w-])--[\w-]+", re.split(r" {2,}|\n", part)[0])
        default = re.search(r"\(default: (.*?)\)", " ".join(part.split()))
        entries |= dict.fromkeys(names, default[1] if default else "")
    return entries


def commands(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    pages = re.findall(r"^## staticgraph ([\w-]+)$", (ROOT / "docs/cli.md").read_text(), re.M)
    return {
        f"{command} {option}": default
        for command in pages
        for option, default in options_in(help_of(capsys, command)).items()
    }


def shapes() -> dict[str, str]:
    """What identifies the shape of each command's JSON, which ``tests/support/schemas.py`` has."""
    texts = {name: json.dumps(shape, sort_keys=True) for name, shape in SHAPES.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


def supported() -> dict[str, str]:
    rows = re.findall(r"^\| (\w.*?) \|.*\| (\w+) \|$", (ROOT / "docs/support.md").read_text(), re.M)
    return {layer: verdict for layer, verdict in rows if verdict == "pass"}


def law_tests() -> dict[str, str]:
    """The tests that the page of laws names and that are there."""
    names = re.findall(r"`(tests/[\w/.]+)::([\w:]+)`", (ROOT / "docs/laws.md").read_text())
    for file, test in names:
        *_, function = test.split("::")
        assert f"def {function}(" in (ROOT / file).read_text(), f"docs/laws.md names {file}::{test}"
    return {f"{file}::{test}": "" for file, test in names}


PRESENT: dict[str, Callable[..., dict[str, str]]] = {
    "front door": front_door,
    "options": commands,
    "shapes": shapes,
    "support": supported,
    "laws": law_tests,
}


@pytest.mark.parametrize("part", PRESENT)
def test_what_users_rely_on_is_as_it_was(part, capsys):
    present = PRESENT[part](capsys) if part == "options" else PRESENT[part]()
    assert present
    frozen = json.loads(FROZEN.read_text())
    if os.environ.get("FREEZE"):
        frozen[part] = dict(sorted(present.items()))
        FROZEN.write_text(json.dumps(frozen, indent=1) + "\n")
    changed = {
        name: f"{value!r} became {present.get(name)!r}"
        for name, value in frozen[part].items()
        if present.get(name) != value
    }
    assert changed == {}, "on purpose? FREEZE=1 writes it down; the changelog says what users do"
    new = set(present) - set(frozen[part])
    assert not new, f"FREEZE=1 writes these down: {sorted(new)}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_file_that_an_earlier_version_wrote_is_read(kind, tmp_path):
    """Never written again: a version that changes a format still reads these."""
    saved = SAVED / kind.name
    if os.environ.get("FREEZE") and not saved.exists():
        saved.parent.mkdir(exist_ok=True)
        kind.write(saved, NUMBER)
    copied = tmp_path / kind.name
    (shutil.copytree if saved.is_dir() else shutil.copy)(saved, copied)
    assert kind.read(copied) == NUMBER


def test_options_are_read_from_a_help_of_any_form():
    text = """
    -h, --help            show this
    --data SPEC           a name, not --model
                          (default: esol)
    | --no-check, --check   check it |
    """
    assert options_in(text) == {"--help": "", "--data": "esol", "--no-check": "", "--check": ""}
