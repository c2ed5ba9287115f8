"""Each seed once, only resident neighbours, reproducible batches; one compile per bucket."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.alike import adam, update
from support.arena import ArenaRecorder
from torch import nn
from torch_geometric.nn import GCNConv

from staticgraph import BucketPlan, Recording
from staticgraph.errors import StoreCorrupt
from staticgraph.outofcore import (
    Beta,
    Dispersed,
    InMemory,
    NodeCache,
    NodeTrainer,
    SampledGNN,
    SampledLoader,
    partition,
)
from staticgraph.outofcore.sampling.buffer import PartitionBuffer

N, TRAIN = 90, np.arange(5, 35)


EDGES = np.random.default_rng(0).integers(0, N, (2, 500))
FEATURES = np.arange(N * 3, dtype=np.float32).reshape(N, 3)


def made(folder, training=None):
    return partition(EDGES, N, 6, folder, features=FEATURES, training_nodes=training)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return made(tmp_path_factory.mktemp("a") / "g")


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    return made(tmp_path_factory.mktemp("b") / "g", training=TRAIN)


LABELS = np.arange(N) % 7


# ---------------------------------------------------------------------- states


@pytest.mark.parametrize("policy", [Dispersed(2), Dispersed(4, 1), Dispersed(3, 3)])
@pytest.mark.parametrize("direction", ["in", "out", "both"])
def test_a_state_sees_exactly_the_edges_between_resident_nodes(graph, policy, direction):
    states = PartitionBuffer(graph, direction)
    schedule = policy.epoch(6, tuple(range(6)), np.random.default_rng(1))
    before = graph.feature_file.reads
    for resident, state in zip(states.run(schedule), schedule.states, strict=True):
        here = resident.node_of >= 0
        original = graph.node_ids[resident.node_of[here]]
        assert sorted(set(resident.node_of[here] // graph.partition_size)) == list(state.partitions)
        np.testing.assert_array_equal(resident.values[here], FEATURES[original])
        # Degrees are those of the whole graph, whatever is resident; self-loops do not count.
        joined = EDGES[:, EDGES[0] != EDGES[1]]
        both = {"in": joined[1:], "out": joined[:1], "both": joined}[direction]
        degrees = np.bincount(both.ravel(), minlength=N)
        np.testing.assert_array_equal(resident.whole_degrees[here], degrees[original])
        assert (resident.whole_degrees[~here] == 0).all()
        inside = np.isin(EDGES, original).all(axis=0)
        ways = {"in": [(0, 1)], "out": [(1, 0)], "both": [(0, 1), (1, 0)]}[direction]
        for (near, far), (pointers, indices) in zip(ways, resident.neighbours.ways, strict=True):
            own = np.repeat(np.arange(len(here)), np.diff(pointers))
            found = [graph.node_ids[resident.node_of[rows]] for rows in (indices, own)]
            expected = EDGES[[near, far]][:, inside]
            assert sorted(zip(*map(list, found), strict=True)) == sorted(map(tuple, expected.T))
    assert graph.feature_file.reads - before == schedule.reads
    states.close()


# ---------------------------------------------------------------------- nodes


def collected(loader):
    """Returns seeds and tensors of an epoch's batches, which have memory of their own."""
    return [(batch.seeds, dict(batch.graph.tensors())) for batch in list(loader)]


def two_buckets():
    """Both are used by batches of eight seeds with three and two neighbours."""
    return BucketPlan.of([(34, 44, 2), (64, 80, 2)])


@pytest.mark.parametrize(
    ("which", "policy"),
    [("graph", InMemory()), ("graph", Dispersed(3)), ("cached", NodeCache(4)),
     ("cached", Dispersed(2, 1))],
)  # fmt: skip
def test_each_training_node_comes_once_with_its_features_and_label(request, which, policy):
    graph = request.getfixturevalue(which)
    loader = SampledLoader(graph, policy, [3, 2], 8, seeds=TRAIN, labels=LABELS)
    for _ in range(2):
        seeds = []
        for batch in loader:
            original = graph.node_ids[batch.seeds]
            seeds += original.tolist()
            np.testing.assert_array_equal(batch.nodes, original)
            n, real = len(original), batch.graph.real_nodes
            np.testing.assert_array_equal(batch.graph.x[:n, 0], original * 3)
            np.testing.assert_array_equal(batch.graph.y[:n], LABELS[original])
            assert (batch.graph.y[n:real] == -1).all()
        assert sorted(seeds) == TRAIN.tolist()
    loader.close()


