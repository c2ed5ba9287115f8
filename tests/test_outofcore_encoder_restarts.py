"""Training an encoder over a graph on disk resumes at its last epoch after a kill or interrupt."""

from __future__ import annotations

import numpy as np
import pytest
from support.encoder_trainers import N, everything, generated, made
from support.interrupted_epochs import assert_begins_anew
from support.killed_run import killed_at

from staticgraph.outofcore import Comet, PartitionedGraph, partition


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partition(generated(), N, 6, tmp_path_factory.mktemp("graph") / "g")


def trained(graph_folder, folder) -> None:
    trainer = made(PartitionedGraph(graph_folder), Comet(4, 3), folder)
    for _ in range(3):
        trainer.train_epoch()


@pytest.mark.parametrize(("call", "number"), [("pwrite", 3), ("pwrite", 20), ("replace", 2)])
def test_a_killed_run_goes_on_from_its_last_epoch(graph, tmp_path, call, number):
    whole = made(graph, Comet(4, 3), tmp_path / "whole")
    for _ in range(3):
        whole.train_epoch()
    assert killed_at(call, number, False, trained, graph.folder, tmp_path / "killed")
    trainer = made(graph, Comet(4, 3), tmp_path / "killed")
    assert trainer.epoch < 3
    while trainer.epoch < 3:
        trainer.train_epoch()
    for now, then in zip(everything(trainer), everything(whole), strict=True):
        np.testing.assert_array_equal(now, then)
    trainer.close()
    whole.close()


def test_an_interrupted_epoch_begins_anew(graph, tmp_path):
    whole = made(graph, Comet(4, 3), tmp_path / "whole")
    trainer = made(graph, Comet(4, 3), tmp_path / "interrupted")
    assert_begins_anew(whole, trainer, 1, everything)
