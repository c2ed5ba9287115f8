"""Runs a module's forward with fixed shapes although it is called with real rows.

The problem: a ``training_step`` is user code. It calls the model in any way, between other work
that must not see padding. The idea: the step gets a :class:`RealBatch`; where it calls a module,
the padded arrays of the arguments are looked up, the module runs on them through a
:class:`staticgraph.StaticGraphRunner` (in any of its modes, with gradients), and the step gets the
real rows of the output.

Invariant: the step sees what plain PyG would give it. A call with a tensor that the step computed,
which no recording can read, runs as in plain PyG, without padding; so does one on a batch that was
given other edges, which warns once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from staticgraph.batches.batch.real_batch import RealBatch, RealCount, RowsUnknown, origin_of
from staticgraph.internals.dispatch import TreeSpec, tree_flatten, tree_map, tree_unflatten
from staticgraph.plans.plan import BucketPlan
from staticgraph.recording.recording_keys import Recording
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.computation.model_call import output_tensors
from staticgraph.steps.computation.model_setup import Subject

# What an argument is: the batch, one of its arrays or counts, or a constant value.
Named = tuple[str, Any]
# The most runners per module. Each is specific to the values that it is called with, and a value
# that changes at every step (a temperature) would create one per step.
MOST_RUNNERS = 8
_ALWAYS = (type(None), bool, int, float, str, torch.dtype)


class StaticCalls:
    """Replaces the forwards of several modules of one model.

    Args:
        modules: the modules that a step may call.
        plan: the buckets.
        mode: the mode of the runners.
        recording: how the runners record.
        check_padding: whether the runners check their modules.
    """

    plan: BucketPlan
    mode: str
    recording: Recording | None
    check_padding: bool

    def __init__(
        self,
        modules: Sequence[torch.nn.Module],
        plan: BucketPlan,
        mode: str,
        recording: Recording | None = None,
        check_padding: bool = True,
    ) -> None:
        self.plan, self.mode, self.recording = plan, mode, recording
        self.check_padding = check_padding
        self._calls = {module: StaticCall(module, self) for module in modules}
        self.install()

    def install(self) -> None:
        """Replaces the modules' forwards."""
        for module, call in self._calls.items():
            vars(module)["forward"] = call

    def remove(self) -> None:
        """Restores the forwards of the modules' classes."""
        for module in self._calls:
            vars(module).pop("forward", None)

    @contextmanager
    def off(self) -> Iterator[None]:
        """A context in which modules call each other's original forwards."""
        self.remove()
        try:
            yield
        finally:
            self.install()

    def close(self) -> None:
        """Restores the original forwards and frees the recordings."""
        self.remove()
        for call in self._calls.values():
            call.close()


class StaticCall:
    """The replacement for one module's forward.

    Args:
        module: the module.
        calls: the replaced forwards of the whole model.
    """

    def __init__(self, module: torch.nn.Module, calls: StaticCalls) -> None:
        self._module = module
        self._calls = calls
        self._runners: dict[tuple[Any, ...], StaticGraphRunner] = {}
        self._told: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        """A copied module gets its class's forward."""
        copied = memo.get(id(self._module), self._module)
        return type(copied).forward.__get__(copied)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module on a static batch among its arguments, in fixed shapes."""
        flat, spec = tree_flatten((args, kwargs))
        batch = next((candidate for value in flat if (candidate := _batch_of(value))), None)
        with self._calls.off():
            if batch is None:
                return self._forward(*args, **kwargs)
            names = [name for value in flat if (name := _name_of(value))]
            if len(names) == len(flat) and self._has_runner_for(names, spec):
                try:
                    return self._by_runner(batch, tuple(names), spec)
                except RowsUnknown as error:
                    self._tell("set", f"{error}. {type(self._module).__name__} runs as plain PyG")
            args, kwargs = tree_unflatten(
                [int(value) if isinstance(value, RealCount) else value for value in flat], spec
            )
            return self._forward(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self._module).forward(self._module, *args, **kwargs)

    def _has_runner_for(self, names: Sequence[Named], spec: TreeSpec) -> bool:
        """Whether there is a runner for such a call, or one more may be created."""
        if len(self._runners) < MOST_RUNNERS or _key(names, spec) in self._runners:
            return True
        values = ", ".join(repr(value) for kind, value in names if kind == "value")
        self._tell(
            "values",
            f"{type(self._module).__name__} was called with {MOST_RUNNERS} different sets of "
            f"values (now {values}), each compiled or recorded; from here on new ones run without: "
            "keep what changes from step to step in a tensor of the module (a buffer)",
        )
        return False

    def _tell(self, what: str, message: str) -> None:
        """Warns once per ``what``."""
        if what not in self._told:
            self._told.add(what)
            warnings.warn(message, stacklevel=6)

    def _by_runner(self, batch: RealBatch, names: tuple[Named, ...], spec: TreeSpec) -> Any:
        """Runs a call through a runner; all its arguments belong to the batch or are constants."""
        key = _key(names, spec)
        if key not in self._runners:

            def forward(_: torch.nn.Module, data: Any) -> Any:
                """Calls the module's forward with the arguments taken from a batch."""
                arguments = [_argument(data, *name) for name in names]
                args, kwargs = tree_unflatten(arguments, spec)
                return self._forward(*args, **kwargs)

            calls = self._calls
            subject = Subject(self._module, forward=forward, check_padding=calls.check_padding)
            self._runners[key] = StaticGraphRunner(
                subject, calls.plan, calls.mode, recording=calls.recording
            )
        runner = self._runners[key]
        static = batch.whole()
        out = runner(static)
        levels = runner.steps.computation.levels(out, static)
        rows = {
            id(value): batch.static.real_counts.of(level)
            for path, value in output_tensors(out)
            if (level := levels[path]) is not None
        }
        return tree_map(lambda value: batch.real(value, rows.get(id(value))), out)

    def close(self) -> None:
        """Frees the recordings."""
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()


def _batch_of(value: object) -> RealBatch | None:
    if isinstance(value, RealBatch):
        return value
    if isinstance(value, RealCount):
        return value.batch()
    origin = origin_of(value)
    return origin.batch if origin else None


def _name_of(value: object) -> Named | None:
    """How a runner's forward looks up an argument; None for a value that only this call has."""
    if isinstance(value, RealBatch):
        return "batch", None
    if isinstance(value, RealCount):
        return "array", value.name
    if isinstance(value, _ALWAYS):
        return "value", value
    origin = origin_of(value)
    return ("array", origin.name) if origin and origin.name else None


def _key(names: Sequence[Named], spec: TreeSpec) -> tuple[Any, ...]:
    """The key of a runner: 1, 1.0 and True are three different values, and a NaN equals itself."""
    return tuple((kind, type(what), repr(what)) for kind, what in names), spec


def _argument(data: Any, kind: str, what: Any) -> Any:
    if kind == "batch":
        return data
    return getattr(data, what) if kind == "array" else what
