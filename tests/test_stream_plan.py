"""Plans for batches drawn at random say how many batches miss, and in which bucket the others are.

The oracle: batches drawn by NumPy from the histograms of real data sets, and counted.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from support.graphs import double_graphs
from support.packing_problems import SETS, load
from torch.utils.data import ConcatDataset, Subset
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

import staticgraph as sg
from staticgraph.sizes.histogram import SizeHistogram

DRAWS = {8: 60_000, 32: 40_000, 128: 20_000}


def counted(rows, chances, plan, batch_size: int) -> np.ndarray:
    """``[buckets + 1]``: the share of drawn batches in each bucket, and in none."""
    rng, found = np.random.default_rng(0), np.zeros(len(plan.capacities) + 1)
    for _ in range(DRAWS[batch_size] // 2000):
        ids = rng.choice(len(rows), size=(2000, batch_size), p=chances)
        fits = [(rows[ids].sum(1) <= c.size_limits).all(1) for c in plan.capacities]
        first = np.where(np.any(fits, 0), np.argmax(fits, 0), len(fits))
        found += np.bincount(first, minlength=len(found))
    return found / found.sum()


@pytest.mark.sampled(20)
@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True], ids=["uniform", "weighted"])
@pytest.mark.parametrize("batch_size", [8, 32, 128])
@pytest.mark.parametrize("name", SETS)
def test_predicted_and_counted_shares_agree(name, batch_size, weighted):
    histogram = load(name)
    least = histogram.sizes[:, 0].min()
    weights = (histogram.sizes[:, 0] - least) ** 2.0 if weighted else np.ones(len(histogram.counts))
    plan = sg.plan_stream(histogram, batch_size, miss=5e-3, weights=weights)
    chances = histogram.counts * weights
    found = counted(histogram.sizes, chances / chances.sum(), plan, batch_size)
    assert plan.misses <= 5e-3
    assert plan.misses / 2 <= found[-1] <= 2 * plan.misses
    # Four standard deviations of the share of so many independent draws.
    assert np.abs(found[:-1] - plan.shares).max() < 4 * np.sqrt(0.25 / DRAWS[batch_size])
    rows = np.array([[c.nodes, c.edges] for c in plan.capacities])
    filled = chances @ histogram.sizes / chances.sum() * batch_size / (found[:-1] @ rows)
    assert plan.efficiency[:2] == pytest.approx(filled, rel=0.02)


def test_a_plan_of_graphs_sizes_and_a_histogram_is_the_same_and_is_saved(tmp_path):
    graphs = double_graphs([3, 9, 4, 7, 12, 5] * 4)
    sizes = np.array([(g.num_nodes, g.num_edges) for g in graphs])
    plans = [
        sg.plan_stream(source, 8, buckets=3)
        for source in (graphs, sizes, SizeHistogram.from_sizes(sizes))
    ]
    assert plans[0] == plans[1] == plans[2]
    plans[0].save(tmp_path / "plan.json")
    assert sg.BucketPlan.load(tmp_path / "plan.json") == plans[0]
    assert sum(plans[0].shares) + plans[0].misses == pytest.approx(1)


def test_further_components_are_added_by_the_union_bound():
    rng = np.random.default_rng(1)
    nodes = rng.integers(3, 20, 300)
    sizes = np.stack([nodes, 2 * nodes, rng.integers(0, 60, 300)], 1)
    names = ("nodes", "edges", "triplet")
    plan = sg.plan_stream(sizes, 8, miss=1e-2, components=names)
    found = counted(sizes, np.full(300, 1 / 300), plan, 8)
    assert found[-1] <= plan.misses * 1.2 <= 1.3e-2
    assert dict(plan.capacities[0].extra).keys() == {"triplet"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1, 2]}, r"weights of shape \[2\] for 3 sizes"),
        ({"weights": [0, 0, 0]}, "not all 0"),
        ({"components": ["nodes"]}, "components= names 1"),
    ],
)
def test_what_cannot_be_planned_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        sg.plan_stream([(3, 4), (5, 6), (7, 8)], 2, **options)


def test_any_collection_of_graphs_is_read_and_other_things_are_named():
    graphs = double_graphs([3, 9, 4, 7])
    plan = sg.plan_stream(graphs, 2)
    assert sg.plan_stream(Subset([*graphs, *graphs], range(4)), 2) == plan
    assert sg.plan_stream(ConcatDataset([graphs[:1], graphs[1:]]), 2) == plan
    assert sg.plan_stream((graph for graph in graphs), 2) == plan
    batch = Batch.from_data_list(graphs)
    for other in (batch, graphs[0], {0: graphs[0]}, DataLoader(graphs), None, "esol"):
        for make in (sg.plan_stream, partial(sg.plan_buckets, batch_size=2)):
            args = (other, 2) if make is sg.plan_stream else (other,)
            with pytest.raises(TypeError, match=rf"{type(other).__name__} is neither a list of"):
                make(*args)
    with pytest.raises(ValueError, match="at least one graph"):
        sg.plan_stream([], 2)


def test_one_large_graph_among_small_ones_is_planned_for():
    # Fewer nodes than one standard deviation below the mean: less than none.
    sizes = [(3, 4)] * 40 + [(300, 400)]
    plan = sg.plan_stream(sizes, 8)
    found = counted(np.array(sizes), np.full(41, 1 / 41), plan, 8)
    assert found[-1] <= 2e-3
    assert plan.capacities[0].node_limit >= 24


def test_rows_that_a_plan_of_a_list_lacks_are_named_before_the_first_batch():
    graphs = double_graphs([3, 9, 4, 7])
    for graph, pairs in zip(graphs, [3, 1, 2, 5], strict=True):
        graph.edge_label_index = torch.zeros(2, pairs, dtype=torch.long)
    plan = sg.plan_stream(graphs, 2)
    store = sg.GraphStore.from_pyg(graphs)
    message = r"data counts edge_label_index .* Capacity\(..., extra="
    with pytest.raises(sg.PlanMismatch, match=message):
        sg.StaticGraphRunner(torch.nn.Linear(1, 1), plan, mode="eager").warmup(progress=False)
    with pytest.raises(sg.PlanMismatch, match=message):
        sg.check(torch.nn.Linear(1, 1), plan, store)
    # As the message says, with a store that nothing else holds.
    plan = sg.plan_stream(sg.GraphStore.from_pyg(graphs, keep_order=True), 2)
    assert plan.source()
    assert plan.capacities[-1].extra[0][1] == 12  # made even, for models that read pairs
