"""Link prediction with an encoder: equal to PyG on the same sample, values follow their nodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arena import ArenaRecorder
from support.counted_graphs import counting
from support.encoder_trainers import RELATIONS, SMALL, N, everything, generated, made
from support.hop_samples import edge_list, reference
from torch_geometric.nn import SAGEConv

from staticgraph.errors import NotStatic
from staticgraph.outofcore import (
    Beta,
    Comet,
    EncodedLinkTrainer,
    InMemory,
    LinkConfig,
    SampledGNN,
    evaluate_links,
    partition,
)
from staticgraph.outofcore.buffer.resident import ResidentGraphs
from staticgraph.outofcore.disk.neighbours import Neighbours
from staticgraph.outofcore.sampling.dense import DenseSampler
from staticgraph.outofcore.sampling.hops import HopBatch, HopCapacity, HopLadder, exact_capacity
from staticgraph.outofcore.sampling.link_sampling import LinkSampler, take_out
from staticgraph.outofcore.training.decoders import DECODERS
from staticgraph.outofcore.training.encoded_link import EncodedLinkLoss
from staticgraph.outofcore.training.hop_runner import HopRunner
from staticgraph.outofcore.training.link_step import LinkStep


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partition(generated(), N, 6, tmp_path_factory.mktemp("graph") / "g")


# ---------------------------------------------------------------------- one batch


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(2, 15), edges=st.integers(1, 60), seed=st.integers(0, 999))
def test_what_joins_the_ends_of_a_batch_is_out_and_nothing_else(rows, edges, seed):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, rows, (2, edges))
    sampler = DenseSampler(Neighbours.of(*ends, rows, "both"), [4, 2])
    batch = ends[:, : max(1, edges // 3)]
    seeds, local = np.unique(batch, return_inverse=True)
    local = local.reshape(2, -1)
    before, after = sampler.sample(seeds, seed), sampler.sample(seeds, seed)
    take_out(after, *local)
    joined = {frozenset(pair) for pair in batch.T.tolist()}
    for hop, (old, new) in enumerate(zip(before.draws, after.draws, strict=True)):
        for i, j in np.ndindex(*old.shape):
            here, there = before.nodes[before.hops[hop] + i], before.nodes[old[i, j]]
            out = old[i, j] >= 0 and frozenset((int(here), int(there))) in joined
            assert new[i, j] == (-1 if out else old[i, j])


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_batch_equals_pyg_on_the_same_sample_forward_and_backward(graph, kind, decoder):
    config = LinkConfig(decoder, dimension=4, batch_size=20, chunks=2, negatives=6)
    (resident,) = ResidentGraphs(graph, "both").run(InMemory().epoch(6, np.random.default_rng(0)))
    sampler = DenseSampler(resident.neighbours, [3, 2])
    links = LinkSampler(resident, sampler, 20, 24, exclude=True)
    # The last batch of a state, with fewer edges than the batch size.
    edges = resident.edges[:13]
    capacity = HopCapacity((40, 40, 40), sampler.widths)
    ((sample, rung, ends),) = links.fit(edges, np.random.default_rng(1), 5, HopLadder((capacity,)))
    degrees = resident.degrees
    hops = HopBatch(capacity, rung).fill(sample, degrees, resident.whole_degrees)
    torch.manual_seed(0)
    encoder = SampledGNN(kind, 4, 8, 6, 2, heads=2)
    step = LinkStep(config, DECODERS[decoder]())
    relations = torch.randn(2, RELATIONS, 6)
    model = EncodedLinkLoss(encoder, step, relations).double()
    values = torch.randn(len(degrees), 4, dtype=torch.float64)
    x = values[hops.rows]
    x[~hops.mask] = 1e3
    x.requires_grad_()
    negatives = ends.negatives.view(2, 2, 6)
    more = [ends.source, ends.destination, ends.relation, negatives, ends.mask.double()]
    loss = model(x, hops, *more)
    wanted = [x, *model.parameters()]
    found = torch.autograd.grad(loss, wanted)

    hidden = unpadded = values[sample.nodes].requires_grad_()
    for number, layer in enumerate(encoder.layers):
        hidden = reference(layer, hidden.relu() if number else hidden, sample, degrees)
    # A seed has the same position in the sample as among the seeds.
    at = {int(row): i for i, row in enumerate(sample.nodes)}
    total = hidden.new_zeros(())
    for e, (source, relation, destination) in enumerate(edges.tolist()):
        for way, (known, other) in enumerate([(source, destination), (destination, source)]):
            query = step.decoder.query(hidden[at[known]], model.relations[way, relation])
            candidates = [hidden[at[other]], *hidden[negatives[way, e // 10]]]
            scores = torch.stack([step.decoder.score(query, c) for c in candidates])
            total = total - torch.log_softmax(scores, 0)[0]
    # float64; TransE's distances come from a difference of squares, floored at 1e-12.
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if decoder == "transe" else {}
    torch.testing.assert_close(loss, total, **tolerance)
    by_x, *expected = torch.autograd.grad(total, [unpadded, *model.parameters()])
    for now, then in zip(found[1:], expected, strict=True):
        torch.testing.assert_close(now, then, **tolerance)
    spread = torch.zeros_like(values).index_add(0, torch.from_numpy(sample.nodes), by_x)
    torch.testing.assert_close(found[0][hops.mask], spread[hops.rows[hops.mask]], **tolerance)
    assert (found[0][~hops.mask] == 0).all()
    # The batch's own edges are not in the sample.
    pairs = {frozenset(pair) for pair in edges[:, [0, 2]].tolist()}
    drawn = sample.nodes[edge_list(sample).numpy()].T.tolist()
    assert drawn
    assert not any(frozenset(pair) in pairs for pair in drawn)


# ---------------------------------------------------------------------- epochs


@pytest.mark.parametrize("policy", [InMemory(), Beta(3), Comet(4, 3)])
def test_values_follow_their_nodes_and_every_edge_comes_once(graph, tmp_path, policy):
    """A plain table of all nodes, kept in parallel, has every value that a batch gathers."""
    trainer = made(graph, policy, tmp_path)
    buffer, size = trainer.buffer, graph.partition_size
    table = everything(trainer)[0][:, 0].reshape(-1, SMALL.dimension).copy()
    train, seen = trainer._train_batch, []

    def watched(batch):
        partition_in = np.full(len(buffer.values) // size, -1)
        resident = np.flatnonzero(buffer._slot_of >= 0)
        partition_in[buffer._slot_of[resident]] = resident
        rows = batch.hops.rows[batch.hops.mask].numpy()
        nodes = partition_in[rows // size] * size + rows % size
        np.testing.assert_array_equal(buffer.values[rows], table[nodes])
        ends, real = batch.ends, batch.ends.mask
        seen.append(
            np.stack([batch.seeds[ends.source[real]], ends.relation[real],
                      batch.seeds[ends.destination[real]]])
        )  # fmt: skip
        # Only resident partitions: the thread is reading ahead into the other slots.
        here = np.repeat(partition_in >= 0, size)
        before = buffer.values.copy()
        loss = train(batch)
        changed = np.flatnonzero((buffer.values != before).any(axis=1) & here)
        assert set(changed) <= set(rows)
        table[nodes] = buffer.values[rows]
        return loss

    trainer._train_batch = watched
    for _ in range(2):
        seen.clear()
        result = trainer.train_epoch()
        every = graph.read_cells([(i, j) for i in range(6) for j in range(6)])
        found = np.concatenate(seen, axis=1).T
        order = [np.lexsort(rows.T) for rows in (found, every)]
        np.testing.assert_array_equal(found[order[0]], every[order[1]])
        assert result.edges == graph.num_edges
        assert result.bytes_read == result.partitions_read * trainer.file.record_bytes
    stored = everything(trainer)[0][:, 0].reshape(-1, SMALL.dimension)
    np.testing.assert_array_equal(stored, table)
    trainer.close()


def test_everything_resident_equals_pyg_in_memory(tmp_path):
    """With full fan-outs, training follows PyG's layer on the whole graph with dense Adagrad."""
    edges = generated()
    graph = partition(edges, N, 6, tmp_path / "g")
    degree = int(np.bincount(edges[:2].ravel()).max())
    trainer = made(graph, Comet(6), tmp_path / "e", fanouts=(degree,), exclude=False)
    rows = everything(trainer)[0][:, 0].reshape(-1, SMALL.dimension)
    table = torch.nn.Parameter(torch.from_numpy(rows[:N].copy()))
    conv = SAGEConv(SMALL.dimension, 6)
    conv.load_state_dict(trainer.encoder.layers[0].state_dict())
    relations = torch.nn.Parameter(trainer.relations.clone())
    optimizer = torch.optim.Adagrad(
        [{"params": [table, relations], "lr": 0.1}, {"params": conv.parameters()}],
        lr=0.01, eps=1e-10,
    )  # fmt: skip
    new = np.argsort(graph.node_ids)
    once = torch.from_numpy(new[edges[:2]])
    both = torch.cat([once, once.flip(0)], 1)
    train = trainer._train_batch

    def beside(batch):
        ends, seeds = batch.ends, torch.from_numpy(batch.seeds)
        out = conv(table, both)[seeds]
        loss = trainer.model._step.loss(
            out, relations, ends.source, ends.destination, ends.relation,
            ends.negatives.view(2, 2, 6), ends.mask.float(),
        )  # fmt: skip
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found = train(batch)
        # float32 sums of some hundred terms in another order; Adagrad's first steps divide a
        # gradient by its own size, so a row's error is relative to its gradients.
        torch.testing.assert_close(found, loss.detach(), rtol=1e-3, atol=1e-3)
        return found

    trainer._train_batch = beside
    for _ in range(2):
        trainer.train_epoch()
    found = everything(trainer)[0][:, 0].reshape(-1, SMALL.dimension)[:N]
    np.testing.assert_allclose(found, table.detach().numpy(), atol=5e-3)
    # Evaluation is the same layer over all edges.
    encoded = torch.cat([trainer.rows(k) for k in range(6)])
    torch.testing.assert_close(encoded, conv(table, both).detach(), rtol=2e-2, atol=2e-2)
    trainer.close()


