"""One path of a model's attention in one bucket, as reports have it: read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One path, in one bucket, of the layers that take it.

    Attributes:
        bucket: its number.
        layers: names in the model.
        path: ``dense``, ``size-classed``, ``flex``, ``varlen`` or ``kernel``.
        entries: that it looks at, at most.
        pairs: pairs of nodes that attend to each other, at most.
        costs: entries at most, of every path.
        ruled_out: why a path was not compared, by path.
        reason: all of it in words.
    """

    bucket: int
    layers: tuple[str, ...]
    path: str
    entries: int
    pairs: int
    costs: dict[str, int]
    ruled_out: dict[str, str]
    reason: str

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionRow:
        """What ``dataclasses.asdict`` gave, after JSON too."""
        return cls(**{**values, "layers": tuple(values["layers"])})

    def __str__(self) -> str:
        more = len(self.layers) - 1
        layers = self.layers[0] + (f" and {more} more" if more else "")
        return f"attention in bucket {self.bucket} ({layers}): {self.path}, {self.reason}"
