"""What Inductor writes for a CPU is compiled quickly, since a test calls it a few times.

Where Inductor's cache is empty, as on a fresh clone, its C++ is a good part of what the tests cost.
So g++ optimizes less, and loops are written once for single numbers, not again for vectors; the
graph, its fusions and its buffers stay those of the mode. All is said by the environment, which
children inherit, and is part of the keys of Inductor's cache: no run outside the tests finds
what was made so. ``tests/test_compile_cache.py`` has its loops with vectors.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

COMPILER = Path(__file__).with_name("quick_g++")


def begin(environ: MutableMapping[str, str] = os.environ) -> None:
    """From now on, in this process and its children; what the caller's environment says stays.

    Raises:
        RuntimeError: if Inductor's settings were read already.
    """
    if environ is os.environ and "torch._inductor.config" in sys.modules:
        raise RuntimeError("torch._inductor.config was imported before the tests' environment")
    environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
    # Of an exported model, the code that calls its loops is most of what is compiled.
    environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
    environ.setdefault("AOT_INDUCTOR_ENABLE_LINE_TABLES", "0")
    if sys.platform == "linux" and shutil.which("g++") and " " not in str(COMPILER):
        environ.setdefault("CXX", str(COMPILER))