def test_a_buffer_for_everything_is_in_memory_training_bit_for_bit(graph, tmp_path):
    runs = []
    for name, policy in (("a", InMemory()), ("b", Comet(6)), ("c", Beta(6))):
        trainer = made(graph, policy, tmp_path / name, "gat", (3, 2))
        for _ in range(2):
            trainer.train_epoch()
        runs.append(everything(trainer))
        trainer.close()
    for other in runs[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(runs[0], other, strict=True))


# ---------------------------------------------------------------------- shapes, learning, refusals


def test_a_rung_compiles_once_and_gives_what_eager_gives(graph, tmp_path):
    calls = []
    compiled, eager = (made(graph, Comet(4, 3), tmp_path / name) for name in "ab")
    compiled.runner = HopRunner(compiled.model, compiler=counting(calls))
    for _ in range(3):
        torch.testing.assert_close(compiled.train_epoch().loss, eager.train_epoch().loss)
    assert len(calls) == len(compiled.runner.compiled) <= len(compiled.loader.ladder.rungs)
    assert compiled.loader.ladder.statistics.eager == 0
    compiled.close()
    eager.close()


def test_recorded_steps_equal_eager_ones_and_a_rung_records_once(graph, tmp_path):
    tape = ArenaRecorder(torch.device("cpu"))
    recorded, eager = (made(graph, Comet(4, 3), tmp_path / name, "gat", (3, 2)) for name in "ab")
    recorded.runner = HopRunner(recorded.model, "cuda-graph", recorder=tape)
    for _ in range(3):
        # The same operations on the same numbers.
        assert recorded.train_epoch().loss == eager.train_epoch().loss
    replays = recorded.runner.recorded.replays
    assert tape.recorded == len(replays) <= len(recorded.loader.ladder.rungs)
    statistics = recorded.loader.ladder.statistics
    assert sum(replays.values()) == sum(statistics.batches)
    for now, then in zip(everything(recorded), everything(eager), strict=True):
        np.testing.assert_array_equal(now, then)
    # A parameter whose storage was replaced is not trained silently.
    recorded.encoder.layers[0].lin.weight.data = recorded.encoder.layers[0].lin.weight.data.clone()
    with pytest.raises(NotStatic, match="has another address"):
        recorded.train_epoch()
    recorded.close()
    assert tape.closed
    eager.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cuda-graph", "reduce-overhead"])
