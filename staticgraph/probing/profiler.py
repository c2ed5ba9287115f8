"""What the CPU actually allocated in a step, as recorded by torch's profiler.

The CPU allocator has no high-water mark. The profiler records every allocation and release with its
time, from which the mark is computed. It is slow compared to a step, so it is for checks, not for
training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Allocations are only in the profiler's event tree, which torch calls experimental. A torch version
# without it fails here, at import, by name.
from staticgraph.internals.memory import ALLOCATION


class ProfilerAllocator:
    """Bytes of the CPU relative to the first recording; an :class:`Allocator`."""

    name = "the CPU, by torch.profiler"
    by_operation = False  # each query ends one recording and begins another

    def __init__(self) -> None:
        self._live = 0
        self._profile: torch.profiler.profile | None = None

    def allocated(self) -> int:
        """The bytes in use now, counted from the first :meth:`reset_peak` on."""
        return self._live

    def reset_peak(self) -> None:
        """Starts recording."""
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        with _quiet():
            self._profile.start()

    def peak(self) -> int:
        """The most bytes in use since then; stops recording."""
        assert self._profile is not None, "reset_peak() begins to record"
        with _quiet():
            self._profile.stop()
        results: Any = getattr(self._profile.profiler, "kineto_results", None)
        self._profile = None
        waiting: list[Any] = list(results.experimental_event_tree())
        found: list[tuple[int, int]] = []
        while waiting:
            event = waiting.pop()
            waiting.extend(event.children)
            if event.tag == ALLOCATION and event.extra_fields.device.type == "cpu":
                found.append((event.start_time_ns, event.extra_fields.alloc_size))
        highest = self._live
        for _, nbytes in sorted(found, key=lambda item: item[0]):
            self._live += nbytes
            highest = max(highest, self._live)
        return highest

    def reserved(self) -> int:
        """Returns 0: the CPU reserves nothing."""
        return 0

    def trim(self) -> None:
        """Does nothing, since the CPU reserves nothing."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences stderr: torch 2.13's profiler writes a line to it whenever it starts or stops."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
