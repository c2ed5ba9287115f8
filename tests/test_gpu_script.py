"""bench/gpu.py without a GPU: every command line parses with the scripts as they are, parts are
timed one after another, and a call keeps its limits whatever a part does."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from support.patience import patience  # noqa: E402

from bench import gpu  # noqa: E402
from bench.steps import Shape  # noqa: E402
from staticgraph.cli import make_app  # noqa: E402


class Parsed(Exception):
    """Raised once a command line is accepted."""


def parse(command: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Parse a command line with the script's own parser, without running the script.

    Raises:
        SystemExit: the script does not take these arguments.
    """
    module = importlib.import_module(command[0])
    real = argparse.ArgumentParser.parse_args

    def parse_args(self, *args, **kwargs):
        raise Parsed(real(self, *args, **kwargs))

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patched.setattr(sys, "argv", [command[0], *command[1:]])
        with pytest.raises(Parsed) as parsed:
            module.main()
    return parsed.value.args[0]


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("call", gpu.CALLS)
def test_every_command_line_parses(call, small, monkeypatch):
    places = {
        "{json}": "part.json", "{deadline}": "30", "{gate}": "part.gate", "{out}": "part"
    }  # fmt: skip
    parts = gpu.CALLS[call]
    assert len({part.name for part in parts}) == len(parts)
    for part in map(gpu.tiny, parts) if small else parts:
        if part.command[0] == "pytest":
            files = [word for word in part.command if word.startswith("tests/")]
            assert files
            assert all((ROOT / path).is_file() for path in files)
            continue
        words = [places.get(word, word) for word in part.command]
        if words[0] == "staticgraph":
            make_app(words[1]).parse_args(words[2:], exit_on_error=False, print_error=False)
            continue
        options = parse(words, monkeypatch)
        assert options.json, f"{part.name} leaves no results"
        assert (getattr(options, "gate", None) is not None) == (part.how == gpu.TIMED)
        if ":" in (model := getattr(options, "model", "")):
            assert Shape.parse(model).layers > 0


PART = """
import json, sys, time
from pathlib import Path
kind, gate, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
if kind == "fails":
    sys.exit(3)
if kind == "hangs":
    time.sleep(600)
if kind == "timed":
    gate.with_suffix(".ready").touch()
    while not gate.exists():
        time.sleep(0.01)
started = time.monotonic()
time.sleep(0.3)
out.write_text(json.dumps([started, time.monotonic()]))
"""


def test_parts_are_timed_in_turn_and_a_call_keeps_its_limits(tmp_path, monkeypatch):
    (tmp_path / "made_up_part.py").write_text(PART)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu, "GRACE_S", patience(1.5))
    monkeypatch.setattr(gpu, "PREPARED", 0.15)
    how = {
        "one": ("timed", gpu.TIMED),
        "two": ("timed", gpu.TIMED),
        "broken": ("fails", gpu.TIMED),
        "endless": ("hangs", gpu.BESIDE),
        "last": ("alone", gpu.ALONE),
    }
    parts = [
        gpu.Part(name, when, ["made_up_part", kind, "{gate}", "{json}"], patience(4))
        for name, (kind, when) in how.items()
    ]
    started, seconds = time.monotonic(), patience(8)
    ended = dict(line.split(": ") for line in gpu.run(parts, tmp_path, tmp_path, seconds))
    assert time.monotonic() - started < 5 * seconds
    assert list(ended) == ["endless", "one", "two", "broken", "last"]
    assert ended["broken"].startswith("3 after")
    assert all(ended[name].startswith("0 after") for name in ("one", "two", "last"))
    assert ended["endless"].startswith("-2 after")
    spans = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two", "last")]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_what_had_no_time_left_is_not_begun(tmp_path, monkeypatch):
    (tmp_path / "made_up_part.py").write_text(PART)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    parts = [gpu.Part("late", gpu.ALONE, ["made_up_part", "alone", "{gate}", "{json}"])]
    assert list(gpu.run(parts, tmp_path, tmp_path, 1)) == []
    assert not (tmp_path / "late.json").exists()
