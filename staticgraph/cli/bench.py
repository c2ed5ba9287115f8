"""``staticgraph bench --count-kernels``: operations of a training step, stock against fused."""

from __future__ import annotations

import argparse
from typing import Any

from staticgraph.cli import values
from staticgraph.cli.train import MODELS
from staticgraph.files.json_text import to_json

EXAMPLE = """\
example:
  staticgraph bench --count-kernels --data examples/data/hiv.npz \\
      --model gine --layers 5 --hidden 300 --batch-size 32
"""
CONTENDERS = ("PyG", "static", "static, kernels")


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "bench",
        help="count the operations of a training step",
        description="Count what a training step gives the device: plain PyG, static batches, and "
        "static batches with fused kernels. Needs no GPU.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count-kernels", action="store_true", required=True)
    parser.add_argument(
        "--data", required=True, type=values.words, help="a data set by name or path"
    )
    parser.add_argument("--model", choices=MODELS, default="gine")
    parser.add_argument("--layers", type=values.whole(1, values.MOST_LAYERS), default=5)
    parser.add_argument("--hidden", type=values.whole(1, values.WIDEST), default=300)
    parser.add_argument("--heads", type=values.whole(1, values.WIDEST), default=4)
    parser.add_argument("--batch-size", type=values.whole(), default=32)
    parser.add_argument("--operators", action="store_true", help="also list them by name")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Counts and prints."""
    from staticgraph.dryrun.operations import PHASES
    from staticgraph.text.table import table

    counted = {name: _count(name, args) for name in CONTENDERS}
    if args.json:
        document = {
            name: {
                **found.counts,
                "total": found.total(),
                "launches": found.launches,
                "host_reads": found.host_reads,
            }
            for name, found in counted.items()
        }
        print(to_json(document))
        return 0
    print(
        f"{args.model} {args.layers}x{args.hidden}, batch {args.batch_size}: operations a training "
        "step, views and allocations left out"
    )
    rows = [
        [
            name,
            *(found.total(phase) for phase in PHASES),
            found.total(),
            found.launches,
            found.host_reads,
        ]
        for name, found in counted.items()
    ]
    print(table(["", *PHASES, "step", "launches, at least", "host reads"], rows))
    if args.operators:
        for name, found in counted.items():
            print(f"\n{name}")
            lines = [
                [operator, *(found.counts[phase][operator] for phase in PHASES)]
                for operator in sorted({key for c in found.counts.values() for key in c})
            ]
            print(table(["operator", *PHASES], lines))
    return 0


def _count(name: str, args: argparse.Namespace) -> Any:
    """One step of one contender; the first step of its optimizer is taken before."""
    import torch
    import torch.nn.functional as F

    import staticgraph as sg
    from staticgraph import models
    from staticgraph.dryrun.operations import count_step
    from staticgraph.steps.losses import mean_loss

    store = sg.datasets.open(args.data)
    torch.manual_seed(0)
    model = models.build(
        args.model, store, hidden=args.hidden, layers=args.layers, heads=args.heads
    ).train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    ids = range(min(args.batch_size, len(store)))

    def loss_of(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.mse_loss(out.view(-1), batch.y[:, 0].float().view(-1), reduction="none")

    if name == "PyG":
        from torch_geometric.data import Batch

        batch: Any = Batch.from_data_list([store[i] for i in ids])
        edges = getattr(batch, "edge_attr", None)

        def forward() -> torch.Tensor:
            out = model(batch.x, batch.edge_index, edges, batch.batch, batch.num_graphs)
            return loss_of(out, batch).mean()
    else:
        kernels = name.endswith("kernels")
        sg.convert(model, kernels="all" if kernels else False)
        sizes = store.sizes[list(ids)].sum(0)
        largest = int(store.sizes[list(ids), 0].max())
        capacity = sg.Capacity.distinct(int(sizes[0]) + 2, int(sizes[1]) + 2, len(ids) + 1, largest)
        # As a compiled step sees it: real counts unknown, so nothing is cut to size by the host.
        padded = sg.StaticBatch.of(store, ids, capacity, pointers=kernels)
        padded = sg.StaticBatch(padded.layout, padded.tensors())
        runner = sg.StaticGraphRunner(sg.Subject(model, check_padding=False), [capacity], "eager")

        def forward() -> torch.Tensor:
            return mean_loss(loss_of, runner(padded), padded)

    forward().backward()
    optimizer.step()
    return count_step(forward, optimizer)
