"""What all recordings of one model have in common.

A recording is warmed up, and changes no parameter, gradient, optimizer state or random state. Its
replay writes its own gradients, which then become the parameters'. It reads parameters at their
recorded addresses, so a parameter that has moved is an error rather than a step with old values; so
is a model that has changed since (:mod:`staticgraph.recording.signature`).

A replay takes a few microseconds of Python: the parameters are listed once, and no Python call in
it is made once per parameter or layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import TorchDispatchMode, tree_leaves, version_of
from staticgraph.recording.assumptions import changes_in_words
from staticgraph.recording.graph_recorder import Recorded, Recorder, Replays
from staticgraph.recording.lent_outputs import check_can_be_handed_out
from staticgraph.recording.signature import Flags, Signature, Watched
from staticgraph.steps.state.recordable_optimizer import check_recordable
from staticgraph.steps.state.training_state import untouched

# torch's own recipe warms up three times: lazily allocated workspaces and states must exist by
# then.
WARM_RUNS = 3
# Added to a count that a forward changes, to see whether anything follows from it.
MORE = 7
NUMBERS = (int, float)
# Replays between two checks of a model. A check took 94 us (GINE, 5 layers) and 400 us (GPS, 10
# layers) on one core of a 2-core CPU: below one microsecond per
# replay.
EVERY = 512
_REQUIRES_GRAD = attrgetter("requires_grad")
REMEDY = (
    "A host read, a copy from the host, a hook that synchronises, or activation checkpointing "
    "stands in the way; use mode='reduce-overhead' or 'default'"
)
AGAIN = "call warmup() again"


_NUMBERS = itertools.count()


@dataclass(slots=True, eq=False)
class ModelRecording:
    """Work on a model that was recorded, and the state that it was recorded with.

    Attributes:
        bodies: what is replayed in turn: one, or a forward and its backward.
        what: its name in messages.
        parameters, addresses: the parameters, and the address of each.
        grads: the gradients that a replay writes.
        flags: the model's flags when it was recorded.
        number: its unique number, by which an epoch notes that it has checked the model.
        sample: the index of a parameter with a gradient; 0 if none has one.
        watched: what every replay compares; None before the first, and after a check.
    """

    bodies: list[Recorded]
    what: str
    parameters: list[Tensor]
    addresses: list[int]
    grads: list[Tensor | None]
    flags: Flags
    number: int = field(default_factory=_NUMBERS.__next__)
    sample: int = 0
    watched: Watched | None = None

    def __post_init__(self) -> None:
        written = (place for place, grad in enumerate(self.grads) if grad is not None)
        self.sample = next(written, 0)

    @property
    def holds(self) -> bool:
        """Whether the values that every replay compares are as they were recorded."""
        watched = self.watched
        return (
            watched is not None
            and list(map(dict.get, watched.owners, watched.names)) == watched.values
            and list(map(len, watched.counted)) == watched.counts
            and (
                watched.wanted is None
                or list(map(_REQUIRES_GRAD, watched.parameters)) == watched.wanted
            )
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
        optimizer: torch.optim.Optimizer | None,
        steps_outside: bool,
        functions: Mapping[str, object],
    ) -> None:
        self.replays: Replays = Replays()
        self._model, self._optimizer, self._functions = model, optimizer, functions
        self._steps_outside = steps_outside
        self._signature: Signature | None = None
        self._shown: ModelRecording | None = None  # the one whose gradients the parameters have

    def record(
        self,
        recorder: Recorder,
        bodies: Sequence[Callable[..., Any]],
        what: str,
        before: Callable[[], None],
        between: Callable[[], None] = lambda: None,
    ) -> ModelRecording:
        """Warms up and records; everything the run touches is restored.

        Args:
            recorder: the recorder to use.
            bodies: the functions to record, one recording each; each but the first is called with
                the result of the one before.
            what: the name of the work, for the message.
            before: runs first, and is undone with the rest; what it registers stays, and is
                recorded.
            between: runs after the warm-up and before the recording.

        Raises:
            NotStatic: it cannot be recorded, or the model has changed since the last recording.
        """

        def run_all() -> None:
            """Runs the bodies one after another: the warm-up."""
            arguments: tuple[Any, ...] = ()
            for body in bodies:
                arguments = (body(*arguments),)

        stepped = None if self._steps_outside else self._optimizer
        signature = self._signature or Signature(self._model, self._functions, stepped)
        if changes := signature.changes():
            raise NotStatic(f"{what}: {changes_in_words(changes, 'record all again')}")
        beside = tuple(self._functions.values())
        try:
            with untouched(self._model, self._optimizer, beside=beside, attributes=False):
                before()
                signature.note_registered()
                flags = signature.flags(True)
                held = _held_values(self._model)
                recorder.warm(run_all, WARM_RUNS - 1)
                before_last = _held_values(self._model)
                recorder.warm(run_all, 1)
                changed = [value for value in before_last if value.changed]
                if changed and self._depends(changed, recorder, run_all):
                    carried = [v for v in changed if self._depends([v], recorder, run_all)]
                    for each in held:
                        each.values[each.name] = each.value
                    raise NotStatic(
                        f"{what}: the forward computes with the {(carried or changed)[0].path} of "
                        "the forward before, and changes it, which a replay does not: "
                        "register_buffer() it and write to it in place "
                        "(self.seen.mul_(0.5).add_(1)); or use mode='eager'"
                    )
                between()
                recorded: list[Recorded] = []
                for body in bodies:
                    # Else a replay would read old casts of the weights for ever.
                    torch.clear_autocast_cache()
                    arguments = (recorded[-1].result,) if recorded else ()
                    recorded.append(recorder.record(partial(body, *arguments)))
                check_can_be_handed_out(recorded[-1].result, what)
                grads = [parameter.grad for parameter in signature.parameters]
                torch.clear_autocast_cache()  # its memory belongs to the recording
        except NotStatic:
            raise
        except Exception as error:
            raise NotStatic(
                f"{what} cannot be recorded: {type(error).__name__}: {error}\n{REMEDY}"
            ) from error
        signature.settle()
        self._signature = signature
        if not any(grad is not None for grad in grads):
            flags = flags._replace(wanted=None)
        parameters = signature.parameters
        return ModelRecording(recorded, what, parameters, _addresses(parameters), grads, flags)

    def _depends(
        self,
        changed: Sequence[_HeldValue],
        recorder: Recorder,
        run_all: Callable[[], None],
    ) -> bool:
        """Whether a forward computes something else if values that it changes were others.

        A forward may also count, or keep a tensor, for inspection alone. All runs begin with the
        same state and random numbers. What differs between two with equal values is left out:
        memory that is not written yet, sums in another order.
        """
        starts, runs = [each.now for each in changed], list[_Operations]()
        for values in (starts, starts, list(map(_other, starts))):
            runs.append(_Operations())
            with untouched(
                self._model,
                self._optimizer,
                beside=tuple(self._functions.values()),
                attributes=False,
                seeded=True,
            ):
                for each, value in zip(changed, values, strict=True):
                    each.values[each.name] = value
                with runs[-1]:
                    recorder.warm(run_all, 1)
        for each, value in zip(changed, starts, strict=True):
            each.values[each.name] = value
        first, again, other = (run.calls for run in runs)
        if len(first) != len(other):
            return True
        return any(a == b != c for a, b, c in zip(first, again, other, strict=False))

    def check(self, recording: ModelRecording, looked: set[int] | None) -> None:
        """Refuses to replay a model that is not the one that was recorded.

        Args:
            recording: the one to replay.
            looked: the numbers of the recordings that have checked the model in this epoch; None
                outside of any epoch.

        Raises:
            NotStatic: a parameter has moved; or the model has changed, as far as it is checked now
                (see :mod:`staticgraph.recording.signature`).
        """
        if _addresses(recording.parameters) != recording.addresses:
            raise NotStatic(
                f"{recording.what}: a parameter has another address than when it was recorded "
                f"(moved with .to(), or replaced); {AGAIN}"
            )
        signature = self._signature
        assert signature is not None
        replays = recording.bodies[0].replays
        if (
            not recording.holds
            or signature.doubtful
            or signature.hooks_made != RemovableHandle.next_id
            or not replays % EVERY
            or not replays & (replays - 1)  # 0, 1, 2, 4, 8: finds annealed values soon
            or (looked is not None and recording.number not in looked)
        ):
            if changes := signature.changes(recording.flags):
                raise NotStatic(f"{recording.what}: {changes_in_words(changes, AGAIN)}")
            if looked is not None:
                looked.add(recording.number)
            if not recording.holds:
                recording.watched = signature.watched(recording.flags)

    def replay(self, recording: ModelRecording, trains: bool = True) -> Any:
        """Runs a recording of one body, and assigns the gradients that it writes.

        Each recording has its own gradients. Its result is overwritten by the next replay.
        """
        recorded = recording.bodies[0]
        self.replays.count += 1  # as Replays.run(), which costs a call
        recorded.replay()
        recorded.replays += 1
        if trains:
            sample = recording.sample
            current = recording.parameters[sample].grad is recording.grads[sample]
            if self._steps_outside or self._shown is not recording or not current:
                for parameter, grad in zip(recording.parameters, recording.grads, strict=True):
                    parameter.grad = grad
                self._shown = recording
        return recorded.result

    def drop(self, recordings: Iterable[ModelRecording]) -> None:
        """Removes from the parameters the gradients that belong to recordings."""
        owned = {id(grad) for each in recordings for grad in each.grads if grad is not None}
        for parameter in self._model.parameters():
            if id(parameter.grad) in owned:
                parameter.grad = None


class _HeldValue(NamedTuple):
    """A plain attribute of a module, neither a parameter nor a buffer nor a module.

    Attributes:
        path: of the attribute in the model.
        values: the module's attributes.
        name: its name among them.
        value: what it was.
    """

    path: str
    values: dict[str, Any]
    name: str
    value: Any

    @property
    def now(self) -> Any:
        """What the attribute is."""
        return self.values.get(self.name)

    @property
    def changed(self) -> bool:
        """Whether it is another tensor or number."""
        now = self.now
        if isinstance(now, Tensor):
            return now is not self.value
        return isinstance(now, NUMBERS) and now != self.value


def _held_values(model: torch.nn.Module) -> list[_HeldValue]:
    return [
        _HeldValue(f"{path}.{name}".removeprefix("."), vars(module), name, value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, (Tensor, *NUMBERS)) and getattr(value, "dtype", None) is not torch.bool
    ]


def _other(value: Any) -> Any:
    floats = isinstance(value, Tensor) and value.is_floating_point()
    return value * torch.nan if floats else value + MORE


class _Operations(TorchDispatchMode):
    """Notes the numbers that every operation is given, and the sums of its results.

    Attributes:
        calls: of each, in turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[Any], list[float]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        others = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, NUMBERS)]
        results = [
            torch.view_as_real(leaf) if leaf.is_complex() else leaf
            for leaf in tree_leaves(result)
            if isinstance(leaf, Tensor)
        ]
        self.calls.append((str(func), others, [float(each.double().sum()) for each in results]))
        return result


