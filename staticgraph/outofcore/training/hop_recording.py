"""A training step of a rung, recorded once and replayed: forward, loss and backward.

A rung is a shape, so its step can be a recording with inputs at fixed addresses: a batch is copied
there, the recording is replayed, and the gradients stand where they stood when it was recorded. The
optimizer steps outside. What records is a :class:`staticgraph.recording.recorder.Recorder`: CUDA
graphs, or in tests a tape.

The invariants: recording changes no parameter, gradient or random state; a replay whose parameters
stand elsewhere than when it was recorded raises instead of training with old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, nn

from staticgraph.recording.recorded_model import ModelRecording, RecordedModel
from staticgraph.recording.recorder import Recorder

Body = Callable[[list[Tensor]], tuple[Tensor, ...]]

REMEDY = (
    "A host read or a copy from the host stands in the way; use mode='reduce-overhead' or 'default'"
)


class RecordedHops:
    """Recordings of one model, by key.

    Args:
        model: its gradients are what a step leaves behind.
        recorder: how to record.
    """

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recorded_model = RecordedModel(model)
        # By key, with the inputs that a recording reads.
        self._made: dict[Hashable, tuple[ModelRecording, list[Tensor]]] = {}

    @property
    def replays(self) -> dict[Hashable, int]:
        """Replays of each recording."""
        return {key: made.recorded.replays for key, (made, _) in self._made.items()}

    def __call__(self, key: Hashable, inputs: Sequence[Tensor], body: Body) -> tuple[Tensor, ...]:
        """Replays a step on ``inputs``; what it returns is valid until the next one.

        Args:
            key: of the recording, made at its first call.
            inputs: of the same shapes at every call.
            body: the step over inputs of fixed addresses; run only to be recorded.

        Raises:
            NotStatic: it cannot be recorded, or a parameter was moved since.
        """
        if key not in self._made:
            self._made[key] = self._record(key, inputs, body)
        made, noted = self._made[key]
        self._recorded_model.check(made, "make the trainer again")
        made.recorded.behind()
        with torch.no_grad():
            for old, new in zip(noted, inputs, strict=True):
                old.copy_(new, non_blocking=True)
        return self._recorded_model.replay(made)

    def close(self) -> None:
        """Tears all recordings down together."""
        self._made.clear()
        self._recorder.close()

    def _record(
        self, key: Hashable, inputs: Sequence[Tensor], body: Body
    ) -> tuple[ModelRecording, list[Tensor]]:
        noted = [tensor.detach().clone() for tensor in inputs]
        what = f"the step of rung {key}"
        made = self._recorded_model.record(self._recorder, lambda: body(noted), what, REMEDY)
        return made, noted
