"""How training steps are recorded, as chosen by the user, and the keys of the recordings.

The key is what a recording belongs to, and its name in messages and reports. A key that was needed
after the warm-up and has no recording is a miss: an error, or run in eager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from staticgraph.errors import NotStatic
from staticgraph.recording.graph_recorder import CudaGraphRecorder, Recorder
from staticgraph.text.how_many import how_many

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


class RecordingKey(NamedTuple):
    """The key of a recording.

    Attributes:
        bucket: the bucket's number.
        work: ``step`` or ``forward``; ``forward and backward`` for two bodies with autograd between
            them.
        autocast: the precision, if it is not that of the model.
        scope: how much of a step is recorded.
        from_ids: whether the recording also makes its batch.
        training: the model's training flag, where both are recorded.
    """

    bucket: int
    work: str
    autocast: str | None
    scope: Scope
    from_ids: bool = False
    training: bool | None = None

    def __str__(self) -> str:
        precision = f" {self.autocast}" if self.autocast else ""
        origin = " from ids" if self.from_ids else ""
        suffix = f"scope {self.scope}" if self.training is None else self.flag
        return f"bucket {self.bucket} {self.work}{precision}{origin} ({suffix})"

    @property
    def flag(self) -> str:
        """The model's mode, in one word."""
        return "train" if self.training else "eval"


class Misses:
    """The keys that were needed after the warm-up but have no recording.

    Args:
        on_miss: ``error``, or ``eager``, which counts them.
    """

    def __init__(self, on_miss: str) -> None:
        self._on_miss = on_miss
        self._counts: Counter[RecordingKey] = Counter()

    def note(self, key: RecordingKey, recorded: Callable[[], Iterable[RecordingKey]]) -> None:
        """Counts a key, whose work may then run in eager.

        Args:
            key: the missing key.
            recorded: returns the keys that are recorded, for the message.

        Raises:
            NotStatic: nothing may run without a recording; the message names the key.
        """
        if self._on_miss != "error":
            self._counts[key] += 1
            return
        present = list(recorded())
        others = {other.autocast for other in present if other.bucket == key.bucket}
        if others and key.autocast not in others:
            raise NotStatic(
                f"{key} has no recording: torch.autocast around the call asks for "
                f"{key.autocast or 'no lower precision'}, and what is recorded computes in "
                f"{' and '.join(sorted(name or 'that of the model' for name in others))}: give "
                "the runner its precision, StaticGraphRunner(..., autocast=torch.bfloat16), in "
                "place of torch.autocast around warmup() or around calls; or pass on_miss='eager'"
            )
        if key.training is not None:
            raise NotStatic(
                f"{key} has no recording, and nothing is recorded after warmup(): name its "
                "phase in warmup(phases=('forward', ...)), or pass on_miss='eager'"
            )
        names = ", ".join(map(str, present)) or "none"
        raise NotStatic(
            f"{key} has no recording, and nothing is recorded after warmup(); recorded: "
            f"{names}. Name its phase in warmup(phases=...), or pass on_miss='eager'"
        )

    def sentences(self) -> list[str]:
        """Returns one sentence per key, in the order they were first missed."""
        return [
            f"{key}: no recording, ran in eager {how_many(count, 'time')}; name its phase in "
            "warmup(phases=...)"
            for key, count in self._counts.items()
        ]
