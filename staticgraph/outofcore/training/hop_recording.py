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
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from staticgraph.errors import NotStatic
from staticgraph.recording.recorder import Recorded, Recorder
from staticgraph.steps.training_state import untouched

# torch's own recipe warms up three times: lazily made workspaces must exist by then.
WARM_RUNS = 3

Body = Callable[[list[Tensor]], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class _Recorded:
    recording: Recorded
    inputs: list[Tensor]
    grads: list[Tensor | None]
    addresses: list[int]


class RecordedHops:
    """Recordings of one model, by key.

    Args:
        model: its gradients are what a step leaves behind.
        recorder: how to record.
    """

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self._model, self._recorder = model, recorder
        self._made: dict[Hashable, _Recorded] = {}

    @property
    def replays(self) -> dict[Hashable, int]:
        """Replays of each recording."""
        return {key: made.recording.replays for key, made in self._made.items()}

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
        made = self._made[key]
        if made.addresses != self._addresses():
            raise NotStatic(
                f"rung {key}: a parameter stands at another address than when its step was "
                "recorded (moved with .to(), or exchanged); make the trainer anew"
            )
        with torch.no_grad():
            for noted, now in zip(made.inputs, inputs, strict=True):
                noted.copy_(now, non_blocking=True)
        made.recording.replay()
        made.recording.replays += 1
        for parameter, grad in zip(self._model.parameters(), made.grads, strict=True):
            parameter.grad = grad
        return made.recording.result

    def close(self) -> None:
        """Tears all recordings down together."""
        self._made.clear()
        self._recorder.close()

    def _record(self, key: Hashable, inputs: Sequence[Tensor], body: Body) -> _Recorded:
        noted = [tensor.detach().clone() for tensor in inputs]
        try:
            with untouched(self._model):
                self._recorder.warm(lambda: body(noted), WARM_RUNS)
                recording = self._recorder.record(lambda: body(noted))
                grads = [parameter.grad for parameter in self._model.parameters()]
        except NotStatic:
            raise
        except Exception as error:
            raise NotStatic(
                f"the step of rung {key} cannot be recorded: {type(error).__name__}: {error}\n"
                "A host read or a copy from the host stands in the way; use "
                "mode='reduce-overhead' or 'default'"
            ) from error
        return _Recorded(recording, noted, grads, self._addresses())

    def _addresses(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._model.parameters()]
