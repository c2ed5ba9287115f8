"""A lightweight load generator for HTTP: many persistent connections, one request each at a time.

    python -m bench.load PORT CLIENTS SECONDS FILE

It uses one process, one thread, only the standard library and no event loop: some 20 us of
processor time per request, so that it takes little from the server. FILE holds requests ready to
send, each preceded by its length (uint32). Writes the latency of each request, in seconds, as
float32 to stdout.
"""

from __future__ import annotations

import array
import select
import socket
import struct
import sys
import time
from pathlib import Path

MOST = 1 << 16


def requests_of(path: Path) -> list[bytes]:
    """Returns the requests of a file."""
    content, requests, at = path.read_bytes(), [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        requests.append(content[at + 4 : at + 4 + length])
        at += 4 + length
    return requests


def save(path: Path, requests: list[bytes]) -> None:
    """Writes a file of requests."""
    path.write_bytes(b"".join(struct.pack("<I", len(each)) + each for each in requests))


def whole(answer: bytes) -> bool:
    """Returns whether an answer is complete.

    Raises:
        RuntimeError: if its status is not 200.
    """
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer[:400].decode("latin-1"))
    head = answer.find(b"\r\n\r\n")
    if head < 0:
        return False
    at = answer[:head].lower().find(b"content-length:") + 15
    length = int(answer[at : at + 12].split(b"\r\n", 1)[0])
    return len(answer) >= head + 4 + length


def load(port: int, clients: int, seconds: float, requests: list[bytes]) -> array.array[float]:
    """Runs ``clients`` clients, each waiting for its answer; returns the latencies in seconds."""
    poll, sockets = select.epoll(), {}
    taken = array.array("f")
    began = [0.0] * clients
    for number in range(clients):
        line = socket.create_connection(("127.0.0.1", port))
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[line.fileno()] = (number, line)
        poll.register(line.fileno(), select.EPOLLIN)
    next_one = list(range(clients))
    parts = [b""] * clients
    now = time.perf_counter()
    stop = now + seconds
    for number, line in sockets.values():
        began[number] = now
        line.sendall(requests[number % len(requests)])
    waiting = clients
    while waiting:
        for descriptor, _ in poll.poll():
            number, line = sockets[descriptor]
            if not (more := line.recv(MOST)):
                raise RuntimeError("the server closed a connection")
            parts[number] += more
            if not whole(parts[number]):
                continue
            parts[number] = b""
            now = time.perf_counter()
            taken.append(now - began[number])
            if now >= stop:
                waiting -= 1
                poll.unregister(descriptor)
                line.close()
                continue
            next_one[number] += clients
            began[number] = now
            line.sendall(requests[next_one[number] % len(requests)])
    return taken


def main() -> None:
    """Puts one server under load."""
    port, clients, seconds, path = sys.argv[1:5]
    taken = load(int(port), int(clients), float(seconds), requests_of(Path(path)))
    sys.stdout.buffer.write(taken.tobytes())


if __name__ == "__main__":
    main()
