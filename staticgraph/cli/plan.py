"""``staticgraph plan``: chooses the capacities for a data set, or packs it at given limits."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from staticgraph.cli import values
from staticgraph.cli.data_options import add_data, open_data
from staticgraph.cli.loading import look_for
from staticgraph.cli.model_options import check_sizes, model_without_data
from staticgraph.cli.probe import add_training
from staticgraph.files.json_text import to_json
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import is_left_out

if TYPE_CHECKING:
    from staticgraph.packing.pack import Packing
    from staticgraph.plans.cost import StepCost
    from staticgraph.plans.plan import BucketPlan
    from staticgraph.sizes.histogram import SizeHistogram

EXAMPLE = """\
examples:
  staticgraph plan --data examples/data/hiv.npz --batch-size 128 --out plan.json
  staticgraph plan --histogram sizes.csv --graphs 32 --buckets 3 --plot plan.png
  staticgraph plan --histogram sizes.csv --efficiency 0.99
  staticgraph plan --histogram sizes.csv --limits 222 502 --max-graphs 256 --json
  staticgraph plan --histogram sizes.csv --limits 111 238 --effort best
  staticgraph plan --data examples/data/hiv.npz --graphs 10 --effort best --out plan.json
  staticgraph plan --data examples/data/hiv.npz --model gps --max-memory 20GiB

A histogram is a CSV of num_nodes,num_edges,count. --limits are what real graphs may fill, as in the
literature; a bucket's capacity has one node and one graph more, which stay padding.
"""
# The most buckets drawn with --knee.
MOST_DRAWN = 6


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "plan",
        help="choose fixed shapes for a data set, or pack it at given limits",
        description="Choose the few capacities that carry a data set, or pack it at given limits.",
        epilog=EXAMPLE,
    )
    _add_source(parser.add_argument_group("data (one of --data and --histogram)"))
    _add_target(parser.add_argument_group("what to plan (one of; --graphs 128 by default)"))
    _add_memory(parser.add_argument_group("memory (with --data; the largest batches that fit)"))
    add_training(parser)
    _add_how(parser.add_argument_group("how"))
    _add_output(parser.add_argument_group("output"))
    parser.set_defaults(run=run, parser=parser)


def _add_source(source: Any) -> None:
    """Adds the options for the data."""
    add_data(source)
    source.add_argument(
        "--histogram", type=values.file_to_read, metavar="FILE", help="CSV of sizes and counts"
    )


def _add_target(target: Any) -> None:
    """Adds the options for the goal of the plan."""
    target.add_argument(
        "--batch-size", type=values.whole(), metavar="B",
        help="exactly B graphs in each training batch",
    )  # fmt: skip
    target.add_argument(
        "--graphs", type=values.whole(), metavar="B",
        help="as many graphs per batch as fit, about B",
    )  # fmt: skip
    target.add_argument(
        "--efficiency", type=values.number(0, 1, more=True), metavar="X",
        help="smallest limits with this efficiency (share of rows that are real)",
    )  # fmt: skip
    target.add_argument(
        "--limits", type=values.whole(0), nargs="+", metavar="N",
        help="pack with these limits: nodes edges ...",
    )  # fmt: skip


def _add_memory(memory: Any) -> None:
    """Adds the options for the memory cap and the memory model."""
    memory.add_argument(
        "--max-memory", type=values.byte_size, metavar="SIZE", help="memory cap, such as 20GiB"
    )
    memory.add_argument(
        "--memory", type=values.file_to_read, metavar="FILE",
        help="model of memory from staticgraph probe --out (default: probe now)",
    )  # fmt: skip
    memory.add_argument(
        "--min-steps", type=values.whole(), default=32, metavar="K",
        help="at least this many batches per epoch (default: 32)",
    )  # fmt: skip


def _add_how(more: Any) -> None:
    """Adds the options that restrict the choice."""
    more.add_argument(
        "--max-graphs", type=values.whole(), metavar="G", help="maximum graphs in a pack"
    )
    more.add_argument(
        "--buckets",
        type=values.whole(),
        metavar="K",
        help="number of buckets (default: chosen by cost)",
    )
    more.add_argument(
        "--attention",
        choices=("auto", "size-classed"),
        help="the model attends within graphs: with --batch-size, narrow its blocks by the data",
    )
    more.add_argument(
        "--cost",
        type=values.number(0),
        nargs=4,
        metavar=("FIXED", "NODE", "EDGE", "PAIR"),
        help="cost of a step: FIXED + NODE*N + EDGE*E + PAIR*G*M*M (default: 1000 1 0.5 0)",
    )
    more.add_argument(
        "--effort", choices=("fast", "best"), default=None,
        help="packs in milliseconds (the default), or by linear programs (SciPy): with --limits, "
        "or with --graphs, where the plan keeps them",
    )  # fmt: skip
    more.add_argument(
        "--time-limit", type=values.number(0, more=True), metavar="S",
        help="seconds for --effort best (default: 10)",
    )  # fmt: skip
    more.add_argument(
        "--certify",
        action="store_true",
        help="with --limits: prove how far the packs are from the best (SciPy)",
    )


def _add_output(out: Any) -> None:
    """Adds the options for files to write and draw."""
    for name, what in (
        ("--out", "write the plan as JSON"),
        ("--plot", "draw sizes, limits and packs (PNG, or what the name ends in)"),
        ("--map", "efficiency over limits as CSV"),
        (
            "--knee",
            "with --graphs: draw the cost against 1 to 6 buckets (PNG, or what the name ends in)",
        ),
    ):
        kind = values.picture_to_write if "draw" in what else values.file_to_write
        out.add_argument(name, type=kind, metavar="FILE", help=what)
    out.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Plans or packs, and prints the result."""
    _check(args)
    histogram, source = _sizes(args)
    if args.limits:
        return _pack(args, histogram)
    if args.efficiency:
        return _search(args, histogram)
    return _plan(args, histogram, source)


