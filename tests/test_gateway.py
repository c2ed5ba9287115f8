"""Requests that come over a line from another process: each is answered once, as if sent alone."""

from __future__ import annotations

import asyncio
import socket

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.line import Line
from support.served_graphs import (
    PATIENCE_S,
    Held,
    broken,
    flat_of,
    graph,
    same,
)

import staticgraph as sg
from staticgraph.serving.processes import frames


@settings(max_examples=15, deadline=None)
@given(
    requests=st.lists(st.lists(st.integers(0, 33), min_size=1, max_size=8), min_size=1, max_size=8),
    out=st.sampled_from(["graph", "edge"]),
)
def test_every_request_is_answered_once_and_as_if_alone(requests, out):
    """Graphs of more than 30 nodes fit no bucket, and fail only their own request."""
    line = Line(out)
    asked = [[graph(n, k) for k, n in enumerate(sizes)] for sizes in requests]

    async def all_of(remote):
        asks = (remote.ask(flat_of(graphs)) for graphs in asked)
        return await asyncio.gather(*asks, return_exceptions=True)

    answers = line.run(all_of)
    fit = 0
    for sizes, graphs, found in zip(requests, asked, answers, strict=True):
        if max(sizes) > 30:
            assert isinstance(found, sg.GraphTooLarge)
            place = next(k for k, n in enumerate(sizes) if n > 30)
            assert f"graph {place} has {sizes[place]} nodes" in str(found)
            continue
        fit += 1
        expected = [line.runner.predict([g]) for g in graphs]
        if out == "graph":
            same(torch.tensor(found, dtype=torch.float64), torch.cat(expected))
        else:
            same(
                torch.tensor(found["graphs"], dtype=torch.float64),
                torch.cat([e["graphs"] for e in expected]),
            )
            for rows, one in zip(found["edges"], expected, strict=True):
                same(torch.tensor(rows, dtype=torch.float64).view(-1, 4), one["edges"][0])
    stats = line.server.stats()
    assert (stats.answered, stats.failed, stats.queue) == (fit, len(asked) - fit, 0)


def test_requests_of_one_turn_go_over_together():
    line = Line(max_wait_ms=1e9)  # nine graphs fill a bucket

    async def nine(remote):
        return await asyncio.gather(*(remote.ask(flat_of([graph(3, k)])) for k in range(9)))

    found = line.run(nine)
    assert line.server.stats().batches == 1
    for k, rows in enumerate(found):
        same(torch.tensor(rows, dtype=torch.float64), line.runner.predict([graph(3, k)]))


def test_who_asks_while_others_wait_is_sent_together_with_those_who_follow(monkeypatch):
    """One frame per turn of the event loop cost both processes as much as some requests do."""
    monkeypatch.setattr("staticgraph.serving.processes.remote.GATHER_S", 3600.0)
    sent, ask_frame = [], frames.ask_frame
    monkeypatch.setattr(
        frames, "ask_frame", lambda *of: (sent.append(of[0].counts), ask_frame(*of))[1]
    )
    line = Line()
    held = Held(line.server)

    async def ask(remote):
        asks = [remote.ask(flat_of([graph(3)]))]  # sent at once, since nobody waits
        await asyncio.to_thread(held.reached.wait, PATIENCE_S)
        for k in range(3):
            asks.append(remote.ask(flat_of([graph(4, k)])))
            await asyncio.sleep(0)
        assert sent == [[1]]
        remote._send()  # the time to gather is over
        held.go.set()
        return await asyncio.gather(*asks)

    found = line.run(ask)
    assert sent == [[1], [1, 1, 1]]
    for rows, one in zip(found[1:], [graph(4, k) for k in range(3)], strict=True):
        same(torch.tensor(rows, dtype=torch.float64), line.runner.predict([one]))


