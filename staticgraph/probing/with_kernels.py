"""A model with this library's kernels under it for as long as it is looked at.

The problem: a training that will turn kernels on takes other memory than the model as it stands,
and ``convert(model, kernels=True)`` is for good. The idea: only classes and a few attributes of
modules change by it, so these are put back; parameters and buffers never move.
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
    """As a ``with`` block: inside, the model is as ``convert(model, kernels=True)`` makes it."""
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
    """Copies of what a module keeps its buffers in: some fused forms have one more."""
    return {name: vars(module)[name].copy() for name in ("_buffers", "_non_persistent_buffers_set")}
