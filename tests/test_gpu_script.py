"""bench/gpu.sh without a GPU: every command line parses with the scripts as they are, a call keeps
its limits whatever a part does, and what it could not run is reported."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import patience

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

CALLS = ("first", "second", "third")
# For a machine with several devices, which is never lent: no other call waits for it.
ALL_CALLS = (*CALLS, "ranks")


def gpu_sh(call: str, **environment: object) -> subprocess.CompletedProcess[str]:
    given = {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        ["bash", "bench/gpu.sh", call],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable, **given},
        capture_output=True,
        text=True,
        timeout=patience(200),
    )


@functools.cache
def parts(call: str, tiny: int = 0) -> list[tuple[str, int, list[str]]]:
    """Name, seconds and command of each part."""
    done = gpu_sh(call, LIST=1, TINY=tiny)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(name, int(seconds), command.split()) for name, seconds, command in rows]


class Parsed(Exception):
    """Raised once a command line is accepted."""


def parse(command: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Parse a command line with the script's own parser, without running the script.

    Raises:
        SystemExit: the script does not take these arguments.
    """
    module = importlib.import_module(command[0])
    real, found = argparse.ArgumentParser.parse_args, []

    def parse_args(self, *args, **kwargs):
        found.append(real(self, *args, **kwargs))
        raise Parsed

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patched.setattr(sys, "argv", [command[0], *command[1:]])
        with pytest.raises(Parsed):
            module.main()
    return found[0]


def filled(command: list[str]) -> list[str]:
    places = {"{json}": "part.json", "{deadline}": "30", "{device}": "cuda"}
    return [places.get(word, word) for word in command]


@pytest.mark.parametrize("tiny", [0, 1])
@pytest.mark.parametrize("call", ALL_CALLS)
def test_every_command_line_parses(call, tiny, monkeypatch):
    from bench.steps import Shape

    found = parts(call, tiny)
    assert len(found) >= (5 if call in CALLS else 2)
    for name, _, command in found:
        if command[0] == "tests":
            assert all((ROOT / path).is_file() for path in command[1:]), name
            continue
        options = parse(filled(command), monkeypatch)
        assert options.json, f"{name} leaves no results"
        for text in getattr(options, "models", ()):
            assert Shape.parse(text).layers > 0


# ---------------------------------------------------------------------- limits
