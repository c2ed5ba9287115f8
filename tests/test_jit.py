"""Loops and their parts: a part that Python calls says so, where numba would end the process."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from staticgraph.jit import kernel, kernel_part, loop, part

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


@pytest.mark.parametrize(("of", "inside"), [(loop, part), (kernel, kernel_part)])
def test_python_calls_loops_and_not_their_parts(of, inside):
    @inside
    def half(value):
        return value / 2

    @of
    def halves(values):
        total = 0.0
        for value in values:
            total += half(value)
        return total

    # before anything is compiled, for the types that are compiled, and for others
    refused = re.escape("half can be called by compiled loops only: decorate it as a loop")
    with pytest.raises(TypeError, match=refused):
        half(1.0)
    assert halves(np.ones(6)) == 3
    with pytest.raises(TypeError, match=refused):
        half(1.0)
    with pytest.raises(TypeError, match=refused):
        half(1)
    assert halves(np.ones(6, np.float32)) == 3


@pytest.mark.parametrize(("of", "inside"), [("loop", "part"), ("kernel", "kernel_part")])
def test_a_part_that_is_read_from_the_cache_refuses_too(of, inside, tmp_path, monkeypatch):
    """A second process reads both from the cache."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "halved.py").write_text(textwrap.dedent(PROGRAM.format(loop=of, part=inside)))
    calls = """
        import sys
        import numpy as np
        from halved import half, halves
        try:
            result = halves(np.ones(6)), half(1.0)
        except TypeError as error:
            result = error
        print(sum(halves.stats.cache_hits.values()), half.overloads != {}, result)
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
        ).stdout.strip()
        for _ in range(2)
    ]
    refused = "halved.half can be called by compiled loops only: decorate it as a loop"
    assert said == [f"0 True {refused}", f"1 False {refused}"]
