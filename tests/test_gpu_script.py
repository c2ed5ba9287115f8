"""bench/gpu.py without a GPU: every command line parses with the scripts as they are."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


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
