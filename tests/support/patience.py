"""How long a test waits before it calls something hung.

A limit in seconds means nothing by itself: on a machine that does three other things everything
takes four times as long, and nothing hangs. So limits are said for a quiet machine, and grow with
how slow this one was found to be, once a process. They end what would never end and are no
measurement: no test passes or fails by how fast a thing was.
"""

from __future__ import annotations

import functools
import time

# Of :func:`_work`, on one quiet core of the machine that limits were said for (EPYC, 2026-11-22).
QUIET_S = 0.03
# A machine that is quiet now may be busy later; a limit that is not reached costs nothing.
RESERVE = 3.0
MOST = 40.0


def _work() -> int:
    total = 0
    for number in range(1_000_000):
        total += number & 7
    return total


@functools.cache
def slowness() -> float:
    """How many times as long as on a quiet machine the same work took; at least 1."""
    began = time.perf_counter()
    _work()
    return min(MOST, max(1.0, (time.perf_counter() - began) / QUIET_S))


def patience(seconds: float) -> float:
    """The limit for what may take so many seconds on a quiet machine."""
    return seconds * RESERVE * slowness()
