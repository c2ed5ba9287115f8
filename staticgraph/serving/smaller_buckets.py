"""A plan for training -> a plan for serving, with smaller buckets for times with few requests.

A training step always has a full batch; a server with little traffic may have a single graph, and
the cost of a recorded step is that of its bucket. So smaller buckets for the same largest graph are
added to each bucket.
"""

from __future__ import annotations

from dataclasses import replace

from staticgraph.plans.plan import BucketPlan
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.reserves import with_pairs

# The added buckets, as shares of a bucket's rows; each is one more compilation. The graphs that
# arrive while a batch runs often fill a quarter to three quarters of a bucket, so there a batch
# takes at most half more rows than it needs; below, where steps are short, up to twice as many.
SHARES = (3 / 4, 1 / 2, 3 / 8, 1 / 4, 1 / 8, 1 / 16)


def for_serving(plan: BucketPlan) -> BucketPlan:
    """The plan with smaller buckets added, for any data and any number of graphs per batch.

    No buckets are added to a plan without the size of its largest graph, or whose graphs have axes.
    """
    buckets = set(plan.capacities)
    for capacity in plan.capacities:
        if capacity.extra or len(plan.maxima) < 2:
            continue
        nodes = capacity.max_graph_nodes + capacity.node_reserve
        edges = min(plan.maxima[1] + capacity.edge_reserve, capacity.edges)
        for share in SHARES:
            small = Capacity.distinct(
                max(int(capacity.nodes * share), nodes),
                max(int(capacity.edges * share), edges),
                max(2, int(capacity.graphs * share)),
                capacity.max_graph_nodes,
                edge_reserve=capacity.edge_reserve,
                node_reserve=capacity.node_reserve,
            )
            if small.nodes < capacity.nodes and small.edges < capacity.edges:
                buckets.add(with_pairs(small, plan.schema))
    capacities = tuple(sorted(buckets))
    return replace(plan, capacities=capacities, digest=None, batch_size=None, efficiency=())
