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

A step also computes something in the padding rows. In outputs that are rows they are set to zero,
so that a sum over all rows by mistake is still finite. In inputs, every fill of a slot already sets
them to zero; only a batch from elsewhere can carry NaN or infinities in its padding, which no later
mask undoes (zero times NaN is NaN in a weight's gradient). ``sanitize=True`` sets them to zero
inside the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from staticgraph.batches.batch.batch_arrays import field_mask, wide_mask
from staticgraph.batches.batch.containers import parts_of, with_parts
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import TorchDispatchMode, tree_leaves
from staticgraph.nn.context.row_queries import APART, ASKED, FLAT, Asked, NeedsStems
from staticgraph.schema import Level
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.loss.mean_loss import LossTerms
from staticgraph.steps.loss.weighted_means import StockMeans, warn_of_stock_means
from staticgraph.text.how_many import how_many

# A tensor in an output: its keys and positions, from the outermost inwards.
Path = tuple[Any, ...]
# The only output, and the loss.
SOLE: Path = ()
LOSS = "loss"
# How far the sizes of a second run are from the first's, so that sums and halves differ, too.
STEP = 6


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
    for level in batch.levels:
        # No guard on a size that depends on data: the trace should fail at the line that made the
        # size, not here.
        if guard_or_false(value.shape[0] == batch.capacity.rows(level)):
            return level
    return None


def _as_said(level: Level | None, path: Path, value: Tensor, batch: StaticBatch) -> Level | None:
    if level is None:
        return None
    if level not in batch.levels:
        raise ValueError(f"rows: no level {level!r}; there are {', '.join(batch.levels)}")
    if value.dim() == 0 or value.shape[0] != batch.capacity.rows(level):
        raise ValueError(
            f"rows={{{name_of(path)!r}: {level!r}}}, but the output has the shape "
            f"{list(value.shape)} in a bucket of {how_many(batch.capacity.rows(level), 'row')} of "
            "this level"
        )
    return level


# ---------------------------------------------------------------------- the run over other sizes


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
        further = {size + more for size in _sizes(capacity) for more in range(STEP)}
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
        sizes=frozenset(_sizes(capacity)),
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
    sizes = set(_sizes(capacity)) | used
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


def _sizes(capacity: Capacity) -> list[int]:
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
        value = batch[each.name]
        mask = field_mask(batch, each)
        clean[each.name] = _zero_but(mask, value)
    return batch.replace(**clean)


def _zero_but(mask: Tensor, value: Tensor) -> Tensor:
    """Returns the value where the mask is True, else zero, in the value's own dtype.

    With the number 0, bool would become int64, which indexes rows instead of masking them.
    """
    return torch.where(wide_mask(mask, value), value, False if value.dtype == torch.bool else 0)
