"""What a process that does nothing but answer sets for itself; a program that has a server among
other things decides this for itself."""

from __future__ import annotations

import atexit
import gc
import sys

# How long a thread keeps Python's lock while another wants it. A model in eager gives the lock up
# at every operation, and would wait 5 ms, Python's default, each time while requests are read.
SWITCH_S = 1e-4


def settle() -> None:
    """Once all is loaded: what is there now stays, so the collector need not look at it again with
    every hundred thousandth object of a request, a third of a second with torch and PyG. At the
    end it is taken apart as ever, or Triton 3.9 tells of all its types as leaks."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)
