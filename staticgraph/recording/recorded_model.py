"""What all recordings of one model have in common: those of a runner's steps, and of hops' steps.

A recording is warmed up, and changes no parameter, gradient, optimizer state or random state. Its
replay writes its own gradients, which then become the parameters'. It reads parameters at their
recorded addresses, so a parameter that has moved is an error rather than a step with old values; so
is a model that has changed since (:mod:`staticgraph.recording.signature`).

A replay takes a few microseconds of Python: the parameters are listed once, and no Python call in
it is made once per parameter or layer.
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
from staticgraph.recording.signature import Flags, Signature, Watched
from staticgraph.steps.state.training_state import untouched

# torch's own recipe warms up three times: lazily allocated workspaces and states must exist by
# then.
WARM_RUNS = 3
# Replays between two checks of a model. A check took 94 us (GINE, 5 layers) and 400 us (GPS, 10
# layers) on one core of the 2-core CPU that bench_host_time ran on: below one microsecond per
# replay.
EVERY = 512


@dataclass(slots=True, eq=False)
class ModelRecording:
    """A recording, and the state that it was made with.

    Attributes:
        recorded: the recording.
        what: its name in messages.
        number: its unique number, by which an epoch notes that it has checked the model.
        parameters, addresses: the parameters, and the address of each.
        grads: the gradients that a replay writes.
        flags: the model's flags when it was recorded.
        sample: the index of a parameter with a gradient; 0 if none has one.
        watched: what every replay compares; None before the first, and after a check.
    """

    recorded: Recorded
    what: str
    number: int
    parameters: list[Tensor]
    addresses: list[int]
    grads: list[Tensor | None]
    flags: Flags

    sample: int = 0
    watched: Watched | None = None

    def __post_init__(self) -> None:
        found = (place for place, grad in enumerate(self.grads) if grad is not None)
        self.sample = next(found, 0)

    @property
    def shown(self) -> bool:
        """Whether a parameter still has the gradient that a replay writes."""
        return self.parameters[self.sample].grad is self.grads[self.sample]


_NUMBERS = itertools.count()


def recorded_by(recorder: Recorder, body: Callable[[], Any]) -> Recorded:
    """Returns what a recorder makes of a function.

    Clears the autocast cache first, so that weights are cast inside the recording: a replay would
    otherwise read old casts for ever.
    """
    torch.clear_autocast_cache()
    return recorder.record(body)


def made_of(
    recorded: Recorded,
    what: str,
    signature: Signature,
    flags: Flags,
    grads: list[Tensor | None] | None = None,
) -> ModelRecording:
    """Makes a recording with its own number and the current parameters.

    Args:
        recorded, what, flags: as in :class:`ModelRecording`.
        signature: the signature of its model.
        grads: the gradient of each parameter that a replay writes; None if it writes none.
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
        optimizer: its state is also restored after recording; None for none.
        steps_outside: whether gradients are read after every replay, so that each is assigned to
            its parameter then, whatever happened to it in between. Otherwise gradients are only
            there for inspection, and are assigned again after another recording's replay, or once
            they were set to None.
        functions: the loss and the forward, by these names: what they hold is restored with the
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
        self._shown: ModelRecording | None = None  # the one whose gradients the parameters have

    def record(
        self,
        recorder: Recorder,
        body: Callable[[], Any],
        what: str,
        remedy: str,
        before: Callable[[], None] = lambda: None,
        between: Callable[[], None] = lambda: None,
    ) -> ModelRecording:
        """Warms up and records; everything the run touches is restored.

        Args:
            recorder: the recorder to use.
            body: the function to record.
            what: the name of the work, for the message.
            remedy: what usually prevents recording, and what to do.
            before: runs first, and is undone with the rest; what it registers stays, and is
                recorded.
            between: runs after the warm-up and before the recording.

        Raises:
            NotStatic: it cannot be recorded, or the model has changed since the last recording.
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
        """A ``with`` block around a recording: restores everything it touches.

        Also notes what the recording assumes of the model.

        Args:
            what: the name of the work, for the message.
            remedy: what usually prevents recording, and what to do.

        Raises:
            NotStatic: it cannot be recorded, or the model has changed since the last recording.
        """
        stepped = None if self._steps_outside else self._optimizer
        signature = self._signature or Signature(self._model, self._functions, stepped)
        if changes := signature.changes():
            raise NotStatic(f"{what}: {told(changes, 'record all again')}")
        try:
            beside = tuple(self._functions.values())
            with untouched(self._model, self._optimizer, beside=beside):
                yield signature
                torch.clear_autocast_cache()  # its memory belongs to the recording
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
            made: the recording to replay.
            remedy: what to do, for the message.
            looked: the numbers of the recordings that have checked the model in this epoch; None
                outside of any epoch.

        Raises:
            NotStatic: a parameter has moved; or the model has changed, as far as it is checked now
                (see :mod:`staticgraph.recording.signature`).
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
            made.watched is None
            or not made.watched.hold()
            or signature.doubtful
            or signature.hooks_made != RemovableHandle.next_id
            or not replays % EVERY
            or not replays & (replays - 1)  # 0, 1, 2, 4, 8: finds annealed values soon
            or (looked is not None and made.number not in looked)
        ):
            if changes := signature.changes(made.flags):
                raise NotStatic(f"{made.what}: {told(changes, remedy)}")
            if looked is not None:
                looked.add(made.number)
            if made.watched is None or not made.watched.hold():
                made.watched = signature.watched(made.flags)

    def replay(self, made: ModelRecording, trains: bool = True) -> Any:
        """Runs a recording, and assigns the gradients that it writes to the parameters.

        Each recording has its own gradients. Its result is overwritten by the next replay.
        """
        self.replays.run(made.recorded)
        if trains and (self._steps_outside or self._shown is not made or not made.shown):
            for parameter, grad in zip(made.parameters, made.grads, strict=True):
                parameter.grad = grad
            self._shown = made
        return made.recorded.result

    def drop(self, all_made: list[ModelRecording]) -> None:
        """Removes from the parameters the gradients that belong to recordings."""
        owned = {id(grad) for made in all_made for grad in made.grads if grad is not None}
        for parameter in self._model.parameters():
            if id(parameter.grad) in owned:
                parameter.grad = None


def _addresses(parameters: list[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, parameters))