def test_errors_come_over_as_what_they_are():
    line = Line(max_queue=4)

    async def ask(remote):
        found = await asyncio.gather(
            remote.ask(flat_of([broken()])),
            remote.ask(flat_of([graph(3)] * 5)),
            return_exceptions=True,
        )
        held = Held(line.server)
        first = asyncio.ensure_future(remote.ask(flat_of([graph(3)])))
        await asyncio.to_thread(held.reached.wait, PATIENCE_S)
        rest = [asyncio.ensure_future(remote.ask(flat_of([graph(3)] * 3))) for _ in range(2)]
        done, _ = await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED)
        held.go.set()
        await asyncio.gather(first, *rest, return_exceptions=True)
        return [*found, *(task.exception() for task in done), await remote.health()]

    failed, large, busy, (failing, text) = line.run(ask)
    assert isinstance(failed, sg.BatchFailed)
    assert "a node has no features" in str(failed)
    assert type(large) is ValueError
    assert "5 graphs in one request" in str(large)
    assert isinstance(busy, sg.ServerBusy)
    assert busy.retry_after_s > 0
    assert failing == 0, "the last batch did not fail"
    assert 'staticgraph_requests_total{end="refused"} 1' in text


def test_who_asks_is_told_when_the_model_is_gone():
    line = Line()
    held = Held(line.server)

    async def ask(remote):
        waiting = asyncio.ensure_future(remote.ask(flat_of([graph(3)])))
        await asyncio.to_thread(held.reached.wait, PATIENCE_S)
        line.near.shutdown(socket.SHUT_RDWR)
        with pytest.raises(sg.ServerClosed, match="is gone"):
            await waiting
        with pytest.raises(sg.ServerClosed, match="is gone"):
            await remote.ask(flat_of([graph(3)]))
        held.go.set()

    line.run(ask)
    assert line.lost == [1]


def test_the_server_goes_on_when_who_asks_is_gone():
    line = Line()
    held = Held(line.server)

    async def ask(remote):
        waiting = asyncio.ensure_future(remote.ask(flat_of([graph(3)])))
        await asyncio.to_thread(held.reached.wait, PATIENCE_S)
        waiting.cancel()

    held_server = line.server
    close = held_server.close
    held_server.close = lambda: None
    line.run(ask)  # the line closes while its batch runs
    held.go.set()
    future = held_server.submit([graph(4)])
    same(future.result(PATIENCE_S), line.runner.predict([graph(4)]))
    close()
    assert held_server.stats().answered == 2


def test_an_output_that_json_cannot_say_fails_its_requests_and_no_other():
    """Complex numbers ended the thread that answers, and everybody waited forever."""
    line = Line(max_wait_ms=0)

    async def ask(remote):
        whole = line.server.runner.predict_batch
        line.server.runner.predict_batch = lambda batch: torch.complex(*[whole(batch)] * 2)
        with pytest.raises(sg.BatchFailed, match=r"cannot be written as JSON.*complex"):
            await remote.ask(flat_of([graph(3)]))
        line.server.runner.predict_batch = whole
        return await remote.ask(flat_of([graph(3)]))

    found = line.run(ask)
    same(torch.tensor(found, dtype=torch.float64), line.runner.predict([graph(3)]))


def test_who_asks_just_as_the_model_goes_is_told():
    line = Line()

    async def ask(remote):
        waiting = asyncio.ensure_future(remote.ask(flat_of([graph(3)])))
        asyncio.get_running_loop().call_soon(remote._lose)  # after the request, before it is sent
        with pytest.raises(sg.ServerClosed, match="is gone"):
            await waiting

    line.run(ask)
    assert line.lost[0] == 1


def test_requests_that_cannot_be_sent_fail():
    line = Line()

    async def ask(remote):
        lacking = flat_of([graph(3)])
        lacking.columns.pop("x")
        with pytest.raises(RuntimeError, match="x"):
            await remote.ask(lacking)
        return await remote.ask(flat_of([graph(3)]))

    found = line.run(ask)
    same(torch.tensor(found, dtype=torch.float64), line.runner.predict([graph(3)]))


def test_an_answer_that_makes_no_sense_is_a_line_that_is_lost():
    line = Line()
    held = Held(line.server)

    async def ask(remote):
        waiting = asyncio.ensure_future(remote.ask(flat_of([graph(3)])))
        await asyncio.to_thread(held.reached.wait, PATIENCE_S)
        line.near.sendall(frames.json_frame(frames.ANSWERS, [[10**6, None, None]]))
        with pytest.raises(sg.ServerClosed, match="is gone"):
            await waiting
        held.go.set()

    line.run(ask)
    assert line.lost == [1]
