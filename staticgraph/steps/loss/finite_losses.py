"""Losses that are not finite, found without waiting for the device at every step.

The problem: one NaN in a feature or a target, or a learning rate too high, makes every parameter
NaN with one update, and training goes on to its end. To read each loss would stop a device that is
ahead of the host. The idea: on the device a flag a bucket is set by the first loss that is not
finite, together with the ids of that batch's graphs, inside a recording as well; the flags are read
every so many steps and at the end of an epoch. On the CPU, where a loss is there to be read, it is
read before the update, which then does not take place.

Invariant: no host read in a recorded step, and none between checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import NonFiniteLoss
from staticgraph.sizes.capacity import Capacity

# Reading the flags waits for the device: once in so many steps that is lost among them.
EVERY = 100
# Ids in a message.
NAMED = 12


class FiniteLosses:
    """Watches the losses of one runner's training steps.

    Args:
        capacities: of the buckets.
        device: where losses are.
        every: read the flags every so many steps; 0 watches nothing.

    Raises:
        ValueError: ``every`` is negative.
    """

    def __init__(
        self, capacities: Sequence[Capacity], device: torch.device, every: int = EVERY
    ) -> None:
        if every < 0:
            raise ValueError(f"check_finite={every}; give a number of steps, or 0 for no check")
        self._capacities = capacities
        self._device = device
        self._every = every
        self._steps = 0
        self._reads = True
        # By bucket: NaN once a loss was not finite, else 0, and the ids of the batch that was the
        # first such, else of the last batch. Each launch here is one of every step.
        self._flags: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def watches(self) -> bool:
        """Whether losses are looked at."""
        return self._every > 0

    # ------------------------------------------------------------------ in a step

    def before_update(
        self, loss: Tensor, batch: StaticBatch, elsewhere: Sequence[int] | None = None
    ) -> None:
        """Notes a loss that is on a device; reads one that is on the CPU.

        Args:
            loss: of the batch, or the mean over all ranks' batches.
            batch: of this rank.
            elsewhere: the ranks whose batches it is, where this rank's is finite.

        Raises:
            NonFiniteLoss: it was read, and is not finite.
        """
        if not self._every:
            return
        if self._device.type != "cpu":
            self.note(loss, batch)
        elif self._reads and not math.isfinite(value := loss.item()):
            if elsewhere is not None:
                raise NonFiniteLoss(
                    f"the loss of this step is {value}, and this rank's part of it is finite: "
                    f"the message of rank {', '.join(map(str, elsewhere))} names the graphs; the "
                    "update was left out on all ranks"
                )
            raise self._error(_graphs(batch.graph_ids), f"is {value}; its update was left out")

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Within, losses are not read: for steps that are timed and taken back."""
        self._reads = False
        try:
            yield
        finally:
            self._reads = True

    def note(self, loss: Tensor, batch: StaticBatch) -> None:
        """Keeps the batch's ids unless an earlier loss of the bucket was not finite, and sets the
        flag where this one is not; reads nothing."""
        if not self._every:
            return
        flag, ids = self.prepare(batch.bucket)
        with torch.no_grad():
            torch.where(torch.isnan(flag), ids, batch.graph_ids, out=ids)
            flag.add_(loss, alpha=0)  # no number times 0 but infinity and NaN is NaN

    def prepare(self, bucket: int) -> tuple[Tensor, Tensor]:
        """A bucket's flag and ids, at addresses that stay."""
        if bucket not in self._flags:
            graphs = self._capacities[bucket].graphs
            self._flags[bucket] = (
                torch.zeros((), device=self._device),
                torch.full((graphs,), -1, dtype=torch.int64, device=self._device),
            )
        return self._flags[bucket]

    # ------------------------------------------------------------------ between steps

    def count(self) -> bool:
        """One more step is done; checks where it is time, and says whether it was.

        Raises:
            NonFiniteLoss: see :meth:`check`.
        """
        self._steps += 1
        if not self._every or self._steps % self._every:
            return False
        self.check()
        return True

    def check(self) -> None:
        """Reads the flags, and takes them back.

        Raises:
            NonFiniteLoss: a loss since the last check was not finite.
        """
        if not self._flags:
            return
        buckets = list(self._flags)
        found = torch.stack([self._flags[bucket][0] for bucket in buckets]).tolist()
        found = map(math.isnan, found)
        for bucket, bad in zip(buckets, found, strict=True):
            if bad:
                graphs = _graphs(self._flags[bucket][1])
                self.clear()
                raise self._error(
                    graphs, "was not finite, which a check after it found: later updates are lost"
                )

    def clear(self) -> None:
        """Takes all flags back, in place."""
        for flag, _ in self._flags.values():
            flag.zero_()

    def _error(self, graphs: list[int], what: str) -> NonFiniteLoss:
        named = ", ".join(map(str, graphs[:NAMED]))
        more = f" and {len(graphs) - NAMED} more" if len(graphs) > NAMED else ""
        return NonFiniteLoss(
            f"the loss of the batch of graphs {named}{more} {what}. Look for NaN and infinities in "
            "their fields (GraphStore.from_pyg(..., check_finite=True) finds them), lower the "
            "learning rate, or clip gradients (Subject(..., clip_norm=...)); "
            "Subject(..., check_finite=0) leaves losses unchecked",
            tuple(graphs),
        )


def _graphs(ids: Tensor) -> list[int]:
    return [graph for graph in ids.tolist() if graph >= 0]
