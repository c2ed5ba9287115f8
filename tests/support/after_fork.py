"""What every process does first that forks from one with torch: its pool of threads, by one thread.

The first call in a fork that sets the number of torch's threads makes torch's pool anew. Where two
threads do so at once, one finds the old pool gone and the new one not yet there, and the process
aborts ("Invalid thread pool!"). A gradient that is followed back is such a call in each of the
threads that a torch built for CUDA starts for it, eight of them where no GPU is: of some thousand
tests in forks one ended so. Here the thread that forked makes the pool, while it is alone, and of
one thread: in a process that had a second one, Linux would refuse to enter other namespaces.
"""

from __future__ import annotations

import os

import torch

made_in: int = 0  # the process that made its pool so last
_begun = False


def begin() -> None:
    """From now on, in each fork of this process and in theirs. To be called before torch's pool is
    made, the size of which every other has."""
    global _begun
    if not _begun and hasattr(os, "register_at_fork"):
        number = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.set_num_threads(number)  # of OpenMP's threads
        os.register_at_fork(after_in_child=_make_pool)
        _begun = True


def _make_pool() -> None:
    global made_in
    torch.set_num_threads(torch.get_num_threads())
    made_in = os.getpid()
