"""``staticgraph convert``: writes any data set as a store on disk, in bounded memory."""

from __future__ import annotations

import argparse
from typing import Any

from staticgraph.cli import values
from staticgraph.cli.data_options import add_data
from staticgraph.cli.loading import look_for
from staticgraph.files.json_text import to_json

EXAMPLE = """\
examples:
  staticgraph convert --data molecules.csv --out molecules --workers 8
  staticgraph convert --data ogb:ogbg-molhiv --out hiv
  staticgraph convert --data molecules --out shards --shards --part-graphs 200000
"""


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "convert",
        help="write a data set as a store on disk",
        description="Write a data set as a store on disk, in bounded memory. After a kill the same "
        "command continues.",
        epilog=EXAMPLE,
    )
    add_data(parser, required=True)
    parser.add_argument(
        "--out",
        type=values.folder_to_write,
        required=True,
        metavar="DIR",
        help="folder of the store; required",
    )
    parser.add_argument(
        "--workers", type=values.whole(1, 1024), default=1, metavar="N",
        help="processes that read a table or copy a store (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--part-graphs", type=values.whole(), default=20_000, metavar="N",
        help="graphs that a process holds in memory, and at most loses if it is killed "
        "(default: 20000)",
    )  # fmt: skip
    parser.add_argument(
        "--shards",
        action="store_true",
        help="keep the parts as shards instead of joining them into one copy",
    )
    parser.add_argument(
        "--seed", type=values.seed, default=0, help="seed of a random split (default: 0)"
    )
    parser.add_argument(
        "--keep-order",
        action="store_true",
        help="leave edges in their order instead of sorting them by destination",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the store in --out")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Converts the data, and prints the resulting sizes."""
    look_for(args.data, args.target)
    from staticgraph.datasets.convert import convert
    from staticgraph.text.table import table

    store = convert(
        args.data,
        args.out,
        workers=args.workers,
        merged=not args.shards,
        part_graphs=args.part_graphs,
        target=args.target,
        task=args.task,
        seed=args.seed,
        overwrite=args.overwrite,
        keep_order=args.keep_order,
    )
    totals = store.histogram.totals.tolist()
    found = {
        "graphs": len(store),
        "nodes": totals[0],
        "edges": totals[1],
        "bytes": store.nbytes,
        **{f"split {name}": len(ids) for name, ids in store.splits.items()},
    }
    rows = [(name, f"{value:,}") for name, value in found.items()]
    print(to_json(found) if args.json else table(("what", str(args.out)), rows))
    return 0
