"""Nodes are given by numbers or by a mask, classes are integers, and some nodes have no class;
anything else is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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


# ---------------------------------------------------------------------- nodes without a label

SOME = np.where(np.arange(N) % 5 == 0, LABELS, -1)


def trainer_of(graph, seeds=None, labels=LABELS, batch=4, kind="sage"):
    torch.manual_seed(0)
    loader = SampledLoader(graph, InMemory(), [90], batch, seeds=seeds, labels=labels)
    model = SampledGNN(kind, 3, 8, 3, layers=1)
    return NodeTrainer(model, loader, mode="eager")


def test_loss_and_accuracy_are_those_of_the_labelled_seeds(graph):
    labelled = np.flatnonzero(SOME >= 0)
    of_all, of_labelled = trainer_of(graph, None, SOME, N), trainer_of(graph, labelled, SOME, N)
    a, b = of_all.train_epoch(), of_labelled.train_epoch()
    assert (a.loss, a.accuracy) == (pytest.approx(b.loss, abs=1e-6), b.accuracy)
    assert (a.seeds, b.seeds) == (N, 6)
    of_all.loader.close()
    of_labelled.loader.close()


def test_a_batch_without_a_label_makes_no_step(graph):
    # 24 of the 30 batches have no label; their mean loss is NaN, which once made all weights NaN.
    trainer = trainer_of(graph, None, SOME, 1)
    steps, step = [], trainer.optimizer.step
    trainer.optimizer.step = lambda: steps.append(step())
    epoch = trainer.train_epoch()
    assert (len(steps), epoch.batches, np.isfinite(epoch.loss)) == (6, N, True)
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    trainer.loader.close()


def test_no_label_at_all_is_said(graph):
    trainer = trainer_of(graph, [3, 4], SOME)
    with pytest.raises(ValueError, match="none of the 2 seeds has a label"):
        trainer.train_epoch()
    trainer.loader.close()


# ---------------------------------------------------------------------- what is evaluated


@pytest.mark.parametrize("direction", ["in", "out", "both"])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_evaluation_looks_where_training_looked(tmp_path, kind, direction):
    rng = np.random.default_rng(3)
    edges, features = rng.integers(0, N, (2, 60)), rng.normal(size=(N, 3)).astype(np.float32)
    graph = partition(edges, N, 3, tmp_path / "g", features=features)
    loader = SampledLoader(
        graph, InMemory(), [60], N, labels=LABELS, direction=direction, gcn_norm=kind == "gcn"
    )
    torch.manual_seed(1)
    model = SampledGNN(kind, 3, 8, 3, layers=1)
    trainer = NodeTrainer(model, loader, mode="eager")
    (batch,) = loader
    sampled = trainer.runner.predict_batch(batch.graph).argmax(1).numpy()[:N]
    # With the model's sampled predictions as labels, accuracy is 1.
    said = np.empty(N, np.int64)
    said[batch.nodes] = sampled
    assert len(set(said.tolist())) > 1
    assert trainer.evaluate_whole(np.arange(N), said) == 1.0
    loader.close()


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (("sage", 2), {"labels": LABELS}, "up to class 2, the model gives 2: .* out_channels=3"),
        (("gcn", 3), {"labels": LABELS}, "normalise: False, and the loader has gcn_norm=False"),
        (("sage", 3), {}, "the loader has no labels: pass labels= to SampledLoader"),
        (("sage", 3), {"task": "link", "negatives": 2}, "task='link': nodes need task='node'"),
    ],
)
def test_a_model_and_a_loader_that_do_not_fit_are_refused(graph, model, options, said):
    kind, classes = model
    loader = SampledLoader(graph, InMemory(), [3], 4, **options)
    with pytest.raises(ValueError, match=said):
        NodeTrainer(SampledGNN(kind, 3, 8, classes, 1), loader, mode="eager").train_epoch()
    loader.close()


def test_evaluation_leaves_out_nodes_without_a_label(graph):
    trainer = trainer_of(graph)
    labelled = np.flatnonzero(SOME >= 0)
    of_labelled = trainer.evaluate_whole(labelled, SOME)
    assert trainer.evaluate_whole(np.arange(N), SOME) == of_labelled > 0
    for nodes in ([], np.zeros(N, bool), [1, 2]):
        with pytest.raises(ValueError, match=r"of \d nodes? to evaluate on none has a label"):
            trainer.evaluate_whole(nodes, SOME)
    trainer.loader.close()
