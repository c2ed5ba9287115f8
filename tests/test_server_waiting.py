"""Which waiting graphs go together in a batch, and when, with an injected clock."""

from __future__ import annotations

from support.served_graphs import BUCKETS, graph

import staticgraph as sg
from staticgraph.serving.request import Request, Waiting


def waiting_of(max_wait_s: float = 1.0, buckets=BUCKETS) -> Waiting:
    return Waiting(sorted(buckets), 2, max_wait_s)


def request(*nodes: int, at: float = 0.0) -> Request:
    store = sg.GraphStore.from_pyg([graph(n) for n in nodes])
    return Request(store, range(len(store)), at)


def test_nothing_runs_before_the_deadline_and_all_at_it():
    waiting = waiting_of(1.0)
    assert waiting.take(0.0) is None
    assert waiting.due() is None
    waiting.add(request(3, at=5.0))
    waiting.add(request(4, at=5.5))
    assert waiting.take(5.9) is None
    assert waiting.due() == 6.0
    parts, bucket = waiting.take(6.0)
    assert (len(parts), bucket) == (2, 0), (
        "who came later goes along, in the smallest that holds all"
    )
    assert len(waiting) == 0


def test_a_pack_is_ripe_once_a_graph_did_not_fit():
    waiting = waiting_of(1.0)
    waiting.add(request(*[8] * 5))  # 40 nodes: all that the large bucket holds
    assert waiting.take(0.0) is None
    waiting.add(request(2))
    ((_, graphs),), _ = waiting.take(0.0)
    assert graphs == [*range(5)]
    assert waiting.take(0.0) is None


def test_one_that_waited_its_time_goes_before_ripe_ones():
    waiting = waiting_of(1.0)
    old = request(20, at=0.0)
    waiting.add(old)
    waiting.add(request(*[4] * 9, at=0.9))
    ((_, graphs),), bucket = waiting.take(0.9)
    assert (len(graphs), bucket) == (9, 1), "which are ripe: they fill the bucket"
    waiting.add(request(*[4] * 9, at=1.0))
    assert waiting.take(1.0)[0][0].request is old


def test_graphs_of_a_request_that_is_over_do_not_run():
    waiting = waiting_of(1.0)
    first, second = request(3, 3), request(4)
    waiting.add(first)
    waiting.add(second)
    assert first.future.cancel()
    assert [part.request for part in waiting.take(2.0)[0]] == [second]
