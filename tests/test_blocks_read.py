"""What an epoch in blocks reads from disk: announced before it is needed, no other graphs, and
continued from where it stopped."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from support.alike import real_ids
from support.graphs import random_graph
from support.written_stores import LEVELS, graphs_of

import staticgraph as sg
from staticgraph.batches.loading import loaded_graphs as announcing
from staticgraph.epochs.blocks import Blocks
from staticgraph.store import block_checks
from staticgraph.store.joined_parts import read_ahead


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_read_is_asked_for_before(workers, tmp_path, monkeypatch):
    """Every graph's block is announced whole, a window ahead, and compared once; the batches do not
    change."""
    monkeypatch.setattr(block_checks, "BLOCK_BYTES", 1 << 10)
    rng = np.random.default_rng(0)
    store = sg.GraphStore.from_pyg([random_graph(rng, 3, 4) for _ in range(200)], levels=LEVELS)
    store.save(tmp_path / "s")
    mapped = sg.GraphStore.load(tmp_path / "s", verify=False)
    asked: list[tuple[int, int]] = []
    compared: list[int] = []
    compare = block_checks.Checks._compare

    def asking(held, first, last):
        asked.append((first, last))
        return read_ahead(held, first, last)

    def counted(self, block, names):
        compared.append(block)
        return compare(self, block, names)

    monkeypatch.setattr(announcing, "read_ahead", asking)
    monkeypatch.setattr(block_checks.Checks, "_compare", counted)
    plan = sg.plan_buckets(store, 5)
    loaders = [
        sg.StaticLoader(each, plan, shuffle=Blocks(8, 3), seed=4, num_workers=workers)
        for each in (store, mapped)
    ]
    plain = [batch.graph_ids.clone() for batch in loaders[0]]
    asked.clear()
    for number, batch in enumerate(loaders[1]):
        assert batch.graph_ids.equal(plain[number])
        known = {g for first, last in asked for g in range(first, last)}
        assert set(real_ids(batch)) <= known
        assert len(known) < 100 or number > 4
        del batch
    assert workers or len(compared) == len(set(compared)) > 9, "each block is compared once"
    assert read_ahead(mapped, 0, 200) > mapped.edge_src.nbytes
    assert read_ahead(pickle.loads(pickle.dumps(mapped)), 0, 200) == 0, "it is in main memory"


def test_of_a_block_that_gave_a_few_graphs_only_these_are_fetched(monkeypatch):
    """Windows exchange graphs to balance batches; their whole blocks would be most of a store."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(announcing, "read_ahead", lambda store, *rows: asked.append(rows))
    ids = [[*range(8), 25], [8, 9, 10, 11, 41, 97]]  # of a store of 100 graphs in blocks of 8
    batches = [SimpleNamespace(ids=np.array(each)) for each in ids]
    found = list(announcing.announced(batches, range(100), Blocks(8, 2), [2]))  # type: ignore[arg-type]
    assert found == batches
    assert sorted(asked) == [(0, 8), (8, 16), (25, 26), (41, 42), (96, 100)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("exact", [True, False])
def test_an_epoch_in_blocks_goes_on_where_it_was_left(workers, exact):
    """In the middle of a window and at its end, on ranks that may have no batch in a window."""
    store = sg.GraphStore.from_pyg(graphs_of(203), levels=LEVELS)
    plan = sg.plan_buckets(store, 4)

    def loader(rank: int) -> sg.StaticLoader:
        return sg.StaticLoader(store, plan, shuffle=Blocks(20, 2), exact=exact, seed=1,
                               num_workers=workers, rank=rank, world_size=3)  # fmt: skip

    for rank in (0, 2):
        whole = [batch.graph_ids.tolist() for batch in loader(rank)]
        ends = loader(rank).batcher.windows(0).tolist()
        assert ends == sorted(ends)
        assert ends[-1] == len(whole)
        for taken in {1, ends[0], ends[1] + 1, len(whole) - 1}:
            first = loader(rank)
            batches = iter(first)
            before = [next(batches).graph_ids.tolist() for _ in range(taken)]
            second = loader(rank)
            second.load_state_dict(first.state_dict())
            assert before + [batch.graph_ids.tolist() for batch in second] == whole
