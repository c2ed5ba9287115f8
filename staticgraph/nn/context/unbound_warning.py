"""Warns if a layer runs on a batch of fixed shape that is not bound, so that padding takes part.

PyG's functions find a batch through what is bound in their thread. In a user's own loop nothing is
bound unless it uses ``with sg.bound(model, batch):``; the layers then do what plain PyG does, over
padding rows as well as real ones, without any visible error. So dispatching functions check, where
nothing is bound, whether an index argument lies in a batch's memory, and warn once per model, by
name.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from types import FrameType

import torch
from torch import Tensor

from staticgraph.batches.slots.batch_memory import stands_in_batch
from staticgraph.nn.context.bound_batch import traced_here

_WARNED: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def look(name: str, *arguments: object) -> None:
    """Warns if a module calls a function of PyG with an index of a batch that is not bound.

    Args:
        name: the function's name.
        arguments: the function's arguments.
    """
    if traced_here():
        return
    for value in arguments:
        if isinstance(value, Tensor) and not value.is_floating_point() and stands_in_batch(value):
            _warn(name)
            return


def _warn(name: str) -> None:
    layers, frame = _running()
    if not layers or frame is None:  # called directly by the user, possibly on the padded rows
        return
    model, layer = layers[-1], layers[0]
    if isinstance(layer, torch.fx.GraphModule):  # captured while the batch was bound
        return
    if model in _WARNED:
        return
    _WARNED.add(model)
    inside = "" if layer is model else f" ({type(layer).__name__} in it)"
    warnings.warn_explicit(
        f"{type(model).__name__}{inside} calls {name} with a batch of fixed shape outside of any "
        "forward that knows it: padding rows take part in norms, pools and losses. Write "
        "`with sg.bound(model, batch):` around the call, or call runner(batch); and take the loss "
        "over real rows, sg.masked_mean(values, batch)",
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
    )


def _running() -> tuple[list[torch.nn.Module], FrameType | None]:
    """The running modules, innermost first, and the frame that called the outermost."""
    layers: list[torch.nn.Module] = []
    caller: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            if not layers or owner is not layers[-1]:
                layers.append(owner)
            caller = frame.f_back
        frame = frame.f_back
    return layers, caller
