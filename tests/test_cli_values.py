"""No value of any option of any command leads to a traceback.

The options come from the parser itself: each is given every absurd value, through ``main``, over
tiny data. What a command refuses must be one line and exit status 2; what it accepts runs. Loops
that only repeat what is built by then (training steps, measurements, pictures) are left out here,
since the tests of the commands run them: for every value files are opened, models and plans are
built, and folders are made.

The reading of a value hardly depends on the option, so by default each option is given a part of
the values, beginning with another one than the option before; with ``EVERY_CASE=1``, all of them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cyclopts import Token
from cyclopts.argument import Argument
from support.command import arguments_of, refusal
from support.command_words import (
    ABSURD,
    BASES,
    cut_short,
    make_place,
    measured_in,
    replace_option,
    wrong_with,
)

from staticgraph import cli
from staticgraph.training import options


@pytest.fixture(scope="module")
def place(tmp_path_factory, esol) -> Path:
    """A folder with a tiny example of every input."""
    folder = tmp_path_factory.mktemp("values")
    make_place(folder, esol[:20])
    return folder


@pytest.fixture(scope="module")
def measured(place):
    return measured_in(place)


@pytest.fixture
def tiny(place, measured, tmp_path, monkeypatch) -> Path:
    """A copy of ``place`` to work in; loops, measurements and pictures are left out."""
    folder = tmp_path / "here"
    shutil.copytree(place, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    cut_short(monkeypatch, folder, measured)
    return folder


def test_the_table_has_every_command():
    assert {base[0] for base in BASES.values()} == set(cli.COMMANDS)


WRITTEN = (options.OUTPUT_FILE, options.PICTURE_FILE, options.OUTPUT_FOLDER)


# Of the values that the parser refuses, one in so many is tried by default; of the others, one in
# so many.
REFUSED, TAKEN = 24, 15


def refused(option: Argument, value: str) -> bool:
    """Whether the parser itself refuses the value, before any command runs."""
    if option.parameter.converter is None:
        return False
    try:
        option.parameter.converter(None, [Token(value=value)])
    except ValueError:
        return True
    return False


def values_of(option: Argument, base: str) -> tuple[str, ...]:
    """The values to try. An option that names an output does not depend on the inputs, so its
    values are dealt out in turn among the bases of the command."""
    if option.hint is bool:
        return ("",)
    tried = ABSURD
    if option.parameter.converter in [kind.converter for kind in WRITTEN]:
        alike = [name for name in BASES if BASES[name][0] == BASES[base][0]]
        tried = ABSURD[alike.index(base) :: len(alike)]
    if os.environ.get("EVERY_CASE"):
        return tried
    first = list(BASES).index(base) + [a.name for a in arguments_of(BASES[base][0])].index(
        option.name
    )
    split = [[v for v in tried if refused(option, v) is way] for way in (True, False)]
    parts = zip(split, (REFUSED, TAKEN), strict=True)
    return tuple(v for part, k in parts for v in part[first % min(k, len(part) or 1) :: k])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("base", BASES)
def test_no_value_of_any_option_leads_to_a_traceback(base, tiny):
    before = sorted(path.name for path in tiny.iterdir())
    wrong = []
    for option in arguments_of(BASES[base][0]):
        for value in values_of(option, base):
            words = replace_option(BASES[base], option, value)
            found = wrong_with(words)
            for path in tiny.iterdir():
                if path.name not in before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            if found:
                wrong.append(f"{' '.join(word[:40] for word in words)}\n    {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (options.value(options.whole(0)), " 7 ", 7),
        (options.SHARE, "0", 0.0),
        (options.SHARE, "1", 1.0),
        (options.RATE, "1e30", 1e30),
        (options.value(options.whole(0, options.MOST_SEED)), str(2**63 - 1), 2**63 - 1),
        (options.value(options.read_fanouts), "10,5", (10, 5)),
        (options.value(options.auto_or(options.whole())), "auto", "auto"),
        (options.value(options.read_device), "cuda:1", "cuda:1"),
    ],
)
def test_what_is_in_range_is_taken(kind, text, expected):
    assert kind.converter(None, [Token(value=text)]) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--data", "esol", "--out", "closed/run"],
        ["try", "--data", "esol", "--out", "closed"],
        ["convert", "--data", "esol", "--out", "closed"],
        ["partition", "--data", "cora", "--out", "closed"],
        ["train-large", "--task", "link", "--data", "cora", "--out", "closed"],
        ["plan", "--data", "esol", "--out", "closed/plan.json"],
        ["probe", "--data", "esol", "--plot", "closed/memory.png"],
    ],
)
def test_a_place_that_may_not_be_written_is_refused_before_any_work(
    words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(options.os, "access", lambda path, how: Path(path).name != "closed")
    assert "closed may not be written to; choose another place" in refusal(words, capsys)
