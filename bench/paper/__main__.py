"""Compares the published efficiencies of tuple packing with ours.

python -m bench.paper [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.paper.reproduction import reproduce
from staticgraph.files.json_text import to_json
from staticgraph.packing.pack import harmonic_mean
from staticgraph.text.table import table

Pair = tuple[float, float] | None


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints every published figure next to ours, then baselines and our packer."""
    parser = argparse.ArgumentParser(prog="python -m bench.paper", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(arguments)
    rows = reproduce()
    if args.json:
        print(to_json([row.to_dict() for row in rows]))
        return
    print("node and edge efficiency in percent; printed figures are those of the paper's tutorial")
    print(
        table(
            ["data", "limits", "method", "printed", "ours", "harmonic", "packs", "note"],
            [
                [
                    row.data,
                    f"{row.nodes} {row.edges}",
                    row.method,
                    _pair(row.published),
                    _pair(row.ours),
                    "-" if row.ours is None else f"{harmonic_mean(row.ours):.2f}",
                    "-" if row.packs is None else f"{row.packs:,}",
                    row.note,
                ]
                for row in rows
            ],
        )
    )


def _pair(of: Pair) -> str:
    return "-" if of is None else f"{of[0]:.2f} {of[1]:.2f}"


if __name__ == "__main__":
    main()
