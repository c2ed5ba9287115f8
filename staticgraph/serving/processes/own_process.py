"""Settings of a process that only serves; a program that embeds a server decides these itself."""

from __future__ import annotations

import atexit
import gc
import sys

# How long a thread keeps the GIL while another thread waits for it. A model in eager mode releases
# the GIL at every operation, and would wait 5 ms (Python's default) each time while requests are
# read.
SWITCH_S = 1e-4


def settle() -> None:
    """Tunes the interpreter for serving, after everything is loaded.

    Existing objects are frozen, so that the garbage collector does not traverse them again after
    every hundred thousand new ones, which takes a third of a second with torch and PyG. They are
    unfrozen at exit, or Triton 3.9 would report all its types as leaks."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)