def _check(args: argparse.Namespace) -> None:
    """Exits with a usage error if options conflict."""
    check_sizes(args)
    if bool(args.data) == bool(args.histogram):
        args.parser.error("give one of --data and --histogram")
    if args.target and args.histogram:
        args.parser.error("--target is of a CSV with --data: leave it out")
    targets = [args.batch_size, args.graphs, args.efficiency, args.limits]
    if sum(target is not None for target in targets) > 1:
        args.parser.error("give one of --batch-size, --graphs, --efficiency and --limits")
    if args.certify and not args.limits:
        args.parser.error("--certify needs --limits")
    if args.effort == "best" and (args.batch_size or args.efficiency or args.max_memory):
        args.parser.error(
            "--effort best is of packs that are made once: give --limits or --graphs alone"
        )
    if args.time_limit and args.effort != "best":
        args.parser.error("--time-limit is of --effort best")
    if args.memory and not args.max_memory:
        args.parser.error("--memory needs the cap: give --max-memory")
    if args.max_memory and not args.data:
        args.parser.error("--max-memory needs the fields of the data: give --data")
    if args.max_memory and (args.limits or args.efficiency or args.graphs):
        args.parser.error("--max-memory chooses exact batches: leave --graphs and the limits out")
    if args.knee and (args.batch_size or args.efficiency or args.limits or args.max_memory):
        args.parser.error(
            "--knee draws what varying numbers of graphs cost: give --graphs, or leave it out"
        )
    if args.out and (args.limits or args.efficiency):
        args.parser.error("--out writes a plan: give --batch-size or --graphs")


def _sizes(args: argparse.Namespace) -> tuple[SizeHistogram, Any]:
    """The histogram, and the source of the plan: the histogram or the store with its fields."""
    from staticgraph.sizes.histogram import SizeHistogram

    if args.histogram:
        histogram = SizeHistogram.from_csv(args.histogram)
        return histogram, histogram
    run = bool(args.max_memory) and not args.memory
    look_for(
        args.data,
        args.target,
        model=args.model if run else None,
        loss=args.loss if run else None,
    )
    if run:
        args.built = model_without_data(args)
    store = open_data(args)
    return store.histogram, store


def _timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, the seconds of a second run, and the first run's excess over it (compilation)."""
    begin = time.perf_counter()
    work()
    middle = time.perf_counter()
    result = work()
    end = time.perf_counter()
    return result, end - middle, max(0.0, (middle - begin) - (end - middle))


