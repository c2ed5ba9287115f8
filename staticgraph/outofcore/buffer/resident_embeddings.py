"""The embedding buffer as a source of resident graphs for sampling.

The counterpart of :class:`~staticgraph.outofcore.buffer.resident.ResidentGraphs` for values that
training changes: the sampler gets the same states, but must finish training on one before it
requests the next, because the partitions that leave are written then.
"""

from __future__ import annotations

from collections.abc import Iterator

from staticgraph.outofcore.buffer.buffer import EmbeddingBuffer
from staticgraph.outofcore.buffer.resident import ResidentGraph
from staticgraph.outofcore.buffer.timeline import StateTime
from staticgraph.outofcore.policies.schedule import NodeSchedule, Schedule


class ResidentEmbeddings:
    """The states of an edge schedule, over an embedding buffer with a direction."""

    mutable = True

    def __init__(self, buffer: EmbeddingBuffer) -> None:
        self.buffer = buffer
        self.partitions_read: int = 0

    @property
    def waited_s(self) -> float:
        """Seconds that the consumer of the states waited for reading and writing."""
        return self.buffer.waited_s

    @property
    def times(self) -> list[StateTime]:
        """The times of the states of the last run."""
        return self.buffer.times

    def run(self, schedule: Schedule | NodeSchedule) -> Iterator[ResidentGraph]:
        """Loads the states and yields them one by one; all partitions are written after the last.

        Raises:
            ValueError: if the schedule is one of nodes, since embeddings are trained on edges.
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
