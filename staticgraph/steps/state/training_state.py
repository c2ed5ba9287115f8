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
(:mod:`staticgraph.steps.state.reachable_state`) is restored with it. A new key of a user's dict
stays, since it may be of a cache that a compiled step reads; a user's own random generator is not
restored.

:class:`Evaluation` puts a model's modules into evaluation mode and back. The problem:
``model.eval()`` and the way back visit every module through Python generators, twice per batch of
an evaluation, although the modules stay the same. The idea: list the modules once, with the
submodules of each, and at each call compare those with the current ones: objects in a flat list, in
C loops. Any change of modules, by whatever means, makes a new list.

Invariant: flags are those that ``model.eval()`` sets, and afterwards those from before. If a module
defines evaluation mode itself (its own ``train`` or ``eval``), the model's ``eval()`` is called. A
model that is not in training mode itself keeps all its flags: the user put it into evaluation, and
perhaps some of its modules back into training (dropout that is to be sampled).
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from staticgraph.internals.dispatch import preserved_versions
from staticgraph.nn.context.row_queries import APART, FLAT
from staticgraph.nn.norm.batch_norm import SINGLE
from staticgraph.steps.state.reachable_state import held_by, of_forwards
from staticgraph.steps.state.recordable_optimizer import SavedOptimizer, on_host, parameters_of
from staticgraph.steps.state.training_hooks import callbacks_of

# For runs that only inspect a model: each draws the same numbers.
SEED = 0
# Attributes in which an inspection notes facts about a norm, which the runner must keep.
KEPT = {APART, FLAT, SINGLE}


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
        attributes: whether to save the modules' plain attributes (a counter, a kept activation),
            the items of lists and dicts, and the bindings of buffer names as well.
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
        buffers += [flag for m in modules if (flag := vars(m).get(SINGLE)) is not None]
        buffers += [t for t in held.tensors if not t.requires_grad]
        tables = [m for m in modules if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        buffers += [m.weight for m in tables if m.max_norm is not None]  # written by a lookup
        self.parameters: list[Tensor] = []  # whatever a step may train
        if trained:
            require_shapes(model)
            of_modules = [p for root in roots for p in root.parameters()]
            of_modules += [t for t in held.tensors if t.requires_grad]
            self.parameters = _once(of_modules, parameters_of(optimizer))
        values = _once(self.parameters, buffers)
        self._tensors = [(t, on_host(t)) for t in values] if trained else []
        looked_at = [] if trained else values
        self._looked_at = [(b, b.clone()) for b in looked_at if not is_lazy(b)]
        written = (tensor for tensor, _ in (*self._tensors, *self._looked_at))
        self._versions = preserved_versions(written)
        self._grads = [(parameter, parameter.grad) for parameter in self.parameters]
        self._flags = [(m, m.training) for m in modules] if trained else []
        self._optimizer = None if optimizer is None else SavedOptimizer(optimizer)
        # Plain attributes and bound buffers of modules.
        kept = [values for m in modules for values in (vars(m), m._buffers)] if attributes else ()
        self._attributes = [(values, dict(values)) for values in kept]
        self._containers = [(each, copy(each)) for each in held.containers if attributes]
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
        for present, before in self._attributes:
            _put_back(present, before)
        for container, items in self._containers:
            _put_items_back(container, items)
        torch.set_rng_state(self._random)
        np.random.set_state(self._on_host[0])  # noqa: NPY002
        random.setstate(self._on_host[1])
        for device, state in self._cuda_random.items():
            torch.cuda.set_rng_state(state, device)


def _put_back(present: dict[str, Any], before: dict[str, Any]) -> None:
    """Writes only what has changed, since another thread may read the rest; :data:`KEPT` stays."""
    for name in set(present.keys()) - before.keys() - KEPT:
        del present[name]
    for name, value in before.items():
        if name not in present or present[name] is not value:
            present[name] = value


def _put_items_back(container: Any, items: Any) -> None:
    """Writes only what has changed; what a plain dict has gained stays."""
    if isinstance(items, dict):
        for key in container.keys() - items.keys() if type(items) is not dict else ():
            del container[key]
        missing = object()
        container.update((k, v) for k, v in items.items() if container.get(k, missing) is not v)
    elif len(container) != len(items) or not all(map(is_, container, items)):
        container.clear()
        container.extend(items)


def require_shapes(model: torch.nn.Module) -> None:
    """Refuses a model with a parameter that gets its shape in a first forward.

    Raises:
        ValueError: a lazy module has not run yet.
    """
    if name := next((name for name, value in model.named_parameters() if is_lazy(value)), None):
        raise ValueError(
            f"parameter {name} has no shape yet: run the lazy module once on a batch first"
        )


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


_SUBMODULES = attrgetter("_modules")
_VALUES = methodcaller("values")  # TorchScript's modules have no dict


class Evaluation:
    """Evaluation mode of one model.

    Args:
        model: its modules may change; they are checked at every call.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[nn.Module] = []
        self._counts: list[int] = []
        self._children: list[nn.Module | None] = []
        self._says_itself = False
        self._warned = False

    @contextmanager
    def __call__(self) -> Iterator[bool]:
        """A ``with`` block in evaluation mode, without gradients; every module's flag is restored.

        Yields whether modules stay in training inside, because the model itself is in evaluation
        already; a warning names them, once.
        """
        if not self._listed():
            self._list()
        trained, sampled = [module for module in self._modules if module.training], False
        if not self._model.training:
            sampled = bool(trained) and not self._says_itself
            if sampled:
                self._warn(trained)
            trained = []
        elif self._says_itself:
            self._model.eval()
        else:
            for module in trained:
                module.training = False
        try:
            with torch.no_grad():
                yield sampled
        finally:
            for module in trained:
                module.training = True

    def _warn(self, trained: list[nn.Module]) -> None:
        if self._warned:
            return
        self._warned = True
        kinds = ", ".join(sorted({type(module).__name__ for module in trained}))
        warnings.warn(
            f"the model is in evaluation mode, but layers in it are in training mode ({kinds}): it "
            "runs with these flags, in eager mode, as sampling with dropout needs; for plain "
            "evaluation call model.eval()",
            stacklevel=5,
        )

    def _listed(self) -> bool:
        """Whether the modules are still those in the list."""
        if not self._modules:
            return False
        submodules = list(map(_SUBMODULES, self._modules))
        if list(map(len, submodules)) != self._counts:
            return False
        now = chain.from_iterable(map(_VALUES, submodules))
        return all(map(is_, now, self._children))

    def _list(self) -> None:
        self._modules = list(self._model.modules())
        submodules = list(map(_SUBMODULES, self._modules))
        self._counts = list(map(len, submodules))
        self._children = list(chain.from_iterable(map(_VALUES, submodules)))
        self._says_itself = says_itself(self._modules)


def says_itself(modules: Iterable[nn.Module]) -> bool:
    """Whether any of the modules has its own ``train`` or ``eval``."""
    base = nn.Module.train, nn.Module.eval
    return any(
        (type(m).train, type(m).eval) != base or {"train", "eval"} & vars(m).keys() for m in modules
    )


def settle_training(model: nn.Module) -> None:
    """Calls ``model.train()`` on a newly made model in which a module defines training itself.

    Examples are norms frozen in ``train()`` and a teacher that stays in evaluation mode; a
    hand-written loop makes the same call. A model with any flag off was set up already, and stays
    as it is.
    """
    modules = list(model.modules())
    if all(module.training for module in modules) and says_itself(modules):
        model.train()
