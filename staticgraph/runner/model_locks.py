"""One step of a model at a time, across all threads and runners.

The problem: training flags, gradients, statistics and recordings belong to the modules, not to a
thread. An evaluation that puts a model into evaluation mode while another thread trains it gives
both wrong numbers, and BatchNorm's running statistics keep them for good. So whatever runs a model
takes a turn: one lock per model, shared by all runners whose models share a module, and held for
one step or forward of one batch. Plain PyG takes no turn and never waits; nor do runners of other
models.

Within one thread turns nest (a teacher runs inside a student's forward, a model may evaluate itself
inside its loss). Refused are changes to the parameters, and recordings, while a forward of the same
model is still running, and turns that wait for each other in a cycle.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Final, NoReturn

import torch

from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import tracing_context
from staticgraph.internals.memory import MAPPINGS, MMAP_MAX, Mallopt, keep_freed_memory

_MODULES: weakref.WeakKeyDictionary[torch.nn.Module, _Lock] = weakref.WeakKeyDictionary()
_NUMBERS = itertools.count()
_BOOKS = threading.Lock()
_WAITING: dict[int, _Lock] = {}  # thread ident -> the lock it waits for


class _Lock:
    """The lock of the modules of one model."""

    __slots__ = ("__weakref__", "closed", "depth", "lock", "number", "owner", "running")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.number = next(_NUMBERS)
        self.owner: int | None = None
        self.depth = 0  # how many times the owner holds it
        self.running = 0  # forwards in progress, nested ones included
        self.closed: str | None = None


class _Turn:
    """A ``with`` block; see :class:`Turns`."""

    __slots__ = ("_closes", "_counts", "_locks", "_mallopt", "_name", "_nests")

    def __init__(
        self,
        locks: tuple[_Lock, ...],
        mallopt: Mallopt | None,
        name: str,
        *,
        counts: bool = True,
        nests: bool = True,
        closes: bool = False,
    ) -> None:
        self._locks = locks
        self._mallopt = mallopt
        self._name = name
        self._counts = counts
        self._nests = nests
        self._closes = closes

    def __enter__(self) -> None:
        me = threading.get_ident()
        taken = 0
        try:
            for lock in self._locks:
                if not lock.lock.acquire(blocking=False):
                    _wait(lock, me, self._name)
                taken += 1
                lock.owner = me
                lock.depth += 1
                if lock.closed or lock.running:
                    self._check(lock)
        except BaseException:
            for lock in self._locks[:taken]:
                _give(lock)
            raise
        for lock in self._locks:
            lock.running += self._counts
            if self._closes:
                lock.closed = self._name
        if self._mallopt:
            self._mallopt(MMAP_MAX, 0)

    def __exit__(self, *exc: object) -> None:
        for lock in self._locks:
            lock.running -= self._counts
            if self._closes:
                lock.closed = None
            lock.depth -= 1  # _give() inlined: saves a call per step
            if not lock.depth:
                lock.owner = None
            lock.lock.release()
        if self._mallopt:
            self._mallopt(MMAP_MAX, MAPPINGS)

    def _check(self, lock: _Lock) -> None:
        if lock.closed and (self._counts or self._closes):
            raise RuntimeError(
                f"{self._name} of a model inside its own {lock.closed}, which compiles and "
                "records it: call it from outside of the model's forward and loss"
            )
        if lock.running and not self._nests:
            raise RuntimeError(
                f"{self._name} of a model inside a forward of its own, whose parameters it would "
                "change before the backward has read them: call it after the forward is over"
            )


class Turns:
    """The turns of one runner.

    Args:
        model: its modules take turns with every other runner whose model contains any of them.
        device: on a CPU, what a turn frees is kept for the next.

    Attributes:
        forward: a forward of one batch; may nest inside another.
        step: a training step; may not run inside a forward of the same model.
        warmup: compiling and recording; nothing else of the model may run inside it.
        whole: several of these in a row, as one.
    """

    __slots__ = ("forward", "step", "warmup", "whole")

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        shared = _locks_of(model), keep_freed_memory() if device.type == "cpu" else None
        self.forward: Final = _Turn(*shared, "a forward")
        self.step: Final = _Turn(*shared, "step()", nests=False)
        self.warmup: Final = _Turn(*shared, "warmup()", counts=False, nests=False, closes=True)
        self.whole: Final = _Turn(*shared, "several steps", counts=False)


def check_not_traced(name: str) -> None:
    """Refuses to run a runner inside a step that torch.compile is tracing.

    Raises:
        NotStatic: the call would become part of the traced step.
    """
    if torch.compiler.is_dynamo_compiling() or tracing_context() is not None:
        raise NotStatic(
            f"{name} of a runner stands inside a compiled step: a step in eager can hold another "
            "runner; in a compiled one call the other model itself, model(...), or compute its "
            "output before the step and pass it in as a field of the batch"
        )


def refuse_without_gradients() -> NoReturn:
    """Refuses a training step where autograd is off.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        "step() trains, and gradients are off around it (torch.no_grad, inference_mode, "
        "set_grad_enabled(False)): call it outside of that block; eval_step(batch) and "
        "predict(graphs) need no gradients"
    )


def _locks_of(model: torch.nn.Module) -> tuple[_Lock, ...]:
    """The locks that a model's modules have, in a global order; one new lock for the rest."""
    with _BOOKS:
        modules = list(model.modules())
        present = {lock for module in modules if (lock := _MODULES.get(module)) is not None}
        locks = sorted(present or {_Lock()}, key=lambda lock: lock.number)
        for module in modules:
            _MODULES.setdefault(module, locks[0])
        return tuple(locks)


def _wait(lock: _Lock, me: int, name: str) -> None:
    """Acquires a lock that another thread holds."""
    with _BOOKS:
        _WAITING[me] = wanted = lock
        while (owner := wanted.owner) is not None and owner != me and owner in _WAITING:
            wanted = _WAITING[owner]
        if owner == me:
            del _WAITING[me]
            raise RuntimeError(
                f"{name} waits for a model that another thread runs, which waits for one that "
                "this thread runs: of two models that run inside each other, run one at a time"
            )
    lock.lock.acquire()
    with _BOOKS:
        del _WAITING[me]


def _give(lock: _Lock) -> None:
    lock.depth -= 1
    if not lock.depth:
        lock.owner = None
    lock.lock.release()
