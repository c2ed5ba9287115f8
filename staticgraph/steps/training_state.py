"""Running a model changes nothing: what a run may touch is saved before and put back after.

One saver, :class:`SavedTraining`, for all who run a model for another reason than to train it:
warming up and recording, a look at a model, the run that tells which results are rows. What each
may touch differs, and is said when it is made.

Values return, addresses stay, so that a recording made in between goes on reading and writing the
same tensors. What is trained is kept on the host: beside a recording's pool the device may have no
room for parameters and optimizer state a second time, and to carry what a GNN has across the bus is
short beside a compilation. Where nothing is trained buffers are written only if they changed, so
that a graph of autograd that waits for its backward stays valid.

What is not put back: a list or dict of the user's that a forward appends to.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from staticgraph.nn.context.asked import APART
from staticgraph.nn.norm.batch_norm import SINGLE
from staticgraph.steps.recordable_optimizer import starts_at_zero

# Of a model that is looked at: every look draws the same numbers.
SEED = 0
# What a look finds out of a norm, and the whole runner goes on knowing.
KEPT = {APART, SINGLE}


def train(model: torch.nn.Module) -> None:
    """Training mode, where the model as a whole is not in it; a model that is may hold layers
    frozen in evaluation mode, which stay so."""
    if not model.training:
        model.train()


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module's flag is put back."""
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in trained:
            module.training = True


class SavedTraining:
    """What a run may touch, to be put back in place.

    Optimizer state that did not exist is put back to zeros where those are its first values, so
    that a recording may go on writing it, and dropped elsewhere.

    Args:
        model: its buffers, and torch's random state, are always saved.
        optimizer: its state; None for none.
        trained: also parameters, gradients and training flags.
        attributes: also plain attributes of modules (a counter, a kept activation), what names of
            buffers are bound to, and the random states of NumPy and Python.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        trained: bool = True,
        attributes: bool = False,
    ) -> None:
        parameters = list(model.parameters()) if trained else []
        buffers = list(model.buffers())
        self._tensors = [(t, _on_host(t)) for t in (*parameters, *buffers)] if trained else []
        self._looked_at = [] if trained else [(b, b.clone()) for b in buffers if not is_lazy(b)]
        self._grads = [(parameter, parameter.grad) for parameter in parameters]
        self._flags = [(m, m.training) for m in model.modules()] if trained else []
        self._optimizer = optimizer
        states = {} if optimizer is None else optimizer.state
        self._states = {
            parameter: {name: _on_host(value) for name, value in state.items()}
            for parameter, state in states.items()
        }
        self._attributes = _Attributes(model) if attributes else None
        self._random = torch.get_rng_state()
        devices = {p.device for p in model.parameters() if p.is_cuda}
        self._cuda_random = {device: torch.cuda.get_rng_state(device) for device in devices}

    @torch.no_grad()
    def restore(self) -> None:
        """Puts everything back, into the tensors that were there, whatever is bound now."""
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
            self._restore_states(self._optimizer)
        if self._attributes is not None:
            self._attributes.restore()
        torch.set_rng_state(self._random)
        for device, state in self._cuda_random.items():
            torch.cuda.set_rng_state(state, device)

    def _restore_states(self, optimizer: torch.optim.Optimizer) -> None:
        zeros = starts_at_zero(optimizer)
        for parameter, state in list(optimizer.state.items()):
            saved = self._states.get(parameter)
            if saved is None and not zeros:
                del optimizer.state[parameter]
                continue
            for name, value in state.items():
                if not isinstance(value, Tensor):
                    state[name] = (saved or {}).get(name, value)
                elif saved is not None and isinstance(saved.get(name), Tensor):
                    value.copy_(saved[name])
                else:
                    value.zero_()


class _Attributes:
    """Plain attributes and bound buffers of all modules, and the random states of NumPy and
    Python."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = [(m, dict(vars(m)), dict(m._buffers)) for m in model.modules()]
        self._random = np.random.get_state(), random.getstate()  # noqa: NPY002

    def restore(self) -> None:
        for module, own, buffers in self._modules:
            _put_back(vars(module), own)
            _put_back(module._buffers, buffers)
        np.random.set_state(self._random[0])  # noqa: NPY002
        random.setstate(self._random[1])


def _put_back(present: dict[str, Any], before: dict[str, Any]) -> None:
    """Only what has changed, since another thread may be reading the rest; :data:`KEPT` stays."""
    for name in present.keys() - before.keys() - KEPT:
        del present[name]
    for name, value in before.items():
        if name not in present or present[name] is not value:
            present[name] = value


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return copy.deepcopy(value)


@contextmanager
def untouched(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    trained: bool = True,
    attributes: bool = False,
    seeded: bool = False,
) -> Iterator[None]:
    """Puts everything back when the block ends.

    Args:
        model, optimizer, trained, attributes: as for :class:`SavedTraining`; where ``trained``,
            gradients are None inside the block.
        seeded: inside it every block draws the same random numbers.
    """
    saved = SavedTraining(model, optimizer, trained=trained, attributes=attributes)
    if trained:
        for parameter in model.parameters():
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
        except Exception as further:  # the first error is the one that says what happened
            error.add_note(
                "what was trained could not be put back either: "
                f"{type(further).__name__}: {further}"
            )
        raise
    saved.restore()
