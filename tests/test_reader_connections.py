"""The connection between a process that reads bodies and the process with the model."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.served_graphs import BUCKETS, PATIENCE_S, Held, broken, flat_of, graph, runner_of, same

import staticgraph as sg

pytest.importorskip("fastapi", reason="needs the extra serve")

from staticgraph.serving import backends
from staticgraph.serving.backends import AsyncServer, ReaderConnections, RemoteServer


class Line:
    """A server, and a client that is connected to it as another process would be."""

    def __init__(self, out: str = "graph", **options) -> None:
        self.runner = runner_of(out, BUCKETS)
        self.server = sg.Server(self.runner, **{"max_wait_ms": 0, **options})
        self.connections = ReaderConnections(self.server, None, ())
        self.remote = RemoteServer(self.connections.address, self.connections.key)

    def run(self, work):
        try:
            return asyncio.run(opened(self.remote, work))
        finally:
            self.connections.close()
            assert not self.connections._accepting.is_alive()
            self.server.close()


async def opened(remote: RemoteServer, work):
    await remote.open()
    try:
        return await asyncio.wait_for(work(remote), PATIENCE_S)
    finally:
        await remote.close()


def outputs(reply):
    assert reply.status_code == 200, reply.body
    return json.loads(reply.body)["outputs"]


def rows(reply) -> torch.Tensor:
    return torch.tensor(outputs(reply), dtype=torch.float64)


def words(reply) -> tuple[int, str]:
    return reply.status_code, json.loads(reply.body)["detail"]


@pytest.fixture(autouse=True)
def ended(monkeypatch) -> list[tuple[int, int]]:
    """Where a process would have ended itself."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(backends.os, "kill", lambda *call: calls.append(call))
    return calls


@examples(15)
@given(
    requests=st.lists(st.lists(st.integers(0, 33), min_size=1, max_size=8), min_size=1, max_size=8),
    out=st.sampled_from(["graph", "edge"]),
)
def test_every_request_is_answered_once_and_as_if_alone(requests, out):
    """Graphs of more than 30 nodes fit no bucket, and fail only their own request."""
    line = Line(out)
    asked = [[graph(n, k) for k, n in enumerate(sizes)] for sizes in requests]

    async def all_of(remote):
        return await asyncio.gather(*(remote.predict(flat_of(graphs)) for graphs in asked))

    fit = 0
    for sizes, graphs, reply in zip(requests, asked, line.run(all_of), strict=True):
        if max(sizes) > 30:
            place = next(k for k, n in enumerate(sizes) if n > 30)
            assert reply.status_code == 413
            assert f"graph {place} has {sizes[place]} nodes" in words(reply)[1]
            continue
        fit += 1
        expected = [line.runner.predict([g]) for g in graphs]
        if out == "graph":
            same(rows(reply), torch.cat(expected))
        else:
            found = outputs(reply)
            pooled = torch.tensor(found["graphs"], dtype=torch.float64)
            same(pooled, torch.cat([e["graphs"] for e in expected]))
            for edges, each in zip(found["edges"], expected, strict=True):
                same(torch.tensor(edges, dtype=torch.float64).view(-1, 4), each["edges"][0])
    stats = line.server.stats()
    assert (stats.answered, stats.failed, stats.queue) == (fit, len(asked) - fit, 0)


def test_errors_and_the_state_of_the_server_come_over():
    line = Line(max_queue=4)

    async def ask(remote):
        failed = await remote.predict(flat_of([broken()]))
        large = await remote.predict(flat_of([graph(3)] * 5))
        held = Held(line.server)
        first = remote.predict(flat_of([graph(3)]))
        await asyncio.to_thread(held.reached.wait, PATIENCE_S)
        rest = [remote.predict(flat_of([graph(3)] * 3)) for _ in range(2)]
        done, _ = await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED)
        held.go.set()
        await asyncio.gather(first, *rest)
        busy = done.pop().result()
        return failed, large, busy, await remote.status("health"), await remote.status("metrics")

    failed, large, busy, health, metrics = line.run(ask)
    assert words(failed) == (500, "the model failed")
    assert large.status_code == 413
    assert "5 graphs in one request" in words(large)[1]
    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1")
    assert (health.status_code, json.loads(health.body)) == (200, {"status": "ok"})
    assert b'staticgraph_requests_total{end="refused"} 1.0' in metrics.body


