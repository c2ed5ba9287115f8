"""Loops are compiled before the first step, by several processes: those that a run calls."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import types
from support.patience import patience
from support.program import run_program

from staticgraph.models import NAMES
from staticgraph.training.compile_ahead import (
    Loop,
    _from_cache_alone,
    _NotCached,
    compile_ahead,
    not_cached,
)
from staticgraph.training.loops import LOOPS, line_of, training_loops, type_of, word_of

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "support" / "loops_of_training.py"
# A module of loops that no cache knows; the number in it is part of their results.
MODULE = """
import numba

@numba.njit(cache=True)
def first(values):
    return values.sum() + {number}

@numba.njit(cache=True)
def second(values, times):
    return first(values) * times

@numba.njit(cache=True)
def broken(values):
    return values.no_such_method()
"""
WORDS = ["f4[2]", "i8[1]", "u1[3]A", "f8[1]r", "i4[2]Ar", "b1[1]", "b1", "i8", "u8", "f8", "2xf8"]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_its_type_and_back(word):
    assert word_of(type_of(word)) == word


def test_words_are_what_numba_makes_of_a_call():
    for value, word in (
        (np.zeros((2, 3), np.float32), "f4[2]"),
        (np.zeros((4, 4), np.int64)[::2, ::2], "i8[2]A"),
        (np.zeros(3, bool), "b1[1]"),
        (3, "i8"),
        (2.5, "f8"),
        (True, "b1"),
        (np.uint64(3), "u8"),
        ((1.0, 2.0), "2xf8"),
    ):
        assert numba.typeof(value) == type_of(word)
    with pytest.raises(ValueError, match="'list' is not a type"):
        type_of("list")
    with pytest.raises(ValueError, match="for which there is no word"):
        word_of(types.unicode_type)


def test_every_line_names_a_loop():
    loops = training_loops()
    assert len(loops) > 20
    called = [line.partition(" |")[0] for line in LOOPS.strip().splitlines()]
    assert [line_of(loop) for loop in loops] == called
    for loop in loops:
        assert isinstance(loop.dispatcher, numba.core.registry.CPUDispatcher)
        assert len(loop.types) == loop.dispatcher.py_func.__code__.co_argcount


def test_a_run_waits_for_the_loops_of_its_own_model():
    """Including the loops that all models share. What an unlisted model calls is not known, so a
    run of it waits for all loops."""
    everything = training_loops()
    assert training_loops("some.module:build") == everything
    of = {model: training_loops(model) for model in NAMES}
    common = set.intersection(*map(set, of.values()))
    assert len(common) > 10
    for model, loops in of.items():
        assert common < set(loops) < set(everything)
        assert [loop for loop in everything if loop in loops] == loops, "the longest first"
        for loop in set(loops) - common:
            users = [name for name in of if loop in of[name]]
            assert line_of(loop, users) in LOOPS.splitlines()
            assert model in users
    assert any("gcn_sum" in loop.name for loop in of["gcn"])
    assert not any("gcn_sum" in loop.name for loop in of["gine"])


@pytest.fixture
def loops(tmp_path, monkeypatch) -> list[Loop]:
    """Three loops that were never compiled; the first fails to compile."""
    name = f"loops_{os.getpid()}_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(number=len(name)))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield [
        Loop(f"{name}.broken", (type_of("f8[1]"),)),
        Loop(f"{name}.second", (type_of("f8[1]"), type_of("i8"))),
        Loop(f"{name}.first", (type_of("f8[1]"),)),
    ]
    sys.modules.pop(name, None)


def test_children_compile_and_this_process_loads(loops, capsys):
    """A loop that fails in a child compiles here when it is called, with numba's own error."""
    _, second, first = loops
    assert not_cached(loops) == loops
    assert compile_ahead(loops, processes=2, show=False) == 2
    assert not_cached([second, first]) == []
    for loop in (second, first):
        assert sum(loop.dispatcher.stats.cache_hits.values()) == 1
    assert second.dispatcher(np.ones(3), 2) == 2 * (3 + len(first.name.partition(".")[0]))
    assert compile_ahead([second, first], show=True) == 0
    assert capsys.readouterr().err == "", "nothing is said where nothing is done"
    with pytest.raises(numba.TypingError):
        loops[0].dispatcher(np.ones(3))


def test_other_threads_compile_meanwhile(loops):
    _, second, first = loops
    found = []
    with _from_cache_alone():
        with pytest.raises(_NotCached):
            second.dispatcher.compile(second.types)
        other = threading.Thread(target=lambda: found.append(first.dispatcher(np.ones(3))))
        other.start()
        other.join()
    assert found == [3 + len(first.name.partition(".")[0])]


def test_without_forks_nothing_is_done(loops, monkeypatch):
    monkeypatch.delattr(os, "fork")
    assert compile_ahead(loops, show=False) == 0
    assert loops[2].dispatcher(np.ones(3)) > 3


@pytest.mark.slow
def test_a_run_calls_what_is_in_the_list_and_nothing_else(tmp_path):
    """For each model. No loop assigns an array to a slice, for which numba spends seconds on
    compiling a message. Loops in the cache are loaded when they are called."""
    data = ROOT / "examples" / "data" / "esol.npz"
    done = run_program([str(PROGRAM), str(data), str(tmp_path)], timeout=patience(120))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    listed = LOOPS.strip().splitlines()
    missing = [line for line in found["lines"] if line not in listed]
    unused = [line for line in listed if line not in found["lines"]]
    assert not missing, "put into LOOPS:\n" + "\n".join(missing)
    assert not unused, "take out of LOOPS:\n" + "\n".join(unused)
    costly = found["costly"]
    assert not costly, f"{costly}: an array is assigned to a slice in a loop: write the loop out"
