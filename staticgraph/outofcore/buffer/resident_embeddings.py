"""Embeddings passing through the buffer, and who neighbours whom among those that are resident.

What :class:`~staticgraph.outofcore.buffer.resident.ResidentGraphs` is for features, for values that
training changes: the same states for a sampler, but a state must be trained to its end before the
next one is asked for, because what leaves is written then.
"""

from __future__ import annotations

from collections.abc import Iterator

from staticgraph.outofcore.buffer.buffer import EmbeddingBuffer
from staticgraph.outofcore.buffer.resident import ResidentGraph
from staticgraph.outofcore.buffer.timeline import StateTime
from staticgraph.outofcore.policies.schedule import NodeSchedule, Schedule


class ResidentEmbeddings:
    """States of a schedule of edges over an embedding buffer that knows a direction."""

    mutable = True

    def __init__(self, buffer: EmbeddingBuffer) -> None:
        self.buffer = buffer
        self.partitions_read: int = 0

    @property
    def waited_s(self) -> float:
        """Seconds that the user of the states waited for reading and writing."""
        return self.buffer.waited_s

    @property
    def times(self) -> list[StateTime]:
        """Of the states of the last run."""
        return self.buffer.times

    def run(self, schedule: Schedule | NodeSchedule) -> Iterator[ResidentGraph]:
        """Brings the states in one by one; all partitions are written when the last one ends.

        Raises:
            ValueError: the schedule is of nodes: embeddings are trained along edges.
        """
        if isinstance(schedule, NodeSchedule):
            raise ValueError("embeddings are trained along edges: give the loader task='link'")
        for resident in self.buffer.run(schedule):
            assert resident.around is not None
            self.partitions_read += len(schedule.entering()[resident.number])
            yield resident.around

    def close(self) -> None:
        """Ends the thread."""
        self.buffer.close()
