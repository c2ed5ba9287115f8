"""Connections that are cut, stall, or send without end. uvicorn reads the heads of requests, and
with ``httptools`` bounds neither their length nor their time: only its parser ``h11`` does."""

from __future__ import annotations

import json
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httptools", reason="needs uvicorn's parser in C")

from support.http_line import PATIENCE_S, Nodes, answers, connected, read_all, served, talk
from support.served_graphs import graph

from staticgraph.serving import app


def body_of(*nodes: int) -> bytes:
    graphs = []
    for n in nodes:
        data = graph(n)
        graphs.append({name: data[name].tolist() for name in ("x", "edge_index", "edge_attr")})
    return json.dumps({"graphs": graphs}).encode()


def request(body: bytes, *more: str, line: str = "POST /predict HTTP/1.1") -> bytes:
    head = [line, "Host: here", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, *more]).encode() + b"\r\n\r\n" + body


LAST = request(body_of(7), "Connection: close")
CHUNKED = b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def port():
    with served(Nodes()) as (number, _):
        yield number


def test_requests_of_a_connection_are_answered_in_their_order(port):
    whole = request(body_of(3)) + request(body_of(4, 5)) + request(b"{") + LAST
    for cut in (1, 60, len(whole) - 5):
        found = talk(port, [whole[:cut], whole[cut:]])
        assert [status for status, _ in found] == [200, 200, 400, 200]


def test_who_goes_before_his_answer_leaves_nothing():
    backend = Nodes()
    backend.held = []
    with served(backend) as (port, server):
        with connected(port) as line:
            line.sendall(request(body_of(3)))
            assert backend.asked.acquire(timeout=PATIENCE_S)
        backend.let_go()
        assert talk(port, [LAST])[0][0] == 200
        assert server.server_state.connections == set()


def test_stopping_answers_what_was_asked():
    backend = Nodes()
    backend.held = []
    with served(backend) as (port, server), connected(port) as line, connected(port) as idle:
        line.sendall(request(body_of(3)))
        assert backend.asked.acquire(timeout=PATIENCE_S)
        server.should_exit = True
        assert read_all(idle) == b"", "who asked nothing is let go"
        backend.let_go()
        content = read_all(line)
    assert answers(content) == [(200, b'{"outputs":[[3]]}')]
    assert b"connection: close" in content


def test_stopping_does_not_wait_for_a_body_that_does_not_come(monkeypatch):
    """It used to wait as long as the client liked."""
    monkeypatch.setattr(app, "LAST_S", 0.2)
    with served(Nodes()) as (port, _):
        line = connected(port)
        line.sendall(request(body_of(3))[:-5])
        time.sleep(0.1)  # the bytes should have arrived; if not, there is less to wait for
    line.close()


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(app, "BODY_S", 0.1)
    with served(Nodes()) as (port, _), connected(port) as line:
        line.sendall(request(body_of(3), "Connection: close")[:-5])
        assert answers(read_all(line))[0][0] == 408


def flood(port: int, head: bytes, piece: bytes, most: int) -> int:
    """How many bytes of a request without end are accepted, at most ``most``."""
    sent = 0
    with connected(port) as line:
        try:
            line.sendall(head)
            while sent < most:
                sent += line.send(piece)
        except (ConnectionError, TimeoutError):
            pass
    return sent


def test_chunks_without_an_end_are_read_no_further(port):
    most = 1 << 25
    assert flood(port, CHUNKED, b"4\r\n    \r\n" * 1000, most) < most
    assert talk(port, [LAST])[0][0] == 200


@pytest.mark.parametrize("head", [b"POST /predict HTTP/1.1\r\nX: ", b"POST /"])
def test_h11_reads_a_head_without_an_end_no_further(head):
    with served(Nodes(), http="h11") as (port, _):
        assert flood(port, head, b"y" * 1000, 1 << 24) < 1 << 24
        assert talk(port, [LAST])[0][0] == 200


def test_a_large_head_is_answered_and_holds_up_nobody(port):
    large = request(body_of(3), "X: " + "y" * (1 << 20), "Connection: close")
    with connected(port) as slow:
        slow.sendall(large[:-200])
        assert talk(port, [LAST])[0][0] == 200
        slow.sendall(large[-200:])
        assert answers(read_all(slow))[0][0] == 200
