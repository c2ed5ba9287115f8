"""The fast path of ``POST /predict``: it answers as uvicorn does, in the order of the requests, and
drops connections that stall."""

from __future__ import annotations

import json
import random
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httptools", reason="needs uvicorn's parser in C")

from support.http_line import MOST_BYTES, PATIENCE_S, Nodes, answers, connected, said, served, talk
from support.served_graphs import graph

from staticgraph.serving.http import predict_protocol, predict_route, uvicorn_config
from staticgraph.serving.http.predict_protocol import PredictProtocol, plain_head


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
REQUESTS = {
    "plain": [request(body_of(3))],
    "several graphs": [request(body_of(3, 4, 5))],
    "no type": [b"POST /predict HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"],
    "a type with more": [request(body_of(3)).replace(b"json", b"JSON; charset=utf-8", 1)],
    "another type": [request(b"<x/>").replace(b"application/json", b"text/xml", 1)],
    "no JSON": [request(b"{")],
    "no body": [request(b"")],
    "no length": [b"POST /predict HTTP/1.1\r\nHost: here\r\n\r\n"],
    "a large body": [request(b" " * (MOST_BYTES + 1))],
    "kept alive": [request(body_of(3), "Connection: keep-alive"), request(body_of(4))],
    "after a mistake": [request(b"{"), request(body_of(4))],
    "two at once": [request(body_of(3)) + request(body_of(4))],
    "three at once": [request(body_of(3)) + request(b"{") + request(body_of(5))],
    "one and a half": [request(body_of(3)) + request(body_of(4))[:60], request(body_of(4))[60:]],
    "head and body": [request(b"")[:-4], b"\r\n\r\n"],
    "a body in two": [request(body_of(3))[:-30], request(body_of(3))[-30:]],
    "chunks": [CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body_of(3)), body_of(3))],
    "chunks and a length": [
        CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n") + b"0\r\n\r\n"
    ],
    "another path": [request(b"", line="GET /health HTTP/1.1"), request(body_of(4))],
    "another method": [request(b"", line="GET /predict HTTP/1.1")],
    "a question": [request(body_of(3), line="POST /predict?a=1 HTTP/1.1")],
    "two lengths": [request(body_of(3), "Content-Length: 3")],
    "a length with a sign": [b"POST /predict HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}"],
    "no name": [request(body_of(3), ": nothing")],
    "a name with a blank": [request(body_of(3), "X : y")],
    "a line that goes on": [request(body_of(3), "X: y", " z")],
    "a control character": [request(body_of(3), "X: \x01")],
    "a long head": [request(body_of(3), "X: " + "y" * 5000)],
}  # fmt: skip


@pytest.fixture(scope="module")
def ports():
    with served(Nodes()) as (short, _), served(Nodes(), short=False) as (long, _):
        yield short, long


@pytest.mark.parametrize("name", REQUESTS)
def test_it_answers_what_uvicorn_answers(ports, name):
    found, expected = (talk(port, [*REQUESTS[name], LAST]) for port in ports)
    assert found == expected
    assert found


def test_however_the_bytes_are_cut(ports):
    """Three requests on one connection, cut at random places."""
    chance = random.Random(0)
    whole = request(body_of(3)) + request(body_of(4, 5)) + request(b"{") + LAST
    expected = talk(ports[1], [whole])
    assert [status for status, _ in expected] == [200, 200, 400, 200]
    for _ in range(20):
        cuts = sorted(chance.sample(range(1, len(whole)), chance.randint(1, 6)))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        assert talk(ports[0], pieces) == expected


def test_the_plain_request_does_go_the_short_way(ports, monkeypatch):
    taken = []
    take = PredictProtocol._take
    monkeypatch.setattr(
        PredictProtocol, "_take", lambda self, *of: (taken.append(of[0]), take(self, *of))
    )
    talk(ports[0], [request(body_of(3)) + LAST])
    assert taken == [], "two at once"
    with connected(ports[0]) as line:
        for nodes in (3, 4):
            line.sendall(request(body_of(nodes)))
            assert answers(line.recv(1 << 16)) == [(200, b'{"outputs":[[%d]]}' % nodes)]
    assert taken == ["application/json"] * 2


