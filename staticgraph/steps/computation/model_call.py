"""How a model is called with a batch, and which of its results are rows.

A model gets the batch itself, or what its parameters name. It also computes something in the
padding rows: in outputs that are rows they are set to zero, so that a sum over all rows by mistake
is still finite. In inputs, every fill of a slot already sets them to finite values; only a batch
from elsewhere can carry NaN or infinities in its padding, which no later mask undoes (zero times
NaN is NaN in a weight's gradient). ``sanitize=True`` sets them to zero inside the step.

How it is known what is rows: :mod:`staticgraph.steps.computation.provenance`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from staticgraph.batches.batch.batch_arrays import field_mask, wide_mask
from staticgraph.batches.batch.containers import parts_of, with_parts
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import users_level
from staticgraph.schema import DICT_SUFFIX, RESERVED, Level, attributes_of, is_read_by_key
from staticgraph.text.how_many import how_many

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


# ---------------------------------------------------------------------- results

# A tensor in an output: its keys and positions, from the outermost inwards.
Path = tuple[Any, ...]
# The only output.
SOLE: Path = ()


@dataclass(frozen=True)
class Provenance:
    """What is known of a model's results.

    Attributes:
        levels: the level of the rows of each tensor in the output, None for the model's own; empty
            if the model did not run.
        loss: likewise for the loss; ``""`` if unknown.
        norms: the paths of norms over rows of the batch, with the level.
        uncounted: the paths of norms over rows that a pool chose, whose number the host does not
            know.
        apart: sizes of the model's own tensors that layers queried, each with the layer.
        ran: whether the model ran over other sizes.
        sizes: those sizes.
        guessed: whether outputs are taken by their leading dimensions alone.
    """

    levels: Mapping[Path, Level | None] = field(default_factory=dict)
    loss: Level | None = ""
    norms: tuple[tuple[str, Level], ...] = ()
    uncounted: tuple[str, ...] = ()
    apart: Mapping[int, str] = field(default_factory=dict)
    ran: bool = False
    sizes: frozenset[int] = frozenset()
    guessed: bool = False


def level_in(out: Any, batch: StaticBatch, known: Provenance, rows: Mapping[Any, Any]) -> Any:
    """Maps the path of each tensor in an output to the level of its rows, None for no rows.

    Args:
        out: a tensor, or tuples, lists and dicts of them; anything else has no rows.
        batch: what it was computed from.
        known: what a run over another batch found.
        rows: ``{key or position: level}`` from the user, None for no rows.

    Raises:
        ValueError: the level cannot be known, or ``rows`` names a tensor that does not exist.
    """
    tensors = dict(output_tensors(out))
    chosen = {str(key): level for key, level in rows.items()}
    names = [name_of(path) for path in tensors] if chosen else []
    if unknown := [key for key in rows if str(key) not in names]:
        raise ValueError(
            f"rows={{{unknown[0]!r}: ...}}, but the model's output has "
            + (", ".join(map(repr, names)) if SOLE not in tensors else "one tensor, without a name")
        )
    levels: dict[Path, Level | None] = {}
    for path, value in tensors.items():
        level = row_level(value, batch)
        if chosen and name_of(path) in chosen:
            levels[path] = _as_said(chosen[name_of(path)], path, value, batch)
        elif level is None or known.ran:
            levels[path] = level if known.levels.get(path) == level else None
        elif len(tensors) > 1 and not known.guessed:
            raise ValueError(
                f"the model's output {name_of(path)!r} of shape {list(value.shape)} may be rows "
                f"({level}) or the model's own, and the model does not run over a batch of other "
                f"sizes, which would tell: say rows={{{name_of(path)!r}: {level!r}}}, or None for "
                "no rows"
            )
        else:
            levels[path] = level
    return levels


def output_tensors(out: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yields the tensors of an output that may be rows, each with its path."""
    if isinstance(out, Tensor):
        yield path, out
        return
    for key, item in parts_of(out) or ():
        yield from output_tensors(item, (*path, key))


def name_of(path: Path) -> str:
    """The name of an output's tensor in ``rows=`` and messages: ``embedding``, ``a.0``."""
    return ".".join(map(str, path))


def row_level(value: Tensor, batch: StaticBatch) -> Level | None:
    """Returns the level whose rows a tensor has by its leading dimension; None for none."""
    if not value.dim():
        return None
    for level, rows in batch.layout.rows.items():
        # No guard on a size that depends on data: the trace should fail at the line that made the
        # size, not here.
        if guard_or_false(value.shape[0] == rows):
            return level
    return None


def _as_said(level: Level | None, path: Path, value: Tensor, batch: StaticBatch) -> Level | None:
    if level is None:
        return None
    rows = batch.layout.rows
    if level not in rows:
        raise ValueError(f"rows: no level {level!r}; there are {', '.join(rows)}")
    if value.dim() == 0 or value.shape[0] != rows[level]:
        raise ValueError(
            f"rows={{{name_of(path)!r}: {level!r}}}, but the output has the shape "
            f"{list(value.shape)} in a bucket of {how_many(rows[level], 'row')} of this level"
        )
    return level


def zero_padding(
    out: Any, batch: StaticBatch, levels: Mapping[Path, Level | None], path: Path = ()
) -> Any:
    """Returns ``out`` with zeros in the padding rows of the tensors whose level is known.

    Tuples, lists and dicts are searched; anything else is left alone.
    """
    if isinstance(out, Tensor):
        level = levels.get(path)
        if level is None:
            return out
        return _zero_but(batch[f"{level}_mask"], out)
    parts = parts_of(out)
    if parts is None:
        return out
    return with_parts(out, [zero_padding(item, batch, levels, (*path, key)) for key, item in parts])


def sanitized(batch: StaticBatch) -> StaticBatch:
    """Returns the batch with zeros in every padding row of every field, whatever they contained."""
    clean = {}
    for each in batch.layout.schema:
        if each.is_index:
            continue  # an index must keep its padding, which refers to padding rows
        clean[each.name] = _zero_but(field_mask(batch, each), batch[each.name])
    return batch.replace(**clean)


def _zero_but(mask: Tensor, value: Tensor) -> Tensor:
    """Returns the value where the mask is True, else zero, in the value's own dtype.

    With the number 0, bool would become int64, which indexes rows instead of masking them.
    """
    return torch.where(wide_mask(mask, value), value, False if value.dtype == torch.bool else 0)