def test_a_rung_records_once_on_a_gpu_and_gives_what_the_cpu_gives(graph, tmp_path, mode, place):
    torch.manual_seed(0)
    encoder = SampledGNN("sage", 4, 8, 6, 1).to(place.device)
    policy = Comet(4, 3)
    own = mode if place.cuda else "eager"
    on_gpu = EncodedLinkTrainer(graph, policy, SMALL, encoder, [3], tmp_path / "gpu", mode=own)
    if not place.cuda and mode == "cuda-graph":
        on_gpu.runner = HopRunner(on_gpu.model, mode, recorder=place.made_recorder())
    elif not place.cuda:
        on_gpu.runner = HopRunner(on_gpu.model, "default")
    on_cpu = made(graph, Comet(4, 3), tmp_path / "cpu")
    for _ in range(3):
        # float32 in another order of operations, over an epoch of Adagrad.
        assert on_gpu.train_epoch().loss == pytest.approx(on_cpu.train_epoch().loss, rel=1e-2)
    counts = [f.counts for f in on_gpu.runner.compiled.values()]
    assert counts or not (place.cuda or mode == "reduce-overhead"), "an arena compiles nothing"
    assert all(count.compiles == 1 and not count.skipped for count in counts)
    if mode == "cuda-graph":
        replays = on_gpu.runner.recorded.replays
        assert sum(replays.values()) == sum(on_gpu.loader.ladder.statistics.batches)
    on_gpu.close()
    on_cpu.close()


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_training_learns_two_communities(tmp_path, kind):
    """Edges within two halves of 40 nodes: the true end must rank far above chance."""
    rng = np.random.default_rng(0)
    ends = np.unique(rng.integers(0, 20, (2, 300)), axis=1)
    edges = np.concatenate([ends, ends + 20], axis=1)
    graph = partition(edges, 40, 4, tmp_path / "g")
    config = LinkConfig(dimension=8, batch_size=50, chunks=1, negatives=30)
    torch.manual_seed(0)
    encoder = SampledGNN(kind, 8, 8, 8, 1, heads=2)
    trainer = EncodedLinkTrainer(graph, Comet(2), config, encoder, [5], tmp_path / "e")
    losses = [trainer.train_epoch().loss for _ in range(15)]
    assert losses[-1] < losses[0]
    # With all other true ends filtered, chance is the mean of 1/r over about 25 candidates, 0.15.
    assert evaluate_links(trainer, edges, edges).mrr > 0.3
    trainer.close()


