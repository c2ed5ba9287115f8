"""Every request is answered once, with what ``predict`` gives for its graphs alone."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.drawn import examples
from support.runners import made_runner
from support.served_graphs import (
    BUCKETS,
    LARGE,
    PATIENCE_S,
    SMALL,
    Held,
    Net,
    broken,
    flat_of,
    graph,
    runner_of,
    same,
)
from torch import nn
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph.serving.checked_graphs import store_of


def server_of(out: str = "graph", **options) -> sg.Server:
    options = {"max_wait_ms": 0, **options}
    return sg.Server(runner_of(out), **options)


def answer_of(server: sg.Server) -> torch.Tensor:
    """The answer to a request of one graph."""
    return server.submit([graph(3)]).result(PATIENCE_S)


@examples(25)
@given(
    requests=st.lists(
        st.tuples(
            st.lists(st.sampled_from([0, 1, 3, 7, 29, 31]), min_size=1, max_size=9),
            st.sampled_from(["good", "good", "good", "broken", "cancelled"]),
            st.booleans(),
        ),
        max_size=10,
    ),
    out=st.sampled_from(["graph", "edge"]),
    drain=st.booleans(),
)
@example(requests=[([29, 1, 29, 1], "good", False)], out="edge", drain=True)  # out of order
def test_every_request_ends_once_however_it_ends(requests, out, drain):
    """Graphs that fit no bucket, failing batches, cancelled requests, a closed server: each future
    ends for its own reason, and the server's counts match the outcomes."""
    server = server_of(out, max_wait_ms=1e9)
    futures, ends = [], []
    for k, (sizes, kind, flat) in enumerate(requests):
        graphs = [graph(n, 10 * k + i) for i, n in enumerate(sizes)]
        if kind == "broken":
            graphs.append(broken())
        for data in graphs[::2]:  # sorted edges next to others
            order = data.edge_index[1].argsort(stable=True)
            data.edge_index, data.edge_attr = data.edge_index[:, order], data.edge_attr[order]
        future = (
            server.submit_all([store_of(flat_of(graphs), server.schema)])[0]
            if flat
            else server.submit(graphs)
        )
        future.add_done_callback(lambda _, k=k: ends.append(k))
        futures.append((graphs, kind, future))
        if kind == "cancelled":
            future.cancel()
    server.close(drain)
    assert sorted(ends) == list(range(len(requests))), "each once"
    counts = {"answered": 0, "failed": 0, "cancelled": 0}
    for graphs, kind, future in futures:
        large = any(g.num_nodes > 30 for g in graphs)
        if future.cancelled():
            assert kind == "cancelled"
            counts["cancelled"] += 1
        elif (error := future.exception()) is None:
            assert kind != "broken"
            assert not large
            same(future.result(), server.runner.predict(graphs))
            counts["answered"] += 1
        else:
            counts["failed"] += 1
            if large:
                assert isinstance(error, sg.errors.GraphTooLarge)
            else:
                closed = isinstance(error, sg.errors.ServerClosed)
                assert closed or (isinstance(error, sg.errors.BatchFailed) and kind == "broken")
                assert not (closed and drain)
    stats = server.stats()
    assert {name: getattr(stats, name) for name in counts} == counts
    assert stats.queue == 0


def test_asyncio_callers_share_a_batch():
    async def callers(server):
        return await asyncio.gather(*(server.ask([graph(3, k)]) for k in range(9)))

    with server_of(max_wait_ms=1e9) as server:  # nine fill a bucket
        found = asyncio.run(callers(server))
    stats = server.stats()
    assert (stats.batches, stats.by_bucket) == (1, (0, 1, 0))
    assert stats.filling == pytest.approx((27 / LARGE.nodes, 54 / LARGE.edges, 9 / LARGE.graphs))
    for k, rows in enumerate(found):
        same(rows, server.runner.predict([graph(3, k)]))


