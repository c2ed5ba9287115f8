"""How a model is called with a batch: by the names of its parameters, or with the batch itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from staticgraph.batch import StaticBatch

# A sole parameter of such a name means the batch, also where "batch" is a field as well.
WHOLE_BATCH = frozenset({"data", "batch", "batched_data", "batch_data", "graph", "graphs", "g"})

Forward = Callable[[torch.nn.Module, StaticBatch], Any]


def forward_of(model: torch.nn.Module) -> Forward:
    """The way to call a model.

    ``forward(data)`` gets the batch; ``forward(x, edge_index, edge_attr=None, batch=None,
    batch_size=None)`` gets what the batch has under each name, and the defaults of the rest.
    """
    parameters = [
        parameter
        for parameter in inspect.signature(model.forward).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    required = [p.name for p in parameters if p.default is p.empty]
    if required == [parameters[0].name] and required[0] in WHOLE_BATCH:
        return lambda module, batch: module(batch)
    names = [(p.name, p.default is p.empty) for p in parameters]
    kind = type(model).__name__

    def by_name(module: torch.nn.Module, batch: StaticBatch) -> Any:
        given = {}
        for name, needed in names:
            value = batch.argument(name)
            if value is not None:
                given[name] = value
            elif needed:
                raise TypeError(
                    f"{kind}.forward needs {name!r}, which the batch does not have (it has "
                    f"{', '.join(batch.keys())}): pass forward=lambda model, batch: ..."
                )
        return module(**given)

    return by_name
