"""Diverged embeddings rank last and are never committed, and the error names the epoch; embeddings
for one numbering of the nodes are not used for another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.encoder_trainers import SMALL, N, encoded, generated, plain

from staticgraph.errors import Diverged, StoreCorrupt
from staticgraph.outofcore import (
    Beta,
    InMemory,
    LinkTrainer,
    NodeTrainer,
    SampledGNN,
    SampledLoader,
    evaluate_links,
    partition,
)
from staticgraph.outofcore.training.ranking import filtered_places

WILD = replace(SMALL, rate=1e30)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partition(generated(), N, 4, tmp_path_factory.mktemp("graph") / "g")


# ---------------------------------------------------------------------- ranks


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_true_end_whose_score_is_not_finite_stands_last(tmp_path, value):
    """Candidates are all nodes except the true end, so the last rank is their number."""
    tested = np.array([[0, 1], [1, 2], [2, 2]])
    graph = partition(generated(), N, 2, tmp_path / "g")
    trainer = LinkTrainer(graph, InMemory(), SMALL, tmp_path / "e")
    trainer.rows = lambda p: torch.full((graph.nodes_of(p), 4), value)
    np.testing.assert_array_equal(filtered_places(trainer, tested, tested)[0], N)
    score = evaluate_links(trainer, tested, tested)
    assert score.mrr == pytest.approx(1 / N)
    assert set(score.hits.values()) == {0.0}
    assert score.not_finite == 4
    trainer.close()


def test_a_node_whose_outputs_are_nan_is_not_classified(graph_of_nodes, tmp_path):
    graph, labels = graph_of_nodes
    loader = SampledLoader(graph, InMemory(), [2], 4, seeds=np.arange(8), labels=labels)
    model = SampledGNN("sage", 3, 4, 2, 1)
    trainer = NodeTrainer(model, loader)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(np.nan)
    # All labels are 0, the index at which argmax finds the first NaN.
    assert trainer.evaluate_whole(np.arange(8), labels) == 0.0
    with pytest.raises(Diverged, match=r"diverged in epoch 1: the loss is nan.*lower rate") as told:
        trainer.train_epoch()
    assert told.value.epoch == 1
    loader.close()


@pytest.fixture
def graph_of_nodes(tmp_path):
    features = np.ones((N, 3), np.float32)
    graph = partition(generated()[:2], N, 2, tmp_path / "nodes", features=features)
    return graph, np.zeros(N, np.int64)


# ---------------------------------------------------------------------- what is committed


@pytest.mark.parametrize("made", [plain, encoded])
def test_a_diverged_epoch_is_named_and_not_committed(graph, tmp_path, made):
    trainer = made(graph, Beta(2), tmp_path, WILD)
    with pytest.raises(Diverged, match=r"diverged in epoch 1: .*epoch 0 is what .* lower rate"):
        trainer.train_epoch()
    assert trainer.epoch == 0
    assert trainer.relations.isfinite().all()
    for k in range(graph.num_partitions):
        assert trainer.rows(k).isfinite().all()
    trainer.close()
    again = made(graph, Beta(2), tmp_path, WILD)
    assert again.epoch == 0
    again.close()


def test_embeddings_that_end_an_epoch_broken_are_not_committed(graph, tmp_path):
    """The loss is computed before the last update, so it need not show the failure."""
    trainer = plain(graph, Beta(2), tmp_path)
    trainer.train_epoch()
    write = trainer.file.write
    bad = np.float32("nan")
    trainer.file.write = lambda k, values, sums: write(k, values + (bad if k == 2 else 0), sums)
    with pytest.raises(Diverged, match="embeddings of partition 2"):
        trainer.train_epoch()
    trainer.file.write = write
    assert trainer.epoch == 1
    assert trainer.train_epoch().epoch == 2
    trainer.close()


@pytest.mark.parametrize("made", [plain, encoded])
def test_the_history_is_that_of_all_sittings_and_of_committed_epochs(graph, tmp_path, made):
    trainer = made(graph, Beta(2), tmp_path)
    done = [trainer.train_epoch()]
    trainer.close()
    trainer = made(graph, Beta(2), tmp_path)
    assert trainer.history == (done[0],)

    def interrupt(number, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train_epoch(interrupt)
    done.append(trainer.train_epoch())
    assert trainer.history == tuple(done)
    assert [epoch.epoch for epoch in done] == [1, 2]
    trainer.close()


def test_a_commit_that_fails_is_forgotten(graph, tmp_path, monkeypatch):
    """When the disk is full, the state kept next to the embeddings is rolled back too."""
    trainer = plain(graph, Beta(2), tmp_path)
    trainer.train_epoch()
    before = trainer.relations.clone()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("staticgraph.outofcore.disk.embeddings._write_commit", full)
        with pytest.raises(OSError, match="No space"):
            trainer.train_epoch()
    assert (trainer.epoch, len(trainer.history)) == (1, 1)
    torch.testing.assert_close(trainer.relations, before, rtol=0, atol=0)
    trainer.close()


# ---------------------------------------------------------------------- whose embeddings


@pytest.mark.parametrize("made", [plain, encoded])
def test_embeddings_of_another_numbering_are_refused(graph, tmp_path, made):
    made(graph, Beta(2), tmp_path / "e").close()
    other = partition(generated(), N, 4, tmp_path / "g", seed=1)
    assert other.digest != graph.digest
    with pytest.raises(ValueError, match=rf"{graph.digest}.* is {other.digest}.* the same seed"):
        made(other, Beta(2), tmp_path / "e")
    same = partition(generated(), N, 4, tmp_path / "g", seed=0, overwrite=True)
    assert same.digest == graph.digest
    made(same, Beta(2), tmp_path / "e").close()


@pytest.mark.parametrize("gone", ["embeddings.bin", "commit.bin"])
def test_a_missing_file_is_no_new_start(graph, tmp_path, gone):
    plain(graph, Beta(2), tmp_path).close()
    left = next(path for path in tmp_path.iterdir() if path.name != gone)
    contents = left.read_bytes()
    (tmp_path / gone).unlink()
    with pytest.raises(StoreCorrupt, match=rf"{left.name} but no {gone}.*Put {gone} back"):
        plain(graph, Beta(2), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [left.name]
    assert left.read_bytes() == contents


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_candidate_whose_score_is_not_finite_is_worse_than_a_finite_one(tmp_path, value):
    """Only the true ends are finite, so they rank before all others."""
    graph = partition(generated(), N, 2, tmp_path / "g")
    trainer = LinkTrainer(graph, InMemory(), SMALL, tmp_path / "e")
    tested = np.array([[0], [1], [2]])
    finite = np.isin(graph.node_ids, [0, 1])[:, None]
    size, rows = graph.partition_size, trainer.rows
    trainer.rows = lambda p: rows(p).where(torch.from_numpy(finite[p * size :][:size]), value)
    # The only other finite candidate is the other end: at most one candidate is better.
    assert (filtered_places(trainer, tested, tested)[0] <= 2).all()
    assert evaluate_links(trainer, tested, tested).not_finite == 0
    trainer.close()
