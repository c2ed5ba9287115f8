"""What a recording belongs to; a key is also its name in messages and reports."""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.recording.recording import Scope


class RecordingKey(NamedTuple):
    """Of the recording of a bucket's work; ``from_ids`` where it makes its batch, too."""

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
    """Of a forward and its backward, which are recorded apart."""

    bucket: int
    training: bool
    autocast: str | None

    def __str__(self) -> str:
        precision = f" {self.autocast}" if self.autocast else ""
        return f"bucket {self.bucket} forward and backward{precision} ({self.flag})"

    @property
    def flag(self) -> str:
        """The model's, in a word."""
        return "train" if self.training else "eval"
