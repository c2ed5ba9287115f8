"""Loops and their parts: a part that Python calls says so, where numba would end the process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    from staticgraph.jit import {loop}, {part}

    @{part}
    def half(value):
        return value / 2

    @{loop}
    def halves(values):
        total = 0.0
        for value in values:
            total += half(value)
        return total
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("of", "inside"), [("loop", "part"), ("kernel", "kernel_part")])
def test_python_calls_loops_and_not_their_parts(of, inside, tmp_path, monkeypatch):
    """Before anything is compiled, for the types that are compiled, and for others; a second
    process reads both from the cache."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "halved.py").write_text(textwrap.dedent(PROGRAM.format(loop=of, part=inside)))
    calls = """
        import sys
        import numpy as np
        from halved import half, halves
        for function, value in (
            (half, 1.0), (halves, np.ones(6)), (half, 1.0), (half, 1), (halves, np.ones(6, "f4"))
        ):
            try:
                print(function(value))
            except TypeError as error:
                print(error)
        print(sum(halves.stats.cache_hits.values()), half.overloads != {})
    """
    said = [
        subprocess.run(
            [
                sys.executable,
                "-c",
                f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + textwrap.dedent(calls),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]
    refused = "halved.half can be called by compiled loops only: decorate it as a loop"
    results = [refused, "3.0", refused, refused, "3.0"]
    assert said == [[*results, "0 True"], [*results, "2 False"]]
