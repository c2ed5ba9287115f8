"""A forward with gradients, recorded: two recordings, and autograd between them.

The problem: a user's own loop calls ``runner(batch)``, computes any loss, and calls ``backward()``;
what happens in between is not known when the recording is made. So forward and backward are
recorded separately, as a pair, and appear in autograd's graph as one operation: its forward copies
the batch and replays the first, its backward copies the gradients of the outputs and replays the
second. Parameters are the operation's inputs, so that their gradients are accumulated, hooked and
reduced over processes as usual.

Invariant: what the forward saves for the backward is in the memory that all recordings of a runner
share. So a backward is only valid until the next replay of any of them, and otherwise raises
instead of computing with another's numbers. Gradients that are returned are copies.

What it does not do: lock the model during its backward; compute second derivatives of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from staticgraph.batches.batch.batch_arrays import looked_in_epoch
from staticgraph.batches.batch.containers import leaves_of, mapped, with_leaves
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.from_device import CollatedTensors
from staticgraph.errors import NotStatic, StaleOutput
from staticgraph.internals.dispatch import copies_of, version_of
from staticgraph.recording.graph_recorder import Recorder
from staticgraph.recording.lent_outputs import LentTensor, check_can_be_handed_out, is_small
from staticgraph.recording.recorded_model import ModelRecording, RecordedModel
from staticgraph.recording.recording_keys import RecordingKey
from staticgraph.steps.computation.model_setup import Subject


class RecordedPair:
    """A recorded forward and its recorded backward.

    Args:
        key: the key of the recording.
        subject: the model, and how it is run.
        recorded_model: the model's recordings, which share their memory.
        recorder: the recorder.
        compute: returns the model's output over a batch.
        inputs: the batch that the recording reads.
        before: called first, and undone afterwards.

    Attributes:
        recording: both bodies, with the addresses of the parameters.
        outputs: what the forward writes, flat, at fixed addresses, without a graph.
        differentiable: for each output, whether it has a gradient.
        output_gradients: where the outputs' gradients are copied before a backward.
        parameters, fields: what has a gradient: parameters, and names of fields.
        gradients: what the backward writes: gradients of the parameters, then of the fields.

    Raises:
        NotStatic: it cannot be recorded, or the model has changed since the last recording.
    """

    def __init__(
        self,
        key: RecordingKey,
        subject: Subject,
        recorded_model: RecordedModel,
        recorder: Recorder,
        compute: Callable[[StaticBatch], Any],
        inputs: StaticBatch,
        before: Callable[[], None],
    ) -> None:
        self.name: str = str(key)
        name = self.name
        self.fields: tuple[str, ...] = tuple(subject.differentiable)
        self.parameters: list[torch.nn.Parameter] = [
            p for p in subject.model.parameters() if p.requires_grad
        ]
        self.output_gradients: list[Tensor] = []
        self._container: Any = None  # the outputs' structure, without the tensors
        self._model = recorded_model
        self._named = dict(subject.model.named_parameters())
        leaves: list[Tensor] = []

        def forward() -> list[Any]:
            """Returns the output's tensors, over fields that are leaves of this pass."""
            with torch.enable_grad():
                fields = {name: inputs[name].detach().requires_grad_() for name in self.fields}
                leaves[:] = fields.values()
                out = compute(inputs.replace(**fields) if fields else inputs)
            check_can_be_handed_out(out, name)
            self._container = mapped(lambda _: None, out)
            return leaves_of(out)

        def backward(outputs: list[Any]) -> list[Tensor | None]:
            """Returns gradients of parameters and fields; None where there is no dependence."""
            inputs = [*self.parameters, *leaves]
            roots = [out for out in outputs if _has_gradient(out)]
            if not self.output_gradients:  # in the warm-up: no memory of the recordings
                self.output_gradients = [torch.zeros_like(root) for root in roots]
            if not roots or not inputs:
                return [None] * len(inputs)
            return list(
                torch.autograd.grad(roots, inputs, self.output_gradients, allow_unused=True)
            )

        # Required gradients are checked at every call: nothing here writes a parameter's gradient.
        self.recording: ModelRecording = recorded_model.record(
            recorder, (forward, backward), name, before
        )
        first, second = self.recording.bodies
        self.differentiable: list[bool] = [_has_gradient(out) for out in first.result]
        self.gradients: list[Tensor | None] = second.result
        self.outputs: list[Any] = [o.detach() if isinstance(o, Tensor) else o for o in first.result]
        first.result = None  # frees the graph, whose memory later recordings may take
        leaves.clear()

    # ------------------------------------------------------------------ replaying

    def run(self, batch: StaticBatch, copy: Callable[[], None]) -> Any:
        """Returns the output of a batch, as part of autograd's graph if gradients are enabled.

        Args:
            batch: its fields may require a gradient if they are among :attr:`fields`.
            copy: copies the batch to where the recording reads it.

        Raises:
            NotStatic: a parameter has moved, a parameter or a field requires a gradient that was
                not recorded, or the model has changed, as far as it is checked now.
        """
        self._model.check(self.recording, looked_in_epoch(batch))
        if torch.is_grad_enabled():
            self._check_wanted(batch)
            fields = [batch[name] for name in self.fields]
            flat = _Replayed.apply(self, copy, *self.parameters, *fields)
        else:
            flat = self.replay_forward(copy)
        return with_leaves(self._container, iter([self._lent(value) for value in flat]))

    def _check_wanted(self, batch: StaticBatch) -> None:
        recorded = {id(parameter) for parameter in self.parameters}
        for name, parameter in self._named.items():
            if parameter.requires_grad and id(parameter) not in recorded:
                raise NotStatic(
                    f"{self.name}: {name} requires a gradient, which it did not when the backward "
                    "was recorded: thaw parameters before warmup(), or call warmup() again"
                )
        arrays = batch.tensors()
        if type(arrays) is CollatedTensors and not arrays.was_read:
            return  # nobody has read an array, and reading one would make all
        for name, value in arrays.items():
            if value.requires_grad and name not in self.fields:
                raise NotStatic(
                    f"{self.name}: the field {name!r} requires a gradient, which the recorded "
                    f"backward does not compute: make the runner with differentiable="
                    f"{(*self.fields, name)!r}, or give {name}.detach()"
                )

    def replay_forward(self, copy: Callable[[], None]) -> list[Any]:
        """Returns copies of small outputs, and the recording's own tensors for large ones."""
        recorded = self.recording.bodies[0]
        if recorded.behind is not None:
            recorded.behind()
        copy()
        self._model.replays.run(recorded)
        return [self._handed(value) for value in self.outputs]

    def replay_backward(
        self, count: int, versions: int, gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Returns copies of the gradients of parameters, then of fields.

        Args:
            count: the number of replays when the forward finished.
            versions: the versions of the parameters at that time.
            gradients: the gradients of the outputs.

        Raises:
            StaleOutput: other replays ran since, or a parameter was written to.
        """
        late = self._model.replays.count - count
        if late:
            raise StaleOutput(
                f"{self.name}: the runner replayed {late} more recording{'s' * (late != 1)} after "
                "this forward and before its backward, in the memory that the forward kept for "
                "it: call backward() before the runner's next call (and once: retain_graph keeps "
                "nothing of a recording); where two forwards of a model need one backward, give "
                "the second forward a runner of its own, or `with sg.bound(model, batch):`"
            )
        if versions != self.versions:
            raise StaleOutput(
                f"{self.name}: a parameter was changed after this forward and before its backward, "
                "which reads it: call backward() before optimizer.step()"
            )
        recorded = self.recording.bodies[1]
        if recorded.behind is not None:
            recorded.behind()
        wanted = [g for g, has in zip(gradients, self.differentiable, strict=True) if has]
        for target, gradient in zip(self.output_gradients, wanted, strict=True):
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient)
        self._model.replays.run(recorded)
        written = [gradient for gradient in self.gradients if gradient is not None]
        # One or a few launches, where cloning each would take one launch per parameter.
        copies = iter(copies_of(written) if written else ())
        return [None if gradient is None else next(copies) for gradient in self.gradients]

    @property
    def versions(self) -> int:
        """A number that grows whenever a parameter is written to."""
        return sum(version_of(parameter) for parameter in self.parameters)

    @property
    def count(self) -> int:
        """How many replays have run, of all recordings that share its memory."""
        return self._model.replays.count

    def _handed(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.clone() if is_small(value) else value.detach()

    def _lent(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or is_small(value):
            return value
        return LentTensor.of(value, self._model.replays, self._model.replays.count)


class _Replayed(torch.autograd.Function):
    """The pair as one autograd operation."""

    @staticmethod
    def forward(ctx: Any, pair: RecordedPair, copy: Callable[[], None], *inputs: Tensor) -> Any:
        """Replays the forward over what ``copy`` writes; returns the output's tensors, flat."""
        flat = pair.replay_forward(copy)
        ctx.pair, ctx.count, ctx.versions = pair, pair.count, pair.versions
        ctx.mark_non_differentiable(
            *(
                value
                for value, has in zip(flat, pair.differentiable, strict=True)
                if isinstance(value, Tensor) and not has
            )
        )
        return tuple(flat)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Replays the backward; returns the gradients of parameters and fields."""
        return None, None, *ctx.pair.replay_backward(ctx.count, ctx.versions, gradients)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
