"""Messages over edges that are not the batch's own, or that keep the order of the data set: fused,
and equal to plain PyG."""

from __future__ import annotations

import pytest
from support.random_forward import RandomForward
from support.rewritten import difference, fired, seeded
from support.written_by_hand import MODELS
from torch_geometric.nn import GATConv

# Two messages over edges that a model makes of the batch's.
OVER = """
for _ in range(2):
    message = (h0[row] + e0[kept]).tanh() * h0[col].sigmoid()
    h0 = h0 + scatter(message, col, 0, n) - scatter(message, col, 0, n, 'max')"""
# Each layer has edges of its own, as in CAL, whose weights, summed by source, may be those learned
# of the layer before.
LOOPS_BESIDE = """
weight = h0.new_ones(len(src))
for _ in range(2):
    edges, kept = utils.remove_self_loops(edge_index, weight)
    (row, col), _ = utils.add_self_loops(edges, num_nodes=n)
    kept = torch.cat([kept, h0.new_ones(n)])
    degree = h0.new_zeros(n).scatter_add_(0, row.{index}, kept.float().to(h0))
    h0 = scatter(h0[row] * (kept / degree[row]).unsqueeze(1), col, 0, n).sigmoid()
    weight = h0[src, 0]"""
# Steps of a forward, as in test_rewrites_random.py, what fires, and how often at least.
WAYS = {
    "against": ("row, col, kept = dst, src, slice(None)" + OVER, "neighbours", 4),
    "shuffled": (
        "(row, col), kept = edge_index[:, order[::2]], order[::2]" + OVER,
        "neighbours",
        4,
    ),
    "in two vectors": (
        """
kept = order.roll(3)
row, col = src.index_select(0, kept), dst.index_select(0, kept)"""
        + OVER,
        "neighbours",
        4,
    ),
    "the largest that leaves each node, next to the sum of those that enter it": (
        """
message = (h0[src] * 2 + h0[dst]).tanh()
largest = scatter(message, src, 0, n, 'max')
h1 = h0 * largest + scatter(message, dst, 0, n) + scatter(h0[src], dst, 0, n, 'max')""",
        "neighbours",
        3,
    ),
    "attention against the flow": ("h1 = self.extra(h0, edge_index)", "softmax", 1),
    "loops beside": (LOOPS_BESIDE.format(index="expand(len(row))"), "neighbours", 4),
    "loops beside a copy": (LOOPS_BESIDE.format(index="clone()"), "neighbours", 2),
}


@pytest.mark.parametrize("way", WAYS)
def test_messages_over_edges_in_other_ways(way, esol):
    steps, rewrite, least = WAYS[way]
    extra = GATConv(8, 4, heads=2, flow="target_to_source", add_self_loops=False)
    model = seeded(lambda: RandomForward(steps.strip(), extra))
    largest, runner = difference(model, esol.in_first_order())
    assert largest <= 1e-10
    assert fired(runner)[rewrite] >= least


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["gine", "gcn", "gat, edges", "gatv2", "pna", "transformer"])
def test_edges_in_the_order_of_the_data_set(name, esol):
    """All that is fused of a batch whose edges are sorted is fused of one whose edges are not."""
    store, counts = esol.in_first_order(), []
    for one in (esol, store):
        largest, runner = difference(seeded(MODELS[name]), one)
        assert largest <= 1e-9
        counts.append(fired(runner))
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) > 2
