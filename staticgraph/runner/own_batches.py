"""Batches of the user's own loader, as a runner takes them.

A batch that is not a :class:`staticgraph.StaticBatch` is padded when it is given to a runner: by
the :class:`staticgraph.Padder` that the runner was made with or, for PyG's graphs, by one over its
plan. Several ranks agree on the size of a capacity that is added, by a maximum over ranks, before
anybody compiles or records. An evaluation waits for no other rank.
"""

from __future__ import annotations

from typing import Any

from staticgraph.batches.batch.own_class import static_of
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.padding.padder import Padder, SplitBatch
from staticgraph.batches.padding.read_batch import is_graph
from staticgraph.batches.slots.slots import UNPLANNED
from staticgraph.checking.plain_batch import PlainBatch
from staticgraph.distributed.ranks import Ranks
from staticgraph.runner.counters import BucketStatistics
from staticgraph.store.graph_columns import StoredGraphs


def as_static(runner: Any, batch: Any, training: bool = False) -> Any:
    """Returns a batch as a static one on the runner's device, or in parts; anything that no padder
    knows unchanged, for the runner to refuse.

    Args:
        runner: its ranks, if any, all call this together for a ``training`` step, and only then.
        batch: of the user's own loader, or static already.
        training: whether it is for a training step.

    Raises:
        GraphTooLarge: it fits no bucket.
        BadGraph: a field is missing, or has another dtype or width.
    """
    if isinstance(batch, PlainBatch):  # in a plain run of the check of another runner's model
        return batch
    static = static_of(batch)
    if static is not None or isinstance(batch, SplitBatch):
        return batch if static is None else static
    padder: Padder | None = runner.padder
    if padder is None:
        graphs = isinstance(batch, list | tuple) and len(batch) > 0 and is_graph(batch[0])
        if not (graphs or is_graph(batch) or isinstance(batch, StoredGraphs)):
            return batch
        padder = runner.padder = Padder(runner.plan, schema=runner.preparation.schema)
        padder.least_fills = runner.preparation.least_fills
    ranks: Ranks | None = getattr(runner, "ranks", None)
    if ranks is not None and training and padder.overflow == "grow":
        padded = _agreed(padder, batch, ranks)
    else:
        padded = padder.pad(batch, grows=ranks is None)
    if padder.plan.capacities != runner.steps.plan.capacities:
        _grow(runner, padder)
    if isinstance(padded, SplitBatch):
        return SplitBatch(part.to(runner.device) for part in padded)
    return padded.to(runner.device)


def _agreed(padder: Padder, batch: Any, ranks: Ranks) -> StaticBatch:
    """Returns a padded batch, after adding the capacity that any rank needs at this step."""
    rows = padder.rows_of(batch)
    fits = padder.bucket_of(rows) is not None
    padder.counts.overflowed += not fits
    sizes = ranks.maxima([0 if fits else size for size in rows.real.sizes])
    if any(sizes):
        padder.grow([int(size) for size in sizes])
    bucket = padder.bucket_of(rows)
    assert bucket is not None
    return padder.fill(rows, bucket)


def _grow(runner: Any, padder: Padder) -> None:
    """Gives a runner the capacity that its padder added; the one added before is freed.

    Raises:
        ValueError: a memory budget was divided among the buckets that there were.
    """
    steps, preparation = runner.steps, runner.preparation
    if preparation.commitments is not None:
        raise ValueError(
            "overflow='grow' adds a bucket, and the budget was divided among those of the plan: "
            "plan for larger batches, or leave out budget="
        )
    plan = padder.plan
    bucket, capacity = len(plan.capacities) - 1, plan.capacities[-1]
    recorded, warm = steps.recorded is not None, steps.compiled.warmed_up
    steps.close()
    steps.grow(plan.capacities)
    runner.statistics[bucket:UNPLANNED] = [BucketStatistics(capacity, runner.device)]
    if not warm:
        return
    steps.compiled.warmed_up = False
    phases = ("step", "eval") if runner.subject.trains else ("eval",)
    with (
        steps.untouched(),
        steps.accumulated.set_aside(),
    ):
        for number in range(bucket, -1 if recorded else bucket - 1, -1):
            for phase in phases:
                way = steps.way_of(number, phase)
                preparation.prepare(way, number, phase, plan.schema)
    preparation.finish()
    steps.finite.clear()
