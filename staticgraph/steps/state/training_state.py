"""Runs a model without changing it: everything a run may touch is saved before and restored after.

One saver, :class:`SavedTraining`, serves every run of a model that is not training: warming up and
recording, inspecting a model, the run that finds which results are rows. What each of them may
touch differs, and is stated when the saver is made.

Values are written back and addresses stay, so that a recording made in between goes on reading and
writing the same tensors. A pending backward finds the tensors that it saved, since autograd does
not see a restored value as a change. What is trained is kept on the host: next to a recording's
pool the device may have no room for a second copy of parameters and optimizer state, and copying
those of a GNN across the bus takes little time compared with a compilation.

What the loss and the forward hold in addition to the model
(:mod:`staticgraph.steps.state.reachable_state`) is restored with it. A user's list or dict that a
forward appends to, or a user's own random generator, is not restored.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from staticgraph.internals.dispatch import copy_all, preserved_versions, version_of
from staticgraph.nn.context.asked import APART, FLAT
from staticgraph.nn.norm.batch_norm import SINGLE
from staticgraph.nn.registrations import watch
from staticgraph.steps.state.reachable_state import LIBRARIES, held_by, of_forwards
from staticgraph.steps.state.saved_optimizer import SavedOptimizer, on_host
from staticgraph.steps.state.training_hooks import callbacks_of

# For runs that only inspect a model: each draws the same numbers.
SEED = 0
# Attributes in which an inspection notes facts about a norm, which the runner must keep.
KEPT = {APART, FLAT, SINGLE}
# Elements of a tensor that a loss may write to at every step; anything larger is data.
SMALL = 1 << 16
NUMBERS = (bool, int, float)


def train(model: torch.nn.Module) -> None:
    """Sets training mode if the model is not in it; otherwise frozen layers stay frozen."""
    if not model.training:
        model.train()


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """A ``with`` block in evaluation mode, without gradients; every module's flag is restored."""
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in trained:
            module.training = True


class SavedTraining:
    """Everything a run may touch, to be restored in place.

    Args:
        model: its buffers, and the random states of torch, NumPy and Python, are always saved.
        optimizer: saved as by :class:`SavedOptimizer`, with its parameters; None for none.
        beside: the loss and the forward; their modules and tensors, like those of hooks, are
            treated as the model's.
        trained: whether to save parameters, gradients and training flags as well.
        attributes: whether to save the modules' plain attributes (a counter, a kept activation) and
            the bindings of buffer names as well.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        beside: Sequence[object] = (),
        trained: bool = True,
        attributes: bool = True,
    ) -> None:
        hooks = callbacks_of(model.parameters(), optimizer) if trained else ()
        held = held_by(*beside, *hooks, *of_forwards(model))
        roots = [model, *held.modules]
        modules = list(dict.fromkeys(m for root in roots for m in root.modules()))
        buffers = [*(b for root in roots for b in root.buffers())]
        buffers += [t for t in held.tensors if not t.requires_grad]
        parameters = _parameters(roots, held.tensors, optimizer) if trained else []
        self.parameters: list[Tensor] = parameters
        self._tensors = [(t, on_host(t)) for t in _once(parameters, buffers)] if trained else []
        looked_at = [] if trained else _once(buffers)
        self._looked_at = [(b, b.clone()) for b in looked_at if not is_lazy(b)]
        written = (tensor for tensor, _ in (*self._tensors, *self._looked_at))
        self._versions = preserved_versions(written)
        self._grads = [(parameter, parameter.grad) for parameter in parameters]
        self._flags = [(m, m.training) for m in modules] if trained else []
        self._optimizer = None if optimizer is None else SavedOptimizer(optimizer)
        self._attributes = _Attributes(modules) if attributes else None
        self._random = torch.get_rng_state()
        self._on_host = np.random.get_state(), random.getstate()  # noqa: NPY002
        devices = {p.device for p in model.parameters() if p.is_cuda}
        self._cuda_random = {device: torch.cuda.get_rng_state(device) for device in devices}

    @torch.no_grad()
    def restore(self) -> None:
        """Restores everything into the original tensors, whatever is bound now."""
        with self._versions:
            for tensor, value in self._tensors:
                tensor.copy_(value)
            for buffer, value in self._looked_at:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
        for parameter, grad in self._grads:
            parameter.grad = grad
        for module, flag in self._flags:
            module.training = flag
        if self._optimizer is not None:
            self._optimizer.restore()
        if self._attributes is not None:
            self._attributes.restore()
        torch.set_rng_state(self._random)
        np.random.set_state(self._on_host[0])  # noqa: NPY002
        random.setstate(self._on_host[1])
        for device, state in self._cuda_random.items():
            torch.cuda.set_rng_state(state, device)


class _Attributes:
    """The plain attributes and bound buffers of modules."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = [(m, dict(vars(m)), dict(m._buffers)) for m in modules]

    def restore(self) -> None:
        """Restores the attributes and buffers of the modules."""
        for module, own, buffers in self._modules:
            _put_back(vars(module), own)
            _put_back(module._buffers, buffers)


