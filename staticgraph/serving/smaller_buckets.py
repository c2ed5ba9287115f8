"""A plan for training -> one for answering: smaller buckets added, for hours with few requests.

A training step always has its full batch; a server at night has one graph, and a recorded step
costs what its bucket costs. So each bucket gets smaller ones of the same largest graph.
"""

from __future__ import annotations

from dataclasses import replace

from staticgraph.plans.plan import BucketPlan
from staticgraph.sizes.capacity import Capacity

# Of a bucket's rows; each bucket is one more compilation. What waits while a batch runs is often
# half to three quarters of what a full one takes, so there a batch takes at most a third more rows
# than it needs; below a fourth, where steps are short anyway, four times.
SHARES = (3 / 4, 1 / 2, 1 / 4, 1 / 16)


def for_serving(plan: BucketPlan) -> BucketPlan:
    """The plan with smaller buckets, for any data, in packs of any number of graphs.

    What a bucket promised of its training batches (``order_statistics``) is dropped. Plans that do
    not know their largest graph, or whose graphs have rows of their own, keep their buckets.
    """
    found = set()
    for capacity in plan.capacities:
        found.add(replace(capacity, order_statistics=()))
        if capacity.extra or len(plan.maxima) < 2:
            continue
        for share in SHARES:
            small = Capacity.distinct(
                max(int(capacity.nodes * share), capacity.max_graph_nodes + capacity.node_reserve),
                max(
                    int(capacity.edges * share),
                    min(plan.maxima[1] + capacity.edge_reserve, capacity.edges),
                ),
                max(2, int(capacity.graphs * share)),
                capacity.max_graph_nodes,
                edge_reserve=capacity.edge_reserve,
                node_reserve=capacity.node_reserve,
            )
            if small.nodes < capacity.nodes and small.edges < capacity.edges:
                found.add(small)
    capacities = tuple(sorted(found))
    return replace(plan, capacities=capacities, digest=None, batch_size=None, efficiency=())
