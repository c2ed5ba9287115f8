"""Splits the output of a batch by the requests that its graphs belong to.

A model returns a tensor of rows, or tuples, lists and dicts of tensors; each caller gets the same
structure with the rows of its own graphs, as ``runner.predict`` on these graphs alone would return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import parts_of, with_parts
from staticgraph.batches.batch.predictions import Predictions
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.store.graph_columns import GraphColumns


class OutputRows(NamedTuple):
    """One output of some graphs: ``[n, ...]`` if each has one row, else a list with one tensor per
    graph."""

    rows: Tensor | list[Tensor]


class PlainOutput(NamedTuple):
    """A value without rows of graphs: None, a number, a string."""

    value: Any


class NestedOutputs(NamedTuple):
    """Outputs by key or position, and the container that the model returns them in."""

    parts: dict[Any, Any]
    container: Any


Output = OutputRows | PlainOutput | NestedOutputs


def output_of(store: GraphColumns, batch: StaticBatch, out: Any, name: str = "") -> Output:
    """The output of a batch of all graphs of a store, in their order, on the CPU.

    Raises:
        ValueError: an output is a scalar tensor, a single number for the graphs of all callers.
        TypeError: an output is of a type that a model may not return.
    """
    if (items := parts_of(out)) is not None:
        parts = {key: output_of(store, batch, value, f"{name}[{key!r}]") for key, value in items}
        return NestedOutputs(parts, with_parts(out, [None] * len(items)))
    if isinstance(out, Tensor) and not out.dim():
        raise ValueError(
            f"the model's output{name} is one number for all graphs of a batch, which are of "
            "several callers: leave it out with forward=lambda model, batch: ..."
        )
    if isinstance(out, Tensor) and batch.level_of(out) == "graph":
        return OutputRows(out[: len(store)].detach().to("cpu", copy=True))
    predictions = Predictions(store)
    predictions.add(batch, out)
    values = predictions.in_order()
    return OutputRows(values) if isinstance(out, Tensor) else PlainOutput(values)


def cut(output: Output, first: int, last: int) -> Output:
    """The output of graphs ``first`` to ``last - 1``."""
    match output:
        case OutputRows(rows):
            return OutputRows(rows[first:last])
        case PlainOutput():
            return output
        case NestedOutputs(parts, container):
            return NestedOutputs(
                {key: cut(part, first, last) for key, part in parts.items()}, container
            )


def answer(pieces: Sequence[Output]) -> Any:
    """A caller's answer: the pieces concatenated in order, in the structure that the model
    returns."""
    match pieces[0]:
        case PlainOutput(value):
            return value
        case NestedOutputs(parts, container):
            values = [
                answer([piece.parts[key] for piece in pieces])  # type: ignore[union-attr]
                for key in parts
            ]
            return with_parts(container, values)
        case OutputRows(rows):
            all_rows = [piece.rows for piece in pieces if isinstance(piece, OutputRows)]
            if isinstance(rows, Tensor):
                return rows if len(pieces) == 1 else torch.cat(all_rows)  # type: ignore[arg-type]
            return [row for each in all_rows for row in each]
