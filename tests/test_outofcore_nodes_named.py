"""Nodes are named by numbers or by a mask, classes are whole numbers; anything else is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from staticgraph.errors import BadGraph
from staticgraph.outofcore import InMemory, NodeTrainer, SampledGNN, SampledLoader, partition

N = 30
MASK = np.zeros(N, bool)
MASK[[4, 9, 17, 29]] = True
LABELS = np.arange(N) % 3


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    rng = np.random.default_rng(0)
    edges, features = rng.integers(0, N, (2, 90)), rng.random((N, 3)).astype(np.float32)
    return partition(edges, N, 3, tmp_path_factory.mktemp("a") / "g", features=features)


def loader_of(graph, seeds=None, labels=LABELS):
    return SampledLoader(graph, InMemory(), [3], 4, seeds=seeds, labels=labels)


@pytest.mark.parametrize("mask", [MASK, torch.from_numpy(MASK), MASK.tolist()])
def test_a_mask_of_seeds_names_the_nodes_where_it_is_true(graph, mask):
    loader = loader_of(graph, mask)
    seen = [graph.node_ids[batch.seeds] for batch in loader]
    loader.close()
    assert sorted(np.concatenate(seen).tolist()) == [4, 9, 17, 29]


def test_a_mask_of_training_nodes_fills_the_first_partition(tmp_path):
    graph = partition(np.zeros((2, 1), np.int64), N, 3, tmp_path / "g", training_nodes=MASK)
    assert sorted(graph.node_ids[:4].tolist()) == [4, 9, 17, 29]


def test_evaluation_takes_both(graph):
    loader = loader_of(graph)
    trainer = NodeTrainer(SampledGNN("sage", 3, 8, 3, layers=1), loader, mode="eager")
    by_mask = trainer.evaluate_whole(MASK, LABELS)
    assert by_mask == trainer.evaluate_whole(np.flatnonzero(MASK), LABELS)
    with pytest.raises(ValueError, match=r"labels has 0\.5 for node 0"):
        trainer.evaluate_whole(MASK, np.full(N, 0.5))
    with pytest.raises(BadGraph, match=r"nodes names \[-1, -1\]"):
        trainer.evaluate_whole([-1], LABELS)
    loader.close()


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (MASK[:-1], r"mask of shape \(29,\).*30 nodes"),
        ([-1, 3], r"seeds names \[-1, 3\]; there are 30 nodes"),
        ([N], r"seeds names \[30, 30\]"),
        ([3.7], "dtype float64: give .* integers"),
    ],
)
def test_seeds_that_the_graph_does_not_have_are_refused(graph, seeds, said):
    with pytest.raises(BadGraph, match=said):
        loader_of(graph, seeds)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (LABELS + 0.5, "labels has 0.5 for node 0: give classes"),
        (np.where(LABELS == 1, np.nan, LABELS), "labels has nan for node 1"),
        (LABELS - 2, "labels has -2 for node 0"),
        (np.zeros((N, 2), int), r"labels has shape \(30, 2\)"),
        (LABELS[1:], "labels has 29 entries, the graph 30 nodes"),
    ],
)
def test_labels_that_are_no_classes_are_refused(graph, labels, said):
    with pytest.raises(ValueError, match=said):
        loader_of(graph, labels=labels)


@pytest.mark.parametrize("labels", [LABELS.astype(float), LABELS[:, None], torch.tensor(LABELS)])
def test_classes_in_another_dress_are_classes(graph, labels):
    loader = loader_of(graph, labels=labels)
    for batch in loader:
        seeds = graph.node_ids[batch.seeds]
        np.testing.assert_array_equal(batch.hops.y[: len(seeds)].numpy(), LABELS[seeds])
    loader.close()