def _addresses(parameters: list[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, parameters))


class RecordableOptimizer:
    """Watches one optimizer for a recorder.

    Raises:
        NotStatic: the optimizer's step cannot be recorded; the message says what to do.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._replaced = False
        check_recordable(optimizer)
        self._initial = [group["lr"] for group in optimizer.param_groups]
        self._rates = [self._as_tensor(group) for group in optimizer.param_groups]
        self._versions = [version_of(rate) for rate in self._rates]
        # What a step reads. The rest of a group belongs to schedulers, such as initial_lr.
        self._names = [name for name in optimizer.defaults if name != "lr"]
        self._settings = [self._read_settings(group) for group in optimizer.param_groups]
        self._hook = optimizer.register_load_state_dict_post_hook(self._note_replaced)

    def _read_settings(self, group: dict[str, Any]) -> list[Any]:
        return list(map(group.get, self._names))

    def _as_tensor(self, group: dict[str, Any]) -> Tensor:
        rate = group["lr"]
        device = group["params"][0].device
        if not isinstance(rate, Tensor):
            rate = torch.tensor(float(rate), dtype=torch.float32, device=device)
        group["lr"] = rate.to(device)
        return group["lr"]

    def _note_replaced(self, _: torch.optim.Optimizer) -> None:
        self._replaced = True

    def before_replay(self) -> None:
        """Copies a changed learning rate to its address; refuses any other change.

        Raises:
            NotStatic: a setting or the state was replaced since the recording.
        """
        if self._replaced:
            raise NotStatic(
                "the optimizer's state was exchanged (load_state_dict) after its step was "
                "recorded, which would go on with the old one: load it before warmup(), or call "
                "warmup() again"
            )
        if len(self._optimizer.param_groups) != len(self._rates):
            raise NotStatic(
                "the optimizer was given another parameter group after its step was recorded, "
                "which would leave it out: add it before warmup(), or call warmup() again"
            )
        # torch's schedulers warn unless they see a step; Python does not see a replay.
        self._optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]
        for group, rate, noted in zip(
            self._optimizer.param_groups, self._rates, self._settings, strict=True
        ):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate
            # Usually the same objects, which saves comparing values.
            if not all(map(is_, map(group.get, self._names), noted)):
                self._compare(group, noted)

    def _compare(self, group: dict[str, Any], noted: list[Any]) -> None:
        """Refuses other values; equal values in other objects become the ones to expect next."""
        present = self._read_settings(group)
        pairs = zip(self._names, present, noted, strict=True)
        changed = [name for name, now, before in pairs if _differs(now, before)]
        if changed:
            cycled = not {"betas", "momentum"}.isdisjoint(changed)
            raise NotStatic(
                f"the optimizer's {', '.join(sorted(changed))} changed after its step was "
                "recorded; only lr may: call warmup() again, or use scope='forward_backward'"
                + (" (a OneCycleLR or CyclicLR needs cycle_momentum=False)" if cycled else "")
            )
        noted[:] = present

    def close(self) -> None:
        """Stops watching, and turns a learning rate that nobody wrote to back into a number.

        Reads nothing from the device, which may refuse after a failed capture.
        """
        self._hook.remove()
        groups = self._optimizer.param_groups  # perhaps more than there were
        kept = zip(groups, self._initial, self._rates, self._versions, strict=False)
        for group, initial, rate, version in kept:
            unchanged = group["lr"] is rate and version_of(rate) == version
            if unchanged and not isinstance(initial, Tensor):
                group["lr"] = initial


def _differs(now: Any, noted: Any) -> bool:
    """Whether a setting was replaced.

    A tensor's value is not compared, since the recording reads it in place, and comparing it here
    would make the host wait for the device.
    """
    if isinstance(now, tuple | list) and isinstance(noted, tuple | list):
        return len(now) != len(noted) or any(map(_differs, now, noted))
    if isinstance(now, Tensor) or isinstance(noted, Tensor):
        return now is not noted
    return bool(now != noted)
