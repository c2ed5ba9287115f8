"""Only valid edges are ranked: in columns, between existing nodes and with existing relations."""

from __future__ import annotations

import numpy as np
import pytest
from support.encoder_trainers import random_edges

from staticgraph.errors import BadGraph
from staticgraph.outofcore import InMemory, LinkConfig, LinkTrainer, evaluate_links, partition

N, R = 23, 3
SMALL = LinkConfig(dimension=4, batch_size=20, chunks=2, negatives=6, seed=3, spread=1.0)


TRAIN, TESTED = random_edges(N, 120, 0, R), random_edges(N, 9, 1, R)
KNOWN = np.concatenate([TRAIN, TESTED], axis=1)


def made(tmp_path, edges):
    graph = partition(edges, N, 3, tmp_path / "graph")
    return LinkTrainer(graph, InMemory(), SMALL, tmp_path / "embeddings")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    trainer = made(tmp_path_factory.mktemp("a"), TRAIN)
    trainer.train_epoch()
    yield trainer
    trainer.close()


def changed(row: int, value: int) -> np.ndarray:
    edges = TESTED.copy()
    edges[row, 4] = value
    return edges


@pytest.mark.parametrize(
    ("edges", "known", "said"),
    [
        (TESTED.T, KNOWN, r"edges has shape \(9, 3\).*such as edges\.T"),
        (TESTED[:2], KNOWN, r"edges has shape \(2, 9\).*source, destination, relation"),
        (TESTED, KNOWN[:2], r"known has shape \(2, 129\)"),
        (TESTED.astype(float), KNOWN, "dtype float64"),
        (changed(0, -1), KNOWN, "edges: edge 4 joins -1 -> .*, but there are 23 nodes"),
        (changed(1, N), KNOWN, "edges: edge 4 joins .* -> 23, but there are 23 nodes"),
        (changed(2, -1), KNOWN, "edges: edge 4 has relation -1; count from 0"),
        (changed(2, R), KNOWN, "edge 4 has relation 3, and the edges of training have 3 relations"),
        (TESTED[:, :0], KNOWN, r"edges has shape \(3, 0\): there is nothing to rank"),
    ],
)
def test_what_would_rank_something_else_is_refused(trainer, edges, known, said):
    with pytest.raises(BadGraph, match=said):
        evaluate_links(trainer, edges, known)


def test_a_graph_without_relations_takes_two_rows_or_relation_zero(tmp_path):
    trainer = made(tmp_path, TRAIN[:2])
    two = evaluate_links(trainer, TESTED[:2], KNOWN[:2])
    zero = np.concatenate([TESTED[:2], np.zeros((1, 9), int)])
    assert evaluate_links(trainer, zero, KNOWN[:2]) == two
    with pytest.raises(BadGraph, match=r"edges has relations, and .* was partitioned without any"):
        evaluate_links(trainer, TESTED, KNOWN[:2])
    trainer.close()


def test_nothing_is_ranked_in_the_middle_of_an_epoch(tmp_path):
    trainer = made(tmp_path, TRAIN)
    with pytest.raises(RuntimeError, match="epoch 1 is under way"):
        trainer.train_epoch(lambda state, of: evaluate_links(trainer, TESTED, KNOWN))
    assert trainer.epoch == 0
    trainer.train_epoch()
    assert evaluate_links(trainer, TESTED, KNOWN).edges == 9
    trainer.close()
