"""Serves a model to many callers, on one device and with a few fixed shapes.

The path of a request: its bytes become checked graphs in flat arrays (``reader``,
``checked_graphs``), wait in a queue for others (``request``), run in a batch in the
thread of the model (``server``), and become a reply (``replies``). ``app`` and ``backends`` are the
web application and its way to the server, which may be in another process; ``service`` makes both
from a run or an export. The plan for it has smaller buckets for times with few requests.
"""

from __future__ import annotations

from dataclasses import replace

from staticgraph.memory.budget import scaled
from staticgraph.plans.plan import BucketPlan
from staticgraph.sizes.reserves import with_pairs

# The added buckets, as shares of a bucket's rows; each is one more compilation. The graphs that
# arrive while a batch runs often fill a quarter to three quarters of a bucket, so there a batch
# takes at most half more rows than it needs; below, where steps are short, up to twice as many.
SHARES = (3 / 4, 1 / 2, 3 / 8, 1 / 4, 1 / 8, 1 / 16)


def for_serving(plan: BucketPlan) -> BucketPlan:
    """The plan with smaller buckets added, for any data and any number of graphs per batch: the
    cost of a recorded step is that of its bucket, and a batch may have a single graph.

    No buckets are added to a plan without the size of its largest graph, or whose graphs have axes.
    """
    buckets = set(plan.capacities)
    for capacity in plan.capacities:
        if capacity.extra or len(plan.maxima) < 2:
            continue
        edges = min(plan.maxima[1] + capacity.edge_reserve, capacity.edges)
        for share in SHARES:
            small = scaled(capacity, share, edges)
            if small.nodes < capacity.nodes and small.edges < capacity.edges:
                buckets.add(with_pairs(small, plan.schema))
    capacities = tuple(sorted(buckets))
    return replace(plan, capacities=capacities, digest=None, batch_size=None, efficiency=())
