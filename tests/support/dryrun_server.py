"""Dry runs' processes that need not import torch again: they fork from one that has it.

A dry run's process loads its guard before torch, so it cannot fork from a test's. What it does
before its first answer, five seconds of processor time, is the same each time but for the last
tenth: so one process loads the guard and torch, patches nothing, and :class:`staticgraph.dryrun
.ask.Child` is given forks of it, which go on as ``python -m staticgraph.dryrun.child`` would. One
serves a whole run of tests: where tests run side by side the first process starts it, which the
others fork from.

What a dry run's process spends is counted to the test that asks. This module is what the server
runs, too, so that nothing above :func:`main` may import torch.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# Its fixture, in conftest.py.
FIXTURE = "forked_dry_runs"
# What a dry run imports before its first answer; of torch none that asks for a device.
LOADED = (
    *("staticgraph.dryrun.stubs", "staticgraph.nn", "torch_geometric.nn", "networkx"),
    *("torch._dynamo.backends.inductor", "torch._inductor.compile_fx"),
    *("torch._inductor.async_compile", "torch._inductor.cudagraph_trees"),
    *(
        "torch._inductor.codegen.cuda_combined_scheduling",
        "torch._inductor.codegen.cpp_wrapper_gpu",
    ),
    *("torch._inductor.codegen.halide", "torch._inductor.fx_passes.fuse_attention"),
    *("torch._inductor.fx_passes.mkldnn_fusion", "torch._inductor.fx_passes.quantization"),
)
_server: Server | None = None


class Server:
    """The process that others fork from; ends when all that know it have ended, or are told to."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dryrun-")
        self.address: str = str(Path(self._folder.name) / "socket")
        self._starter = os.getpid()
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.bind(self.address)
            waiting.listen(64)  # who asks before torch is there waits
            paths = dict.fromkeys(path or os.getcwd() for path in sys.path)
            environ = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.dryrun_server", str(waiting.fileno())],
                stdin=subprocess.PIPE,
                env=os.environ | environ,
                pass_fds=[waiting.fileno()],
            )

    def end(self) -> None:
        """Ends it, in the process that started it."""
        if os.getpid() == self._starter:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._folder.cleanup()


class Forked:
    """In place of :class:`subprocess.Popen`, as a dry run's asking side calls it."""

    def __init__(
        self, command: list[str], *, stderr: Any, env: Mapping[str, str], **_: object
    ) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(begin().address)
        asked = {"argv": command[1:], "environ": dict(env), "folder": os.getcwd()}
        asked |= {"python": command[0], "streams": [0, 1, 2]}
        text = json.dumps(asked).encode()
        streams = [theirs_in, theirs_out, stderr.fileno()]
        socket.send_fds(self._server, [len(text).to_bytes(8, "big")], streams)
        self._server.sendall(text)
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin, self.stdout = os.fdopen(ours_out, "w"), os.fdopen(ours_in)
        self._said = self._server.makefile()
        self.pid: int = int(self._said.readline())
        self._counted = 0.0

    def wait(self) -> int:
        """Its exit status."""
        with self._server, self._said:
            return int(self._said.readline() or 1)

    def count(self) -> None:
        """What it has spent since it was asked last belongs to the test that runs."""
        from support.processor_time import add_elsewhere

        stat = Path(f"/proc/{self.pid}/stat")
        if not stat.exists():
            return
        fields = stat.read_text().rpartition(")")[2].split()
        spent = sum(map(int, fields[11:15])) / TICKS  # of it, and of its children
        add_elsewhere(spent - self._counted)
        self._counted = spent


def begin() -> Server:
    """The server; starts it where there is none yet."""
    global _server
    if _server is None:
        _server = Server()
    return _server


def end() -> None:
    """There is no server."""
    global _server
    if _server is not None:
        _server.end()
        _server = None


def forking() -> Iterator[None]:
    """Inside, a dry run's process is a fork."""
    import pytest

    from staticgraph.dryrun import ask

    answer = ask.Child._answer

    def counted(child: ask.Child) -> dict[str, Any]:
        try:
            return answer(child)
        finally:
            if isinstance(child._process, Forked):
                child._process.count()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ask, "subprocess", SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE))
        patch.setattr(ask.Child, "_answer", counted)
        yield


def main(number: int) -> None:
    """The server: does all that needs no target, and forks until nobody can ask any more."""
    waiting = socket.socket(fileno=number)
    gc.disable()  # as the dry run's own process, which sets it as it needs it
    from staticgraph.dryrun import guard

    loaded = guard.load()
    guard.load = lambda: loaded
    from support import after_fork, forked_python

    after_fork.begin()
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    asked = [waiting, sys.stdin]
    while sys.stdin not in select.select(asked, [], [])[0]:
        asking, _ = waiting.accept()
        if os.fork() == 0:
            waiting.close()
            forked_python._keep(asking)
        asking.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