def test_what_cannot_work_is_refused(graph, tmp_path):
    with pytest.raises(ValueError, match=r"fanouts=\[3, 3\] for an encoder of 1 layer"):
        EncodedLinkTrainer(graph, InMemory(), SMALL, SampledGNN("sage", 4, 8, 6, 1), [3, 3], "e")
    with pytest.raises(ValueError, match="takes rows of 5, the embeddings have 4"):
        EncodedLinkTrainer(graph, InMemory(), SMALL, SampledGNN("sage", 5, 8, 6, 1), [3], "e")
    made(graph, InMemory(), tmp_path).close()
    with pytest.raises(ValueError, match="go on with the same, or choose another folder"):
        made(graph, InMemory(), tmp_path, fanouts=(4,))
    with pytest.raises(ValueError, match="records CUDA graphs, but the model is on cpu"):
        HopRunner(SampledGNN("sage", 4, 8, 6, 1), "cuda-graph")


def test_a_batch_that_fits_no_rung_runs_in_halves_and_alone(graph, tmp_path):
    trainer = made(graph, InMemory(), tmp_path)
    trainer.loader.ladder = HopLadder((HopCapacity((12, 12), (6,)),))
    result = trainer.train_epoch()
    statistics = trainer.loader.ladder.statistics
    assert statistics.splits
    assert statistics.eager
    assert result.edges == graph.num_edges
    trainer.close()


def test_exact_capacity_of_a_batch_of_one():
    neighbours = Neighbours.of(np.array([0]), np.array([1]), 2, "both")
    sample = DenseSampler(neighbours, [2]).sample(np.array([0, 1]), 0)
    take_out(sample, np.array([0]), np.array([1]))
    assert (sample.draws[0] == -1).all()
    batch = HopBatch(exact_capacity(sample), None).fill(sample, neighbours.degrees())
    assert SampledGNN("gcn", 3, 4, 2, 1)(torch.randn(2, 3), batch).isfinite().all()