def test_what_was_sent_before_an_answer_came_is_answered_after_it():
    backend = Nodes()
    backend.held = []
    with served(backend) as (port, _), connected(port) as line:
        line.sendall(request(body_of(3)))
        assert backend.asked.acquire(timeout=PATIENCE_S)
        line.sendall(request(body_of(4)) + request(b"{") + LAST)
        backend.let_go()
        found = answers(said(line))
    assert [status for status, _ in found] == [200, 200, 400, 200]
    assert [json.loads(body).get("outputs") for _, body in found] == [[[3]], [[4]], None, [[7]]]


def test_who_goes_before_his_answer_is_forgotten():
    backend = Nodes()
    backend.held = []
    with served(backend) as (port, server):
        with connected(port) as line:
            line.sendall(request(body_of(3)))
            assert backend.asked.acquire(timeout=PATIENCE_S)
        (_, future), *_ = backend.held
        end = time.monotonic() + PATIENCE_S
        while not future.done() and time.monotonic() < end:
            time.sleep(0.01)
        assert future.cancelled()
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
        assert said(idle) == b"", "who asked nothing is let go"
        backend.let_go()
        content = said(line)
    assert answers(content) == [(200, b'{"outputs":[[3]]}')]
    assert b"connection: close" in content


def test_stopping_does_not_wait_for_a_body_that_does_not_come(monkeypatch):
    """It used to wait as long as the client liked."""
    monkeypatch.setattr(uvicorn_config, "LAST_S", 0.2)
    with served(Nodes()) as (port, _):
        line = connected(port)
        line.sendall(request(body_of(3))[:-5])
        time.sleep(0.1)  # the bytes should have arrived; if not, there is less to wait for
    line.close()


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(predict_route, "BODY_S", 0.1)
    with served(Nodes()) as (port, _), connected(port) as line:
        line.sendall(request(body_of(3), "Connection: close")[:-5])
        assert answers(said(line))[0][0] == 408


@pytest.mark.parametrize("sent", [b"", b"POST /pred", b"POST /predict HTTP/1.1\r\nX: "])
def test_a_head_that_does_not_come_is_not_waited_for(monkeypatch, sent):
    monkeypatch.setattr(predict_protocol, "HEAD_S", 0.1)
    with served(Nodes()) as (port, _), connected(port) as line:
        line.sendall(sent)
        said(line)


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


@pytest.mark.parametrize(
    ("head", "piece", "most"),
    [
        (b"POST /predict HTTP/1.1\r\n", b"X: " + b"y" * 997 + b"\r\n", 1 << 24),
        (b"POST /predict HTTP/1.1\r\nX: ", b"y" * 1000, 1 << 24),
        (b"POST /", b"y" * 1000, 1 << 24),
        (CHUNKED, b"4\r\n    \r\n" * 1000, 1 << 25),
        (CHUNKED + b"0\r\n", b"X: " + b"y" * 997 + b"\r\n", 1 << 25),
    ],
    ids=["fields", "a field", "a path", "chunks", "fields at the end"],
)
def test_a_request_without_an_end_is_read_no_further(ports, head, piece, most):
    """uvicorn's own parser keeps buffering whatever arrives."""
    assert flood(ports[0], head, piece, most) < most
    assert talk(ports[0], [LAST])[0][0] == 200


def test_heads_that_are_not_of_the_plainest_kind():
    def of(*lines: str):
        return plain_head("\r\n".join(["POST /predict HTTP/1.1", *lines, "", ""]).encode())

    assert of("Content-Length: 12") == ("application/json", 12)
    assert of("content-type:text/xml; a=b", "CONTENT-LENGTH:  7 ") == ("text/xml", 7)
    assert of("Connection: Keep-Alive", "Content-Length: 1") == ("application/json", 1)
    for lines in (
        ["Connection: close", "Content-Length: 1"],
        ["Expect: 100-continue", "Content-Length: 1"],
        ["Transfer-Encoding: chunked", "Content-Length: 1"],
        ["Content-Encoding: gzip", "Content-Length: 1"],
        ["Content-Length: 1", "Content-Length: 1"],
        ["Content-Length: 1,1"],
        ["Content-Length: -1"],
        ["Content-Length: 9999999"],
        ["Content-Length:"],
        [],
    ):
        assert of(*lines) is None, lines
