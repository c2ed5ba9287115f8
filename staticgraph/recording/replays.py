"""How often the recordings of one pool ran, all together.

They share memory: temporary values of one may occupy the memory of another's results. So a result
is valid only until the next replay of *any* of them, and one count is enough to tell.
"""

from __future__ import annotations

from staticgraph.recording.recorder import Recorded


class Replays:
    """Runs the recordings of one recorder.

    Attributes:
        count: how many replays have run.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: int = 0

    def run(self, recording: Recorded) -> None:
        """Replays a recording."""
        self.count += 1
        recording.replay()
        recording.replays += 1
