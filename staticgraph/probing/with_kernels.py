"""A model with this library's kernels, for the duration of a ``with`` block.

The problem: a training that will enable kernels takes different memory from the unconverted model,
and ``convert(model, kernels=True)`` is permanent. The idea: it changes only classes and a few
attributes of modules, so these are restored; parameters and buffers never move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.convert import convert


@contextmanager
def with_kernels(model: torch.nn.Module) -> Iterator[None]:
    """Within the block, the model is as ``convert(model, kernels=True)`` makes it."""
    modules = [(m, type(m), dict(vars(m)), _registered(m)) for m in model.modules()]
    found = (own.get("_staticgraph") for _, _, own, _ in modules)
    context = next((one for one in found if isinstance(one, BatchContext)), None)
    before = None if context is None else context.kernels
    try:
        convert(model, kernels=True)
        yield
    finally:
        for module, kind, own, registered in modules:
            module.__class__ = kind
            present = vars(module)
            for name in present.keys() - own.keys():
                del present[name]
            present.update(own)
            for name, values in registered.items():
                present[name].clear()
                present[name].update(values)
        if context is not None and before is not None:
            context.kernels = before


def _registered(module: torch.nn.Module) -> dict[str, Any]:
    """Copies of the containers of a module's buffers: some fused forms have one more buffer."""
    return {name: vars(module)[name].copy() for name in ("_buffers", "_non_persistent_buffers_set")}
