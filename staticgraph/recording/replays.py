"""How often the recordings of one pool ran, all together.

They share memory: what one of them keeps for a moment stands where the results of another do. So a
result is as it was written only until the next replay of *any* of them, and one count tells.
"""

from __future__ import annotations

from staticgraph.recording.recorder import Recorded


class Replays:
    """Runs the recordings of one recorder.

    Attributes:
        count: replays so far.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: int = 0

    def run(self, recording: Recorded) -> None:
        """Replays a recording."""
        self.count += 1
        recording.replay()
        recording.replays += 1
