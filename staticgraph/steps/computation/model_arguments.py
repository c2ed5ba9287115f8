"""How a model is called with a batch: by its parameters' names, or with the batch itself."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from staticgraph.batches.batch.own_class import attributes_of, is_read_by_key
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import users_level
from staticgraph.schema import DICT_SUFFIX, RESERVED

# A sole parameter with such a name means the batch, even if "batch" is a field as well.
WHOLE_BATCH = frozenset({"data", "batch", "batched_data", "batch_data", "graph", "graphs", "g"})
# A sole parameter of any other name means the batch, too, except these names, which PyG's own
# layers use: there the field is missing, and an error that says so helps more.
_FIELDS = frozenset({"x", "z", "pos", "edge_index", "edge_attr", "edge_weight", "edge_type", "adj"})

Forward = Callable[[torch.nn.Module, StaticBatch], Any]


def forward_of(model: torch.nn.Module) -> Forward:
    """Returns the way to call a model.

    ``forward(data)`` gets the batch; ``forward(x, edge_index, edge_attr=None, batch=None,
    batch_size=None)`` gets what the batch has under each name, and the defaults for the rest. A
    sole parameter without a default whose name is no field of the batch gets the batch itself.

    Raises:
        TypeError: the model names no parameter, so that what to pass is unknown; or, when called,
            the batch lacks a parameter.
    """
    parameters = _parameters_of(model)
    kind = type(model).__name__
    if hasattr(model, "_orig_mod"):
        raise TypeError(
            "the model was compiled by torch.compile: give the runner the model itself, and say by "
            "mode= how its steps run; a compiled model in a loop of your own goes with "
            "sg.bound(model, batch), docs/loops.md"
        )
    if not parameters and isinstance(getattr(model, "module", None), torch.nn.Module):
        raise TypeError(
            f"{kind} wraps a model and says nothing of what that takes: give the runner the model "
            "inside, model.module; several GPUs take a process each, under torchrun, and the "
            "runner averages their gradients (docs/distributed.md)"
        )
    if not parameters:
        raise TypeError(
            f"{kind}.forward names no parameter, so what to give it is unknown: pass "
            "forward=lambda model, batch: model(batch.x, batch.edge_index, ...)"
        )
    required = [p.name for p in parameters if p.default is p.empty]
    if required == [parameters[0].name] and required[0] in WHOLE_BATCH:
        return lambda module, batch: module(batch)
    names = [(p.name, p.default is p.empty) for p in parameters]
    sole = required[0] if len(required) == 1 and required[0] not in _FIELDS else None

    def by_name(module: torch.nn.Module, batch: Any) -> Any:
        """Calls the model with the batch's fields that its parameters name."""
        arguments = {}
        for name, needed in names:
            value = _argument(batch, name)
            if value is not None:
                arguments[name] = value
            elif name == sole:
                arguments[name] = batch
            elif needed:
                raise TypeError(
                    f"{kind}.forward needs {name!r}, which the batch does not have (it has "
                    f"{', '.join(_contents(batch))}): name it as the data does, or pass "
                    "forward=lambda model, batch: ..."
                )
        return module(**arguments)

    return by_name


def optional_fields(model: torch.nn.Module, batch: StaticBatch) -> tuple[str, ...]:
    """Warns of the optional arguments that :func:`forward_of` fills from fields, and returns them.

    A loop of the user's own may leave ``edge_attr=None``, and the model then takes another branch.
    The library's own models take all fields that there are, and are not warned of.
    """
    parameters, kind = _parameters_of(model), type(model)
    required = [p.name for p in parameters if p.default is p.empty]
    if len(required) == 1 and required[0] in WHOLE_BATCH:
        return ()
    fields = tuple(
        p.name
        for p in parameters
        if p.default is None
        and p.name.removesuffix(DICT_SUFFIX) not in RESERVED
        and batch.argument(p.name) is not None
    )
    if fields and not kind.__module__.startswith("staticgraph."):
        arguments = ", ".join(f"batch.{name}" for name in required)
        warnings.warn(
            f"{kind.__name__}.forward gets its optional {', '.join(fields)} from the fields of the "
            "data: if your own loop leaves them out, say so with forward=lambda model, batch: "
            f"model({arguments}), or make the store with exclude={list(fields)}",
            stacklevel=users_level(),
        )
    return fields


def _parameters_of(model: torch.nn.Module) -> list[inspect.Parameter]:
    return [
        parameter
        for parameter in inspect.signature(model.forward).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _argument(batch: Any, name: str) -> Any:
    """What a batch, perhaps of the user's own class, has under a name; None for nothing."""
    argument = getattr(batch, "argument", None)
    if argument is not None:
        return argument(name)
    if is_read_by_key(batch) and name in batch.keys():  # noqa: SIM118
        return batch[name]
    return None if isinstance(batch, Mapping) else getattr(batch, name, None)


def _contents(batch: Any) -> list[str]:
    """The names of a batch's contents that came from the user, without masks and positions."""
    derived = ("_mask", "_batch", "_ptr", "graph_ids", "transpose")
    names = batch.keys() if hasattr(batch, "keys") else [name for name, _ in attributes_of(batch)]
    return [name for name in names if not name.endswith(derived)]