def _pack(args: argparse.Namespace, histogram: SizeHistogram) -> int:
    """Packs at given limits."""
    from staticgraph.packing.packer import TIME_LIMIT, pack_histogram

    def work() -> Packing:
        """Packs the histogram."""
        return pack_histogram(histogram, args.limits, max_graphs=args.max_graphs)

    packing, seconds, compiling = _timed(work)
    if args.effort == "best":
        begin = time.perf_counter()
        packing = pack_histogram(
            histogram, args.limits, max_graphs=args.max_graphs, effort="best",
            time_limit=args.time_limit or TIME_LIMIT, progress=True,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
    found = {**packing.to_dict(), "seconds": seconds, "compile_seconds": compiling}
    if args.certify:
        from staticgraph.packing.bound import packing_bound

        print("proving how far from best: linear programs, some ten seconds", file=sys.stderr)
        begin = time.perf_counter()
        bound = packing_bound(histogram, args.limits, max_graphs=args.max_graphs, start=packing)
        found["bound"] = bound.packs
        found["linear_bound"] = bound.linear
        found["bound_columns"] = bound.columns
        found["bound_seconds"] = time.perf_counter() - begin
    _pictures(args, histogram, [packing])
    if args.json:
        print(to_json(found))
        return 0
    _print_packings(args, found)
    return 0


def _print_packings(args: argparse.Namespace, found: dict[str, Any]) -> None:
    from staticgraph.text.table import table

    filled = {k: v for k, v in found.items() if k.endswith("_efficiency")}
    names = [f"{name.removesuffix('_efficiency')}s filled" for name in filled]
    row = [f"{found['packs']:,}", *(f"{v:.2%}" for v in filled.values())]
    most = (
        f"at most {how_many(args.max_graphs, 'graph')}"
        if args.max_graphs
        else "any number of graphs"
    )
    print(f"limits {', '.join(map(str, args.limits))}, {most}")
    print(table(["packs", *names, "time"], [[*row, f"{1000 * found['seconds']:.1f} ms"]]))
    if "bound" in found:
        print(
            f"no packing has fewer than {how_many(found['bound'], 'pack')} (linear programming "
            f"{found['linear_bound']:,.2f}, volume {found['volume_bound']:,})"
        )
    elif found.get("proven_bound", 0) > found["volume_bound"]:
        print(
            f"no packing has fewer than {how_many(found['proven_bound'], 'pack')} (linear "
            f"programming, volume {found['volume_bound']:,})"
        )
    else:
        print(f"no packing has fewer than {how_many(found['volume_bound'], 'pack')} (volume)")


def _search(args: argparse.Namespace, histogram: SizeHistogram) -> int:
    """Searches the smallest limits that reach an efficiency."""
    from staticgraph.plans.limits import limits_for_efficiency

    choice = limits_for_efficiency(histogram, args.efficiency, max_graphs=args.max_graphs)
    limits = choice.limits.tolist()
    found = {
        "limits": limits,
        "reached": choice.reached,
        "reason": choice.reason,
        **choice.packing.to_dict(),
    }
    _pictures(args, histogram, [choice.packing])
    if args.json:
        print(to_json(found))
    else:
        print(f"limits {', '.join(map(str, limits))} (capacity {choice.capacity})")
        print(f"{choice.packing.harmonic_mean:.2%} filled (harmonic mean): {choice.reason}")
    return 0


def _plan(args: argparse.Namespace, histogram: SizeHistogram, source: Any) -> int:
    """Chooses the capacities."""
    from staticgraph.cli.reports.plan import PlanReport
    from staticgraph.packing.packer import TIME_LIMIT
    from staticgraph.plans.choose import plan_buckets
    from staticgraph.plans.cost import StepCost

    price = StepCost(*args.cost) if args.cost else StepCost()
    begin = time.perf_counter()
    plan = plan_buckets(
        source,
        args.batch_size,
        num_buckets=args.buckets,
        graphs=128 if args.graphs is None else args.graphs,
        cost=price,
        attention=args.attention,
        effort=args.effort or "fast",
        time_limit=args.time_limit or TIME_LIMIT,
        progress=args.effort == "best",
        **_memory(args, source),
    )
    report = PlanReport.of(plan, histogram, price, time.perf_counter() - begin)
    if args.out:
        plan.save(args.out)
    _pictures(args, histogram, [], plan)
    costs = _knee(args, histogram, price) if args.knee else {}
    if args.json:
        print(to_json({**report.to_dict(), **costs}))
        return 0
    print(report)
    for number, cost in enumerate(costs.get("cost_by_buckets", []), 1):
        print(f"{how_many(number, 'bucket')} cost {cost:,.0f}")
    if plan.note:
        print(plan.note)
    return 0


def _knee(
    args: argparse.Namespace, histogram: SizeHistogram, price: StepCost
) -> dict[str, list[float]]:
    """Draws the cost of an epoch against the number of buckets, and returns the costs."""
    from staticgraph.cli.reports.plan_plots import save_cost_picture
    from staticgraph.plans.several import choose_buckets

    graphs = args.graphs or 128
    choices = choose_buckets(histogram, MOST_DRAWN, graphs=graphs, cost=price)
    if not is_left_out(args.knee, "matplotlib"):
        save_cost_picture(args.knee, {f"about {how_many(graphs, 'graph')} per batch": choices})
    return {"cost_by_buckets": [choice.cost for choice in choices]}


def _memory(args: argparse.Namespace, source: Any) -> dict[str, Any]:
    """The arguments of ``plan_buckets`` for --max-memory: the cap, and the memory of a step."""
    if not args.max_memory:
        return {}
    from staticgraph.cli.probe import probe_model
    from staticgraph.memory.budget import MemoryBudget
    from staticgraph.memory.model import MemoryModel

    budget = MemoryBudget(args.max_memory)
    memory = MemoryModel.load(args.memory) if args.memory else probe_model(source, args, args.built)
    return {"memory": memory, "budget": budget, "min_steps_per_epoch": args.min_steps}


def _pictures(
    args: argparse.Namespace,
    histogram: SizeHistogram,
    packings: list[Packing],
    plan: BucketPlan | None = None,
) -> None:
    """Writes the files of --plot and --map."""
    files = ", ".join(str(file) for file in (args.plot, args.map) if file)
    if not files or is_left_out(files, "matplotlib"):
        return
    from staticgraph.cli.reports import plan_plots as plots_plan

    shown = plots_plan.map_around(histogram, args.max_graphs)
    if args.map:
        plots_plan.save_map(args.map, shown)
    if args.plot:
        plots_plan.save_plan_picture(args.plot, histogram, shown, packings, plan)
