"""Link training: every edge once, values follow their nodes, equal to PyG over the same sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.alike import update
from support.drawn import examples
from support.encoder_trainers import SMALL, N, encoded, generated, plain, table_of
from torch_geometric.nn import SAGEConv

from staticgraph import Recording
from staticgraph.outofcore import (
    Beta,
    Comet,
    InMemory,
    LinkTrainer,
    SampledGNN,
    partition,
)
from staticgraph.outofcore.sampling.dense import Neighbours
from staticgraph.outofcore.sampling.link_sampling import LinkEnds, take_out
from staticgraph.outofcore.training.link_step import link_loss


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partition(generated(), N, 6, tmp_path_factory.mktemp("graph") / "g")


@examples(40)
@given(rows=st.integers(2, 15), edges=st.integers(1, 60), seed=st.integers(0, 999))
def test_what_joins_the_ends_of_a_batch_is_out_and_nothing_else(rows, edges, seed):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, rows, (2, edges))
    neighbours = Neighbours.of(*ends, rows, "both")
    batch = ends[:, : max(1, edges // 3)]
    seeds, local = np.unique(batch, return_inverse=True)
    source, destination = torch.from_numpy(local.reshape(2, -1))
    mask = torch.ones(len(source))
    before, after = (neighbours.sample(seeds, [4, 2], seed) for _ in range(2))
    take_out(after, LinkEnds(source, destination, source, source, mask))
    joined = {frozenset(pair) for pair in batch.T.tolist()}
    for hop, (old, new) in enumerate(zip(before.draws, after.draws, strict=True)):
        for i, j in np.ndindex(*old.shape):
            here, there = before.nodes[before.hops[hop] + i], before.nodes[old[i, j]]
            out = old[i, j] >= 0 and frozenset((int(here), int(there))) in joined
            assert new[i, j] == (-1 if out else old[i, j])


@pytest.mark.parametrize("make", [plain, encoded])
@pytest.mark.parametrize("policy", [InMemory(), Beta(2), Beta(3), Comet(4, 3), Comet(2, 6)])
def test_values_follow_their_nodes_and_every_edge_comes_once(graph, tmp_path, policy, make):
    """A plain table of all nodes, kept in parallel, has every value that a batch gathers."""
    trainer = make(graph, policy, tmp_path)
    buffer, size = trainer.buffer, graph.partition_size
    table = table_of(trainer)
    train, seen = trainer._train_batch, []

    def watched(batch, ends):
        partition_in = np.full(len(buffer.values) // size, -1)
        resident = np.flatnonzero(buffer._slot_of >= 0)
        partition_in[buffer._slot_of[resident]] = resident
        rows = batch.rows
        assert (partition_in[rows // size] >= 0).all()
        nodes = partition_in[rows // size] * size + rows % size
        np.testing.assert_array_equal(nodes[: len(batch.seeds)], batch.seeds)
        np.testing.assert_array_equal(buffer.values[rows], table[nodes])
        real = ends.mask.bool()
        columns = (ends.source[real], ends.relation[real], ends.destination[real])
        source, relation, destination = (column.numpy() for column in columns)
        seen.append(np.stack([batch.seeds[source], relation, batch.seeds[destination]]))
        # Only resident partitions: the thread is reading ahead into the other slots.
        here = np.repeat(partition_in >= 0, size)
        before = buffer.values.copy()
        loss = train(batch, ends)
        changed = np.flatnonzero((buffer.values != before).any(axis=1) & here)
        assert set(changed) <= set(rows)
        table[nodes] = buffer.values[rows]
        return loss

    trainer._train_batch = watched
    for epoch in range(2):
        seen.clear()
        result = trainer.train_epoch()
        every = graph.read_edges()
        edges = np.concatenate(seen, axis=1).T
        order = [np.lexsort(rows.T) for rows in (edges, every)]
        np.testing.assert_array_equal(edges[order[0]], every[order[1]])
        assert result.edges == graph.num_edges
        schedule = policy.epoch(6, np.random.default_rng([SMALL.seed, epoch, 1]))
        assert result.partitions_read == schedule.reads
        assert result.bytes_read == result.partitions_read * trainer.file.record_bytes
    np.testing.assert_array_equal(table_of(trainer), table)
    trainer.close()


def test_everything_resident_equals_plain_torch_in_memory(tmp_path):
    """Training follows a table and PyG's layer over the whole graph with dense Adagrad."""
    edges = generated()
    graph = partition(edges, N, 6, tmp_path / "g")
    degree = int(np.bincount(edges[:2].ravel()).max())
    trainer = encoded(graph, Comet(6), tmp_path / "e", fanouts=(degree,), exclude=False)
    table = torch.nn.Parameter(torch.from_numpy(table_of(trainer)[:N].copy()))
    conv = SAGEConv(SMALL.dimension, 6)
    conv.load_state_dict(trainer.encoder.layers[0].state_dict())
    relations = torch.nn.Parameter(trainer.relations)
    optimizer = torch.optim.Adagrad(
        [{"params": [table, relations], "lr": 0.1}, {"params": conv.parameters()}],
        lr=0.01, eps=1e-10,
    )  # fmt: skip
    new = np.argsort(graph.node_ids)
    once = torch.from_numpy(new[edges[:2]])
    both = torch.cat([once, once.flip(0)], 1)
    train = trainer._train_batch

    def beside(batch, ends):
        out = conv(table, both)[torch.from_numpy(batch.seeds)]
        loss = link_loss(trainer.decoder, out, relations, ends, len(ends.mask) // 10)
        update(optimizer, loss)
        # float32 sums of some hundred terms in another order; Adagrad's first steps divide a
        # gradient by its own size, so a row's error is relative to its gradients.
        result = train(batch, ends)
        torch.testing.assert_close(result, loss.detach(), rtol=1e-3, atol=1e-3)
        return result

    trainer._train_batch = beside
    for _ in range(2):
        trainer.train_epoch()
    np.testing.assert_allclose(table_of(trainer)[:N], table.detach().numpy(), atol=5e-3)
    # Evaluation is the same layer over all edges.
    rows = torch.cat([trainer.rows(k) for k in range(6)])
    torch.testing.assert_close(rows, conv(table, both).detach(), rtol=2e-2, atol=2e-2)
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cuda-graph", "default"])
def test_training_on_a_gpu_gives_what_the_cpu_gives(graph, tmp_path, mode, place):
    torch.manual_seed(0)
    encoder = SampledGNN("sage", 4, 8, 6, 1, heads=2).to(place.device)
    options = {"recording": Recording(recorder=place.recorder)} if mode == "cuda-graph" else {}
    on_gpu = LinkTrainer(
        graph, Comet(4, 3), SMALL, tmp_path / "gpu", encoder=encoder, fanouts=[3], mode=mode,
        **options,
    )  # fmt: skip
    if mode == "cuda-graph":
        on_gpu.runner.warmup(phases=["forward"], progress=False)
    on_cpu = encoded(graph, Comet(4, 3), tmp_path / "cpu")
    for _ in range(3):
        # float32 in another order of operations, over an epoch of Adagrad.
        assert on_gpu.train_epoch().loss == pytest.approx(on_cpu.train_epoch().loss, rel=1e-2)
    on_gpu.close()
    on_cpu.close()


def test_no_partition_and_no_rate_are_refused_by_name(graph, tmp_path):
    """The data was said to be damaged."""
    trainer = plain(graph, InMemory(), tmp_path / "e")
    for number in (-1, graph.num_partitions):
        with pytest.raises(IndexError, match=f"partition {number} of {graph.num_partitions}"):
            trainer.rows(number)
    trainer.close()
    with pytest.raises(ValueError, match="encoder_rate=nan: give a number"):
        encoded(graph, InMemory(), tmp_path / "f", encoder_rate=float("nan"))


def test_what_cannot_work_is_refused(graph, tmp_path):
    with pytest.raises(ValueError, match=r"fanouts=\[3\]: an encoder runs over .* both or neither"):
        LinkTrainer(graph, InMemory(), SMALL, tmp_path / "e", fanouts=[3])
    with pytest.raises(ValueError, match="at least one hop, each at least 1"):
        encoded(graph, InMemory(), tmp_path, fanouts=(0,))
    encoded(graph, InMemory(), tmp_path).close()  # not refused as trained with other options
    with pytest.raises(ValueError, match="go on with the same, or choose another folder"):
        encoded(graph, InMemory(), tmp_path, fanouts=(4,))
