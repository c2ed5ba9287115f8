"""What a recording belongs to; the key is also its name in messages and reports."""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.recording.recording import Scope


class RecordingKey(NamedTuple):
    """The key of a recording of a bucket's work; ``from_ids`` if it also makes its batch."""

    bucket: int
    work: str
    autocast: str | None
    scope: Scope
    from_ids: bool = False

    def __str__(self) -> str:
        precision = f" {self.autocast}" if self.autocast else ""
        origin = " from ids" if self.from_ids else ""
        return f"bucket {self.bucket} {self.work}{precision}{origin} (scope {self.scope})"


class PairKey(NamedTuple):
    """The key of a forward and its backward, which are recorded separately."""

    bucket: int
    training: bool
    autocast: str | None

    def __str__(self) -> str:
        precision = f" {self.autocast}" if self.autocast else ""
        return f"bucket {self.bucket} forward and backward{precision} ({self.flag})"

    @property
    def flag(self) -> str:
        """The model's mode, in one word."""
        return "train" if self.training else "eval"
