"""Worker processes that read bodies, so that reading runs in parallel with the model.

The port is opened here and passed on, so a client that connects early waits and is not refused.
Stopping has an order: no new connections, pending requests are answered, then the workers end.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Any

from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.engine.server import Server
from staticgraph.serving.processes import frames
from staticgraph.serving.processes.gateway import Gateway

# How long a worker may take to start, in seconds; its imports take a second or two.
START_S = 120.0
# How long a worker may take to answer pending requests when stopped, in seconds.
STOP_S = 30.0
# The interval at which failed workers are detected, in seconds.
LOOK_S = 0.2


class Workers:
    """Worker processes that serve one port.

    Args:
        server: answers the requests; closed by the caller.
        reader: reads the bodies; recreated in each worker.
        title, task: arguments of :func:`staticgraph.serving.http.app.make_app`.
        count: the number of workers.
        host, port: the address to listen on; port 0 takes a free one.

    Raises:
        OSError: the port cannot be opened.
    """

    host: str
    port: int

    def __init__(
        self, server: Server, reader: Reader, title: str, task: str | None, count: int,
        host: str, port: int,
    ) -> None:  # fmt: skip
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._port = socket.create_server((host, port), family=family, backlog=2048)
        self.host, self.port = self._port.getsockname()[:2]
        settings = {
            "schema": reader.schema.to_dict(),
            "categories": dict(reader.categories),
            "smiles": reader.smiles,
            "most_graphs": reader.most_graphs,
            "most_bytes": reader.most_bytes,
            "edges": reader.edges,
            "title": title,
            "task": task,
        }
        self._stopping = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._gateways: list[Gateway] = []
        for _ in range(count):
            self._start(server, settings)

    def _start(self, server: Server, settings: Any) -> None:
        here, there = socket.socketpair()
        with there:
            handed = (there.fileno(), self._port.fileno())
            # Modules are imported from the same paths as here, not from the working directory.
            command = [
                sys.executable,
                "-P",
                "-m",
                "staticgraph.serving.processes.worker",
                *map(str, handed),
            ]
            path = os.pathsep.join(each or os.getcwd() for each in sys.path)
            # One thread is enough for arrays of a few kilobytes.
            threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            environment = {**os.environ, **threads, "PYTHONPATH": path}
            process = subprocess.Popen(command, pass_fds=handed, env=environment)
        self._processes.append(process)
        here.sendall(frames.json_frame(frames.SETTINGS, settings))
        self._gateways.append(Gateway(server, here))

    def wait_ready(self) -> None:
        """Returns when every worker accepts requests.

        Raises:
            RuntimeError: a worker ended or took too long to start; all are stopped.
        """
        for process, gateway in zip(self._processes, self._gateways, strict=True):
            waited = 0.0
            while not gateway.ready.wait(LOOK_S):
                waited += LOOK_S
                if process.poll() is not None or waited > START_S:
                    self.stop()
                    raise RuntimeError(
                        f"a process that reads requests did not start (status {process.poll()}): "
                        "see its message above; --workers 0 reads them in this one"
                    )

    def wait(self) -> bool:
        """Waits until :meth:`tell` is called, then returns True, or until a worker ends: False."""
        while not self._stopping.wait(LOOK_S):
            if any(process.poll() is not None for process in self._processes):
                return False
        return True

    def tell(self, *_: object) -> None:
        """Tells :meth:`wait` to return; usable as a signal handler."""
        self._stopping.set()

    def stop(self) -> None:
        """Answers pending requests, and returns when every worker has ended."""
        self._port.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for gateway in self._gateways:
            gateway.join()
