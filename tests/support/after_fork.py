"""What every process does first that forks from one with torch: its pool of threads, by one thread.

The first call in a fork that sets the number of torch's threads makes torch's pool anew. Where two
threads do so at once, one finds the old pool gone and the new one not yet there, and the process
aborts ("Invalid thread pool!"). A gradient that is followed back is such a call in each of the
threads that a torch built for CUDA starts for it, eight of them where no GPU is: of some thousand
tests in forks one ended so. Here the thread that forked makes the pool, while it is alone.
"""

from __future__ import annotations

import os

import torch

made_in: int = 0  # the process that made its pool so last
_begun = False


def begin() -> None:
    """From now on, in each fork of this process and in theirs."""
    global _begun
    if not _begun and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_make_pool)
        _begun = True


def _make_pool() -> None:
    global made_in
    torch.set_num_threads(torch.get_num_threads())
    made_in = os.getpid()
