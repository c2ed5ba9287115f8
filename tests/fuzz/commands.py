"""Random combinations of options of every command: each works, or is refused with one line.

``test_cli_values.py`` gives every option every absurd value, one at a time; here several options
are combined, with sensible values too, and some of the command's usual options are dropped. Some
commands run to the end on tiny data, the others with their loops cut short.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from cyclopts.argument import Argument
from hypothesis import strategies as st
from support.command import arguments_of
from support.command_words import (
    ABSURD,
    BASES,
    cut_short,
    given,
    make_place,
    measured_in,
    wrong_with,
)
from torch_geometric.data import Data

from staticgraph.memory.model import MemoryModel

from .subject import Subject

SENSIBLE = ("1", "2", "3", "4", "7", "16", "0.1", "0.5", "1GiB", "64K", "few", "new", "sizes.csv",
            "run")  # fmt: skip
# Commands that finish in well under a second on the data used here.
WHOLE = (
    "plan histogram", "plan limits", "plan data", "partition arrays", "partition data", "report",
    "train-large link", "train-large encoder", "train-large node", "train",
)  # fmt: skip
# Options that run the compiler: it takes minutes and has its own tests.
LEFT_OUT = {"--compile-mode", "--for", "--mode"}


@dataclass(frozen=True)
class Case:
    """The words of a command line.

    Attributes:
        base: one of :data:`BASES`.
        dropped: the number of trailing options to drop.
        options: pairs of an option's number, modulo the number of options, and its value: a
            string, or the number of one of its choices.
        whole: whether loops run in full, for the commands where that is fast.
    """

    base: str
    dropped: int
    options: tuple[tuple[int, str | int], ...]
    whole: bool

    def words(self) -> list[str]:
        words = list(BASES[self.base])
        command = words[0]
        for _ in range(self.dropped):
            starts = [at for at, word in enumerate(words) if word.startswith("--")]
            words = words[: starts[-1]] if starts else words
        table = [a for a in arguments_of(command) if a.name not in LEFT_OUT]
        for number, value in self.options:
            action = table[number % len(table)]
            words = given(words, action, _text(action, value))
        return words

    @property
    def runs(self) -> bool:
        """Whether loops run in full: only for :data:`WHOLE` commands with sensible values."""
        few = all(isinstance(v, int) or v in SENSIBLE for _, v in self.options)
        return self.whole and self.base in WHOLE and few


def _text(action: Argument, value: str | int) -> str:
    if isinstance(value, str):
        return value
    choices = [str(choice) for choice in action.parameter.choices or SENSIBLE]
    return choices[value % len(choices)]


def cases() -> st.SearchStrategy[Case]:
    value = st.integers(0, 20) | st.integers(0, 20) | st.sampled_from(SENSIBLE + ABSURD)
    return st.builds(
        Case,
        st.sampled_from(sorted(BASES)),
        st.sampled_from((0, 0, 0, 1, 2, 5)),
        st.lists(st.tuples(st.integers(0, 40), value), min_size=1, max_size=5).map(tuple),
        st.booleans(),
    )


@cache
def _place() -> tuple[Path, MemoryModel]:
    """A folder with a tiny input of every kind, made once per process, and a memory model."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz_commands_"))
    rng = np.random.default_rng(0)
    graphs = []
    for n in rng.integers(2, 9, 20):
        graphs.append(
            Data(
                x=torch.from_numpy(rng.normal(size=(n, 3)).astype(np.float32)),
                edge_index=torch.from_numpy(rng.integers(0, n, (2, 2 * n))),
                y=torch.from_numpy(rng.normal(size=(1, 1)).astype(np.float32)),
            )
        )
    make_place(folder, graphs)
    with contextlib.redirect_stderr(io.StringIO()):
        return folder, measured_in(folder)


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    """Works in ``folder``, with its modules importable, and restores the previous state."""
    before, path, modules = Path.cwd(), list(sys.path), set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) & {"tiny_models"} - modules:
            del sys.modules[name]


def check(case: Case) -> None:
    place, measured = _place()
    with tempfile.TemporaryDirectory(prefix="fuzz_case_") as scratch:
        folder = Path(scratch) / "it"
        shutil.copytree(place, folder)
        with _in(folder), pytest.MonkeyPatch.context() as patch:
            if not case.runs:
                cut_short(patch, folder, measured)
            words = case.words()
            found = wrong_with(words)
    assert not found, f"{' '.join(word[:60] for word in words)}: {found}"


SUBJECT = Subject("commands", cases, check, 20)
