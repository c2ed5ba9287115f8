"""What recordings of one model have in common, whoever makes them: a runner's steps, hops' steps.

A recording is warmed up, and changes no parameter, gradient, optimizer state or random state. Its
replay writes gradients of its own, which are then the parameters'. It reads parameters where they
stood, so one that stands elsewhere now is an error and not a step with old values; so is a model
that was changed since (:mod:`staticgraph.recording.signature`).

A replay is a few microseconds of Python: the parameters are listed once, and no call in it is one a
parameter or a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from staticgraph.errors import NotStatic
from staticgraph.recording.changes import told
from staticgraph.recording.lending import check_can_be_handed_out
from staticgraph.recording.recorder import Recorded, Recorder
from staticgraph.recording.replays import Replays
from staticgraph.recording.signature import Flags, Signature
from staticgraph.steps.state.training_state import untouched

# torch's own recipe warms up three times: lazily made workspaces and states must exist by then.
WARM_RUNS = 3
# Replays between two looks at a model. A look took 94 us (GINE, 5 layers) and 400 us (GPS, 10
# layers) on one core of the 2-core CPU that bench_host_time ran on: below one microsecond a replay.
EVERY = 512


@dataclass(slots=True, eq=False)
class ModelRecording:
    """A recording, and what it was made with.

    Attributes:
        recorded: it.
        what: its name in messages.
        number: its own, which an epoch notes when the model was looked at.
        parameters, addresses: where each stood.
        grads: those that a replay writes.
        flags: the model's, as they were.
        sample: the place of a parameter with a gradient, if any has one.
    """

    recorded: Recorded
    what: str
    number: int
    parameters: list[Tensor]
    addresses: list[int]
    grads: list[Tensor | None]
    flags: Flags

    sample: int = 0

    def __post_init__(self) -> None:
        found = (place for place, grad in enumerate(self.grads) if grad is not None)
        self.sample = next(found, 0)

    @property
    def shown(self) -> bool:
        """Whether a parameter still has the gradient that a replay writes."""
        return self.parameters[self.sample].grad is self.grads[self.sample]


_NUMBERS = itertools.count()


def recorded_by(recorder: Recorder, body: Callable[[], Any]) -> Recorded:
    """What a recorder makes of a function. Weights that an autocast around it has cast before are
    cast again, inside: a replay would read the old casts for ever."""
    torch.clear_autocast_cache()
    return recorder.record(body)


def made_of(
    recorded: Recorded,
    what: str,
    signature: Signature,
    flags: Flags,
    grads: list[Tensor | None] | None = None,
) -> ModelRecording:
    """A recording with a number of its own, and the parameters as they stand now.

    Args:
        recorded, what, flags: as in :class:`ModelRecording`.
        signature: of its model.
        grads: of each parameter, what a replay writes to it; None where it writes none.
    """
    parameters = signature.parameters
    written = [None for _ in parameters] if grads is None else grads
    return ModelRecording(
        recorded, what, next(_NUMBERS), parameters, _addresses(parameters), list(written), flags
    )


class RecordedModel:
    """Records functions of a model, and replays them.

    Args:
        model: is watched; see :mod:`staticgraph.recording.signature`.
        optimizer: whose state is put back after recording, too; None for none.
        steps_outside: gradients are read after every replay, so each is the parameter's then,
            whatever was done to it meanwhile. Else it is one to be looked at, and is given again
            after another recording's replay, or once gradients were set to None.
        functions: the loss and the forward, by these names: what they hold is put back with the
            model, and what they read is watched with it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        steps_outside: bool = True,
        functions: Mapping[str, object] | None = None,
    ) -> None:
        self.replays: Replays = Replays()
        self._model, self._optimizer, self._functions = model, optimizer, functions or {}
        self._steps_outside = steps_outside
        self._signature: Signature | None = None
        self._shown: ModelRecording | None = None  # whose gradients the parameters have

    def record(
        self,
        recorder: Recorder,
        body: Callable[[], Any],
        what: str,
        remedy: str,
        before: Callable[[], None] = lambda: None,
        between: Callable[[], None] = lambda: None,
    ) -> ModelRecording:
        """Warms up and records; everything the run touched is put back.

        Args:
            recorder: how.
            body: what is recorded.
            what: it is, for the message.
            remedy: what stands in the way as a rule, and what to do.
            before: run first, and undone with the rest; what it registers stays, and is recorded.
            between: run after the warm-up and before the recording.

        Raises:
            NotStatic: it cannot be recorded, or the model was changed since the last recording.
        """
        with self.recording(what, remedy) as signature:
            before()
            signature.note_registered()
            flags = signature.flags(True)
            recorder.warm(body, WARM_RUNS)
            between()
            recorded = recorded_by(recorder, body)
            check_can_be_handed_out(recorded.result, what)
            grads = [parameter.grad for parameter in signature.parameters]
        if not any(grad is not None for grad in grads):
            flags = flags._replace(wanted=None)
        return made_of(recorded, what, signature, flags, grads)

    @contextmanager
    def recording(self, what: str, remedy: str) -> Iterator[Signature]:
        """Around whatever is recorded: puts back all that it touches, and notes what it takes for
        granted of the model.

        Args:
            what: it is, for the message.
            remedy: what stands in the way as a rule, and what to do.

        Raises:
            NotStatic: it cannot be recorded, or the model was changed since the last recording.
        """
        stepped = None if self._steps_outside else self._optimizer
        signature = self._signature or Signature(self._model, self._functions, stepped)
        if changes := signature.changes():
            raise NotStatic(f"{what}: {told(changes, 'record all again')}")
        try:
            beside = tuple(self._functions.values())
            with untouched(self._model, self._optimizer, beside=beside):
                yield signature
                torch.clear_autocast_cache()  # whose memory is the recording's
        except NotStatic:
            raise
        except Exception as error:
            raise NotStatic(
                f"{what} cannot be recorded: {type(error).__name__}: {error}\n{remedy}"
            ) from error
        signature.settle()
        self._signature = signature

    def check(self, made: ModelRecording, remedy: str, looked: set[int] | None = None) -> None:
        """Refuses to replay a model that is not the one that was recorded.

        Args:
            made: what is to be replayed.
            remedy: what helps.
            looked: the recordings that looked at the model in this epoch; None outside of any.

        Raises:
            NotStatic: a parameter stands elsewhere; or, as far as it is looked at now (see
                :mod:`staticgraph.recording.signature`), the model was changed.
        """
        if _addresses(made.parameters) != made.addresses:
            raise NotStatic(
                f"{made.what}: a parameter has another address than when it was recorded (moved "
                f"with .to(), or replaced); {remedy}"
            )
        signature = self._signature
        assert signature is not None
        replays = made.recorded.replays
        if (
            signature.doubtful
            or signature.hooks_made != RemovableHandle.next_id
            or not replays % EVERY
            or not replays & (replays - 1)  # 0, 1, 2, 4, 8: what is annealed is found soon
            or (looked is not None and made.number not in looked)
        ):
            if changes := signature.changes(made.flags):
                raise NotStatic(f"{made.what}: {told(changes, remedy)}")
            if looked is not None:
                looked.add(made.number)

    def replay(self, made: ModelRecording, trains: bool = True) -> Any:
        """Runs a recording, and gives the parameters the gradients that it writes; another's are
        others. Its result is overwritten by the next."""
        self.replays.run(made.recorded)
        if trains and (self._steps_outside or self._shown is not made or not made.shown):
            for parameter, grad in zip(made.parameters, made.grads, strict=True):
                parameter.grad = grad
            self._shown = made
        return made.recorded.result

    def drop(self, all_made: list[ModelRecording]) -> None:
        """Takes from the parameters the gradients that belong to recordings."""
        owned = {id(grad) for made in all_made for grad in made.grads if grad is not None}
        for parameter in self._model.parameters():
            if id(parameter.grad) in owned:
                parameter.grad = None


def _addresses(parameters: list[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, parameters))
