"""How long a test waits before it considers something hung.

A limit in seconds alone means nothing: on a machine with three other jobs, everything takes four
times as long without hanging. So limits are given for a quiet machine and scaled by the slowness of
this one, measured once per process. They only end what would never end; no test passes or fails
because of its speed.
"""

from __future__ import annotations

import functools
import time

# Time of :func:`_work` on a quiet core of the machine that limits are given for (EPYC, 2026-11-22).
QUIET_S = 0.03
# A quiet machine may be busy later; a limit that is not reached costs nothing.
RESERVE = 3.0
MOST = 40.0


def _work() -> int:
    total = 0
    for number in range(1_000_000):
        total += number & 7
    return total


@functools.cache
def slowness() -> float:
    """Returns how many times as long as on a quiet machine the same work takes; at least 1."""
    began = time.perf_counter()
    _work()
    return min(MOST, max(1.0, (time.perf_counter() - began) / QUIET_S))


def patience(seconds: float) -> float:
    """Returns the limit for what may take ``seconds`` on a quiet machine."""
    return seconds * RESERVE * slowness()
