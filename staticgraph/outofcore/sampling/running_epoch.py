"""The thread that makes a loader's batches for one epoch, and what it shares with the consumer.

A loader has one buffer of partitions, so it has one epoch at a time: when another one begins, the
one before is ended first, and whoever still asks it for batches is told so.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from staticgraph.outofcore.sampling.sampled_batch import SampledBatch

# Batches ready at once; two more slots are in hands.
QUEUE = 4


class RunningEpoch:
    """One epoch of a loader.

    Args:
        states: gives, per state, the batches of that state; run by the thread.
        mutable: whether a state's batches must all be used before the next state is asked for.
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
        """Whether it was ended, by its consumer or by another epoch."""
        return self._stop.is_set()

    def next(self) -> SampledBatch | None:
        """The next batch, None behind the last; an error of the thread is raised here."""
        batch = self._ready.get()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def used(self) -> None:
        """Says that the batch given last is no longer needed."""
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
                # What training changes must be trained to the end before it leaves the buffer.
                while self._mutable and unused:
                    unused -= self._used.acquire(timeout=0.05)
                    if self._stop.is_set():
                        return
        except BaseException as error:
            self._put(error)
            return
        self._put(None)
