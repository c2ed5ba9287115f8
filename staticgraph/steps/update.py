"""What surrounds a backward: the state to return to, and then the update.

Gradients accumulate, are clipped, and the optimizer steps; a step that ends before its update
leaves everything as it was.

A step overwrites gradients: a compiled one into tensors that torch allocates, a recorded one into
its own, a different set for every bucket. So those of several batches are accumulated here, outside
of any step, and given to the parameters once enough batches have contributed; how a batch ran makes
no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from staticgraph.internals.dispatch import copy_all, version_of
from staticgraph.nn.registrations import watch
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.reachable_state import held_by, of_forwards, of_library

# Elements of a tensor that a loss may write to at every step; anything larger is data.
SMALL = 1 << 16
NUMBERS = (bool, int, float)


class Accumulation:
    """The accumulated gradients of the batches since the last update.

    Args:
        subject: gives the number of batches and the parameters, including its optimizer's.
    """

    def __init__(self, subject: Subject) -> None:
        self._every = subject.accumulate
        self._subject = subject
        self._sums: dict[Tensor, Tensor] = {}
        self._count = 0

    def add(self) -> bool:
        """Adds the gradients of one batch, as its share of the mean.

        Returns:
            Whether enough batches have contributed: the parameters then have the mean as their
            gradients.
        """
        if self._every == 1:
            return True
        for parameter in self._subject.parameters():
            if parameter.grad is None:
                continue
            known = self._sums.get(parameter)
            if known is None:
                self._sums[parameter] = parameter.grad / self._every
            else:
                known.add_(parameter.grad, alpha=1 / self._every)
        self._count += 1
        if self._count < self._every:
            return False
        for parameter, gradient in self._sums.items():
            parameter.grad = gradient
        self._sums, self._count = {}, 0
        return True

    def state(self) -> dict[str, Any]:
        """Returns how many batches wait for their update, and the sum of their gradients.

        The sum is None for a parameter without gradients.
        """
        return {
            "count": self._count,
            "sums": [self._sums.get(parameter) for parameter in self._subject.parameters()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state` returned."""
        self._count = int(state["count"])
        pairs = zip(self._subject.parameters(), state["sums"], strict=True)
        self._sums = {p: g.to(p.device, copy=True) for p, g in pairs if g is not None}

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """A ``with`` block for steps that do not train, without accumulation; state is restored."""
        before = self._every, self._sums, self._count
        self._every, self._sums, self._count = 1, {}, 0
        try:
            yield
        finally:
            self._every, self._sums, self._count = before


class Update:
    """The end of a training step.

    Args:
        subject: its model's gradients are clipped, all together; without an optimizer nothing is
            trained.
    """

    def __init__(self, subject: Subject) -> None:
        self._model = subject.model
        self.optimizer: torch.optim.Optimizer | None = subject.optimizer
        self._clip_norm = subject.clip_norm

    def zero_grad(self) -> None:
        """Sets all gradients of model and optimizer to None, so that a backward does not add."""
        drop_gradients(self._model)
        for group in () if self.optimizer is None else self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def __call__(self) -> None:
        """Clips without reading the norm on the host, then steps the optimizer.

        Clears the autocast cache, so that an autocast around a whole loop casts the new weights.
        """
        assert self.optimizer is not None
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        self.optimizer.step()
        torch.clear_autocast_cache()  # its casts are of the old weights


def drop_gradients(module: torch.nn.Module) -> None:
    """Does what ``module.zero_grad()`` does, but faster.

    Skipping names and sets of visited modules and parameters saves a fiftieth of a small step. A
    part that occurs twice is visited twice, which changes nothing.
    """
    for parameter in module._parameters.values():
        if parameter is not None:
            parameter.grad = None
    for child in module._modules.values():
        if child is not None:
            drop_gradients(child)


class StepState:
    """A ``with`` block around a training step: what it writes is put back if it ends early.

    That is every buffer (running statistics and their counters), small tensors that the loss and
    the forward write to, and the numbers and flags that the user's own modules hold; not
    parameters, which only the update writes to, nor random states. The cost is one copy of the
    buffers that were written to since the last step: 17 us for four norms (one CPU core,
    2026-11-24).

    Args:
        model: the model that is trained.
        beside: the loss and the forward.
    """

    def __init__(self, model: torch.nn.Module, beside: Sequence[object]) -> None:
        self._model, self._beside = model, beside
        self._listed = False
        self._buffers: list[dict[str, Any]] = []  # of the modules that have any
        self._listed_as: list[int] = []  # these buffers as objects
        self._attributes: list[dict[str, Any]] = []  # of the user's own modules
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []  # each now, and then
        self._norms: list[Tensor] = []  # torch's norms write without counting a version
        self._of_norms: list[Tensor] = []
        self._others: list[Tensor] = []
        self._copies: dict[int, tuple[int, Tensor]] = {}  # place in the list: version, value

    def registered(self, layer: bool) -> None:
        """Called when torch reports a registration in one of the modules."""
        self._listed = False

    @torch.no_grad()
    def __enter__(self) -> None:
        """Copies the state."""
        if not self._listed or self._bound() != self._listed_as:
            self._list()
        if self._norms:
            copy_all(self._of_norms, self._norms)
        for place, tensor in enumerate(self._others):
            version = version_of(tensor)
            if place not in self._copies or self._copies[place][0] != version:
                self._copies[place] = version, tensor.clone()
        self._before = [(buffers, dict(buffers)) for buffers in self._buffers]
        self._before += [
            (values, {name: value for name, value in values.items() if type(value) in NUMBERS})
            for values in self._attributes
        ]

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:  # a KeyboardInterrupt, too
            self._restore()

    @torch.no_grad()
    def _restore(self) -> None:
        for values, before in self._before:
            values |= {
                name: value for name, value in before.items() if values.get(name) is not value
            }
        if self._norms:
            copy_all(self._norms, self._of_norms)
        for place, tensor in enumerate(self._others):
            version, value = self._copies[place]
            if version_of(tensor) != version:
                tensor.copy_(value)
                self._copies[place] = version_of(tensor), value

    def _bound(self) -> list[int]:
        """The buffers as objects; compiled code does not report that it binds others."""
        return [id(buffer) for buffers in self._buffers for buffer in buffers.values()]

    def _list(self) -> None:
        self._listed = True  # first, so that a registration meanwhile is not lost
        held = held_by(*self._beside, *of_forwards(self._model))
        modules = [m for root in (self._model, *held.modules) for m in root.modules()]
        modules = list(dict.fromkeys(modules))
        watch(modules, self)
        self._buffers = [m._buffers for m in modules if m._buffers]
        self._listed_as = self._bound()
        self._attributes = [vars(m) for m in modules if not of_library(type(m))]
        norms = [m for m in modules if isinstance(m, _NormBase)]
        self._norms = _copied(b for m in norms for b in m._buffers.values())
        self._of_norms = [tensor.clone() for tensor in self._norms]
        of_norms = set(map(id, self._norms))
        tensors = [t for t in held.tensors if not t.requires_grad and t.numel() <= SMALL]
        tensors += [b for m in modules for b in m._buffers.values()]
        self._others = [tensor for tensor in _copied(tensors) if id(tensor) not in of_norms]
        self._copies = {}


def _copied(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """Returns the tensors whose values can be copied and whose writes are counted, each once."""
    return list(
        {
            id(t): t
            for t in tensors
            if t is not None
            and not is_lazy(t)
            and not t.is_inference()
            and t.layout is torch.strided
        }.values()
    )
