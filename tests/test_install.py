"""The Makefile's installer reports pip's progress and passes on its exit status."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from pathlib import Path

import pytest

from staticgraph.cli import parser
from staticgraph.datasets.shipped import shipped

SCRIPT = Path(__file__).parent.parent / "tools" / "install.py"


def install():
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_line_of_pip_says_what_is_done_next():
    progress = install().Progress()
    said = []
    for line in (
        "Obtaining file:///work/staticgraph",
        "Collecting torch==2.13.0",
        "  Using cached https://index/torch-2.13.0-cp311-linux_x86_64.whl (200 MB)",
        "Requirement already satisfied: pip",
        "Installing collected packages: mpmath, torch, staticgraph",
    ):
        progress.read(line)
        said.append(progress.text([]))
    assert said == [
        "reading staticgraph",
        "looking for torch==2.13.0",
        "looking for torch==2.13.0",
        "looking for torch==2.13.0",
        "unpacking 3 packages: 0 are there",
    ]
    assert progress.text(["mpmath"]) == "unpacking 3 packages: 1 are there, last mpmath"


def pretending(folder: Path, status: int) -> list[str]:
    """A fake pip that fetches and unpacks one package and waits until each step is reported."""
    package = folder / "lib" / "python3.11" / "site-packages" / "tree-1.0.dist-info"
    code = f"""
import os, sys, time
def wait(name):
    while not os.path.exists({str(folder)!r} + "/" + name):
        time.sleep(0.01)
print("Collecting tree", flush=True)
wait("fetched")
os.makedirs({str(package)!r})
print("Installing collected packages: tree, leaf", flush=True)
wait("unpacked")
sys.exit({status})
"""
    return [sys.executable, "-c", code]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The script; the fake pip continues once the script has reported its progress."""
    module = install()
    monkeypatch.setattr(module, "EVERY_S", 0.02)
    say = module.say

    def saying(text, out):
        say(text, out)
        if "looking for tree" in text:
            (tmp_path / "fetched").touch()
        if "unpacking 2 packages: 1 are there, last tree" in text:
            (tmp_path / "unpacked").touch()

    monkeypatch.setattr(module, "say", saying)
    return module


def test_what_is_done_is_said_as_it_goes_on(module, tmp_path):
    out = io.StringIO()
    assert module.follow(pretending(tmp_path, 0), tmp_path, out) == 0
    assert out.getvalue().splitlines()[-1].endswith("1 packages installed")


def test_what_pip_said_is_shown_where_it_fails(module, tmp_path):
    out = io.StringIO()
    assert module.follow(pretending(tmp_path, 7), tmp_path, out) == 7
    assert "Collecting tree\nInstalling collected packages: tree, leaf" in out.getvalue()


def test_the_commands_that_the_makefile_names_are_commands():
    """The demo and the two commands it ends with parse, and their data exists."""
    text = (SCRIPT.parents[1] / "Makefile").read_text().replace("\\\n", " ")
    found = re.findall(r"(?:staticgraph\.cli|bin/staticgraph) ([^\"\n]+)", text)
    assert [words.split()[0] for words in found] == ["train", "train", "check"]
    for words in found:
        options = parser().parse_args(words.split())
        assert (SCRIPT.parents[1] / options.data).exists() or options.data in shipped()