def test_the_same_seed_gives_the_same_batches(graph):
    runs = []
    for seed in (0, 0, 1):
        loader = SampledLoader(graph, Dispersed(3), [3, 2], 8, labels=LABELS, seed=seed)
        runs.append([collected(loader), collected(loader)])
        loader.close()
    for first, second in zip(runs[0], runs[1], strict=True):
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a[0], b[0])
            assert all(torch.equal(a[1][name], b[1][name]) for name in a[1])
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(runs[0][0], runs[2][0], strict=False))


def test_an_epoch_that_is_left_early_leaves_nothing_running(graph):
    loader = SampledLoader(graph, Dispersed(2), [3], 4, labels=LABELS)
    for _ in loader:
        break
    assert len(collected(loader)) >= N // 4
    loader.close()


def test_a_small_plan_loses_no_seed_and_a_smaller_one_is_refused(graph):
    tight = BucketPlan.of([(30, 40, 2)])
    loader = SampledLoader(graph, InMemory(), [3, 2], 16, labels=LABELS, plan=tight)
    seeds = [graph.node_ids[s] for seeds, _ in collected(loader) for s in seeds]
    assert sorted(seeds) == list(range(N))
    assert loader.statistics.splits > 0
    loader.close()
    loader = SampledLoader(graph, InMemory(), [3, 2], 16, plan=BucketPlan.of([(4, 5, 2)]))
    with pytest.raises(ValueError, match=r"one seed reaches \d+ nodes .* give a larger one"):
        collected(loader)
    loader.close()


@pytest.mark.parametrize("policy", [InMemory(), Dispersed(2)])
def test_an_iteration_that_another_one_ended_says_so(graph, policy):
    loader = SampledLoader(graph, policy, [3], 8)
    first = iter(loader)
    next(first)
    # As after an interrupt whose traceback keeps the iterator: the next epoch is whole and correct.
    seen = []
    for batch in loader:
        seen += batch.nodes.tolist()
        np.testing.assert_array_equal(batch.graph.x[: len(batch.nodes), 0], 3 * batch.nodes)
    assert sorted(seen) == list(range(N))
    with pytest.raises(RuntimeError, match="another iteration of this loader began"):
        next(first)
    assert loader.epoch == 1
    loader.close()


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (Beta(2), {}, "nodes are trained with"),
        (NodeCache(2), {"task": "link"}, "links with Beta"),
        (InMemory(), {"batch_size": 0}, "batch_size=0"),
        (InMemory(), {"task": "graph"}, "'node' or 'link'"),
        (InMemory(), {"labels": LABELS[1:]}, "labels has 89 entries, the graph 90 nodes"),
        (InMemory(), {"labels": LABELS + 0.5}, "labels has 0.5 for node 0: give classes"),
        (InMemory(), {"labels": [np.nan, *LABELS[1:]]}, "labels has nan for node 0"),
        (InMemory(), {"labels": LABELS - 2}, "labels has -2 for node 0"),
        (InMemory(), {"labels": np.zeros((N, 2), int)}, r"labels has shape \(90, 2\)"),
        (InMemory(), {"seeds": np.ones(89, bool)}, r"mask of shape \[89\].*90 nodes"),
        (InMemory(), {"seeds": [-1, 3]}, "seeds names node -1; there are 90"),
        (InMemory(), {"seeds": [N]}, "seeds names node 90"),
        (InMemory(), {"seeds": [3.7]}, "seeds: entry 0 is 3.7, which is not a whole number"),
        (InMemory(), {"task": "link", "seeds": [1]}, "with seeds=: they are of nodes.*partition"),
        (InMemory(), {"negatives": 4, "exclude": True}, "with negatives=, exclude="),
        (InMemory(), {"task": "link", "negatives": -1}, "negatives=-1"),
        (InMemory(), {"seed": -1}, "seed=-1: give a whole number of at least 0"),
        (InMemory(), {"fanouts": [-1]}, r"fanouts=\[-1\].*for all neighbours the largest degree"),
        (InMemory(), {"fanouts": 5}, "fanouts=5: give a list"),
        (InMemory(), {"direction": "up"}, "direction='up'; choose one of in, out, both"),
        (InMemory(), {"task": "link", "chunks": 0}, "chunks=0: give a whole number of at least 1"),
    ],
)
def test_what_cannot_be_loaded_is_refused(graph, policy, options, message):
    options = {"fanouts": [2], "batch_size": 4, **options}
    with pytest.raises(ValueError, match=message):
        SampledLoader(graph, policy, **options)


