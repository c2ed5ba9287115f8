"""Requests of an event loop that are submitted together: each is answered once, as if alone."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.served_graphs import PATIENCE_S, flat_of, graph, runner_of, same

import staticgraph as sg

pytest.importorskip("fastapi", reason="needs the extra serve")

from staticgraph.serving.http.app import AsyncServer


def run(work, out: str = "graph", **options):
    """Runs work with an asynchronous server; returns its result and the server."""
    server = sg.Server(runner_of(out), **{"max_wait_ms": 0, **options})
    backend = AsyncServer(server, None, ())

    async def whole():
        try:
            return await asyncio.wait_for(work(backend), PATIENCE_S)
        finally:
            await backend.close()

    return asyncio.run(whole()), server


def outputs(reply):
    assert reply.status_code == 200, reply.body
    return json.loads(reply.body)["outputs"]


def rows(reply) -> torch.Tensor:
    return torch.tensor(outputs(reply), dtype=torch.float64)


def words(reply) -> tuple[int, str]:
    return reply.status_code, json.loads(reply.body)["detail"]


@examples(15)
@given(
    requests=st.lists(st.lists(st.integers(0, 33), min_size=1, max_size=8), min_size=1, max_size=8),
    out=st.sampled_from(["graph", "edge"]),
)
def test_every_request_is_answered_once_and_as_if_alone(requests, out):
    """Graphs of more than 30 nodes fit no bucket, and fail only their own request."""
    asked = [[graph(n, k) for k, n in enumerate(sizes)] for sizes in requests]

    async def all_of(backend):
        return await asyncio.gather(*(backend.predict(flat_of(graphs)) for graphs in asked))

    replies, server = run(all_of, out)
    fit = 0
    for sizes, graphs, reply in zip(requests, asked, replies, strict=True):
        if max(sizes) > 30:
            place = next(k for k, n in enumerate(sizes) if n > 30)
            assert words(reply)[0] == 413
            assert f"graph {place} has {sizes[place]} nodes" in words(reply)[1]
            continue
        fit += 1
        expected = [server.runner.predict([g]) for g in graphs]
        if out == "graph":
            same(rows(reply), torch.cat(expected))
        else:
            found = outputs(reply)
            pooled = torch.tensor(found["graphs"], dtype=torch.float64)
            same(pooled, torch.cat([e["graphs"] for e in expected]))
            for edges, each in zip(found["edges"], expected, strict=True):
                same(torch.tensor(edges, dtype=torch.float64).view(-1, 4), each["edges"][0])
    stats = server.stats()
    assert (stats.answered, stats.failed, stats.queue) == (fit, len(asked) - fit, 0)


def test_a_closed_server_says_so():
    async def ask(backend):
        await backend.close()
        return await backend.predict(flat_of([graph(3)]))

    reply, _ = run(ask)
    assert words(reply)[0] == 503
