"""Records the training step of a rung (forward, loss and backward) once, and replays it.

A rung is a fixed shape, so its step can be recorded with inputs at fixed addresses: a batch is
copied there, the recording is replayed, and the gradients are written to the addresses they had
during recording. The optimizer steps outside of the recording. Recording is done by a
:class:`staticgraph.recording.recorder.Recorder`: with CUDA graphs, or in tests with a tape.

Invariants: recording changes no parameter, gradient or random state; if a parameter's address has
changed since recording, a replay raises an error instead of training with old values.
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
        model: the model, whose gradients a step computes.
        recorder: the recorder.
    """

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recorded_model = RecordedModel(model)
        # By key, each with the input tensors that the recording reads.
        self._made: dict[Hashable, tuple[ModelRecording, list[Tensor]]] = {}

    @property
    def replays(self) -> dict[Hashable, int]:
        """Number of replays of each recording."""
        return {key: recording.bodies[0].replays for key, (recording, _) in self._made.items()}

    def __call__(self, key: Hashable, inputs: Sequence[Tensor], body: Body) -> tuple[Tensor, ...]:
        """Replays a step on ``inputs``; the result is valid until the next call.

        Args:
            key: the key of the recording, which is made at the first call with it.
            inputs: the inputs, with the same shapes at every call.
            body: the step over inputs at fixed addresses; run only to record it.

        Raises:
            NotStatic: if the step cannot be recorded, or a parameter was moved since.
        """
        if key not in self._made:
            self._made[key] = self._record(key, inputs, body)
        recording, noted = self._made[key]
        self._recorded_model.check(recording, "make the trainer again")
        if (behind := recording.bodies[0].behind) is not None:
            behind()
        with torch.no_grad():
            for old, new in zip(noted, inputs, strict=True):
                old.copy_(new, non_blocking=True)
        return self._recorded_model.replay(recording)

    def close(self) -> None:
        """Releases all recordings together."""
        self._made.clear()
        self._recorder.close()

    def _record(
        self, key: Hashable, inputs: Sequence[Tensor], body: Body
    ) -> tuple[ModelRecording, list[Tensor]]:
        noted = [tensor.detach().clone() for tensor in inputs]
        what = f"the step of rung {key}"
        bodies = (lambda: body(noted),)
        return self._recorded_model.record(self._recorder, bodies, what, REMEDY), noted
