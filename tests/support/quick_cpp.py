"""Makes Inductor's CPU code compile quickly, since a test calls it only a few times.

With an empty Inductor cache, as in a fresh clone, compiling its C++ is a large part of the tests'
cost. So g++ optimizes less, and loops are generated for scalars only, not also for vectors; the
graph, its fusions and its buffers do not change. Almost all is set by environment variables, which
children inherit and which are part of the keys of Inductor's cache: runs outside the tests do not
find this code. ``tests/test_compile_cache.py`` uses vectorized loops.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

COMPILER = Path(__file__).with_name("quick_g++")


def begin(environ: MutableMapping[str, str] = os.environ) -> None:
    """Installs this for this process and its children; variables already set are kept.

    Raises:
        RuntimeError: if Inductor's settings have already been read.
    """
    if environ is os.environ and "torch._inductor.config" in sys.modules:
        raise RuntimeError("torch._inductor.config was imported before the tests' environment")
    environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
    # For an exported model, most of the compiled code is the wrapper that calls its loops.
    environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
    environ.setdefault("AOT_INDUCTOR_ENABLE_LINE_TABLES", "0")
    if sys.platform == "linux" and shutil.which("g++") and " " not in str(COMPILER):
        environ.setdefault("CXX", str(COMPILER))


def leave_out_headers() -> None:
    """Compiles no headers in advance for exported models: for the few that tests export, this takes
    longer than it saves, unlike for the many kernels of compiled steps. No variable sets it."""
    importlib.import_module("torch._inductor.config").aot_inductor.precompile_headers = False
