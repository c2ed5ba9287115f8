"""Link prediction: loss and updates against plain PyTorch, ranks against loops, static shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from staticgraph.outofcore import (
    Beta,
    Comet,
    InMemory,
    LinkConfig,
    LinkTrainer,
    data,
    evaluate_links,
    partition,
)
from staticgraph.outofcore.training.adagrad import adagrad_rows, distinct
from staticgraph.outofcore.training.decoders import DECODERS, ComplEx
from staticgraph.outofcore.training.link_step import LinkStep
from staticgraph.outofcore.training.ranking import filtered_places

N, RELATIONS = 23, 3


def generated(e: int = 90, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, N, e), rng.integers(0, N, e), rng.integers(0, RELATIONS, e)])


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
        self.edges = edges

    def rows(self, nodes):
        return nodes

    def draw(self, rng, shape):
        return rng.integers(N, size=shape)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("count", [12, 7, 1])
@pytest.mark.parametrize("whole", [True, False])
def test_a_step_equals_loops_and_dense_adagrad_in_float64(decoder, count, whole):
    config = LinkConfig(decoder, dimension=6, batch_size=12, chunks=3, negatives=5)
    step = LinkStep(config, DECODERS[decoder](), whole=whole)
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(N, 6, generator=generator)
    relations = torch.randn(2, RELATIONS, 6, generator=generator)
    edges = generated()[[0, 2, 1]].T[:count].copy()
    place = np.full(N, -1, np.int32)
    batch = step.fill(edges, Everything(edges), np.random.default_rng(5), place)
    assert (place == -1).all()
    loss, gradient, by_relation = step(table[batch.gather], relations, batch)

    negatives = np.random.default_rng(5).integers(N, size=(2, 3, 5))
    exact = torch.nn.Parameter(table.double())
    exact_relations = torch.nn.Parameter(relations.double())
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
    # float32 against float64 over sums of at most 60 terms of order one; distances lose more,
    # because they come from a difference of squares.
    tolerance = 2e-3 if decoder == "transe" else 1e-4
    torch.testing.assert_close(loss.double(), total.detach(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        by_relation.double(), exact_relations.grad, rtol=tolerance, atol=tolerance
    )
    dense = torch.zeros(N, 6)
    dense[batch.rows] = gradient[: len(batch.rows)]
    torch.testing.assert_close(dense.double(), exact.grad, rtol=tolerance, atol=tolerance)
    # Padding gets no gradient.
    assert (gradient[len(batch.rows) + 1 :] == 0).all()

    values, sums = table.numpy().copy(), np.zeros((N, 6), np.float32)
    adagrad_rows(values, sums, batch.rows, dense.numpy()[batch.rows], np.float32(0.1))
    exact.grad = dense.double()
    optimizer.step()
    # An unused row has gradient zero, so dense Adagrad leaves it unchanged too.
    np.testing.assert_allclose(values, exact.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_distinct_is_numpys_unique_in_order_of_appearance():
    rows = np.array([5, 2, 5, 7, 2, 0])
    place, out, local = np.full(9, -1, np.int32), np.zeros(6, np.int64), np.empty(6, np.int64)
    count = distinct(rows, place, out, local)
    assert out[:count].tolist() == [5, 2, 7, 0]
    np.testing.assert_array_equal(out[local], rows)
    assert (place == -1).all()


def test_negatives_by_degree_are_ends_of_edges():
    config = LinkConfig(batch_size=4, chunks=2, negatives=400, degree_fraction=0.5, dimension=2)
    edges = np.array([[0, 0, 1], [0, 1, 2], [0, 2, 3]])
    step = LinkStep(config, DECODERS["distmult"]())
    batch = step.fill(edges, Everything(edges), np.random.default_rng(0), np.full(N, -1, np.int32))
    nodes = batch.gather[batch.negatives].numpy()
    by_degree = nodes[..., :200].ravel()
    assert set(by_degree.tolist()) == {0, 1, 2, 3}
    # Node 0 is half of all ends: 800 draws, standard deviation sqrt(800) / 2.
    assert abs((by_degree == 0).sum() - 400) < 5 * np.sqrt(800) / 2
    assert len(set(nodes[..., 200:].ravel().tolist())) == N


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("p", [1, 4])
def test_filtered_places_equal_loops(tmp_path, decoder, p):
    edges = generated()
    graph = partition(edges, N, p, tmp_path / "g")
    config = LinkConfig(decoder, dimension=6, batch_size=10, chunks=2, negatives=8, spread=1.0)
    trainer = LinkTrainer(graph, InMemory(), config, tmp_path / "e")
    trainer.train_epoch()
    tested = generated(15, seed=9)
    known = np.concatenate([edges, tested, tested[:, :4]], axis=1)
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


def test_ranks_on_an_undirected_graph_leave_out_neighbours_by_either_way(tmp_path):
    """A ring of 12 nodes: each has one neighbour per direction in which edges are in the file."""
    file, nodes = tmp_path / "ring.npz", np.arange(12)
    ring = np.stack([nodes, (nodes + 1) % 12])
    np.savez(file, edges=ring, num_nodes=12)
    links = data.open_links(str(file), held_out=0.4)
    graph = partition(links.train, 12, 3, tmp_path / "g")
    config = LinkConfig("distmult", dimension=4, batch_size=4, chunks=1, negatives=4, spread=1.0)
    trainer = LinkTrainer(graph, InMemory(), config, tmp_path / "e")
    table = np.concatenate([trainer.rows(k).numpy() for k in range(3)])
    values = np.empty((12, 4), np.float32)
    values[graph.node_ids] = table[: len(graph.node_ids)]
    places = np.empty((2, links.test.shape[1]))
    for t, pair in enumerate(links.test.T.tolist()):
        for way in (0, 1):
            here, there = pair[way], pair[1 - way]
            query = torch.from_numpy(values[here]) * trainer.relations[way, 0]
            scores = (torch.from_numpy(values) * query).sum(dim=1)
            others = set(range(12)) - {(here - 1) % 12, (here + 1) % 12}
            places[way, t] = 1 + sum(float(scores[v]) > float(scores[there]) for v in others)
    np.testing.assert_array_equal(filtered_places(trainer, links.test, links.known)[0], places)
    trainer.close()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("dimension", [6, 50])
def test_rows_that_are_all_the_same_stand_in_the_middle(tmp_path, decoder, dimension):
    """Whatever the rounding of a product of that width, collapsed embeddings gain nothing."""
    graph = partition(generated(), N, 3, tmp_path / "g")
    config = LinkConfig(decoder, dimension=dimension, batch_size=10, chunks=2, negatives=8)
    trainer = LinkTrainer(graph, InMemory(), config, tmp_path / "e")
    row = torch.randn(dimension, generator=torch.Generator().manual_seed(dimension))
    trainer.rows = lambda p: row.repeat(graph.nodes_of(p), 1)
    tested = np.array([[0], [1], [2]])
    np.testing.assert_array_equal(filtered_places(trainer, tested, tested)[0], (1 + N) / 2)
    trainer.close()


def test_places_among_near_rows_far_from_the_origin_are_those_of_float64(tmp_path):
    graph = partition(generated(), N, 3, tmp_path / "g")
    config = LinkConfig("transe", dimension=50, batch_size=10, chunks=2, negatives=8)
    trainer = LinkTrainer(graph, InMemory(), config, tmp_path / "e")
    torch.manual_seed(0)
    rows = 3 * torch.randn(50) + 1e-3 * torch.randn(N, 50)
    size = graph.partition_size
    trainer.rows = lambda p: rows[p * size : p * size + graph.nodes_of(p)]
    tested = generated(15, seed=1)[:, :15]
    new = np.argsort(graph.node_ids)
    apart = torch.cdist(rows.double(), rows.double(), compute_mode="donot_use_mm_for_euclid_dist")
    places, _ = filtered_places(trainer, tested, tested)
    for t, (a, b, relation) in enumerate(tested.T):
        same = (tested[0] == a) & (tested[2] == relation)
        others = np.setdiff1d(new, new[tested[1][same]])
        distance = apart[new[a]]
        assert places[0, t] == 1 + int((distance[others] < distance[new[b]]).sum())
    trainer.close()


def test_a_model_that_scores_everything_alike_stands_in_the_middle(tmp_path):
    graph = partition(generated(), N, 2, tmp_path / "g")
    config = LinkConfig(dimension=4, batch_size=10, chunks=2, negatives=8, spread=0.0)
    trainer = LinkTrainer(graph, InMemory(), config, tmp_path / "e")
    tested = np.array([[0], [1], [2]])
    np.testing.assert_array_equal(filtered_places(trainer, tested, tested)[0], (1 + N) / 2)
    trainer.close()


@pytest.mark.parametrize("decoder", DECODERS)
def test_training_learns_a_graph_with_and_without_relations(tmp_path, decoder):
    """A ring of 60 nodes: neighbours must rank far above chance."""
    ring = np.stack([np.arange(60), (np.arange(60) + 1) % 60])
    for columns in (ring, np.concatenate([ring, np.zeros((1, 60), int)])):
        graph = partition(columns, 60, 3, tmp_path / f"g{len(columns)}")
        config = LinkConfig(decoder, dimension=16, batch_size=20, chunks=2, negatives=30, rate=0.2)
        trainer = LinkTrainer(graph, InMemory(), config, tmp_path / f"e{len(columns)}")
        losses = [trainer.train_epoch().loss for _ in range(40)]
        assert losses[-1] < 0.7 * losses[0]
        # At random the mean reciprocal rank of 60 candidates is 0.08.
        assert evaluate_links(trainer, columns, columns).mrr > 0.3
        trainer.close()


def test_a_step_compiles_once_in_static_shapes():
    """The smaller last batch of a state has the same shapes as all others."""
    config = LinkConfig(dimension=4, batch_size=6, chunks=2, negatives=3)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = LinkStep(config, DECODERS["distmult"](), compile={"backend": backend})
    eager = LinkStep(config, DECODERS["distmult"]())
    table, relations = torch.randn(N, 4), torch.randn(2, RELATIONS, 4)
    edges = generated()[[0, 2, 1]].T.copy()
    for count in (6, 6, 4, 1):
        batch = eager.fill(
            edges[:count], Everything(edges), np.random.default_rng(0), np.full(N, -1, np.int32)
        )
        found = compiled(table[batch.gather], relations, batch)
        for now, then in zip(found, eager(table[batch.gather], relations, batch), strict=True):
            torch.testing.assert_close(now, then)
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decoder": "rescal"}, "choose one of distmult, complex, transe"),
        ({"batch_size": 10, "chunks": 3}, "not a multiple"),
        ({"negatives": 0}, "positive"),
        ({"degree_fraction": 1.5}, "a share"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        LinkConfig(**values)


def test_complex_needs_halves():
    with pytest.raises(ValueError, match="even"):
        ComplEx().initial(2, 5)


@pytest.mark.parametrize("policy", [Beta(4), Comet(8, 8)])
def test_states_cost_little_more_than_their_edges(tmp_path, policy, monkeypatch):
    """The edge rows computed over many states, compared with those over everything at once."""
    rows = []
    run = LinkStep.__call__

    def counted(self, touched, relations, batch):
        rows.append((len(batch.mask), int(batch.mask.sum()), batch.negatives.size(1)))
        assert len(batch.source) == len(batch.destination) == len(batch.relation) == rows[-1][0]
        return run(self, touched, relations, batch)

    monkeypatch.setattr(LinkStep, "__call__", counted)
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 320, (2, 8_700))
    graph = partition(edges, 320, 16 if isinstance(policy, Beta) else 32, tmp_path / "g")
    config = LinkConfig(dimension=2, batch_size=100, chunks=10, negatives=3)
    trainer = LinkTrainer(graph, policy, config, tmp_path / "e")
    found = trainer.train_epoch()
    trainer.close()
    computed, real, chunks = (sum(column) for column in zip(*rows, strict=True))
    assert real == found.edges == 8_700
    assert computed == 10 * chunks
    # In memory 87 batches of 100; with states, each of which ends a batch, over 100.
    assert found.batches > 100
    assert computed <= real + 9 * found.states
    assert computed <= 1.05 * 8_700
