"""Link prediction: loss and updates against plain PyTorch, ranks against loops, static shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.encoder_trainers import random_edges

from staticgraph.outofcore import (
    InMemory,
    LinkConfig,
    LinkTrainer,
    evaluate_links,
    partition,
)
from staticgraph.outofcore.sampling.link_sampling import LinkSeeds
from staticgraph.outofcore.training.link_step import DECODERS, adagrad_rows, link_loss
from staticgraph.outofcore.training.ranking import filtered_places

N, RELATIONS = 23, 3


EDGES = random_edges(N, 90, 0, RELATIONS)


def plain_score(decoder: str, known, relation, other) -> torch.Tensor:
    """One score, by the papers' formulas."""
    if decoder == "distmult":
        return sum(known[d] * relation[d] * other[d] for d in range(len(known)))
    if decoder == "complex":
        half = len(known) // 2
        a, r, b = (torch.complex(v[:half], v[half:]) for v in (known, relation, other))
        return (a * r * b.conj()).sum().real
    return -(known + relation - other).norm()


class Everything:
    """All nodes resident, one row each."""

    def __init__(self, edges):
        self.edges, self.values = edges, np.empty((N, 0))

    def draw(self, rng, count):
        return rng.integers(N, size=count)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("count", [12, 7, 1])
