"""Which of a model's results are rows of the batch, known from where they come from.

The problem: in a bucket of 9 graphs a tensor ``[9, 9]`` may hold one row per graph, or be the
product of nine columns with themselves. Its size alone does not tell, and confusing the two
silently changes numbers. The idea: the number of rows that stem from the batch changes with the
batch. So the model runs once over padding alone in a bucket of other sizes, and a result is rows of
a level in a bucket only if its leading dimension is that level's in both. The same run tells which
norms take their statistics over the model's own tensors, and over which level the others do.

The cost: one forward over some 50 rows, once per runner and mode (training or not), which changes
no parameter, buffer, flag or random state. Following levels through every operation would need a
rule for each operation, and marking tensors that stem from the batch does not tell rows from
columns; this needs neither.

If a model cannot run over such a batch (because numbers of the plan are written into it), a sole
output is taken by its leading dimension, and each of several must be named by ``rows=``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import TorchDispatchMode, tree_leaves
from staticgraph.nn.context.row_queries import APART, ASKED, FLAT, Asked, NeedsStems
from staticgraph.schema import Level
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_call import Provenance, output_tensors, row_level
from staticgraph.steps.loss.mean_loss import LossTerms
from staticgraph.steps.loss.weighted_means import StockMeans, warn_of_stock_means

# How far the sizes of a second run are from the first's, so that sums and halves differ, too.
STEP = 6


def run_elsewhere(
    model: torch.nn.Module,
    forward: Callable[[StaticBatch], Any],
    loss: Callable[[Any, StaticBatch], Tensor] | None,
    layout: SlotLayout,
    device: torch.device,
    used: frozenset[int] = frozenset(),
) -> Provenance:
    """Runs a model over padding alone, in a bucket that shares no size with a layout.

    Args:
        model: names its layers; the caller restores its state.
        forward: of a batch, inside its context.
        loss: returns one value per row; or None.
        layout: of a bucket.
        device: the device of the model.
        used: further sizes that must not occur.

    Raises:
        NotStatic: a norm runs over rows of the batch and over a tensor of the model's own.
    """
    capacity = other_capacity(layout, used)
    other = SlotLayout(layout.bucket, capacity, layout.schema, layout.pointers)
    batch = StaticBatch.blank(other, device)
    try:
        noted, out = _noting(forward, batch, None)
    except NeedsStems:
        stems = Stems(batch)
        noted, out = _noting(forward, batch, stems)
    paths = {module: path for path, module in model.named_modules()}
    names = {module: path or "the model" for module, path in paths.items()}
    for norm in noted.apart:
        if norm in noted.norms:
            raise NotStatic(
                f"{names.get(norm, 'a norm')} runs over rows of the batch and over a tensor of "
                "the model's own: give each a norm of its own"
            )
        norm.__dict__[APART] = True
    for norm, flat in noted.flat.items():
        norm.__dict__[FLAT] = tuple({*(getattr(norm, FLAT, None) or ()), *flat})
    norms = [(names[norm], level) for norm, of_norm in noted.norms.items() for level in of_norm]
    ran = not isinstance(out, Exception)
    levels = {path: row_level(value, batch) for path, value in output_tensors(out)} if ran else {}
    unknown = noted.unknown
    if unknown and ran:
        # A size made up of the batch's, such as edges plus self-loops, differs in another bucket.
        further = {size + more for size in sizes_in(capacity) for more in range(STEP)}
        again = StaticBatch.blank(
            SlotLayout(
                layout.bucket,
                other_capacity(layout, used | further),
                layout.schema,
                layout.pointers,
            ),
            device,
        )
        further_run, second = _noting(forward, again, Stems(again))
        if not isinstance(second, Exception):
            unknown = {
                size: layer for size, layer in unknown.items() if size in further_run.unknown
            }
    return Provenance(
        levels=levels,
        loss=_loss_level(loss, out, batch) if ran and loss is not None else "",
        norms=tuple(sorted(norms)),
        uncounted=tuple(sorted(paths[norm] for norm in noted.uncounted)),
        apart={
            size: "a layer" if layer is None else names.get(layer, type(layer).__name__)
            for size, layer in unknown.items()
        },
        ran=ran,
        sizes=frozenset(sizes_in(capacity)),
    )


def _noting(
    forward: Callable[[StaticBatch], Any], batch: StaticBatch, stems: Stems | None
) -> tuple[Asked, Any]:
    """Returns what was queried, and the output or what the model raised."""
    noted = Asked(None if stems is None else stems.is_computed)
    token = ASKED.set(noted)
    try:
        if stems is None:
            return noted, forward(batch)
        with stems:
            return noted, forward(batch)
    except NeedsStems:
        raise
    except Exception as error:  # whatever the model raises over padding alone
        return noted, error
    finally:
        ASKED.reset(token)


def _loss_level(
    loss: Callable[[Any, StaticBatch], Tensor], out: Any, batch: StaticBatch
) -> Level | None:
    try:
        with StockMeans() as watch:
            result = loss(out, batch.replace())
        terms = LossTerms.of(result)
    except Exception:  # whatever the loss raises over padding alone
        return ""
    warn_of_stock_means(loss, watch, terms.weights)
    return row_level(terms.values, batch)


def other_capacity(layout: SlotLayout, used: frozenset[int] = frozenset()) -> Capacity:
    """Returns a small bucket for the same data that shares no size with a layout nor ``used``."""
    capacity = layout.capacity
    sizes = set(sizes_in(capacity)) | used
    graphs = _free(3, sizes)
    each, rest = divmod(capacity.nodes, capacity.graphs)
    if rest or each == 1:
        nodes = _free(13, sizes)
    else:  # perhaps of graphs of equal size, x.view(-1, each, F)
        while each * graphs in sizes:
            graphs = _free(graphs + 1, sizes)
        nodes = _free(each * graphs, sizes)
    keep_order = layout.schema.keep_order  # an even number: a model may read edges in pairs
    edges = _free(30, sizes, 2) if keep_order else _free(29, sizes)
    extra = {name: _free(41 + 4 * place, sizes) for place, (name, _) in enumerate(capacity.extra)}
    # Layers that join all types make as many rows as the sum of theirs.
    for kind in (layout.schema.node_axes, layout.schema.edge_axes):
        while len(kind) > 1 and sum(extra[axis.name] for axis in kind) in sizes:
            extra[kind[-1].name] = _free(extra[kind[-1].name] + 1, sizes)
        sizes.add(sum(extra[axis.name] for axis in kind))
    largest = nodes - capacity.node_reserve
    return Capacity(
        nodes,
        edges,
        graphs,
        largest,
        tuple(extra.items()),
        capacity.edge_reserve,
        capacity.node_reserve,
    )


def _free(at_least: int, taken: set[int], step: int = 1) -> int:
    """Returns the first number that is not taken, and takes it."""
    while at_least in taken:
        at_least += step
    taken.add(at_least)
    return at_least


def sizes_in(capacity: Capacity) -> list[int]:
    """The numbers of rows in a bucket, of every level."""
    return [capacity.nodes, capacity.edges, capacity.graphs, *(n for _, n in capacity.extra)]


class Stems(TorchDispatchMode):
    """While entered, tracks which memory holds values computed from a batch."""

    def __init__(self, batch: StaticBatch) -> None:
        super().__init__()
        self._storages: dict[int, Any] = {}  # kept alive, so that no address is reused
        self.mark(list(batch.tensors().values()))

    def is_computed(self, value: Tensor) -> bool:
        """Whether a tensor was computed from the batch."""
        return value.untyped_storage()._cdata in self._storages

    def mark(self, values: list[Any]) -> None:
        """Marks the tensors among values as computed from the batch."""
        for value in values:
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self._storages[storage._cdata] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        marked = any(self.is_computed(value) for value in inputs)
        out = func(*args, **kwargs)
        if marked:
            self.mark(tree_leaves(out))
            named = zip(func._schema.arguments, args, strict=False)
            self.mark([a for s, a in named if s.alias_info and s.alias_info.is_write])
        return out
