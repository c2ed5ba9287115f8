"""``python -m staticgraph.serving.processes.worker LINE PORT``: a worker process that reads bodies.

It needs no torch, and gets its answers from the process that started it. Both arguments are file
descriptors of open sockets; the first one provides the settings, and the worker ends when the
process at its other end does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

import uvicorn

from staticgraph.schema import Schema
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.http.app import make_app
from staticgraph.serving.http.uvicorn_config import config_of
from staticgraph.serving.processes import frames
from staticgraph.serving.processes.own_process import settle
from staticgraph.serving.processes.remote import RemoteBackend


def main() -> None:
    """Serves until the process is told to stop."""
    line, port = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    length, _ = frames.HEADER.unpack(_read(line, frames.HEADER.size))
    settings = json.loads(_read(line, length))
    schema = Schema.from_dict(settings["schema"])
    reader = Reader(
        schema,
        {name: tuple(sizes) for name, sizes in settings["categories"].items()},
        settings["smiles"],
        settings["most_graphs"],
        settings["most_bytes"],
        settings["edges"],
    ).warm()
    backend = RemoteBackend(line, schema, on_loss=lambda: os.kill(os.getpid(), signal.SIGTERM))
    app = make_app(backend, reader, settings["title"], settings["task"])
    settle()
    uvicorn.Server(config_of(app, log_level="warning")).run(sockets=[port])


def _read(line: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        if not (more := line.recv(length - len(found))):
            raise SystemExit("the process with the model is gone")
        found += more
    return found


if __name__ == "__main__":
    main()
