"""A module's forward, called with real rows and run in fixed shapes.

The problem: a ``training_step`` is the user's, and calls the model however it likes, between other
work that must see no padding. The idea: the step is given :class:`RealBatch`; where it calls a
module, the arguments' padded arrays are found again, the module runs over them through a
:class:`staticgraph.StaticGraphRunner` (in any of its modes, with gradients), and the step gets the
real rows of what comes out.

Invariant: the step sees what plain PyG gives it. A call of which the rows cannot be told runs as
plain PyG, without padding, and says so once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.real_batch import RealBatch, RealCount, RowsUnknown, origin_of
from staticgraph.internals.trees import TreeSpec, tree_flatten, tree_map, tree_unflatten
from staticgraph.nn.bound import bound
from staticgraph.plans.plan import BucketPlan
from staticgraph.recording.recording import Recording
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.rows.provenance import Path, Stems, leaves

# What an argument is: the batch, an array of it, a count of it, or a value that is the same always.
Named = tuple[str, Any]
# Runners for one module. Each is for the values that it is called with, and a value that is another
# at every step (a temperature) would make one per step.
MOST_RUNNERS = 8
_ALWAYS = (type(None), bool, int, float, str, torch.dtype)


class StaticCalls:
    """The forwards of several modules of one model, exchanged.

    Args:
        modules: those that a step may call.
        plan: the buckets.
        mode: of the runners.
        recording: how they record.
    """

    plan: BucketPlan
    mode: str
    recording: Recording | None

    def __init__(
        self,
        modules: Sequence[torch.nn.Module],
        plan: BucketPlan,
        mode: str,
        recording: Recording | None,
    ) -> None:
        self.plan, self.mode, self.recording = plan, mode, recording
        self._calls = {module: StaticCall(module, self) for module in modules}
        self.install()

    def install(self) -> None:
        """From now on the modules' forwards are these."""
        for module, call in self._calls.items():
            vars(module)["forward"] = call

    def remove(self) -> None:
        """The modules' forwards are their classes' again."""
        for module in self._calls:
            vars(module).pop("forward", None)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, modules call each other as they are."""
        self.remove()
        try:
            yield
        finally:
            self.install()

    def close(self) -> None:
        """Takes them off, and frees what was recorded."""
        self.remove()
        for call in self._calls.values():
            call.close()


class StaticCall:
    """One module's forward.

    Args:
        module: whose.
        calls: all of the model's.
    """

    def __init__(self, module: torch.nn.Module, calls: StaticCalls) -> None:
        self._module = module
        self._calls = calls
        self._runners: dict[tuple[Any, ...], StaticGraphRunner] = {}
        # Of an argument the numbers of rows that were no level's; of an output whether it stems
        # from the batch.
        self._own: dict[tuple[TreeSpec, int], set[int]] = {}
        self._stem: dict[tuple[TreeSpec, int], dict[Path, bool]] = {}
        self._told: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        """A copied module is called as its class says."""
        copied = memo.get(id(self._module), self._module)
        return type(copied).forward.__get__(copied)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat, spec = tree_flatten((args, kwargs))
        batch = next((found for value in flat if (found := _batch_of(value))), None)
        with self._calls.off():
            if batch is None:
                return self._forward(*args, **kwargs)
            names = [name for value in flat if (name := _name_of(value))]
            try:
                if len(names) == len(flat) and self._has_runner_for(names, spec):
                    return self._by_runner(batch, tuple(names), spec)
                return self._by_bound(batch, flat, spec)
            except RowsUnknown as error:
                self._tell("set", f"{error}. {type(self._module).__name__} runs as plain PyG")
            return self._as_plain(flat, spec)

    def _as_plain(self, flat: list[Any], spec: TreeSpec) -> Any:
        """Over real rows alone."""
        args, kwargs = tree_unflatten([_plain(value) for value in flat], spec)
        return self._forward(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self._module).forward(self._module, *args, **kwargs)

    def _has_runner_for(self, names: Sequence[Named], spec: TreeSpec) -> bool:
        """Whether there is a runner for such a call, or may be one more."""
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
        """Warns, once."""
        if what not in self._told:
            self._told.add(what)
            warnings.warn(message, stacklevel=6)

    def _by_runner(self, batch: RealBatch, names: tuple[Named, ...], spec: TreeSpec) -> Any:
        """All that it is given belongs to the batch: a runner's work."""
        key = _key(names, spec)
        if key not in self._runners:

            def forward(_: torch.nn.Module, data: Any) -> Any:
                """The module's own step, given a batch as the arguments that it had."""
                given = [_argument(data, *name) for name in names]
                args, kwargs = tree_unflatten(given, spec)
                return self._forward(*args, **kwargs)

            subject = Subject(self._module, forward=forward)
            calls = self._calls
            self._runners[key] = StaticGraphRunner(
                subject, calls.plan, calls.mode, recording=calls.recording
            )
        runner = self._runners[key]
        static = batch.whole()
        out = runner(static)
        levels = runner.steps.computation.levels(out, static)
        levels = {id(value): levels[path] for path, value in leaves(out)}
        return _cut(batch, out, lambda value: levels.get(id(value)))

    def _by_bound(self, batch: RealBatch, flat: list[Any], spec: TreeSpec) -> Any:
        """Some of it was computed in between: eager, over that with padding."""
        given = [self._full(batch, value, (spec, place)) for place, value in enumerate(flat)]
        if any(value is None for value, seen in zip(given, flat, strict=True) if seen is not None):
            self._tell(
                "rows",
                f"{type(self._module).__name__} is called with a tensor of which it cannot be told "
                "whether its rows are nodes, edges or graphs, and runs without fixed shapes; "
                "compute it inside of the module's forward",
            )
            return self._as_plain(flat, spec)
        args, kwargs = tree_unflatten(given, spec)
        static = batch.whole()
        known = self._stem.get((spec, static.bucket))
        stems = Stems(static) if known is None else None
        if stems is not None:
            stems.mark(given)
        with bound(self._module, static), stems or nullcontext():
            out = self._forward(*args, **kwargs)
        if stems is not None:
            known = {path: stems.of(value) for path, value in leaves(out)}
            self._stem[spec, static.bucket] = known
        sizes = {static.capacity.rows(name): name for name in static.levels}
        levels = {
            id(value): sizes.get(len(value))
            for path, value in leaves(out)
            if value.dim() and (known or {}).get(path, True)
        }
        return _cut(batch, out, lambda value: levels.get(id(value)))

    def _full(self, batch: RealBatch, value: Any, place: tuple[TreeSpec, int]) -> Any:
        """An argument with padding; None where it cannot be told.

        A table of nine rows is not the graphs of the batch that happens to have nine: what was no
        level's rows in another batch is none's in this."""
        if isinstance(value, RealBatch):
            return value.whole()
        if isinstance(value, RealCount):
            return getattr(batch.static, value.name)
        origin = origin_of(value)
        if origin is not None:
            return origin.full
        if not isinstance(value, Tensor) or not value.dim():
            return value
        own = self._own.setdefault(place, set())
        if not batch.levels_of(value):
            own.add(len(value))
        return None if len(value) in own else batch.padded(value)

    def close(self) -> None:
        """Frees what was recorded."""
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
    """How a runner's forward finds an argument again; None for what only this call has."""
    if isinstance(value, RealBatch):
        return "batch", None
    if isinstance(value, RealCount):
        return "array", value.name
    if isinstance(value, _ALWAYS):
        return "value", value
    origin = origin_of(value)
    return ("array", origin.name) if origin and origin.name else None


def _key(names: Sequence[Named], spec: TreeSpec) -> tuple[Any, ...]:
    """By which a runner is found again: 1, 1.0 and True are three values, and one that is not equal
    to itself is one."""
    return tuple((kind, type(what), repr(what)) for kind, what in names), spec


def _argument(data: Any, kind: str, what: Any) -> Any:
    if kind == "batch":
        return data
    return getattr(data, what) if kind == "array" else what


def _plain(value: Any) -> Any:
    """An argument as plain PyG gets it."""
    return int(value) if isinstance(value, RealCount) else value


def _cut(batch: RealBatch, out: Any, level: Callable[[Tensor], str | None]) -> Any:
    """The real rows of an output."""
    counts = batch.static.real_counts

    def real(value: Any) -> Any:
        """A tensor with rows of the batch without its padding; any other value as it is."""
        found = level(value) if isinstance(value, Tensor) else None
        return value if found is None else batch.real(value, counts.of(found))

    return tree_map(real, out)
