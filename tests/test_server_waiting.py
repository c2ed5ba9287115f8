"""Which waiting graphs go together in a batch, and when, with an injected clock."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.served_graphs import BUCKETS, graph

import staticgraph as sg
from staticgraph.serving.engine.request import Request
from staticgraph.serving.engine.waiting import Waiting


def waiting_of(max_wait_s: float = 1.0, buckets=BUCKETS) -> Waiting:
    return Waiting(sorted(buckets), 2, max_wait_s)


def request(*nodes: int, at: float = 0.0) -> Request:
    return Request(sg.GraphStore.from_pyg([graph(n) for n in nodes]), at)


def test_nothing_runs_before_the_deadline_and_all_at_it():
    waiting = waiting_of(1.0)
    assert waiting.take(0.0) is None
    assert waiting.due() is None
    waiting.add(request(3, at=5.0))
    waiting.add(request(4, at=5.5))
    assert waiting.take(5.9) is None
    assert waiting.due() == 6.0
    taken = waiting.take(6.0)
    assert len(taken.pieces) == 2, "who came later goes along"
    assert taken.bucket == 0, "in the smallest bucket that holds them"
    assert len(waiting) == 0


def test_a_full_bucket_does_not_wait():
    waiting = waiting_of(1.0)
    waiting.add(request(*[4] * 9))  # as many graphs as the large bucket holds
    taken = waiting.take(0.0)
    assert (len(taken.pieces), taken.bucket) == (9, 1)


def test_a_pack_is_ripe_once_a_graph_did_not_fit():
    waiting = waiting_of(1.0)
    waiting.add(request(*[8] * 5))  # 40 nodes: all that the large bucket holds
    assert waiting.take(0.0) is None
    waiting.add(request(2))
    taken = waiting.take(0.0)
    assert [len(p.request.graphs) for p in taken.pieces] == [5] * 5
    assert waiting.take(0.0) is None


def test_one_that_waited_its_time_goes_before_ripe_ones():
    waiting = waiting_of(1.0)
    old = request(20, at=0.0)
    waiting.add(old)
    waiting.add(request(*[4] * 9, at=0.9))
    assert len(waiting.take(0.9).pieces) == 9, "which are ripe"
    waiting.add(request(*[4] * 9, at=1.0))
    assert waiting.take(1.0).pieces[0].request is old


def test_graphs_of_a_request_that_is_over_do_not_run():
    waiting = waiting_of(1.0)
    first, second = request(3, 3), request(4)
    waiting.add(first)
    waiting.add(second)
    assert first.future.cancel()
    assert [p.request for p in waiting.take(2.0).pieces] == [second]


@examples(60)
@given(
    arrivals=st.lists(
        st.tuples(st.lists(st.integers(0, 29), min_size=1, max_size=6), st.floats(0, 2)),
        max_size=12,
    ),
    data=st.data(),
)
def test_every_graph_is_taken_once_and_no_bucket_is_exceeded(arrivals, data):
    waiting, now, left, seen = waiting_of(0.5), 0.0, [], []
    buckets = sorted(BUCKETS)
    for sizes, pause in arrivals:
        now += pause
        left.append(asked := request(*sizes, at=now))
        assert not len(waiting.unfit(asked.graphs.sizes))
        waiting.add(asked)
        while data.draw(st.booleans()) and (taken := waiting.take(now)):
            seen.append(taken)
    while (taken := waiting.take(now, everything=True)) is not None:
        seen.append(taken)
    assert len(waiting) == 0
    expected = {(id(r), g) for r in left for g in range(len(r.graphs))}
    found = [(id(p.request), p.graph) for taken in seen for p in taken.pieces]
    assert len(found) == len(set(found))
    assert set(found) == expected
    for taken in seen:
        sizes = np.stack([p.request.graphs.sizes[p.graph] for p in taken.pieces])
        capacity = buckets[taken.bucket]
        assert (sizes.sum(axis=0) <= capacity.size_limits).all()
        assert len(sizes) <= capacity.graph_limit
        assert sizes[:, 0].max() <= capacity.max_graph_nodes