def test_a_step_equals_loops_and_dense_adagrad_in_float64(decoder, count):
    """A batch that is not full has fewer chunks, of four edges and five negatives a side each."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(N, 6, generator=generator)
    relations = torch.randn(2, RELATIONS, 6, generator=generator).requires_grad_()
    edges = EDGES[[0, 2, 1]].T[:count].copy()
    links, chunks = LinkSeeds(12, 3, 30, 0.0), -(-count // 4)
    for _ in range(2):  # scratch space is as it was
        rows, ends = links.draw(edges, Everything(edges), np.random.default_rng(5))
    assert len(set(rows.tolist())) == len(rows)
    touched = table[rows].requires_grad_()
    loss = link_loss(DECODERS[decoder](), touched, relations, ends, chunks)
    loss.backward()

    negatives = np.random.default_rng(5).integers(N, size=chunks * 10).reshape(2, chunks, 5)
    exact = torch.nn.Parameter(table.double())
    exact_relations = torch.nn.Parameter(relations.detach().double())
    total = torch.zeros((), dtype=torch.float64)
    for e, (source, relation, destination) in enumerate(edges.tolist()):
        for way, (known, other) in enumerate([(source, destination), (destination, source)]):
            r = exact_relations[way, relation]
            scores = [plain_score(decoder, exact[known], r, exact[other])]
            for candidate in negatives[way, e // 4]:
                scores.append(plain_score(decoder, exact[known], r, exact[int(candidate)]))
            total = total - torch.log_softmax(torch.stack(scores), 0)[0]
    optimizer = torch.optim.Adagrad([exact], lr=0.1, eps=1e-10)
    total.backward()
    # float32 against float64 over sums of at most 60 terms of order one.
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(loss.double(), total.detach(), **close)
    torch.testing.assert_close(relations.grad.double(), exact_relations.grad, **close)
    dense = torch.zeros(N, 6)
    dense[rows] = touched.grad
    torch.testing.assert_close(dense.double(), exact.grad, **close)

    values, sums = table.numpy().copy(), np.zeros((N, 6), np.float32)
    adagrad_rows(values, sums, rows, touched.grad.numpy(), np.float32(0.1))
    exact.grad = dense.double()
    optimizer.step()
    # An unused row has gradient zero, so dense Adagrad leaves it unchanged too.
    np.testing.assert_allclose(values, exact.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("near", [1e-1, 1e-3, 0.0])
def test_distances_and_gradients_of_near_rows_are_those_of_float64(near):
    """Squares minus products, in float32, would leave rounding errors alone."""
    torch.manual_seed(0)
    query = 3 * torch.randn(5, 50)
    candidates = (query[:1] + near * torch.randn(7, 50)).requires_grad_()
    scores = DECODERS["transe"]().scores(query.requires_grad_(), candidates)
    scores.sum().backward()
    exact_q, exact_c = (t.detach().double().requires_grad_() for t in (query, candidates))
    exact = -((exact_q[:, None] - exact_c[None]).square().sum(-1) + 1e-12).sqrt()
    exact.sum().backward()
    torch.testing.assert_close(scores, exact.float(), rtol=1e-5, atol=1e-6)
    assert query.grad.isfinite().all()
    torch.testing.assert_close(query.grad, exact_q.grad.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(candidates.grad, exact_c.grad.float(), rtol=1e-4, atol=1e-4)


def test_negatives_by_degree_are_ends_of_edges():
    edges = np.array([[0, 0, 1], [0, 1, 2], [0, 2, 3]])
    links = LinkSeeds(4, 1, 1600, 0.5)
    rows, ends = links.draw(edges, Everything(edges), np.random.default_rng(0))
    counts = np.bincount(rows[ends.negatives], minlength=N)
    # Node 0 is half of the ends of 800 draws, and one of 23 nodes in the others.
    assert abs(counts[0] - 400 - 800 / N) < 5 * np.sqrt(800 / 4 + 800 / N)
    assert abs(counts[4:].sum() - 800 * 19 / N) < 5 * np.sqrt(800 / 4)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("p", [1, 4])
def test_filtered_places_equal_loops(tmp_path, decoder, p):
    edges = EDGES
    graph = partition(edges, N, p, tmp_path / "g")
    config = LinkConfig(decoder, dimension=6, batch_size=10, chunks=2, negatives=8, spread=1.0)
    trainer = LinkTrainer(graph, InMemory(), config, tmp_path / "e")
    trainer.train_epoch()
    tested = random_edges(N, 15, 9, RELATIONS)
    # A true end is not its own rival, whether it is known or not.
    known = np.concatenate([edges, tested, tested[:, :4]], axis=1) if p == 1 else edges
    table = np.empty((N, 6), np.float32)
    for k in range(p):
        values, sums = np.empty((2, graph.partition_size, 6), np.float32)
        trainer.file.read(k, values, sums)
        low = k * graph.partition_size
        table[graph.node_ids[low : low + graph.nodes_of(k)]] = values[: graph.nodes_of(k)]
    exact, relations = torch.from_numpy(table).double(), trainer.relations.double()
    true = set(map(tuple, known.T.tolist()))
    places = np.empty((2, 15))
    for t, (source, destination, relation) in enumerate(tested.T.tolist()):
        for way in (0, 1):
            here, there = (source, destination) if way == 0 else (destination, source)
            r = relations[way, relation]
            target = plain_score(decoder, exact[here], r, exact[there])
            place = 1.0
            for candidate in range(N):
                edge = (here, candidate) if way == 0 else (candidate, here)
                if candidate == there or (*edge, relation) in true:
                    continue
                place += float(plain_score(decoder, exact[here], r, exact[candidate]) > target)
            places[way, t] = place
    np.testing.assert_array_equal(filtered_places(trainer, tested, known)[0], places)
    score = evaluate_links(trainer, tested, known)
    assert score.mrr == pytest.approx((1 / places).mean())
    assert score.hits[3] == pytest.approx((places <= 3).mean())
    trainer.close()


@pytest.mark.parametrize("decoder", DECODERS)
def test_rows_that_are_all_the_same_stand_in_the_middle(tmp_path, decoder):
    """Whatever the rounding of a product of that width, collapsed embeddings gain nothing."""
    graph = partition(EDGES, N, 3, tmp_path / "g")
    config = LinkConfig(decoder, dimension=50, batch_size=10, chunks=2, negatives=8)
    trainer = LinkTrainer(graph, InMemory(), config, tmp_path / "e")
    row = torch.randn(50, generator=torch.Generator().manual_seed(50))
    trainer.rows = lambda p: row.repeat(graph.nodes_of(p), 1)
    tested = np.array([[0], [1], [2]])
    np.testing.assert_array_equal(filtered_places(trainer, tested, tested)[0], (1 + N) / 2)
    trainer.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decoder": "rescal"}, "choose one of distmult, complex, transe"),
        ({"batch_size": 10, "chunks": 3}, "not a multiple"),
        ({"negatives": 0}, "negatives=0: give a whole number of at least 1"),
        ({"degree_fraction": 1.5}, "a share"),
        ({"rate": -0.1}, "rate=-0.1: give a number of at least 0"),
        ({"spread": float("inf")}, "spread=inf"),
        ({"seed": -1}, "seed=-1"),
        ({"dimension": 8.5}, "dimension=8.5: give a whole number"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        LinkConfig(**values)
