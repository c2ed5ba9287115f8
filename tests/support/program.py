"""Runs programs in new processes, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]


def run_program(
    argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments; modules of the tests can be imported.

    Args:
        argv: arguments of the interpreter: ``-c CODE ...``, ``-m MODULE ...`` or ``FILE ...``.
        timeout: seconds.
        env: its whole environment; None for that of this process.

    Raises:
        subprocess.TimeoutExpired: it did not end in time; it is killed.
    """
    environ = dict(os.environ if env is None else env)
    paths = [str(TESTS.parent), str(TESTS), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=timeout, env=environ
    )
