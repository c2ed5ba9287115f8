"""Embeddings on disk: a kill at any moment loses no committed epoch; damage is named."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from support.encoder_trainers import SMALL, N, encoded, everything, generated, plain, record
from support.interrupted_epochs import assert_begins_anew
from support.killed_run import killed_at

from staticgraph.errors import StoreCorrupt
from staticgraph.outofcore import (
    Beta,
    Comet,
    InMemory,
    LinkTrainer,
    PartitionedGraph,
    partition,
)
from staticgraph.outofcore.disk.embeddings import EmbeddingFile
from staticgraph.outofcore.sampling.buffer import PartitionBuffer


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partition(generated(), N, 6, tmp_path_factory.mktemp("graph") / "g")


def made(folder, p=3, size=4, d=2) -> EmbeddingFile:
    def initial(k: int) -> np.ndarray:
        return np.full((size, d), k, np.float32)

    EmbeddingFile.create(folder, p, size, d, initial, {"note": np.arange(3)})
    return EmbeddingFile(folder)


# ---------------------------------------------------------------------- the file


def test_what_is_not_committed_is_forgotten(tmp_path):
    file = made(tmp_path)
    ones, twos = np.ones((2, 4, 2), np.float32)
    file.write(1, 5 * ones, twos)
    np.testing.assert_array_equal(record(file, 1)[0], 5)
    file.close()
    file = EmbeddingFile(tmp_path)
    assert file.epoch == 0
    np.testing.assert_array_equal(record(file, 1)[0], 1)
    file.write(1, 6 * ones, twos)
    file.write(1, 7 * ones, twos)
    file.commit({"note": np.array([9])})
    file.write(1, 8 * ones, twos)
    file.close()
    file = EmbeddingFile(tmp_path)
    assert file.epoch == 1
    np.testing.assert_array_equal(record(file, 1)[0], 7)
    np.testing.assert_array_equal(record(file, 0)[0], 0)
    assert file.extras["note"].tolist() == [9]


def test_damage_is_named_with_file_and_offset(tmp_path):
    made(tmp_path).close()
    path = tmp_path / "embeddings.bin"
    contents = bytearray(path.read_bytes())
    contents[2 * 64 + 5] ^= 1
    path.write_bytes(contents)
    file = EmbeddingFile(tmp_path)
    record(file, 1)
    with pytest.raises(
        StoreCorrupt, match=r"embeddings.bin: partition 2 at byte 128 is not what was wr"
    ):
        record(file, 2)
    path.write_bytes(contents[:-1])
    with pytest.raises(StoreCorrupt, match="383 bytes instead of 384"):
        EmbeddingFile(tmp_path)
    commit = tmp_path / "commit.bin"
    commit.write_bytes(commit.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreCorrupt, match=r"commit\.bin is not a commit"):
        EmbeddingFile(tmp_path)
    with pytest.raises(FileNotFoundError, match="no committed embeddings"):
        EmbeddingFile(tmp_path / "elsewhere")


def test_a_commit_waits_for_the_data_before_it_counts(tmp_path, monkeypatch):
    """A kill keeps the page cache, a power cut does not: only the order of calls protects."""
    file = made(tmp_path)
    calls = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor):
        calls.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def recorded_replace(source, target):
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    file.commit({})
    assert calls[1].startswith(".commit.bin."), "the scratch file, named after its process"
    calls[1] = ".commit.bin"
    assert calls == ["embeddings.bin", ".commit.bin", "replace", tmp_path.name]


# ---------------------------------------------------------------------- killed and restarted


def trained(graph_folder, folder, make) -> None:
    trainer = make(PartitionedGraph(graph_folder), Comet(4, 3), folder)
    while trainer.epoch < 2:
        trainer.train_epoch()


@pytest.mark.parametrize("make", [plain, encoded])
@pytest.mark.parametrize(
    ("call", "numbers"),
    # An epoch of this schedule writes 8 partitions, with two calls each.
    [("pwrite", (1, 2, 9, 17)), ("fsync", (2, 4, 5)), ("replace", (1, 3))],
)
def test_a_kill_anywhere_loses_nothing_committed(graph, tmp_path, call, numbers, make):
    whole = make(graph, Comet(4, 3), tmp_path / "whole")
    for _ in range(3):
        whole.train_epoch()
    expected = everything(whole)
    killed = 0
    for number in numbers if make is plain else numbers[1::2]:
        folder = tmp_path / f"{call}-{number}"
        killed += killed_at(call, number, number % 2 == 0, trained, graph.folder, folder, make)
        trainer = make(graph, Comet(4, 3), folder)
        assert trainer.epoch <= 2
        while trainer.epoch < 3:
            trainer.train_epoch()
        for now, then in zip(everything(trainer), expected, strict=True):
            np.testing.assert_array_equal(now, then)
        trainer.close()
    assert killed == len(numbers if make is plain else numbers[1::2])


@pytest.mark.parametrize("make", [plain, encoded])
@pytest.mark.parametrize("state", [0, 2])
def test_an_epoch_that_is_interrupted_starts_again(graph, tmp_path, state, make, monkeypatch):
    write = EmbeddingFile.write

    def write_late(*arguments):
        """Leaves writes to the thread that an interrupted epoch must wait for."""
        time.sleep(0.02)
        write(*arguments)

    monkeypatch.setattr(EmbeddingFile, "write", write_late)
    whole = make(graph, Comet(4, 3), tmp_path / "whole")
    trainer = make(graph, Comet(4, 3), tmp_path / "interrupted")
    assert_begins_anew(whole, trainer, state, everything)


# ---------------------------------------------------------------------- the buffer


def test_draws_are_resident_uniform_and_independent_of_slots(graph, tmp_path):
    file = made(tmp_path, graph.num_partitions, graph.partition_size)
    buffer = PartitionBuffer(graph, None, file)
    for resident in buffer.run(Beta(2).epoch(6, np.random.default_rng(1))):
        drawn = resident.node_of[resident.draw(np.random.default_rng(0), 40_000)]
        assert set((drawn // graph.partition_size).tolist()) == set(resident.state.partitions)
        counts = np.unique(drawn, return_counts=True)[1]
        nodes = sum(graph.nodes_of(k) for k in resident.state.partitions)
        assert len(counts) == nodes
        expected = 40_000 / nodes
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi2 - (nodes - 1)) < 5 * np.sqrt(2 * (nodes - 1))
    buffer.close()


def test_an_error_of_the_reading_thread_reaches_training(graph, tmp_path):
    trainer = LinkTrainer(graph, Beta(2), SMALL, tmp_path)
    data = tmp_path / "embeddings.bin"
    data.write_bytes(b"\x01" * data.stat().st_size)
    with pytest.raises(StoreCorrupt, match="CRC-32"):
        trainer.train_epoch()
    trainer.close()


# ---------------------------------------------------------------------- one trainer, one place


def test_a_second_trainer_of_the_folder_does_not_undo_the_first(graph, tmp_path):
    first, second = (LinkTrainer(graph, InMemory(), SMALL, tmp_path / "e") for _ in range(2))
    for _ in range(2):
        first.train_epoch()
    with pytest.raises(RuntimeError, match=r"committed to.*since this one was at epoch 0"):
        second.train_epoch()
    second.close()
    third = LinkTrainer(graph, InMemory(), SMALL, tmp_path / "e")
    assert third.epoch == 2
    for now, then in zip(everything(third), everything(first), strict=True):
        np.testing.assert_array_equal(now, then)
    third.close()
    first.close()


def test_a_commit_behind_the_others_back_is_refused(graph, tmp_path):
    trainer = LinkTrainer(graph, Beta(2), SMALL, tmp_path / "e")
    calls = []

    def other_commits(number, of):
        if not calls:
            calls.append(EmbeddingFile(tmp_path / "e"))
            calls[0].commit(calls[0].extras)

    with pytest.raises(RuntimeError, match="by another trainer"):
        trainer.train_epoch(other_commits)
    trainer.close()


def test_a_relative_folder_is_where_it_was(graph, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    opened = partition(generated(), N, 6, "g")
    trainer = LinkTrainer(opened, InMemory(), SMALL, "e")
    monkeypatch.chdir(tmp_path / "elsewhere")
    trainer.train_epoch()
    assert sorted(opened.node_ids.tolist()) == list(range(N))
    assert not list((tmp_path / "elsewhere").iterdir())
    assert EmbeddingFile(tmp_path / "e").epoch == 1
    trainer.close()
