"""``staticgraph plan``: chooses the capacities for a data set, or packs it at given limits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from staticgraph.cli.probe import MeasuredStep, ProbeOptions, measure
from staticgraph.cli.refusals import UsageError, require_names
from staticgraph.files.document import to_json
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import waiting
from staticgraph.text.table import table
from staticgraph.training.options import (
    BYTES,
    DATA,
    FILES,
    INPUT_FILE,
    OUTPUT_FILE,
    PICTURE_FILE,
    POSITIVE,
    WHOLE,
    WORDS,
    choice,
    number,
    several,
    value,
    whole,
)

if TYPE_CHECKING:
    import numpy as np

    from staticgraph.packing.packing_result import Packing
    from staticgraph.plans.plan import BucketPlan
    from staticgraph.sizes.histogram import SizeHistogram

GOAL = Parameter(group=Group.create_ordered("what to plan (one of; --graphs 128 by default)"))
MEMORY = Parameter(group=Group.create_ordered("memory (with --data; the largest batches that fit)"))
HOW = Parameter(group=Group.create_ordered("how"))
# No packing is known to reach 1.
EFFICIENCY = value(number(0, 0.9999, above=True), metavar="X")
# Graphs per batch, about, where nothing else is given.
GRAPHS = 128
# The most buckets drawn with --knee.
MOST_DRAWN = 6


@Parameter(name="*")
@dataclass(frozen=True)
class PlanOptions(MeasuredStep):
    """The options of a plan.

    Attributes:
        histogram: CSV of sizes and counts, in place of --data.
        batch_size: exactly B graphs in each training batch.
        graphs: as many graphs per batch as fit, about B.
        efficiency: smallest limits with this efficiency (share of rows that are real).
        limits: pack with these limits: nodes edges ...
        max_memory: memory cap, such as 20GiB.
        memory: model of memory from staticgraph probe --out; probed now if it is left out.
        min_steps: at least this many batches per epoch.
        max_graphs: maximum graphs in a pack.
        buckets: number of buckets; chosen by cost if it is left out.
        cost: cost of a step: FIXED + NODE*N + EDGE*E + PAIR*G*M*M; 1000 1 0.5 0 if it is left out.
        effort: packs in milliseconds (fast, the default), or by linear programs (SciPy): with
            --limits, or with --graphs, where the plan keeps them.
        time_limit: seconds for --effort best; 10 if it is left out.
        certify: with --limits: prove how far the packs are from the best (SciPy).
        out: write the plan as JSON.
        plot: draw sizes, limits and packs (PNG, or what the name ends in).
        map: efficiency over limits as CSV.
        knee: with --graphs: draw the cost against 1 to 6 buckets (PNG, or what the name ends in).
    """

    data: Annotated[str, WORDS, DATA, Parameter(metavar="SPEC", required=False)] = ""
    histogram: Annotated[Path | None, INPUT_FILE, DATA] = None
    batch_size: Annotated[int | None, WHOLE, GOAL, Parameter(metavar="B")] = None
    graphs: Annotated[int | None, WHOLE, GOAL, Parameter(metavar="B")] = None
    efficiency: Annotated[float | None, EFFICIENCY, GOAL] = None
    limits: Annotated[tuple[int, ...], several(whole(0)), GOAL, Parameter(metavar="N")] = ()
    max_memory: Annotated[int | None, BYTES, MEMORY] = None
    memory: Annotated[Path | None, INPUT_FILE, MEMORY] = None
    min_steps: Annotated[int, WHOLE, MEMORY, Parameter(metavar="K")] = 32
    max_graphs: Annotated[int | None, WHOLE, HOW, Parameter(metavar="G")] = None
    buckets: Annotated[int | None, WHOLE, HOW, Parameter(metavar="K")] = None
    cost: Annotated[
        tuple[float, ...],
        several(number(0)),
        HOW,
        Parameter(metavar="FIXED NODE EDGE PAIR", consume_multiple=(4, 4)),
    ] = ()
    effort: Annotated[Literal["fast", "best"] | None, choice("fast", "best"), HOW] = None
    time_limit: Annotated[float | None, POSITIVE, HOW, Parameter(metavar="S")] = None
    certify: Annotated[bool, HOW] = False
    out: Annotated[Path | None, OUTPUT_FILE, FILES] = None
    plot: Annotated[Path | None, PICTURE_FILE, FILES] = None
    map: Annotated[Path | None, OUTPUT_FILE, FILES] = None
    knee: Annotated[Path | None, PICTURE_FILE, FILES] = None


def run(*, options: PlanOptions = PlanOptions(), json: bool = False) -> None:
    """Choose the few capacities that carry a data set, or pack it at given limits.

    For example:
      staticgraph plan --data examples/data/hiv.npz --batch-size 128 --out plan.json
      staticgraph plan --histogram sizes.csv --graphs 32 --buckets 3 --plot plan.png
      staticgraph plan --histogram sizes.csv --efficiency 0.99
      staticgraph plan --histogram sizes.csv --limits 222 502 --max-graphs 256 --json
      staticgraph plan --histogram sizes.csv --limits 111 238 --effort best
      staticgraph plan --data examples/data/hiv.npz --graphs 10 --effort best --out plan.json
      staticgraph plan --data examples/data/hiv.npz --model gps --max-memory 20GiB

    A histogram is a CSV of num_nodes,num_edges,count. --limits are what real graphs may fill, as in
    the literature; a bucket's capacity has one node and one graph more, which stay padding.

    Args:
        options: the options.
        json: print JSON instead of a table.
    """
    _check(options)
    opened = None
    if options.histogram:
        from staticgraph.sizes.histogram import SizeHistogram

        source: Any = SizeHistogram.from_csv(options.histogram)
    elif options.max_memory and not options.memory:  # memory is probed
        require_names(options, options.model, options.loss)
        from staticgraph.training.build_run import open_step

        opened = open_step(options)
        source = opened[0]
    else:
        require_names(options)
        source = options.open()
    histogram = source if options.histogram else source.histogram
    if options.limits:
        document, text = _pack(options, histogram)
    elif options.efficiency:
        document, text = _search(options, histogram, options.efficiency)
    else:
        document, text = _plan(options, histogram, source, opened)
    print(to_json(document) if json else text)


def _check(options: PlanOptions) -> None:
    """Refuses options that do not go together."""
    exact = options.batch_size or options.efficiency or options.max_memory
    goals = (options.batch_size, options.graphs, options.efficiency, options.limits or None)
    refusals = {
        "give one of --data and --histogram": bool(options.data) == bool(options.histogram),
        "--target is of a CSV with --data: leave it out": options.target and options.histogram,
        "give one of --batch-size, --graphs, --efficiency and --limits": (
            sum(goal is not None for goal in goals) > 1
        ),
        "--certify needs --limits": options.certify and not options.limits,
        "--effort best is of packs that are made once: give --limits or --graphs alone": (
            options.effort == "best" and exact
        ),
        "--time-limit is of --effort best": options.time_limit and options.effort != "best",
        "--memory needs the cap: give --max-memory": options.memory and not options.max_memory,
        "--max-memory needs the fields of the data: give --data": (
            options.max_memory and not options.data
        ),
        "--max-memory chooses exact batches: leave --graphs and the limits out": (
            options.max_memory and (options.limits or options.efficiency or options.graphs)
        ),
        "--knee draws what varying numbers of graphs cost: give --graphs, or leave it out": (
            options.knee and (exact or options.limits)
        ),
        "--out writes a plan: give --batch-size or --graphs": (
            options.out and (options.limits or options.efficiency)
        ),
    }
    for message, refused in refusals.items():
        if refused:
            raise UsageError(message)


def _pack(options: PlanOptions, histogram: SizeHistogram) -> tuple[dict[str, Any], str]:
    """Packs at given limits; returns the result as a document and as text."""
    from staticgraph.packing.choose_packing import TIME_LIMIT, pack_histogram

    pack = partial(pack_histogram, histogram, options.limits, max_graphs=options.max_graphs)
    begin = time.perf_counter()
    with waiting("packing"):
        pack()  # its loops are compiled now
        middle = time.perf_counter()
        packing = pack()
    seconds = time.perf_counter() - middle
    compiling = max(0.0, middle - begin - seconds)
    if options.effort == "best":
        begin, limit = time.perf_counter(), options.time_limit or TIME_LIMIT
        packing = pack(effort="best", time_limit=limit, progress=True)
        seconds = time.perf_counter() - begin
    document = {**packing.to_dict(), "seconds": seconds, "compile_seconds": compiling}
    if options.certify:
        from staticgraph.packing.bound import packing_bound

        begin = time.perf_counter()
        with waiting("proving how far from best: linear programs, some ten seconds"):
            bound = packing_bound(
                histogram, options.limits, max_graphs=options.max_graphs, start=packing
            )
        document |= {"bound": bound.packs, "linear_bound": bound.linear}
        document |= {"bound_columns": bound.columns, "bound_seconds": time.perf_counter() - begin}
    _draw(options, histogram, packing)
    filled = {k: v for k, v in document.items() if k.endswith("_efficiency")}
    names = [f"{name.removesuffix('_efficiency')}s filled" for name in filled]
    row = [f"{document['packs']:,}", *(f"{v:.2%}" for v in filled.values())]
    row.append(f"{1000 * document['seconds']:.1f} ms")
    most = "any number of graphs"
    if options.max_graphs:
        most = f"at most {how_many(options.max_graphs, 'graph')}"
    least = volume = document["volume_bound"]
    proof = "volume"
    if "bound" in document:
        least = document["bound"]
        proof = f"linear programming {document['linear_bound']:,.2f}, volume {volume:,}"
    elif document.get("proven_bound", 0) > volume:
        least, proof = document["proven_bound"], f"linear programming, volume {volume:,}"
    return document, (
        f"limits {', '.join(map(str, options.limits))}, {most}\n"
        f"{table(['packs', *names, 'time'], [row])}\n"
        f"no packing has fewer than {how_many(least, 'pack')} ({proof})"
    )


def _search(
    options: PlanOptions, histogram: SizeHistogram, efficiency: float
) -> tuple[dict[str, Any], str]:
    """Searches the smallest limits that reach an efficiency."""
    from staticgraph.plans.limits import limits_for_efficiency

    with waiting("searching limits"):
        chosen = limits_for_efficiency(histogram, efficiency, max_graphs=options.max_graphs)
    limits = chosen.limits.tolist()
    _draw(options, histogram, chosen.packing)
    search = {"limits": limits, "reached": chosen.reached, "reason": chosen.reason}
    return {**search, **chosen.packing.to_dict()}, (
        f"limits {', '.join(map(str, limits))} (capacity {chosen.capacity})\n"
        f"{chosen.packing.harmonic_mean:.2%} filled (harmonic mean): {chosen.reason}"
    )


def _plan(
    options: PlanOptions, histogram: SizeHistogram, source: Any, opened: Any
) -> tuple[dict[str, Any], str]:
    """Chooses the capacities."""
    from staticgraph.cli.plan_report import plan_text, plan_values
    from staticgraph.packing.choose_packing import TIME_LIMIT
    from staticgraph.plans.choose_capacities import plan_buckets
    from staticgraph.plans.cost import StepCost
    from staticgraph.plans.several import choose_buckets
    from staticgraph.training import plots

    price, graphs = StepCost(*options.cost), options.graphs or GRAPHS
    best = options.effort == "best"
    begin = time.perf_counter()
    memory = _memory(options, source, opened)
    with waiting("choosing the shapes of batches", not best):
        plan = plan_buckets(
            source,
            options.batch_size,
            num_buckets=options.buckets,
            graphs=graphs,
            cost=price,
            effort=options.effort or "fast",
            time_limit=options.time_limit or TIME_LIMIT,
            progress=best,
            **memory,
        )
    with waiting("counting the batches of an epoch"):
        seconds = time.perf_counter() - begin
        document, filling = plan_values(plan, histogram, price, seconds)
    if options.out:
        plan.save(options.out)
    _draw(options, histogram, plan, filling)
    lines = [plan_text(plan, document)]
    if options.knee:
        name = f"about {how_many(graphs, 'graph')} per batch"
        with waiting("choosing one to six buckets"):
            choices = choose_buckets(histogram, MOST_DRAWN, graphs=graphs, cost=price)
        plots.save_picture(options.knee, plots.draw_costs, name, choices)
        document["cost_by_buckets"] = costs = [each.cost for each in choices]
        lines += [f"{how_many(n, 'bucket')} cost {cost:,.0f}" for n, cost in enumerate(costs, 1)]
    lines += [plan.note] if plan.note else []
    return document, "\n".join(lines)


def _memory(options: PlanOptions, source: Any, opened: Any) -> dict[str, Any]:
    """The arguments of ``plan_buckets`` for --max-memory: the cap, and the memory of a step.

    Raises:
        UsageError: the model of memory was probed on data with other fields, whose rows have
            another number of bytes.
    """
    if not options.max_memory:
        return {}
    from staticgraph.memory.budget import MemoryBudget
    from staticgraph.memory.memory_model import MemoryModel
    from staticgraph.probing.probe import batch_bytes

    budget = MemoryBudget(options.max_memory)
    arguments = {"budget": budget, "min_steps_per_epoch": options.min_steps}
    if not options.memory:
        return {"memory": measure(opened, options, ProbeOptions(like="cuda")), **arguments}
    memory, schema = MemoryModel.load(options.memory), source.schema
    either = [batch_bytes(schema, ordered)[1:] for ordered in {False, schema.has_pointers}]
    if memory.batch[1:] not in either:
        (node, edge, graph, _), (here, there, each, _) = memory.batch[1:], either[0]
        raise UsageError(
            f"--memory {options.memory} was probed on other data: its batches have {node:g}, "
            f"{edge:g} and {graph:g} bytes per node, edge and graph, and those of {options.data} "
            f"{here:g}, {there:g} and {each:g}; staticgraph probe --data {options.data} --out "
            "FILE measures these"
        )
    return {"memory": memory, **arguments}


def _draw(
    options: PlanOptions,
    histogram: SizeHistogram,
    result: Packing | BucketPlan,
    filling: np.ndarray | None = None,
) -> None:
    """Writes the files of --plot and --map; ``filling`` is that of a plan's batches."""
    if not options.plot and not options.map:
        return
    from staticgraph.cli import plan_report
    from staticgraph.training import plots

    with waiting("drawing"):
        limits = plan_report.map_around(histogram, options.max_graphs)
        if options.map:
            plan_report.save_map(options.map, limits)
        if options.plot:
            shown = histogram, limits, result, filling
            plots.save_picture(options.plot, plots.draw_plan, *shown)
