"""Whether a model reads edges by their position, while its data set had to move them.

A store sorts edges by destination. Sums over neighbours do not notice, but a model that takes the
reverse of edge ``2k`` to be ``2k + 1`` (D-MPNN, and bonds in pairs of OGB's and ``from_smiles``'s
order) reads other edges, and computes other numbers without any error. So plain PyG runs twice on a
few of a batch's graphs: with edges as the batch has them, and as they came. Whatever differs, other
than the order of rows of edges, depends on the order, and is refused with its line and the remedy.

The run with sorted edges has no padding either, so random numbers are the only thing left that may
make the two differ: all of them are one constant, or both sides evaluate. With several ranks both
evaluate too, each rank alone: a forward that begins a collective is left unchecked, since the other
ranks would not join it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.comparison import (
    Comparer,
    RunOptions,
    attempt,
    several_ranks,
)
from staticgraph.checking.equal_draws import Jitter
from staticgraph.checking.example_batch import portion_of
from staticgraph.checking.outcome import Difference, Outcome
from staticgraph.checking.padding_culprit import Culprit, Trail
from staticgraph.checking.plain_batch import PlainBatch, plain_batch
from staticgraph.errors import EdgesMoved
from staticgraph.internals.dispatch import TorchDispatchMode
from staticgraph.schema import EDGE_INDEX, Level
from staticgraph.store.indices import counted


def places_in_first_order(batch: StaticBatch, whole: StaticBatch) -> dict[Level, Tensor]:
    """Edge level -> ``[rows]`` int64, which row each row of the batch was before sorting.

    Levels of which the store moved no edge of these graphs are left out.

    Args:
        batch: with the first graphs of ``whole``, or all of them.
        whole: a batch as it was loaded.
    """
    places = {}
    schema, real = batch.layout.schema, batch.real_counts
    for level in [axis.name for axis in schema.edge_axes] or ["edge"]:
        first_places = whole.first_places(level)
        if first_places is not None:
            every = torch.arange(batch.capacity.rows(level), device=batch.device)
            moved = torch.from_numpy(first_places[: real.of(level)]).to(batch.device)
            if not torch.equal(moved, every[: len(moved)]):
                every[: len(moved)] = moved
                places[level] = every
    return places


def in_first_order(batch: StaticBatch, places: dict[Level, Tensor]) -> StaticBatch:
    """Returns the batch with its edges in the order of the data set, indices into them too."""
    changed: dict[str, Tensor] = {}
    for level, place in places.items():
        for field in batch.layout.schema:
            value = changed[field.name] if field.name in changed else batch[field.name]
            dim = field.cat_dim or 0
            scalars = [scalar for scalar, of in counted(field) if of == level]
            if scalars:
                rows = value.movedim(dim, 0)
                flat = rows.reshape(len(rows), -1).clone()
                flat[:, scalars] = place[flat[:, scalars]]
                value = flat.view(rows.shape).movedim(0, dim)
            if field.level == level:
                value = torch.empty_like(value).index_copy_(dim, place, value)
            changed[field.name] = value
        if batch.layout.schema.one_kind:
            ends = batch.edge_index
            changed[EDGE_INDEX] = torch.empty_like(ends).index_copy_(1, place, ends)
    return batch.replace(**changed)


class _NoCollectives(TorchDispatchMode):
    """Raises before a collective, which would wait for the other ranks."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise RuntimeError(f"{func} waits for other ranks")
        return func(*args, **(kwargs or {}))


