"""How training steps are recorded, as chosen by the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from staticgraph.recording.recorder import CudaGraphRecorder, Recorder

Scope = Literal["forward", "forward_backward", "step"]
SCOPES: tuple[Scope, ...] = ("forward", "forward_backward", "step")
OnMiss = Literal["error", "eager"]


@dataclass(frozen=True, slots=True)
class Recording:
    """What ``cuda-graph`` records, and how.

    Attributes:
        scope: what the recording of a training step holds: ``step`` (all of it),
            ``forward_backward`` (up to the gradients), or ``forward`` (inference alone).
        on_miss: what happens to a batch whose key no warm-up recorded: ``error``, or ``eager``
            (counted in the report).
        recorder: called with the device; returns the recorder. None for CUDA graphs.
        one_launch: whether, with a dataset on the device, to record each step also together with
            the making of its batch, so that a step is one launch. False replays two recordings
            instead, and holds one set of gradients less per bucket.
        allow_cpu: let torch's recording modes run on a CPU, where they record nothing.

    Raises:
        ValueError: there is no such scope, or no such action on a miss.
    """

    scope: Scope = "step"
    on_miss: OnMiss = "error"
    recorder: Callable[[torch.device], Recorder] | None = None
    allow_cpu: bool = False
    one_launch: bool = True

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise ValueError(f"scope={self.scope!r}; choose one of {', '.join(SCOPES)}")
        if self.on_miss not in ("error", "eager"):
            raise ValueError(f"on_miss={self.on_miss!r}; choose 'error' or 'eager'")

    @property
    def anywhere(self) -> bool:
        """Whether modes that record may run on a device without CUDA graphs."""
        return self.allow_cpu or self.recorder is not None

    def records_on(self, device: torch.device) -> bool:
        """Whether anything can be recorded on a device."""
        return device.type == "cuda" or self.recorder is not None

    def recorder_on(self, device: torch.device) -> Recorder:
        """Returns the recorder for a device."""
        return CudaGraphRecorder(device) if self.recorder is None else self.recorder(device)
