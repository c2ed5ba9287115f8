"""One path of a model's attention in one bucket, as reports hold it; read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One path, in one bucket, of the layers that take it.

    Attributes:
        bucket: its number.
        layers: the layers' names in the model.
        path: ``dense``, ``size-classed``, ``varlen`` or ``kernel``.
        entries: the most entries that it computes.
        pairs: the most pairs of nodes that attend to each other.
        costs: the most entries, for every path.
        ruled_out: why a path was not compared, by path.
        reason: all of this in words.
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
        """Rebuilds a row from what ``dataclasses.asdict`` returned, also after JSON."""
        return cls(**{**values, "layers": tuple(values["layers"])})

    def __str__(self) -> str:
        more = len(self.layers) - 1
        layers = self.layers[0] + (f" and {more} more" if more else "")
        return f"attention in bucket {self.bucket} ({layers}): {self.path}, {self.reason}"
