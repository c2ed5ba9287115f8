"""Rebuilds torch's thread pool in every process forked from one with torch, by a single thread.

The first call in a fork that sets the number of torch's threads rebuilds torch's pool. If two
threads do so at once, one of them finds the old pool gone and the new one missing, and the process
aborts ("Invalid thread pool!"). A backward pass makes such a call in each of the threads that a
torch built for CUDA starts for it, eight of them without a GPU; one in about a thousand tests in
forks aborted this way. Here the thread that forked rebuilds the pool while it is alone, with one
thread: Linux does not let a process with a second thread enter other namespaces.
"""

from __future__ import annotations

import os

import torch

made_in: int = 0  # the process that last rebuilt its pool this way
_begun = False


def begin() -> None:
    """Installs this for all forks of this process, and their forks.

    Must be called before torch's pool is made, whose size all others have.
    """
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
