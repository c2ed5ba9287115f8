"""Runs test files under Triton's interpreter, in a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from support.patience import patience

triton = pytest.importorskip("triton", reason="Triton is not installed (Linux only)")

# Triton 3.6 converts a one-dimensional array to a number, which NumPy 2.4 no longer allows.
needs_interpreter = pytest.mark.skipif(
    triton.__version__.startswith("3.6.") and numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0",
    reason="the interpreter of Triton 3.6 needs NumPy below 2.4",
)


def run_interpreted(*names: str) -> None:
    """Passes if the tests in these files of this folder pass, in their order.

    TRITON_INTERPRET must be set before Triton is imported, hence the separate process.
    """
    files = [str(Path(__file__).parent / name) for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, "-x", "-p", "no:cacheprovider"],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=patience(200),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    ran = re.findall(r"(\d+) passed", done.stdout)
    assert ran, done.stdout[-3000:]
