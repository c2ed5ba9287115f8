"""Processes that read bodies, so that reading them runs in parallel with the model.

The port is opened here and handed on, so whoever connects early waits, and is not refused. Stopping
is in order: no new connections, what was asked is answered, then the model's process ends.
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

# How long a process may take until it answers; it imports for a second or two.
START_S = 120.0
# How long one may go on with what was asked when it is told to stop.
STOP_S = 30.0
# A process that fell is seen so soon.
LOOK_S = 0.2


class Workers:
    """Processes that serve one port.

    Args:
        server: answers; closed by who made it.
        reader: of the bodies, made again there.
        title, task: of :func:`staticgraph.serving.http.app.make_app`.
        count: of processes.
        host, port: where; 0 takes a free one.

    Raises:
        OSError: the port cannot be had.
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
            # Modules come from where they come from here, and not from the folder it is started in.
            command = [
                sys.executable,
                "-P",
                "-m",
                "staticgraph.serving.processes.worker",
                *map(str, handed),
            ]
            path = os.pathsep.join(each or os.getcwd() for each in sys.path)
            # One thread is enough for arrays of some kilobytes.
            threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            environment = {**os.environ, **threads, "PYTHONPATH": path}
            process = subprocess.Popen(command, pass_fds=handed, env=environment)
        self._processes.append(process)
        here.sendall(frames.json_frame(frames.SETTINGS, settings))
        self._gateways.append(Gateway(server, here))

    def wait_ready(self) -> None:
        """Returns when every process takes requests.

        Raises:
            RuntimeError: one ended, or took too long.
        """
        for process, gateway in zip(self._processes, self._gateways, strict=True):
            waited = 0.0
            while not gateway.ready.wait(LOOK_S):
                waited += LOOK_S
                if process.poll() is not None or waited > START_S:
                    self.stop()
                    raise RuntimeError(
                        f"a process that reads requests did not start (status {process.poll()}): "
                        "its message stands above; --workers 0 reads them in this one"
                    )

    def wait(self) -> bool:
        """Returns when it was told to stop, True, or when a process fell, False."""
        while not self._stopping.wait(LOOK_S):
            if any(process.poll() is not None for process in self._processes):
                return False
        return True

    def tell(self, *_: object) -> None:
        """Tells :meth:`wait` to return; for a signal."""
        self._stopping.set()

    def stop(self) -> None:
        """What was asked is answered; then every process has ended."""
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
