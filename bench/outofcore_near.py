"""Partitions near the training nodes compared with random ones: test accuracy relative to PyG's.

Half of the partitions are resident. ``random`` keeps those of the training nodes and draws the
others again for each epoch; ``near`` numbers all nodes by how often walks from the training nodes
visit them and keeps the first; ``dispersed`` passes all of them through the buffer. Each trains
through the library's own loader, from disk, in pairs with PyG: see :mod:`bench.outofcore_nodes`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.outofcore_nodes import CASES, PARTITIONS, measured
from staticgraph.outofcore import Dispersed, NodeCache

RESULT = Path(__file__).parent / "results" / "outofcore_near.json"
HALF = PARTITIONS // 2
WAYS: dict[str, Any] = {
    "pyg": None,
    "random": (PARTITIONS, NodeCache(HALF)),
    "near": (PARTITIONS, NodeCache(HALF, near=HALF)),
    "dispersed": (PARTITIONS, Dispersed(HALF)),
}


def near(args: argparse.Namespace) -> dict[str, Any]:
    """Measures ``--seeds`` pairs of every way on each graph.

    With ``--save``, the rows of graphs that were measured before and are not named now are kept.
    """
    names = args.graph or list(CASES)
    before = json.loads(RESULT.read_text())["rows"] if args.save and RESULT.exists() else []
    rows = [row for row in before if row["graph"] not in names]
    rows += [row for name in names for row in measured(name, WAYS, args.seeds)]
    return {"partitions": PARTITIONS, "resident": HALF, "rows": rows}