def test_an_error_of_a_thread_reaches_the_caller(tmp_path):
    graph = made(tmp_path / "g")
    loader = SampledLoader(graph, Dispersed(2), [2], 8, labels=LABELS)
    (tmp_path / "g" / "features.bin").write_bytes(b"")
    with pytest.raises(StoreCorrupt, match=r"features\.bin ends at byte"):
        collected(loader)


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recorded_training_equals_eager_training(graph, dropout):
    """Two buckets and many batches reveal stale inputs, stale gradients and mixed-up buckets."""
    recorder, runs = ArenaRecorder(torch.device("cpu")), []
    for mode in ("eager", "cuda-graph"):
        torch.manual_seed(0)
        model = SampledGNN("gcn", 3, 8, 7, 2, dropout)
        loader = SampledLoader(
            graph, Dispersed(3), [3, 2], 8, labels=LABELS, gcn_norm=True, plan=two_buckets()
        )
        recording = Recording(recorder=lambda _: recorder, scope="forward_backward")
        options = {} if mode == "eager" else {"recording": recording}
        trainer = NodeTrainer(model, loader, mode=mode, **options)
        if mode != "eager":
            trainer.runner.warmup(next(iter(loader)).graph, phases=["step"], progress=False)
        torch.manual_seed(1)
        loader.epoch = 0
        runs.append([trainer.train_epoch() for _ in range(4)])
        assert all(loader.statistics.batches)
        loader.close()
    assert recorder.recorded == 2
    # The same operations and the same dropout draws on the same values.
    assert [e.loss for e in runs[0]] == [e.loss for e in runs[1]]
    assert [e.accuracy for e in runs[0]] == [e.accuracy for e in runs[1]]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cuda-graph", "default"])
def test_training_on_a_gpu_equals_the_cpu(graph, place, mode):
    losses = []
    for device, how in (("cpu", "eager"), (place.device, mode)):
        torch.manual_seed(0)
        model = SampledGNN("sage", 3, 8, 7, 2).to(device)
        loader = SampledLoader(graph, Dispersed(3), [3, 2], 8, labels=LABELS)
        options = {}
        if how == "cuda-graph" and not place.cuda:
            options = {"recording": Recording(recorder=place.recorder)}
        trainer = NodeTrainer(model, loader, mode=how, **options)
        trainer.runner.warmup(phases=["step"], progress=False)
        losses.append([trainer.train_epoch().loss for _ in range(4)])
        loader.close()
    # float32 in another order over dozens of Adam steps; the first divide gradients by their size.
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-2)


def test_training_on_the_whole_graph_equals_pyg_in_full_batch(graph):
    """All neighbours, all seeds in one batch: the same losses as PyG's own layers."""
    keep = EDGES[0] != EDGES[1]
    rng = np.random.default_rng(1)
    simple = np.unique(EDGES[:, keep], axis=1)
    features = rng.normal(size=(N, 3)).astype(np.float32)
    graph = partition(simple, N, 3, graph.folder.parent / "simple", features=features)
    degree = int(np.bincount(simple[1]).max())
    torch.manual_seed(0)
    model = SampledGNN("gcn", 3, 8, 7, 2)
    first, second = GCNConv(3, 8), GCNConv(8, 7)
    first.load_state_dict(model.layers[0].state_dict())
    second.load_state_dict(model.layers[1].state_dict())
    loader = SampledLoader(
        graph, InMemory(), [degree, degree], N, labels=LABELS, seeds=TRAIN, gcn_norm=True
    )
    trainer = NodeTrainer(model, loader, rate=0.01, decay=0.0)
    plain = nn.ModuleList([first, second])
    optimizer = adam(plain, lr=0.01)
    x, edge_index = torch.from_numpy(features), torch.from_numpy(simple)
    y = torch.from_numpy(LABELS)[TRAIN]
    for _ in range(5):
        out = second(first(x, edge_index).relu(), edge_index)[TRAIN]
        loss = nn.functional.cross_entropy(out, y)
        update(optimizer, loss)
        # float32, five steps of Adam; the first divides small gradients by their own size.
        assert trainer.train_epoch().loss == pytest.approx(loss.item(), rel=1e-4)
    with torch.no_grad():
        out = second(first(x, edge_index).relu(), edge_index)
    accuracy = (out.argmax(1).numpy() == LABELS)[TRAIN].mean()
    assert trainer.evaluate_whole(TRAIN, LABELS) == pytest.approx(accuracy)
    loader.close()
