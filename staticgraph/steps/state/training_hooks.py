"""User hooks on parameters and optimizer, left out of runs that do not train.

A hook on a parameter may take an optimizer's step (``register_post_accumulate_grad_hook``), clip by
a norm that it keeps, or write a log; one on an optimizer may update an average. A check or a timing
is not training, and restores the state it knows of, which does not include what such hooks write
to. A recording runs them, since a replay repeats what they did on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def callbacks_of(
    parameters: Iterable[Tensor], optimizer: torch.optim.Optimizer | None
) -> list[Any]:
    """Returns the hooks themselves."""
    owners = [(p, _OF_PARAMETERS) for p in parameters] + [(optimizer, _OF_OPTIMIZERS)]
    found = [getattr(owner, name, None) for owner, names in owners for name in names]
    return [hook for hooks in found if hooks for hook in hooks.values()]


@contextmanager
def without_callbacks(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None
) -> Iterator[None]:
    """A ``with`` block in which no hook of a parameter or of the optimizer's steps is called.

    Afterwards all are back in their order. Autograd reads the very dictionaries, so these are
    emptied and filled again.
    """
    parameters = list(model.parameters())
    for group in () if optimizer is None else optimizer.param_groups:
        parameters += group["params"]
    found: dict[int, tuple[Any, Any]] = {}
    owners = [(owner, _OF_PARAMETERS) for owner in parameters] + [(optimizer, _OF_OPTIMIZERS)]
    for owner, names in owners:
        for name in names:
            hooks = getattr(owner, name, None)
            if hooks:
                found.setdefault(id(hooks), (hooks, list(hooks.items())))
    for hooks, _ in found.values():
        hooks.clear()
    try:
        yield
    finally:
        for hooks, items in found.values():
            hooks.update(items)
