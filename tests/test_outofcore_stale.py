"""Batches of a sampled loader are lent: reading one too late raises, and never gives other data."""

from __future__ import annotations

import numpy as np
import pytest

from staticgraph.errors import StaleBatch
from staticgraph.outofcore import InMemory, SampledLoader, partition

NODES = 40


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    edges = np.random.default_rng(0).integers(0, NODES, (2, 200))
    features = np.arange(NODES, dtype=np.float32)[:, None]
    return partition(edges, NODES, 4, tmp_path_factory.mktemp("g") / "g", features=features)


@pytest.fixture
def loader(graph):
    loader = SampledLoader(graph, InMemory(), fanouts=[3], batch_size=8)
    yield loader
    loader.close()


def test_a_list_of_batches_is_an_error_and_no_other_batchs_samples(loader):
    *kept, last = list(loader)
    assert len(kept) == 4
    assert (last.hops.x[: len(last.nodes), 0].numpy() == last.nodes).all()
    another = iter(loader)
    next(another)
    for batch in (*kept, last):
        assert len(batch.nodes), "the numbers of the seeds are its own"
        with pytest.raises(StaleBatch, match=r"copy what you keep, batch\.hops\.x\.clone"):
            batch.hops  # noqa: B018


def test_each_is_read_until_the_next_one(loader):
    batches = iter(loader)
    first = next(batches)
    copy = first.hops.x.clone()
    assert (copy[: len(first.nodes), 0].numpy() == first.nodes).all()
    second = next(batches)
    assert (second.hops.x[: len(second.nodes), 0].numpy() == second.nodes).all()
    with pytest.raises(StaleBatch):
        first.hops  # noqa: B018
    assert (copy[: len(first.nodes), 0].numpy() == first.nodes).all()
