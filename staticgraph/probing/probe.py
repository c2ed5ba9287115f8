"""Measuring a model at a few capacities to predict its memory at every other.

The problem: the bucket sizes follow from the device, as large as fits and never larger, before the
first step. The idea: run one warm step at a handful of capacities in which nodes, edges, graphs and
the largest graph vary independently (and the rows of each of the data's own axes; where nodes have
types, these replace the totals of nodes and edges), fit the bytes that the step adds
(:mod:`staticgraph.memory.fit`), and check the fit on a capacity twice the largest that was fitted.
The invariants: the process is left as it was found, in memory, weights and random state; an error
that is not out-of-memory passes unchanged.

Which path is read: the shapes that are recorded. The batch of a probe hides its real counts
(``batch.real`` is None), so layers that would follow them in plain eager mode (batch norm over the
real rows alone, an attention block as small as the batch) use the bucket's full shapes, as they do
in a recording; following them takes less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import mul
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import ALIGNMENT, SlotLayout
from staticgraph.errors import FitRefused, ProbeFailed
from staticgraph.memory.fit import SUMS, TERMS, FitPoint, Form, rows_of
from staticgraph.memory.memory_model import BatchBytes, MemoryModel
from staticgraph.plans.plan import sizes_of
from staticgraph.probing.allocator import AllocatorReader, CudaAllocator
from staticgraph.probing.fake_tensors import FakeTensorReader, resident_bytes
from staticgraph.probing.fit_readings import Fitting, ascending
from staticgraph.probing.step_reading import MemoryReader, Probed
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.reserves import with_pairs, with_reserves
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.steps.computation.model_call import Forward
from staticgraph.steps.computation.model_setup import Subject

# Graphs in the smallest probe, first and where memory runs out; the largest has ten times as many.
BASE_GRAPHS = (32, 8, 2)
# Multiples of a base, and of the largest graph's nodes. The line through the first and last is the
# two-point form; between them, each count is APART at multiples of another size.
SHAPES = ((1.0, 1.0), (3.0, 1.0), (5.0, 0.5), (10.0, 0.25), (10.0, 0.5), (10.0, 1.0))
APART = 7.0
HELD_OUT, HELD_OUT_APART = (22.0, 0.75), {"edges": 21.0, "graphs": 20.0}


def probe(
    model: torch.nn.Module | Subject,
    store: Any,
    *,
    loss: Callable[[Any, StaticBatch], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    form: Form | Literal["auto"] = "auto",
    reader: MemoryReader | Literal["auto", "fake", "fake-cuda", "cuda"] = "auto",
    forward: Forward | None = None,
    autocast: torch.dtype | None = None,
    accumulate: int = 1,
    capacities: Sequence[Capacity] | None = None,
    held_out: Capacity | None = None,
) -> MemoryModel:
    """Measures the memory of a step as a function of the capacity.

    Args:
        model: any PyG model, as for :class:`staticgraph.StaticGraphRunner`, or a
            :class:`~staticgraph.steps.computation.model_setup.Subject`, which has loss, optimizer,
            forward and autocast.
        store: a :class:`staticgraph.GraphStore`, or anything with ``.sizes`` and ``.schema``.
        loss: as for the runner; without one, evaluation is probed.
        optimizer: over the model's parameters; without one, forward and backward are probed.
        form: one of :data:`staticgraph.memory.fit.TERMS`, such as ``linear``, ``attention`` or
            ``quadratic``, or ``auto``, which determines it.
        reader: how bytes are read: ``cuda`` (the allocator, real steps), ``fake`` (fake tensors,
            counted as on the CPU), ``fake-cuda`` (counted as on CUDA), or a custom reader.
            ``auto`` is ``cuda`` for a model on CUDA, else ``fake``.
        forward: as for the runner.
        autocast: a dtype to run forward and loss in.
        accumulate: backward passes per step of the optimizer.
        capacities: the capacities to measure, instead of ones chosen from the sizes of the data.
        held_out: the capacity to check the fit on, with ``capacities``; it is not fitted.

    Raises:
        FitRefused: the points do not determine the form, or no form explains them within 5%.
        ProbeFailed: memory ran out before enough points were measured.
        ValueError: an unknown reader or form, ``accumulate`` below 1, or a model that cannot
            be copied over fake tensors.
    """
    if accumulate < 1:
        raise ValueError(f"accumulate={accumulate} must be at least 1")
    if form not in ("auto", *TERMS):
        raise ValueError(f"form={form!r}; choose 'auto', {', '.join(map(repr, TERMS))}")
    schema: Schema = store.schema
    subject = Subject.of(model, loss=loss, optimizer=optimizer, forward=forward, autocast=autocast)
    probed = Probed(subject, schema, accumulate)
    chosen = _reader(reader, subject)
    with chosen.open(probed) as read:
        fitting = Fitting(read, form, schema.hetero)
        if capacities is not None:
            fitting.begin([c for c in ascending(capacities) if c != held_out], held_out)
        else:
            for graphs in BASE_GRAPHS:
                if fitting.begin(*probe_capacities(sizes_of(store), graphs, schema)):
                    break
        if not fitting.readings:
            raise ProbeFailed(
                f"not even the smallest probe fits. {fitting.note}. Free the device, use a smaller "
                "model, or plan with reader='fake', which takes no memory"
            )
        return _model_of(fitting, probed, chosen.name)


def probe_capacities(
    sizes: IntArray, graphs: int = BASE_GRAPHS[0], schema: Schema | None = None
) -> tuple[list[Capacity], Capacity]:
    """The capacities to measure for graphs of these sizes, and the one to check the fit on.

    Args:
        sizes: ``[n, C]`` nodes and edges of the data, and rows of its axes.
        graphs: number of graphs in the smallest capacity.
        schema: names the axes; no axes where it is None.

    Returns:
        Distinct capacities, each costlier than the one before, and one more than twice the last.

    Raises:
        ValueError: there are no graphs.
    """
    if not len(sizes):
        raise ValueError("the data set is empty: there is no graph size to probe for")
    mean, widest = sizes.mean(axis=0), max(1, int(sizes[:, 0].max()))
    # At least one row and one edge per graph: a component that is rare, or in no graph (a set, a
    # cloud of points), is measured with enough rows to separate it from zero.
    base = {
        "nodes": max(mean[0] * graphs, widest + 1),
        "edges": max(mean[1], 1.0) * graphs,
        "graphs": graphs,
    }
    axes = {axis.name: rows_of(axis.name) for axis in (schema.axes if schema else ())}
    for term, average in zip(axes.values(), mean[2:], strict=True):
        base[term] = max(average, 1.0) * graphs

    def capacity_at(size: float, width: float, apart: Mapping[str, float]) -> Capacity:
        """The capacity at multiples of the base, and of the widest graph."""
        rows = {term: round(count * apart.get(term, size)) for term, count in base.items()}
        largest = max(1, round(widest * width))
        capacity = Capacity.distinct(
            max(largest + 1, rows["nodes"]),
            rows["edges"],
            max(2, rows["graphs"]),
            largest,
            {name: max(2, rows[term]) for name, term in axes.items()},
        )
        return with_reserves(capacity, schema) if axes else with_pairs(capacity, schema)

    typed = schema is not None and schema.hetero
    shapes = [(*shape, {}) for shape in SHAPES]
    shapes += [(*SHAPES[-1], {term: APART}) for term in base if not (typed and term in SUMS)]
    return ascending(capacity_at(*shape) for shape in shapes), capacity_at(
        *HELD_OUT, HELD_OUT_APART
    )


def _model_of(fitting: Fitting, probed: Probed, reader: str) -> MemoryModel:
    try:
        fit = fitting.run()
    except FitRefused as refusal:
        if fitting.note:
            raise ProbeFailed(f"{fitting.note}; with the points before it: {refusal}") from None
        raise
    readings, checked = fitting.readings, fitting.checked
    every = [reading for _, reading in [*readings, *([checked] if checked else [])]]
    return MemoryModel(
        fit=fit,
        resident=resident_bytes(probed.subject),
        batch=batch_bytes(probed.schema, probed.subject.pointers),
        update_bytes=max(reading.update for reading in every),
        overhead=float(np.median([reading.overhead for reading in every])),
        workspace_bytes=max(reading.workspaces for reading in every),
        points=tuple(FitPoint(capacity, reading.step) for capacity, reading in readings),
        checked=None if checked is None else FitPoint(checked[0], checked[1].step),
        reader=reader,
        note=fitting.note,
    )


def batch_bytes(schema: Schema, pointers: bool = False) -> BatchBytes:
    """Bytes of a slot for any capacity, with the full alignment counted for every array."""
    # Numbers that stay distinct when one of them grows by 1.
    axes = [axis.name for axis in schema.axes]
    usual = [100, 200, 50, *range(300, 300 + 2 * len(axes), 2)]

    def sizes_with(more: int | None = None) -> list[int]:
        """The bytes of each array of a slot, where one of the numbers of rows is larger by 1."""
        nodes, edges, graphs, *rows = (n + (k == more) for k, n in enumerate(usual))
        extra = tuple(zip(axes, rows, strict=True))
        capacity = Capacity(nodes, edges, graphs, 1, extra, int(schema.counts_edges))
        return [entry.nbytes for entry in SlotLayout(0, capacity, schema, pointers).entries]

    arrays = sizes_with()
    slopes = [sum(sizes_with(k)) - sum(arrays) for k in range(len(usual))]
    fixed = sum(arrays) - sum(map(mul, slopes, usual)) + len(arrays) * ALIGNMENT
    node, edge, graph, *others = slopes
    return BatchBytes(fixed, node, edge, graph, tuple(zip(axes, map(float, others), strict=True)))


def _reader(reader: MemoryReader | str, subject: Subject) -> MemoryReader:
    if not isinstance(reader, str):
        return reader
    device = subject.device
    if reader == "auto":
        reader = "cuda" if device.type == "cuda" else "fake"
    if reader in ("fake", "fake-cuda"):
        return FakeTensorReader("cpu" if reader == "fake" else "cuda")
    if reader != "cuda":
        raise ValueError(f"reader={reader!r}; choose 'auto', 'cuda', 'fake' or 'fake-cuda'")
    if device.type != "cuda":
        raise ValueError(
            f"reader='cuda' runs real steps on the model's device, which is {device}: move the "
            "model with .to('cuda'), or use reader='fake-cuda' to plan without the device"
        )
    return AllocatorReader(CudaAllocator(device))
