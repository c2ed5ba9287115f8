"""A loader serves only the shapes and the task it was made for, and one iteration at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from staticgraph.outofcore import (
    Dispersed,
    HopCapacity,
    HopLadder,
    InMemory,
    SampledLoader,
    partition,
)
from staticgraph.outofcore.disk.neighbours import Neighbours
from staticgraph.outofcore.sampling.dense import DenseSampler
from staticgraph.outofcore.sampling.hops import HopBatch

N = 60
EDGES = np.random.default_rng(0).integers(0, N, (2, 400))
VALUES = np.arange(N, dtype=np.float32)[:, None]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partition(EDGES, N, 6, tmp_path_factory.mktemp("a") / "g", features=VALUES)


@pytest.mark.parametrize(("name", "value"), [("fanouts", [9]), ("batch_size", 50)])
def test_other_shapes_than_those_of_the_ladder_are_refused(graph, name, value):
    loader = SampledLoader(graph, InMemory(), [3], 8)
    assert sum(len(batch.seeds) for batch in loader) == N
    setattr(loader, name, value)
    with pytest.raises(ValueError, match=r"shapes were made for \(\(3,\), 8\): make another"):
        next(iter(loader))
    loader.close()


@pytest.mark.parametrize("direction", ["in", "both"])
def test_a_ladder_of_other_fanouts_is_refused(graph, direction):
    ladder = HopLadder((HopCapacity((8, 60), (4,)),))
    with pytest.raises(ValueError, match=r"ladder has widths \(4,\), and fanouts=\[7\]"):
        SampledLoader(graph, InMemory(), [7], 8, ladder=ladder, direction=direction)
    fitting = SampledLoader(
        graph, InMemory(), [2 if direction == "both" else 4], 8, ladder=ladder, direction=direction
    )
    assert sum(len(batch.seeds) for batch in fitting) == N
    fitting.close()


def test_a_sample_of_other_widths_does_not_fit_a_batch():
    neighbours = Neighbours.of(*EDGES, N)
    sample = DenseSampler(neighbours, [5]).sample(np.arange(4), 0)
    with pytest.raises(ValueError, match=r"sample of \(5,\) neighbours per hop"):
        HopBatch(HopCapacity((4, 60), (3,)), None).fill(sample, neighbours.degrees())


@pytest.mark.parametrize("policy", [InMemory(), Dispersed(2)])
def test_an_iteration_that_another_one_ended_says_so(graph, policy):
    loader = SampledLoader(graph, policy, [3], 8)
    first = iter(loader)
    next(first)
    # As after an interrupt whose traceback keeps the iterator: the next epoch is whole and correct.
    seen = []
    for batch in loader:
        seen += batch.nodes.tolist()
        x = batch.hops.x[: len(batch.nodes), 0].numpy()
        np.testing.assert_array_equal(x, VALUES[batch.nodes, 0])
    assert sorted(seen) == list(range(N))
    with pytest.raises(RuntimeError, match="another iteration of this loader began"):
        next(first)
    assert loader.epoch == 1
    loader.close()


def test_the_nodes_of_a_batch_are_the_callers(graph):
    loader = SampledLoader(graph, InMemory(), [3], 8, labels=np.arange(N))
    for batch in loader:
        assert not np.array_equal(batch.nodes, batch.seeds)
        np.testing.assert_array_equal(batch.nodes, graph.node_ids[batch.seeds])
        n = len(batch.nodes)
        np.testing.assert_array_equal(batch.hops.y[:n].numpy(), batch.nodes)
        np.testing.assert_array_equal(batch.hops.x[:n, 0].numpy(), VALUES[batch.nodes, 0])
    loader.close()


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("link", {"seeds": [1, 2]}, "task='link' with seeds=: they are of nodes.*partition the"),
        ("link", {"labels": np.zeros(N, int)}, "task='link' with labels="),
        ("node", {"negatives": 4, "exclude": True}, "task='node' with negatives=, exclude="),
        ("link", {"negatives": -1}, "negatives=-1"),
        ("link", {"negatives": 3, "degree_fraction": 1.5}, "degree_fraction=1.5"),
        ("node", {"fanouts": [-1]}, r"fanouts=\[-1\].*for all neighbours the largest degree"),
        ("node", {"fanouts": 5}, "fanouts=5: give a list"),
        ("node", {"fanouts": [2.5]}, "fanouts=2.5: give a whole number"),
        ("node", {"batch_size": 8.0}, "batch_size=8.0: give a whole number"),
    ],
)
def test_options_that_would_be_ignored_or_fail_later_are_refused(graph, task, options, said):
    given = {"fanouts": [3], "batch_size": 8, "task": task, **options}
    with pytest.raises(ValueError, match=said):
        SampledLoader(graph, InMemory(), **given)


def test_numbers_of_numpy_and_torch_are_taken(graph):
    loader = SampledLoader(graph, InMemory(), torch.tensor([3, 2]), np.int64(8))
    assert (loader.fanouts, loader.batch_size) == ([3, 2], 8)
    assert sum(len(batch.seeds) for batch in loader) == N
    loader.close()
