"""Each seed node once, only resident neighbours, reproducible batches; one compile per rung."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.arena import ArenaRecorder
from support.counted_graphs import counting
from torch import nn
from torch_geometric.nn import GCNConv

from staticgraph.errors import StoreCorrupt
from staticgraph.outofcore import (
    Beta,
    Comet,
    Dispersed,
    HopLadder,
    InMemory,
    NodeCache,
    NodeTrainer,
    SampledGNN,
    SampledLoader,
    partition,
)
from staticgraph.outofcore.buffer.resident import ResidentGraphs
from staticgraph.outofcore.disk import data
from staticgraph.outofcore.sampling.hops import HopCapacity
from staticgraph.outofcore.training.hop_runner import HopRunner

N, TRAIN = 90, np.arange(5, 35)


def made(folder, p=6, training=None):
    rng = np.random.default_rng(0)
    edges = rng.integers(0, N, (2, 500))
    features = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
    return partition(edges, N, p, folder, features=features, training_nodes=training), edges


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return made(tmp_path_factory.mktemp("a") / "g")


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    return made(tmp_path_factory.mktemp("b") / "g", training=TRAIN)


LABELS = np.arange(N) % 7


@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_with_half_resident_training_nodes_see_nearly_all_that_they_would_see(tmp_path, name):
    """The share of the edges in two hops from the training nodes that have both ends resident."""
    nodes = data.open_nodes(name)
    shares = {}
    for near in (0, 2):
        graph = partition(
            nodes.edges, len(nodes.labels), 16, tmp_path / str(near), training_nodes=nodes.train,
            near=near,
        )  # fmt: skip
        schedule = NodeCache(8, near=4 * near).epoch(16, (0,), np.random.default_rng(0))
        resident = np.isin(np.arange(16), schedule.states[0].partitions)
        new = np.empty(graph.num_nodes, np.int64)
        new[graph.node_ids] = np.arange(graph.num_nodes)
        here = resident[new // graph.partition_size]
        reached = np.isin(np.arange(graph.num_nodes), nodes.train)
        reached[nodes.edges[0][reached[nodes.edges[1]]]] = True
        wanted = reached[nodes.edges[1]]
        shares[near] = (here[nodes.edges[0]] & here[nodes.edges[1]])[wanted].mean()
    # In random order, only about half of the neighbours of resident nodes are resident.
    assert shares[0] < 0.5
    assert shares[2] > 0.9


# ---------------------------------------------------------------------- states


@pytest.mark.parametrize("policy", [Dispersed(2), Dispersed(4, 1), Dispersed(3, 3)])
@pytest.mark.parametrize("direction", ["in", "out", "both"])
def test_a_state_sees_exactly_the_edges_between_resident_nodes(graph, policy, direction):
    graph, edges = graph
    states = ResidentGraphs(graph, direction)
    schedule = policy.epoch(6, tuple(range(6)), np.random.default_rng(1))
    features = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
    for resident, state in zip(states.run(schedule), schedule.states, strict=True):
        here = resident.node_of >= 0
        original = graph.node_ids[resident.node_of[here]]
        assert sorted(set(resident.node_of[here] // graph.partition_size)) == list(state.partitions)
        np.testing.assert_array_equal(resident.features[here], features[original])
        # Degrees are those of the whole graph, whatever is resident; self-loops do not count.
        joined = edges[:, edges[0] != edges[1]]
        both = {"in": joined[1:], "out": joined[:1], "both": joined}[direction]
        degrees = np.bincount(both.ravel(), minlength=N)
        np.testing.assert_array_equal(resident.whole_degrees[here], degrees[original])
        assert (resident.whole_degrees[~here] == 0).all()
        inside = np.isin(edges, original).all(axis=0)
        ways = {"in": [(0, 1)], "out": [(1, 0)], "both": [(0, 1), (1, 0)]}[direction]
        for (near, far), pointers, indices in zip(
            ways, resident.neighbours.pointers, resident.neighbours.indices, strict=True
        ):
            own = np.repeat(np.arange(len(here)), np.diff(pointers))
            found = [graph.node_ids[resident.node_of[rows]] for rows in (indices, own)]
            expected = edges[[near, far]][:, inside]
            assert sorted(zip(*map(list, found), strict=True)) == sorted(map(tuple, expected.T))
    assert states.partitions_read == schedule.reads
    states.close()


# ---------------------------------------------------------------------- nodes


def collected(loader):
    return [
        (b.seeds.copy(), b.hops.x.clone(), b.hops.y.clone(), [t.clone() for t in b.hops.draws])
        for b in loader
    ]


@pytest.mark.parametrize(
    ("which", "policy"),
    [("graph", InMemory()), ("graph", Dispersed(3)), ("cached", NodeCache(4)),
     ("cached", Dispersed(2, 1))],
)  # fmt: skip
def test_each_training_node_comes_once_with_its_features_and_label(request, which, policy):
    graph, _ = request.getfixturevalue(which)
    loader = SampledLoader(graph, policy, [3, 2], 8, seeds=TRAIN, labels=LABELS)
    for _ in range(2):
        seeds = []
        for batch in loader:
            original = graph.node_ids[batch.seeds]
            seeds += original.tolist()
            n = len(original)
            np.testing.assert_array_equal(batch.hops.x[:n, 0], original * 3)
            np.testing.assert_array_equal(batch.hops.y[:n], LABELS[original])
            assert (batch.hops.y[n:] == -1).all()
            assert (batch.hops.x[~batch.hops.mask] == 0).all()
        assert sorted(seeds) == TRAIN.tolist()
    loader.close()


def test_the_same_seed_gives_the_same_batches(graph):
    graph, _ = graph
    runs = []
    for seed in (0, 0, 1):
        loader = SampledLoader(graph, Dispersed(3), [3, 2], 8, labels=LABELS, seed=seed)
        runs.append([collected(loader), collected(loader)])
        loader.close()
    for first, second in zip(runs[0], runs[1], strict=True):
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a[0], b[0])
            assert all(torch.equal(s, t) for s, t in zip(a[1:3], b[1:3], strict=True))
            assert all(torch.equal(s, t) for s, t in zip(a[3], b[3], strict=True))
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(runs[0][0], runs[2][0], strict=False))


def test_an_epoch_that_is_left_early_leaves_nothing_running(graph):
    graph, _ = graph
    loader = SampledLoader(graph, Dispersed(2), [3], 4, labels=LABELS)
    for _ in loader:
        break
    assert len(collected(loader)) >= N // 4
    loader.close()


def test_a_small_ladder_still_loses_no_seed(graph):
    graph, _ = graph
    tight = HopLadder((HopCapacity((16, 12, 8), (3, 2)),))
    loader = SampledLoader(graph, InMemory(), [3, 2], 16, labels=LABELS, ladder=tight)
    seeds = [graph.node_ids[s] for seeds, *_ in collected(loader) for s in seeds]
    assert sorted(seeds) == list(range(N))
    assert tight.statistics.splits > 0
    loader.close()


# ---------------------------------------------------------------------- links


@pytest.mark.parametrize("policy", [InMemory(), Beta(3), Comet(4, 3)])
def test_each_edge_comes_once_with_its_ends_among_the_seeds(graph, policy):
    graph, edges = graph
    loader = SampledLoader(graph, policy, [3], 20, "link", negatives=5)
    found = []
    for batch in loader:
        ends = batch.ends
        assert len(ends.negatives) == 5
        assert int(ends.negatives.max()) < len(batch.seeds)
        for s, d in zip(ends.source[ends.mask], ends.destination[ends.mask], strict=True):
            found.append(tuple(graph.node_ids[batch.seeds[[int(s), int(d)]]].tolist()))
    assert sorted(found) == sorted(map(tuple, edges.T.tolist()))
    loader.close()


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Beta(2), [2], 4, "node"), "nodes are trained with"),
        ((NodeCache(2), [2], 4, "link"), "links with Beta"),
        ((InMemory(), [2], 0, "node"), "batch_size=0"),
        ((InMemory(), [2], 4, "graph"), "'node' or 'link'"),
    ],
)
def test_what_cannot_be_loaded_is_refused(graph, arguments, message):
    with pytest.raises(ValueError, match=message):
        SampledLoader(graph[0], *arguments)
    with pytest.raises(ValueError, match="labels has 3 entries"):
        SampledLoader(graph[0], InMemory(), [2], 4, labels=np.zeros(3))


def test_an_error_of_a_thread_reaches_the_caller(tmp_path):
    graph, _ = made(tmp_path / "g")
    loader = SampledLoader(graph, Dispersed(2), [2], 8, labels=LABELS)
    (tmp_path / "g" / "features.bin").write_bytes(b"")
    with pytest.raises(StoreCorrupt, match=r"features\.bin ends at byte"):
        collected(loader)


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_at_most_one_compile_a_rung_and_the_same_result_as_eager(graph, kind):
    graph, _ = graph
    calls = []
    torch.manual_seed(0)
    model = SampledGNN(kind, 3, 8, 7, 2)
    ladder = HopLadder((HopCapacity((8, 16, 16), (3, 2)), HopCapacity((8, 24, 48), (3, 2))))
    loader = SampledLoader(graph, Dispersed(3), [3, 2], 8, labels=LABELS, ladder=ladder)
    compiled, eager = HopRunner(model, compiler=counting(calls)), HopRunner(model)
    for _ in range(3):
        for batch in loader:
            batch.hops.x.div_(N * 3)
            torch.testing.assert_close(compiled(batch.hops), eager(batch.hops))
    assert all(ladder.statistics.batches)
    assert len(calls) == len(compiled.compiled) == 2
    loader.close()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recorded_training_equals_eager_training(graph, dropout):
    """Two rungs and many batches would reveal stale inputs, stale gradients and mixed-up rungs."""
    graph, _ = graph
    tape, runs = ArenaRecorder(torch.device("cpu")), []
    for recorder in (None, tape):
        torch.manual_seed(0)
        model = SampledGNN("gcn", 3, 8, 7, 2, dropout)
        ladder = HopLadder((HopCapacity((8, 16, 16), (3, 2)), HopCapacity((8, 24, 48), (3, 2))))
        loader = SampledLoader(graph, Dispersed(3), [3, 2], 8, labels=LABELS, ladder=ladder)
        trainer = NodeTrainer(model, loader)
        if recorder is not None:
            trainer.runner = HopRunner(model, "cuda-graph", recorder=recorder)
        runs.append([trainer.train_epoch().loss for _ in range(4)])
        assert all(ladder.statistics.batches)
        loader.close()
    assert tape.recorded == 2
    # The same operations and the same dropout draws on the same values.
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_recorded_training_on_a_gpu_equals_the_cpu(graph, place):
    graph, _ = graph
    losses = []
    for device, mode in (("cpu", "eager"), (place.device, "cuda-graph")):
        torch.manual_seed(0)
        model = SampledGNN("gcn", 3, 8, 7, 2).to(device)
        loader = SampledLoader(graph, Dispersed(3), [3, 2], 8, labels=LABELS)
        own = mode == "eager" or place.cuda
        trainer = NodeTrainer(model, loader, mode=mode if own else "eager")
        if not own:
            trainer.runner = HopRunner(model, mode, recorder=place.made_recorder())
        losses.append([trainer.train_epoch().loss for _ in range(4)])
        loader.close()
    replays = trainer.runner.recorded.replays
    assert sum(replays.values()) == sum(loader.ladder.statistics.batches)
    # float32 in another order over dozens of Adam steps; the first divide gradients by their size.
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-2)


@pytest.mark.slow
def test_every_rung_compiles_once_on_a_gpu_and_equals_the_cpu(graph, place):
    graph, _ = graph
    torch.manual_seed(0)
    model = SampledGNN("sage", 3, 8, 7, 2)
    on_gpu = SampledGNN("sage", 3, 8, 7, 2).to(place.device)
    on_gpu.load_state_dict(model.state_dict())
    ladder = HopLadder((HopCapacity((8, 16, 16), (3, 2)), HopCapacity((8, 24, 48), (3, 2))))
    loader = SampledLoader(graph, Dispersed(3), [3, 2], 8, labels=LABELS, ladder=ladder)
    # A CPU has no recording mode; its compiled code is traced in the same way.
    recorded = HopRunner(on_gpu, "reduce-overhead" if place.cuda else "default")
    eager = HopRunner(model)
    with torch.no_grad():
        for _ in range(4):
            for batch in loader:
                batch.hops.x.div_(N * 3)
                found = recorded(batch.hops).clone().cpu()
                # float32 sums of a few terms of order one in another order.
                torch.testing.assert_close(found, eager(batch.hops), rtol=1e-4, atol=1e-4)
    assert [f.counts.compiles for f in recorded.compiled.values()] == [1, 1]
    assert not any(f.counts.skipped for f in recorded.compiled.values())
    loader.close()


def test_training_on_the_whole_graph_equals_pyg_in_full_batch(graph):
    """All neighbours, all seeds in one batch: the same losses as PyG's own layers."""
    graph, edges = graph
    keep = edges[0] != edges[1]
    rng = np.random.default_rng(1)
    simple = np.unique(edges[:, keep], axis=1)
    features = rng.normal(size=(N, 3)).astype(np.float32)
    graph = partition(simple, N, 3, graph.folder.parent / "simple", features=features)
    degree = int(np.bincount(simple[1]).max())
    torch.manual_seed(0)
    model = SampledGNN("gcn", 3, 8, 7, 2)
    first, second = GCNConv(3, 8), GCNConv(8, 7)
    first.load_state_dict(model.layers[0].state_dict())
    second.load_state_dict(model.layers[1].state_dict())
    loader = SampledLoader(graph, InMemory(), [degree, degree], N, labels=LABELS, seeds=TRAIN)
    trainer = NodeTrainer(model, loader, rate=0.01, decay=0.0)
    plain = nn.ModuleList([first, second])
    optimizer = torch.optim.Adam(plain.parameters(), 0.01)
    x, edge_index = torch.from_numpy(features), torch.from_numpy(simple)
    y = torch.from_numpy(LABELS)[TRAIN]
    for _ in range(5):
        out = second(first(x, edge_index).relu(), edge_index)[TRAIN]
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # float32, five steps of Adam; the first divides small gradients by their own size.
        assert trainer.train_epoch().loss == pytest.approx(loss.item(), rel=1e-4)
    with torch.no_grad():
        out = second(first(x, edge_index).relu(), edge_index)
    accuracy = (out.argmax(1).numpy() == LABELS)[TRAIN].mean()
    assert trainer.evaluate_whole(TRAIN, LABELS) == pytest.approx(accuracy)
    loader.close()


def test_a_loader_without_labels_says_so(graph):
    loader = SampledLoader(graph[0], InMemory(), [2], 8)
    with pytest.raises(ValueError, match="pass labels="):
        NodeTrainer(SampledGNN("sage", 3, 4, 2, 1), loader).train_epoch()
    loader.close()