def test_a_graph_that_fits_no_bucket_fails_alone():
    with server_of(max_wait_ms=1e9) as server:
        good = server.submit([graph(3)])
        bad = server.submit([graph(4), graph(31)])
        each = server.submit_each([graph(3), graph(40), graph(5)])
        with pytest.raises(
            sg.errors.GraphTooLarge, match="graph 1 has 31 nodes and 62 edges and fits no"
        ):
            bad.result(PATIENCE_S)
    same(good.result(), server.runner.predict([graph(3)]))
    same(each[2].result(), server.runner.predict([graph(5)]))
    assert isinstance(each[1].exception(), sg.errors.GraphTooLarge)
    assert server.stats().failed == 2


def test_graphs_of_other_fields_fail_alone():
    with server_of() as server:
        with pytest.raises(sg.BadGraph, match="no 'edge_attr'"):
            server.submit([Data(x=graph(3).x, edge_index=graph(3).edge_index)]).result(PATIENCE_S)
        other = sg.GraphStore.from_pyg([Data(x=torch.ones(2, 4), edge_index=graph(2).edge_index)])
        with pytest.raises(sg.BadGraph, match=r"has x float32 \[4\] per node where"):
            server.submit(other).result(PATIENCE_S)
        store = sg.GraphStore.from_pyg([graph(3), graph(6)])
        with pytest.raises(sg.BadGraph, match="has edges in the order of the data set where"):
            server.submit(store.in_first_order()).result(PATIENCE_S)


def test_what_was_asked_does_not_change_with_what_its_owner_does():
    data, store = [graph(5), graph(3)], sg.GraphStore.from_pyg([graph(5), graph(3)])
    with server_of(max_wait_ms=1e9) as server:
        expected = server.runner.predict(data)
        futures = [server.submit(data), server.submit(store), server.submit(iter(data))]
        store.columns["x"][:] = 0
        for each in data:
            each.x.zero_()
    for future in futures:
        same(future.result(), expected)


def test_graphs_that_the_model_cannot_take_fail_their_request_and_no_other_of_its_batch():
    with server_of(max_wait_ms=1e9) as server:
        futures = [server.submit([graph(3, k)]) for k in range(6)]
        bad = [server.submit([broken(), graph(3)]), server.submit([broken()])]  # fill a bucket
        for k, future in enumerate(futures):
            same(future.result(PATIENCE_S), server.runner.predict([graph(3, k)]))
        for future in bad:
            with pytest.raises(
                sg.errors.BatchFailed, match=r"of 1 request: RuntimeError: a node has no features$"
            ):
                future.result(PATIENCE_S)
            assert isinstance(future.exception().__cause__, RuntimeError)
        assert bad[0].exception() is not bad[1].exception()
        assert server.stats().failing == 2
        after = server.submit([graph(3, 9)])
    same(after.result(), server.runner.predict([graph(3, 9)]))
    assert (server.stats().failed, server.stats().answered, server.stats().failing) == (2, 7, 0)


class Shaped(nn.Module):
    """Returns what a test makes of the pooled rows."""

    def __init__(self, shape) -> None:
        super().__init__()
        self.net, self.shape = Net(), shape

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        return self.shape(self.net(x, edge_index, edge_attr, batch, batch_size))


def shaped_server(shape) -> sg.Server:
    schema = sg.GraphStore.from_pyg([graph(3)]).schema
    plan = sg.BucketPlan(tuple(sorted(BUCKETS)), schema=schema)
    return sg.Server(
        made_runner(Shaped(shape), plan, mode="eager", check_padding=False), max_wait_ms=0
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "shape",
    [
        lambda rows: (rows, 2 * rows),
        lambda rows: [rows, None],
        lambda rows: {"a": rows, "b": (3 * rows, 1.5)},
    ],
    ids=["tuple", "list", "nested"],
)
def test_outputs_come_in_what_the_model_returns(shape):
    graphs = [graph(4, k) for k in range(30)]  # several batches
    with shaped_server(shape) as server:
        one, many = server.submit(graphs[:1]), server.submit(graphs)
        found = one.result(PATIENCE_S), many.result(PATIENCE_S)
    same(found[0], server.runner.predict(graphs[:1]))
    same(found[1], server.runner.predict(graphs))


