"""What a command prints: valid JSON, no error when a pipe closes, progress that fits a log."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from support.command import refusal
from tqdm import tqdm

from staticgraph import cli
from staticgraph.files.document import to_json
from staticgraph.text import progress
from staticgraph.text.table import table


def test_json_has_null_for_what_is_not_finite():
    values = {"a": math.nan, "b": [1.5, (math.inf, -math.inf)], 3: {"c": float("nan")}, "d": "nan"}
    text = to_json(values)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": None, "b": [1.5, [None, None]], "3": {"c": None}, "d": "nan",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["train", "--help"], cli.PIPE_CLOSED), (["report", "{run}", "--json"], cli.PIPE_CLOSED)],
)
def test_a_closed_pipe_ends_quietly(words, expected, tmp_path):
    """As with ``| head``: the reader is gone before the first line is written."""
    script = (
        "import sys\n"
        "from staticgraph import cli\n"
        "import staticgraph.cli.report as report\n"
        "def run(folder, /, *, json: bool = False):\n    print('x' * 100_000)\n"
        "report.run = run\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    given = [word.format(run=tmp_path) for word in words]
    command = subprocess.Popen(
        [sys.executable, "-c", script, *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    command.stdout.close()
    assert command.stderr is not None
    assert command.stderr.read() == ""
    assert command.wait() == expected


def behind(first, second):
    """An error raised while handling another, as torch raises for a file it cannot complete."""
    second.__context__ = first
    return second


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("Unable to allocate 9 TiB"), "out of memory (Unable to allocate 9 TiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes\nframe"), "9 bytes)"),
        (IsADirectoryError(21, "Is a directory", "x"), "x: is a directory"),
        (OSError(28, "No space left on device"), "No space left on device: make room, or write"),
        (
            OSError(28, "No space left on device", "r/x"),
            "report: r/x: No space left on device: make",
        ),
        (OSError("134919 requested and 73600 written"), "No space left on device: make room"),
        (behind(OSError(28, "No space"), RuntimeError("unexpected pos")), "No space left on dev"),
    ],
)
def test_what_a_user_can_mend_is_one_line(error, words, monkeypatch, capsys):
    def fail(args):
        raise error

    monkeypatch.setattr("staticgraph.cli.report.run", fail)
    err = refusal(["report", "x"], capsys)
    assert err.startswith("staticgraph report: ")
    assert words in err
    assert len(err.splitlines()) == 1


# ---------------------------------------------------------------------- progress


class Clock:
    """A clock that advances only when told to."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)
        monkeypatch.setattr("tqdm.std.time", lambda: self.now)
        monkeypatch.setattr(progress, "EVERY_S", 10.0)


def test_in_a_log_there_is_a_line_now_and_then(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    with progress.bar(range(100), desc="reading x", unit=" graphs") as shown:
        for number in shown:
            clock.now += 0.3
            shown.set_postfix_str(f"loss {number}")
    err = capsys.readouterr().err
    # Thirty seconds, one line per ten.
    assert err.splitlines() == [
        "reading x: 33 of 100 graphs, loss 33",
        "reading x: 67 of 100 graphs, loss 67",
    ]
    assert "\r" not in err
    with progress.bar(desc="turns", unit=" turns") as unknown:
        clock.now += 11
        unknown.update(7)
    assert capsys.readouterr().err == "turns: 7 turns\n"


def test_on_a_terminal_it_is_written_over(monkeypatch, capsys):
    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    assert isinstance(progress.bar(range(3), desc="x", unit=" graphs", show=False), tqdm)
    status = progress.Status()  # cleared whole, however long it is
    status.show("a" * 70)
    status.show("short")
    status.clear()
    assert capsys.readouterr().err == f"\r{'a' * 70}\r{'short':<70}\r{' ' * 40}\r"
    status.clear()
    assert capsys.readouterr().err == ""


def test_nothing_is_shown_that_is_not_asked_for(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    for _ in progress.bar(range(100), desc="reading x", unit=" graphs", show=False):
        clock.now += 100
    assert capsys.readouterr().err == ""


def test_a_table_goes_on_below_where_the_terminal_is_narrow(monkeypatch):
    headers, rows = ("bucket", "nodes", "edges"), [(0, "1,712", "3,522"), (1, "20", "40")]
    whole = "bucket  nodes  edges\n------  -----  -----\n     0  1,712  3,522\n     1     20     40"
    halves = [
        f"bucket  {name}\n------  -----\n     0  {first}\n     1  {second:>5}"
        for name, first, second in (("nodes", "1,712", 20), ("edges", "3,522", 40))
    ]
    assert table(headers, rows) == whole, "stdout is no terminal here"
    assert table(headers, rows, 20) == whole
    assert table(headers, rows, 19) == table(headers, rows, 1) == "\n\n".join(halves)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "15")
    assert table(headers, rows) == "\n\n".join(halves)
    assert table(("bucket",), [(0,)], 1) == "bucket\n------\n     0"


def test_what_is_said_can_be_heard(capsys):
    """A process whose stderr nobody sees can collect the messages."""
    with progress.heard() as lines:
        progress.say("guessed")
    progress.say("aloud")
    assert lines == ["guessed"]
    assert capsys.readouterr().err == "aloud\n"
