"""Which process of a job was lost, and the error that it ended with.

The problem: a rank that raises leaves the others in a sum over ranks. Over gloo these get
"Connection closed by peer", which names neither the rank nor the reason. The idea: a rank that
fails writes its error to the store of the group, before its connections close. A rank that loses a
connection says so there, and waits shortly for the others to do so; the rank that does not is the
lost one, and its error is read from the store.

Not known: the error of a rank that was killed, or that raised outside a call of the runner; and
nothing at all if the process that holds the store is gone.
"""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType

import torch.distributed as dist

from staticgraph.distributed.ranks import Ranks
from staticgraph.errors import RankLost

# How long a rank waits for the others to notice the loss as well.
WAIT_S = 2.0
# The most characters of another rank's error in a message.
LONGEST = 1000
_ERROR, _LOSS = "staticgraph/error", "staticgraph/loss"
# Messages of gloo, which raises a plain RuntimeError.
_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "Application timeout caused",
    "gloo/transport",
)


class Watching:
    """A ``with`` block whose error other ranks can read, and in which a lost rank is named.

    May be entered any number of times.

    Args:
        ranks: the processes of the job; None for a process alone, which is not watched.

    Raises (at the end of the block):
        RankLost: in place of an error that says that a connection to another rank was lost.
    """

    __slots__ = ("_ranks",)

    def __init__(self, ranks: Ranks | None) -> None:
        self._ranks = ranks

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Writes the block's error to the group's store.

        Raises:
            RankLost: the error says that a connection to another rank was lost.
        """
        if error is None or self._ranks is None or isinstance(error, RankLost):
            return
        if is_loss(error):
            raise RankLost(describe_loss(self._ranks)) from error
        try:
            text = f"{type(error).__name__}: {error}"[:LONGEST]
            self._ranks.group.get_group_store().set(f"{_ERROR}/{self._ranks.rank}", text)
        except Exception as failure:
            error.add_note(f"the other ranks could not be told: {failure}")


def is_loss(error: BaseException) -> bool:
    """Returns whether an error means that another process is gone or does not respond."""
    return isinstance(error, dist.DistNetworkError | dist.DistBackendError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
    )


def describe_loss(ranks: Ranks) -> str:
    """Returns which rank is lost, as far as that can be told, with its error and the remedy."""
    others = [rank for rank in range(ranks.world_size) if rank != ranks.rank]
    errors = list[str]()
    with suppress(Exception):  # the store is gone with the process that held it
        store = ranks.group.get_group_store()
        store.set(f"{_LOSS}/{ranks.rank}", "")
        until = time.monotonic() + WAIT_S
        while len(others) > 1 and time.monotonic() < until:
            others = [rank for rank in others if not store.check([f"{_LOSS}/{rank}"])]
            time.sleep(0.005)
        errors = [
            f"rank {rank} raised {store.get(f'{_ERROR}/{rank}').decode()}"
            for rank in others
            if store.check([f"{_ERROR}/{rank}"])
        ]
    lost = " or ".join(map(str, others))
    return (
        f"rank {ranks.rank} of {ranks.world_size} lost rank {lost}, which ended or does not "
        f"answer: {'; '.join(errors) or 'its own message says why'}. Continue from the last "
        "checkpoint: staticgraph train --resume, or torchrun --max-restarts"
    )
