"""The one stream per device that everything is recorded on, for the life of the process.

The problem: cuBLAS keeps a workspace for every stream and thread that it was called on (32 MiB on
Hopper), so a new stream for every warm-up would add one each time. And autograd remembers the
stream of a parameter's first use. The idea: one stream per device, which every recorder uses.

torch hands out 32 streams in turn, then the first again: a loader's copy on the recording stream
would be captured, and repeated at every replay. Streams of another priority are another 32.

Recordings share their input and their pool, and may not run concurrently. The invariant: a replay
runs after the last one, whatever stream that was on, and so does the copy of its batch, which would
otherwise overtake the replay that still reads the previous batch; and nobody else uses the stream
during a recording.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

# Nobody in this library but the recordings takes streams of this priority.
PRIORITY = -1


class RecordingStream:
    """See the module; get one with :func:`recording_stream`.

    Attributes:
        stream: the stream to warm up and record on.
        alone: the lock that is held while doing so.
    """

    __slots__ = ("_device", "_last", "alone", "stream")

    def __init__(self, device: torch.device) -> None:
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=PRIORITY)
        self.alone: AbstractContextManager[bool] = threading.RLock()
        self._device = device
        self._last: torch.cuda.Stream | None = None

    def replay(self, launch: Callable[[], None]) -> None:
        """Launches a recording on the current stream, after the last replay."""
        with self.alone:
            self._last = self._behind()
            launch()

    def behind(self) -> None:
        """Makes what is queued on the current stream from now on wait for the last replay."""
        with self.alone:
            present = self._behind()
            if self._last is not None:
                self._last = present  # it waits for the last replay now

    def _behind(self) -> torch.cuda.Stream:
        present = torch.cuda.current_stream(self._device)
        if self._last is not None and self._last != present:
            present.wait_stream(self._last)
        return present


_MADE: dict[int, RecordingStream] = {}
_MAKING = threading.Lock()


def recording_stream(device: torch.device) -> RecordingStream:
    """Returns a device's recording stream, made at the first call."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with _MAKING:
        if index not in _MADE:
            _MADE[index] = RecordingStream(torch.device("cuda", index))
        return _MADE[index]