def test_keys_may_come_in_another_order_from_every_batch():
    names = itertools.cycle(["ab", "ba"])
    with shaped_server(lambda rows: {k: rows * ord(k) for k in next(names)}) as server:
        found = server.submit([graph(4, k) for k in range(30)]).result(PATIENCE_S)
    same(found["b"] * ord("a"), found["a"] * ord("b"))


def test_one_number_for_the_graphs_of_all_callers_is_refused():
    with shaped_server(lambda rows: {"rows": rows, "mean": rows.mean()}) as server:
        with pytest.raises(
            sg.errors.BatchFailed, match=r"output\['mean'\] is one number for all graphs"
        ):
            answer_of(server)
        with pytest.raises(sg.errors.BatchFailed):  # the server goes on
            answer_of(server)


def test_outputs_of_batches_that_do_not_go_together_fail_their_request_alone():
    """Concatenating them used to end the server's thread and leave the callers waiting forever."""
    widths = iter(range(1, 100))
    with shaped_server(lambda rows: rows[:, :1].expand(-1, next(widths))) as server:
        with pytest.raises(sg.errors.BatchFailed, match=r"40 graphs ran in .*not go together"):
            server.submit([graph(4, k) for k in range(40)]).result(PATIENCE_S)
        assert answer_of(server).shape[0] == 1
    assert (server.stats().failed, server.stats().answered) == (1, 1)


def test_a_full_queue_says_when_to_ask_again():
    now = [0.0]
    server = server_of(max_queue=4, clock=lambda: now[0])
    held = Held(server)
    running = server.submit([graph(3)])
    assert held.reached.wait(PATIENCE_S)
    now[0] += 0.5  # that batch takes half a second
    held.go.set()
    running.result(PATIENCE_S)
    held.reached.clear()
    held.go.clear()
    running = server.submit([graph(3)])
    assert held.reached.wait(PATIENCE_S)
    waiting = [server.submit([graph(3, k)]) for k in range(4)]
    with pytest.raises(sg.errors.ServerBusy, match=r"4 graphs wait.*max_queue=4") as refused:
        server.submit([graph(4), graph(5)])
    assert refused.value.retry_after_s == pytest.approx(1.0), "two graphs, at half a second each"
    with pytest.raises(ValueError, match="5 graphs in one request"):
        server.submit([graph(3)] * 5)
    held.go.set()
    server.close()
    assert all(f.result() is not None for f in [running, *waiting])
    assert server.stats().refused == 1


def test_closing_answers_what_waits_or_says_that_it_does_not():
    with server_of(max_wait_ms=1e9) as server:
        waiting = server.submit([graph(3)])
    assert waiting.done()
    with pytest.raises(sg.errors.ServerClosed, match="takes no requests"):
        server.submit([graph(3)])
    server.close()  # again
    server = server_of(max_wait_ms=1e9)
    waiting = server.submit([graph(3)])
    server.close(drain=False)
    with pytest.raises(sg.errors.ServerClosed, match="before it came to this"):
        waiting.result()


def test_what_a_server_needs():
    with pytest.raises(ValueError, match="max_wait_ms=-1"):
        server_of(max_wait_ms=-1)
    with pytest.raises(ValueError, match="max_queue=0"):
        server_of(max_queue=0)
    runner = sg.StaticGraphRunner(Net(), [SMALL], mode="eager")
    with pytest.raises(ValueError, match=r"schema=store\.schema"):
        sg.Server(runner)
    schema = sg.GraphStore.from_pyg([graph(3)]).schema
    with sg.Server(runner, schema=schema, max_wait_ms=0) as server:
        same(answer_of(server), runner.predict([graph(3)]))