def order_error(comparer: Comparer, batch: StaticBatch, options: RunOptions) -> EdgesMoved | None:
    """Returns the error of a model that reads edges by their position; None if it does not.

    Args:
        comparer: runs the model.
        batch: with real graphs.
        options: of the runs.
    """
    if batch.real is None:
        return None
    several = several_ranks()
    if several:
        options = options._replace(training=False, gradients=False)
    whole, portion = batch, portion_of(batch)
    places = {} if portion is None else places_in_first_order(portion, whole)
    if portion is not None and places:  # a few graphs show it
        batch = portion
    elif not (places := places_in_first_order(batch, whole)):
        return None
    sides = [plain_batch(batch), plain_batch(in_first_order(batch, places))]
    of_first: dict[RunOptions, Outcome | None] = {}
    rows = {batch.real_counts.of(level): place for level, place in places.items()}

    def nearest(value: Tensor, like: Tensor | None) -> Tensor:
        """Returns a value in the batch's order, if it has rows of edges, as the other one tells."""
        if like is None or not value.dim() or len(value) not in rows or value.shape != like.shape:
            return value
        place = rows[len(value)][: len(value)].to(value.device)
        moved = value.index_select(0, place)
        off, off_moved = ((each.double() - like.double()).abs().sum() for each in (value, moved))
        return moved if off_moved < off else value

    def run(side: PlainBatch, options: RunOptions) -> Outcome | None:
        """Runs plain PyG, the first side once; None if the model raises."""
        known = of_first if side is sides[0] else {}
        if options not in known:
            with _NoCollectives() if several else nullcontext():
                known[options] = attempt(lambda: comparer.plain(batch, side, options))
        return known[options]

    def both(options: RunOptions) -> tuple[Outcome, Outcome] | None:
        """Runs both orders; None if either raises, or has numbers that are not finite."""
        ran = [each for each in (run(side, options) for side in sides) if each and each.finite]
        if len(ran) < 2:
            return None
        ordered = ran[0].values
        values = {k: nearest(v, ordered.get(k)) for k, v in ran[1].values.items()}
        return ran[0], ran[1]._replace(values=values)

    # Numbers are drawn by position, and rows of edges have other positions here.
    first = run(sides[0], options)
    if first is not None and first.draws:
        hashed = all(draw.hashed for draw in first.draws)
        options = options._replace(constant=hashed, training=options.training and hashed)
    tolerance, outcomes = comparer.tolerance.other_order, both(options)
    if outcomes is None or not all(draw.hashed for draw in outcomes[0].draws):
        return None
    difference = outcomes[0].clear_difference(
        outcomes[1], tolerance, lambda: run(sides[0], options._replace(nudged=True))
    )
    if difference is None or comparer.agree_in_double(
        options,
        lambda options: run(sides[0], options),
        lambda options: (both(options) or (None,))[-1],
    ):
        return None
    if not batch.layout.schema.hetero:  # a choice among equal rows may fall otherwise
        untied = both(options._replace(jitter=Jitter(batch)))
        if untied is None or all(e.off <= tolerance for e in untied[0].differences(untied[1])):
            return None
    trails = []
    of_first.clear()  # a trail follows a run
    for side in sides:
        trail = Trail(comparer.model, comparer.context)
        with trail.followed():
            run(side, options)
        trails.append(trail)
    for event, other in zip(trails[0].events, trails[1].events, strict=False):
        for likes, values in ((event.inputs, other.inputs), (event.values, other.values)):
            if likes and values and len(likes) == len(values):
                values[:] = map(nearest, values, likes)
    return _error(difference, trails[0].parting(trails[1], tolerance))


def _error(different: Difference, culprit: Culprit | None) -> EdgesMoved:
    _, where, line = culprit or Culprit(None)
    place = f" The first place that differs is {where}: {line}." if where else ""
    what = f"{different.name} is off by {different.how}"
    return EdgesMoved(
        f"the model reads edges by their position: {what} from plain PyG on the same graphs, whose "
        f"edges were sorted by destination here.{place} Make the store with "
        "GraphStore.from_pyg(..., keep_order=True), or staticgraph convert --keep-order, and the "
        "plan from it, or a Padder without sort_edges=True: edges then keep their order; "
        "check_padding=False turns this check off",
        what,
        where,
    )
