"""Processes that read bodies: they answer what is pending when they stop; crashes are noticed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch
from support.served_graphs import PATIENCE_S, Held, graph, runner_of, same

import staticgraph as sg
from staticgraph.serving.bodies.reader import Reader

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from staticgraph.serving.processes.worker_pool import Workers


def body_of(*graphs) -> bytes:
    names = ("x", "edge_index", "edge_attr")
    return json.dumps({"graphs": [{k: g[k].tolist() for k in names} for g in graphs]}).encode()


def post(workers: Workers, body: bytes) -> dict:
    url = f"http://127.0.0.1:{workers.port}/predict"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


@pytest.fixture
def served():
    """A server and a process that reads request bodies for it."""
    runner = runner_of()
    with sg.Server(runner, max_wait_ms=0) as server:
        reader = Reader(server.schema, {}, False, 100, 1 << 20)
        workers = Workers(server, reader, "a <model>", None, 1, "127.0.0.1", 0)
        workers.wait_ready()
        yield server, workers
        workers.stop()


def test_what_was_asked_is_answered_when_it_stops(served):
    server, workers = served
    held = Held(server)
    found = []
    asking = threading.Thread(target=lambda: found.append(post(workers, body_of(graph(3)))))
    asking.start()
    assert held.reached.wait(PATIENCE_S)
    stopping = threading.Thread(target=workers.stop)
    stopping.start()
    held.go.set()
    stopping.join(PATIENCE_S)
    asking.join(PATIENCE_S)
    rows = torch.tensor(found[0]["outputs"], dtype=torch.float64)
    same(rows, server.runner.predict([graph(3)]))
    with pytest.raises(urllib.error.URLError):  # the port is closed
        post(workers, body_of(graph(3)))


def test_answers_errors_and_numbers_come_through(served):
    server, workers = served
    graphs = [graph(3), graph(5)]
    found = post(workers, body_of(*graphs))
    same(torch.tensor(found["outputs"], dtype=torch.float64), server.runner.predict(graphs))
    for body, status, words in (
        (body_of(graph(31)), 413, "fits no bucket"),
        (b"{", 400, "no JSON"),
        (body_of(*[graph(1)] * 101), 413, "at most 100"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(workers, body)
        assert refused.value.code == status
        assert words in json.load(refused.value)["detail"]
    base = f"http://127.0.0.1:{workers.port}"
    with urllib.request.urlopen(f"{base}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    assert 'staticgraph_requests_total{end="answered"} 1' in lines
    assert 'staticgraph_requests_total{end="failed"} 1' in lines, (
        "the body that no model saw is not"
    )
    with urllib.request.urlopen(f"{base}/health", timeout=PATIENCE_S) as answer:
        assert json.load(answer) == {"status": "ok"}
    with urllib.request.urlopen(base, timeout=PATIENCE_S) as answer:
        assert "a &lt;model&gt;" in answer.read().decode()


def test_a_process_that_falls_is_seen(served):
    server, workers = served
    workers._processes[0].kill()
    assert workers.wait() is False
    rows = server.submit([graph(4)]).result(PATIENCE_S)
    assert np.isfinite(rows.numpy()).all(), "the server is none the worse for it"


def test_a_process_ends_when_the_models_does(served):
    _, workers = served
    workers._gateways[0]._line.shutdown(2)
    assert workers._processes[0].wait(PATIENCE_S) in (0, -15)


def test_being_told_to_stop_is_no_fall(served):
    _, workers = served
    workers.tell()
    assert workers.wait() is True


def test_a_process_that_reads_needs_no_torch():
    code = (
        "import sys, staticgraph.serving.processes.worker\n"
        "found = {'torch', 'torch_geometric', 'rdkit'} & {*sys.modules}\n"
        "assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
