"""The job that ``torchrun`` started: joining it, who speaks in it, and what becomes of it when a
process is gone.

``torchrun`` says in the environment which rank a process is. Rank 0 holds the folder, writes and
speaks; the others train along. What rank 0 does alone (opening a data set that must be downloaded,
reading a checkpoint) the others wait for, and where it fails they end with its message.
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

from staticgraph.distributed.ranks import Ranks, lost_ranks
from staticgraph.errors import RankLost

Result = TypeVar("Result")


@contextmanager
def joined() -> Iterator[Ranks | None]:
    """The processes of this job while the block runs; None where this process is alone.

    Raises:
        RankLost: another process of the job is gone.
    """
    own = not dist.is_initialized()
    if own and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        # Keys of this attempt alone: a restart still finds the addresses of dead processes.
        store, rank, size = next(rendezvous("env://"))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"staticgraph/{attempt}", store)
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    ranks = Ranks.of() if dist.is_initialized() and dist.get_world_size() > 1 else None
    try:
        yield ranks
    except Exception as error:
        if ranks is None or not lost_ranks(error):
            raise
        raise RankLost(
            f"rank {ranks.rank} of {ranks.world_size} lost the others: one of them ended or does "
            "not answer, and its own message says why; continue with --resume (torchrun "
            "--max-restarts does so automatically)"
        ) from error
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
    """What an action gives on rank 0; None on the others, which wait for it.

    Raises:
        RankLost: on the others, where it raised.
    """
    if ranks is None:
        return action()
    result, failure = None, None
    error: BaseException | None = None
    if ranks.first:
        try:
            result = action()
        except BaseException as raised:
            error, failure = raised, f"{type(raised).__name__}: {raised}"
    failure = ranks.from_first(failure)
    if error is not None:
        raise error
    if failure is not None:
        raise RankLost(f"rank 0 ended with {failure}")
    return result


class SilentEvents:
    """TensorBoard's writer, on the ranks that write nothing."""

    def __enter__(self) -> SilentEvents:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is open."""

    def add_scalar(self, *what: Any) -> None:
        """Writes nothing."""
