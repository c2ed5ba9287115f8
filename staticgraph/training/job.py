"""Joining a job that ``torchrun`` started, its roles, and the handling of lost processes.

``torchrun`` sets a process's rank in the environment. Rank 0 locks the folder, writes files and
prints; the others only train. While rank 0 does something alone (downloading a data set, reading a
checkpoint), the others wait, and if it fails they end with its message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from staticgraph.distributed.lost_rank import Watching
from staticgraph.distributed.ranks import Ranks

Result = TypeVar("Result")


@contextmanager
def joined() -> Iterator[Ranks | None]:
    """Joins the job while the block runs; yields None if this process is alone.

    Raises:
        RankLost: another process of the job is gone.
    """
    own = not dist.is_initialized()
    if own and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        # Keys for this attempt only: after a restart, the store still has addresses of dead
        # processes.
        store, rank, size = next(rendezvous("env://"))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"staticgraph/{attempt}", store)
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    ranks = Ranks.of() if dist.is_initialized() and dist.get_world_size() > 1 else None
    try:
        with Watching(ranks):
            yield ranks
    finally:
        if own and dist.is_initialized():
            dist.destroy_process_group()


def speaks() -> bool:
    """Whether this process prints for the job: rank 0 does."""
    return int(os.environ.get("RANK", "0")) == 0


def restarted() -> bool:
    """Whether ``torchrun`` has started this job again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def own_device() -> int:
    """The number of this process's GPU on its host."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def first_alone(ranks: Ranks | None, action: Callable[[], Result]) -> Result | None:
    """Runs an action on rank 0 and returns its result; the others wait, and return None.

    Raises:
        RankLost: on the other ranks, if the action failed.
    """
    if ranks is None:
        return action()
    with ranks.together():
        return action() if ranks.first else None


class SilentEvents:
    """A substitute for TensorBoard's writer on the ranks that write nothing."""

    def __enter__(self) -> SilentEvents:
        return self

    def __exit__(self, *exc: object) -> None:
        """Does nothing."""

    def add_scalar(self, *what: Any) -> None:
        """Does nothing."""
