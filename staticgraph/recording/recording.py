"""How training steps are recorded, as the user says it."""

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
        on_miss: what is done with a batch whose key no warm-up recorded: ``error``, or ``eager``
            (counted in the report).
        recorder: makes what records, given the device; CUDA graphs where None.
        one_launch: with a data set on the device, also record each step together with the making
            of its batch, so that a step is one launch; False replays two recordings, and holds a
            set of gradients less for each bucket.
        allow_cpu: let torch's recording modes run on a CPU, where they record nothing.

    Raises:
        ValueError: no such scope, or nothing that can be done on a miss.
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
        """Whether something can be recorded there."""
        return device.type == "cuda" or self.recorder is not None

    def recorder_on(self, device: torch.device) -> Recorder:
        """What records on a device."""
        return CudaGraphRecorder(device) if self.recorder is None else self.recorder(device)
