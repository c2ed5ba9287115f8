"""The thread that makes a loader's batches for one epoch, and its link to the consumer.

A loader has one buffer of partitions, so it runs one epoch at a time: when another one begins, the
previous one is ended first, and an iterator over it raises an error.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from staticgraph.outofcore.sampling.sampled_batch import SampledBatch

# The most batches ready at once; the producer and the consumer hold one more slot each.
QUEUE = 4


class RunningEpoch:
    """One epoch of a loader.

    Args:
        states: yields, for each state, an iterator over its batches; runs in the thread.
        mutable: whether all batches of a state must be used before the next state is requested.
    """

    def __init__(
        self, states: Callable[[], Iterator[Iterator[SampledBatch]]], mutable: bool
    ) -> None:
        self._states, self._mutable = states, mutable
        self._ready: queue.Queue[SampledBatch | BaseException | None] = queue.Queue(QUEUE)
        self._stop, self._used = threading.Event(), threading.Semaphore(0)
        self._thread = threading.Thread(
            target=self._produce, daemon=True, name="staticgraph-sampler"
        )
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the epoch was ended, by its consumer or by another epoch."""
        return self._stop.is_set()

    def next(self) -> SampledBatch | None:
        """Returns the next batch, None after the last; raises an exception of the thread."""
        batch = self._ready.get()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def used(self) -> None:
        """Signals that the batch returned last is no longer needed."""
        self._used.release()

    def end(self) -> None:
        """Stops the thread and waits for it."""
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=0.01)
            except queue.Empty:
                continue
        self._thread.join()

    def _put(self, item: SampledBatch | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                return self._ready.put(item, timeout=0.05)
            except queue.Full:
                continue

    def _produce(self) -> None:
        try:
            for batches in self._states():
                unused = 0
                for batch in batches:
                    self._put(batch)
                    unused += 1
                    if self._stop.is_set():
                        return
                # Values that training changes must not leave the buffer before training on them
                # ends.
                while self._mutable and unused:
                    unused -= self._used.acquire(timeout=0.05)
                    if self._stop.is_set():
                        return
        except BaseException as error:
            self._put(error)
            return
        self._put(None)
