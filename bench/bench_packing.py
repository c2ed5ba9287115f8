"""How full exact batches are, and how often one cannot be repaired, over epochs of random order.

python -m bench.bench_packing [--overflow EPOCHS] [--json bench/results/overflow.json]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench import tables
from bench.machine import machine, write
from bench.options import options_of
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.margin import overflow_rate
from staticgraph.plans.plan import sizes_of
from tests.support.packing_problems import load

SETS = ("ogbg-molhiv_train", "tu_NCI1", "tu_PROTEINS", "tu_COLLAB")
BATCH_SIZES = (32, 128, 256)
# Of the epochs; plans are chosen with others.
SEED = 12_345


def overflow(sizes: np.ndarray, batch_size: int, epochs: int) -> dict[str, Any]:
    """Measures exact batches of one data set, sizes ``[n, 2]``."""
    plan = plan_buckets(sizes, batch_size, indices=np.arange(len(sizes)), num_buckets=1)
    capacity = plan.capacities[0]
    physical = np.array([capacity.nodes, capacity.edges])
    limits = np.array([capacity.node_limit, capacity.edge_limit])
    batches = -(-len(sizes) // batch_size)
    rate = overflow_rate(sizes, batch_size, limits, epochs, seed=SEED)
    return {
        "batch_size": batch_size,
        "margin": plan.margin,
        "capacity": physical.tolist(),
        "filled": (sizes.sum(axis=0) / (batches * physical)).tolist(),
        "full_batches": (batch_size * sizes.mean(axis=0) / physical).tolist(),
        "overflowed": round(rate * epochs * batches),
        "batches": epochs * batches,
    }


def main() -> None:
    options = options_of(__doc__, overflow=1000, json=Path)
    rows = [
        {"data": name} | overflow(sizes_of(load(name)), batch_size, options.overflow)
        for name in SETS
        for batch_size in BATCH_SIZES
    ]
    results = {"epochs": options.overflow, "overflow": rows}
    print(tables.overflow({"overflow": machine() | results}))
    if options.json:
        write(options.json, results)


if __name__ == "__main__":
    main()
