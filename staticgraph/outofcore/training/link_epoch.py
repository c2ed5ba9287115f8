"""The results of one epoch of link prediction, as shown, reported and kept with its commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LinkEpoch:
    """The results of one epoch; ``seconds`` includes ``waited_s``."""

    epoch: int
    loss: float
    edges: int
    batches: int
    states: int
    swaps: int
    partitions_read: int
    bytes_read: int
    bias: float
    seconds: float
    waited_s: float


def to_bytes(history: Sequence[LinkEpoch]) -> NDArray[np.uint8]:
    """Encodes epochs as an array that a commit can contain."""
    text = json.dumps([asdict(epoch) for epoch in history], allow_nan=False)
    return np.frombuffer(text.encode(), np.uint8)


def from_bytes(kept: NDArray[np.uint8]) -> tuple[LinkEpoch, ...]:
    """Decodes the result of :func:`to_bytes`."""
    return tuple(LinkEpoch(**values) for values in json.loads(kept.tobytes()))
