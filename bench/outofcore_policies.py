"""Link prediction epochs in memory, with COMET and with BETA: processor time, batches, ranks.

Besides waiting, a policy costs additional batches: each state ends with one that is not full, and
states have as many rows to gather. All three train FB15k-237 in one process, one epoch each in
turn, so that a machine whose speed drifts slows all of them equally. Times are processor time of
the process (reading ahead and writing back included) and wall-clock time; ratios are within a turn.
The page cache holds this graph; ``disk`` measures the cost of the device.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from staticgraph.outofcore import (
    Beta,
    Comet,
    InMemory,
    LinkConfig,
    LinkTrainer,
    evaluate_links,
    partition,
)
from staticgraph.outofcore.disk import data

# The partitions for each policy, as the command line chooses them.
WAYS: dict[str, tuple[int, Any]] = {
    "in memory": (1, InMemory()),
    "COMET": (32, Comet(8, 8)),
    "BETA": (16, Beta(4)),
}


def policies(args: argparse.Namespace) -> dict[str, Any]:
    """Runs ``--rounds`` epochs of each; with ``--ranks``, measures the filtered test MRR after."""
    links = data.open_links("fb15k-237")
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        trainers = {}
        for name, (p, policy) in WAYS.items():
            folder = Path(scratch) / name
            graph = partition(links.train, links.num_nodes, p, folder / "g", seed=args.seed)
            trainers[name] = LinkTrainer(graph, policy, LinkConfig(seed=args.seed), folder / "e")
        cpu: dict[str, list[float]] = {name: [] for name in WAYS}
        for turn in range(args.rounds):
            for name, trainer in trainers.items():
                before = time.process_time()
                epoch = trainer.train_epoch()
                cpu[name].append(time.process_time() - before)
                print(f"{turn} {name} {cpu[name][-1]:.1f} s CPU {epoch}", file=sys.stderr)
        rows = []
        for name, trainer in trainers.items():
            epochs, base = trainer.history, trainers["in memory"].history
            rows.append(
                {
                    "way": name, "partitions": WAYS[name][0], "policy": str(WAYS[name][1]),
                    "batches": epochs[-1].batches, "states": epochs[-1].states,
                    "partitions_read": epochs[-1].partitions_read,
                    "bias": float(np.mean([epoch.bias for epoch in epochs])),
                    "cpu_s": [round(s, 2) for s in cpu[name]],
                    "epoch_s": [round(epoch.seconds, 2) for epoch in epochs],
                    "waited_s": [round(epoch.waited_s, 3) for epoch in epochs],
                    "cpu_ratio": _quantiles(np.divide(cpu[name], cpu["in memory"])),
                    "time_ratio": _quantiles(
                        [e.seconds / b.seconds for e, b in zip(epochs, base, strict=True)]
                    ),
                    "mrr": evaluate_links(trainer, links.test, links.known).mrr
                    if args.ranks
                    else None,
                }
            )  # fmt: skip
            trainer.close()
    return {"graph": "FB15k-237", "seed": args.seed, "epochs": args.rounds, "rows": rows}


def _quantiles(ratios: Any) -> dict[str, float]:
    """Returns quantiles over all turns except the first, in which loops are compiled."""
    some = np.asarray(ratios)[1:] if len(ratios) > 1 else np.asarray(ratios)
    p10, median, p90 = np.quantile(some, (0.1, 0.5, 0.9)).tolist()
    return {"p10": p10, "median": median, "p90": p90}