def _put_back(present: dict[str, Any], before: dict[str, Any]) -> None:
    """Writes only what has changed, since another thread may read the rest; :data:`KEPT` stays."""
    for name in present.keys() - before.keys() - KEPT:
        del present[name]
    for name, value in before.items():
        if name not in present or present[name] is not value:
            present[name] = value


class StepState:
    """What a training step writes before its update, put back where no update follows.

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
        self._modules: list[torch.nn.Module] = []
        self._buffers: list[int] = []
        self._bound: list[tuple[dict[str, Any], dict[str, Any]]] = []  # now, and before the step
        self._norms: list[Tensor] = []  # torch's norms write without counting a version
        self._of_norms: list[Tensor] = []
        self._others: list[Tensor] = []
        self._copies: dict[int, tuple[int, Tensor]] = {}  # place in the list: version, value

    def registered(self, layer: bool) -> None:
        """Called when torch reports a registration in one of the modules."""
        self._listed = False

    @torch.no_grad()
    def keep(self) -> None:
        """Copies the state; called before a step."""
        if not self._listed or self._of_modules() != self._buffers:
            self._list()
        if self._norms:
            copy_all(self._of_norms, self._norms)
        for place, tensor in enumerate(self._others):
            version = version_of(tensor)
            if place not in self._copies or self._copies[place][0] != version:
                self._copies[place] = version, tensor.clone()
        self._bound = [(m._buffers, dict(m._buffers)) for m in self._modules if m._buffers]
        self._bound += [
            (own, {name: value for name, value in own.items() if type(value) in NUMBERS})
            for module in self._modules
            if not _of_library(module)
            for own in (vars(module),)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts back what :meth:`keep` copied, in place."""
        for own, before in self._bound:
            own |= {name: value for name, value in before.items() if own.get(name) is not value}
        if self._norms:
            copy_all(self._norms, self._of_norms)
        for place, tensor in enumerate(self._others):
            version, value = self._copies[place]
            if version_of(tensor) != version:
                tensor.copy_(value)
                self._copies[place] = version_of(tensor), value

    def _of_modules(self) -> list[int]:
        """The buffers as objects; compiled code does not report that it binds others."""
        return [id(b) for m in self._modules for b in m._buffers.values()]

    def _list(self) -> None:
        self._listed = True  # first, so that a registration meanwhile is not lost
        held = held_by(*self._beside, *of_forwards(self._model))
        modules = [m for root in (self._model, *held.modules) for m in root.modules()]
        modules = list(dict.fromkeys(modules))
        watch(modules, self)
        self._modules = [m for m in modules if m._buffers or not _of_library(m)]
        self._buffers = self._of_modules()
        norms = [m for m in modules if isinstance(m, _NormBase)]
        self._norms = _plain(b for m in norms for b in m._buffers.values())
        self._of_norms = [tensor.clone() for tensor in self._norms]
        of_norms = set(map(id, self._norms))
        tensors = [t for t in held.tensors if not t.requires_grad and t.numel() <= SMALL]
        tensors += [b for m in modules for b in m._buffers.values() if b is not None]
        self._others = [tensor for tensor in _plain(tensors) if id(tensor) not in of_norms]
        self._copies = {}


def _plain(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """Returns the tensors whose values can be copied and whose writes are counted, each once."""
    found = [t for t in tensors if t is not None and not is_lazy(t) and not t.is_inference()]
    return _once([tensor for tensor in found if tensor.layout is torch.strided])


def _of_library(module: torch.nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] in LIBRARIES


def _parameters(
    roots: Sequence[torch.nn.Module],
    tensors: Sequence[Tensor],
    optimizer: torch.optim.Optimizer | None,
) -> list[Tensor]:
    """Everything a step may train: parameters, other tensors, and the optimizer's own."""
    found = [p for root in roots for p in root.parameters()]
    found += [tensor for tensor in tensors if tensor.requires_grad]
    for group in () if optimizer is None else optimizer.param_groups:
        found += group["params"]
    return _once(found)


def _once(*lists: Sequence[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensors in lists for tensor in tensors}.values())


@contextmanager
def untouched(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    beside: Sequence[object] = (),
    trained: bool = True,
    attributes: bool = True,
    seeded: bool = False,
) -> Iterator[None]:
    """A ``with`` block after which everything is restored.

    Args:
        model, optimizer, beside, trained, attributes: as for :class:`SavedTraining`; with
            ``trained``, gradients are None at the start of the block. A replay runs no Python and
            so binds no activation again: a block that may record leaves attributes as they are.
        seeded: whether every such block draws the same random numbers.
    """
    saved = SavedTraining(model, optimizer, beside=beside, trained=trained, attributes=attributes)
    for parameter in saved.parameters:
        parameter.grad = None
    if seeded:
        torch.manual_seed(SEED)
        np.random.seed(SEED)  # noqa: NPY002
        random.seed(SEED)
    try:
        yield
    except BaseException as error:
        try:
            saved.restore()
        except Exception as further:  # the first error is the one that tells what happened
            error.add_note(
                "what was trained could not be put back either: "
                f"{type(further).__name__}: {further}"
            )
        raise
    saved.restore()