@pytest.mark.parametrize("last", [None, b"nonsense", b"\x91\x94\x09\xc4\x00\x00\x80"])
def test_callers_are_told_when_the_model_is_gone_or_makes_no_sense(last, ended, tmp_path):
    async def model(requests, out):
        await requests.readexactly(len(b"key") + 8)
        if last is not None:
            out.write(len(last).to_bytes(8, "big") + last)
            await requests.read()
        out.close()

    async def ask(remote):
        replies = [await remote.predict(flat_of([graph(3)])) for _ in range(2)]
        with pytest.raises(sg.errors.ServerClosed, match="is gone"):
            await remote.status("health")
        return replies

    async def whole():
        async with await asyncio.start_unix_server(model, tmp_path / "model"):
            return await opened(RemoteServer(str(tmp_path / "model"), b"key"), ask)

    assert [words(reply) for reply in asyncio.run(whole())] == [
        (503, "the process with the model is gone")
    ] * 2
    assert ended == [(os.getpid(), 15)]


@pytest.mark.parametrize("silent", [False, True])
def test_a_stranger_is_not_answered_and_holds_up_nobody(silent, ended):
    line = Line()
    assert os.stat(os.path.dirname(line.connections.address)).st_mode & 0o077 == 0
    waiting = socket.socket(socket.AF_UNIX)
    if silent:
        waiting.connect(line.connections.address)  # never says the key

    async def ask(remote):
        stranger = RemoteServer(line.connections.address, b"another key" * 3)
        reply = await opened(stranger, lambda remote: remote.predict(flat_of([graph(3)])))
        assert words(reply) == (503, "the process with the model is gone")
        return await remote.predict(flat_of([graph(4)]))

    same(rows(line.run(ask)), line.runner.predict([graph(4)]))
    assert line.server.stats().answered == 1
    waiting.close()


def test_the_server_goes_on_when_who_asks_is_gone():
    line = Line()
    held = Held(line.server)

    async def ask(remote):
        waiting = remote.predict(flat_of([graph(3)]))
        await asyncio.to_thread(held.reached.wait, PATIENCE_S)
        waiting.cancel()

    close, line.server.close = line.server.close, lambda: None
    line.run(ask)  # the connection ends while its batch runs
    held.go.set()
    same(line.server.submit([graph(4)]).result(PATIENCE_S), line.runner.predict([graph(4)]))
    close()
    assert line.server.stats().answered == 2


def test_who_goes_before_his_request_is_sent_is_not_asked_for():
    line = Line()

    async def ask(remote):
        gone, stays = remote.predict(flat_of([graph(3)])), remote.predict(flat_of([graph(4)]))
        gone.cancel()
        return await stays

    same(rows(line.run(ask)), line.runner.predict([graph(4)]))
    assert line.server.stats().answered == 1


def test_what_cannot_be_said_in_json_or_sent_fails_alone():
    """Complex numbers used to end the thread that answers, and everybody waited forever."""
    line = Line()

    async def ask(remote):
        predict = line.server.runner.predict_batch
        line.server.runner.predict_batch = lambda batch: torch.complex(*[predict(batch)] * 2)
        failed = await remote.predict(flat_of([graph(3)]))
        line.server.runner.predict_batch = predict
        lacking = flat_of([graph(3)])
        lacking.pop("x")
        unsent = await remote.predict(lacking)
        return failed, unsent, await remote.predict(flat_of([graph(3)]))

    failed, unsent, answered = line.run(ask)
    assert words(failed) == words(unsent) == (500, "the server failed")
    same(rows(answered), line.runner.predict([graph(3)]))


def test_answers_that_cannot_be_sent_end_the_connection(monkeypatch, ended):
    """A thread without memory for its answers used to end silently; all later requests waited."""
    line = Line()

    def fails(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    monkeypatch.setattr(backends, "reply_of", fails)
    reply = line.run(lambda remote: remote.predict(flat_of([graph(3)])))
    assert words(reply) == (503, "the process with the model is gone")
    assert ended


def test_a_process_that_reads_needs_no_torch():
    code = (
        "import sys, staticgraph.serving.app\n"
        "found = {'torch', 'torch_geometric', 'rdkit'} & {*sys.modules}\n"
        "assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_requests_in_the_process_of_the_model_are_answered_as_if_alone():
    server = sg.Server(runner_of(), max_wait_ms=0)

    async def ask(backend):
        asked = [backend.predict(flat_of([graph(n)])) for n in (3, 31, 0, 7)]
        replies = await asyncio.wait_for(asyncio.gather(*asked), PATIENCE_S)
        await backend.close()
        return [*replies, await backend.predict(flat_of([graph(3)]))]

    first, large, empty, last, late = asyncio.run(ask(AsyncServer(server, None, ())))
    assert (large.status_code, late.status_code) == (413, 503)
    for reply, nodes in ((first, 3), (empty, 0), (last, 7)):
        same(rows(reply), server.runner.predict([graph(nodes)]))
