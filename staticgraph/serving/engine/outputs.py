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
from staticgraph.serving.engine.plain_values import plain
from staticgraph.store.graph_columns import GraphColumns


class OutputRows(NamedTuple):
    """One output of some graphs: ``[n, ...]`` if each has one row, else a list with one tensor per
    graph; after :func:`listed`, lists of numbers in place of tensors."""

    rows: Tensor | list[Any]


class Plain(NamedTuple):
    """A value without rows of graphs: None, a number, a string."""

    value: Any


class NestedOutputs(NamedTuple):
    """Outputs by key or position, and the container that the model returns them in."""

    parts: dict[Any, Any]
    container: Any


Output = OutputRows | Plain | NestedOutputs


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
    found = predictions.in_order()
    return OutputRows(found) if isinstance(out, Tensor) else Plain(found)


def listed(output: Output) -> Output:
    """The output with lists of numbers, which can be split without one tensor per caller."""
    match output:
        case OutputRows(rows):
            return OutputRows(plain(rows))
        case Plain():
            return output
        case NestedOutputs(parts, container):
            return NestedOutputs({key: listed(part) for key, part in parts.items()}, container)


def cut(output: Output, first: int, last: int) -> Output:
    """The output of graphs ``first`` to ``last - 1``."""
    match output:
        case OutputRows(rows):
            return OutputRows(rows[first:last])
        case Plain():
            return output
        case NestedOutputs(parts, container):
            return NestedOutputs(
                {key: cut(part, first, last) for key, part in parts.items()}, container
            )


def answer(pieces: Sequence[Output]) -> Any:
    """A caller's answer: the pieces concatenated in order, in the structure that the model
    returns."""
    match pieces[0]:
        case Plain(value):
            return value
        case NestedOutputs(parts, container):
            found = [
                answer([piece.parts[key] for piece in pieces])  # type: ignore[union-attr]
                for key in parts
            ]
            return with_parts(container, found)
        case OutputRows(rows):
            if len(pieces) == 1:
                return rows
            all_rows = [piece.rows for piece in pieces if isinstance(piece, OutputRows)]
            if isinstance(rows, Tensor):
                return torch.cat(all_rows)  # type: ignore[arg-type]
            return [row for each in all_rows for row in each]


def plain_of(output: Output) -> Any:
    """A :func:`listed` output as plain values, for a caller that takes no tensors."""
    match output:
        case OutputRows(rows):
            return rows
        case Plain(value):
            return plain(value)
        case NestedOutputs(parts, container):
            found = [plain_of(part) for part in parts.values()]
            if isinstance(container, dict):
                return dict(zip(map(str, parts), found, strict=True))
            return found if isinstance(container, list | tuple) else with_parts(container, found)
