"""Forks the processes of dry runs from one that has already imported torch.

A dry run's process loads its guard before torch, so it cannot fork from a test's process. Its work
before the first answer takes five seconds of processor time, nine tenths of which is always the
same. So one process loads the guard and torch, patches nothing, and
:class:`staticgraph.dryrun.ask.Child` gets forks of it, which continue as
``python -m staticgraph.dryrun.child`` would. One server serves a whole test run: if tests run in
parallel, the first process, which the others fork from, starts it.

The time of a dry run's process counts for the test that uses it. The server also runs this module,
so nothing above :func:`main` may import torch.
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
# The imports of a dry run before its first answer; of torch, none that queries a device.
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
    """The process that others fork from; ends when all its users have ended, or by :meth:`end`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dryrun-")
        self.address: str = str(Path(self._folder.name) / "socket")
        self._starter = os.getpid()
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.bind(self.address)
            waiting.listen(64)  # requests wait until torch is imported
            paths = dict.fromkeys(path or os.getcwd() for path in sys.path)
            environ = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.dryrun_server", str(waiting.fileno())],
                stdin=subprocess.PIPE,
                env=os.environ | environ,
                pass_fds=[waiting.fileno()],
            )

    def end(self) -> None:
        """Ends the server; does nothing in a process that did not start it."""
        if os.getpid() == self._starter:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._folder.cleanup()


class Forked:
    """Replaces :class:`subprocess.Popen` as the parent side of a dry run calls it."""

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
        """Returns its exit status."""
        with self._server, self._said:
            return int(self._said.readline() or 1)

    def count(self) -> None:
        """Counts the processor time since the last call for the running test."""
        from support.processor_time import add_elsewhere

        stat = Path(f"/proc/{self.pid}/stat")
        if not stat.exists():
            return
        fields = stat.read_text().rpartition(")")[2].split()
        spent = sum(map(int, fields[11:15])) / TICKS  # including its children
        add_elsewhere(spent - self._counted)
        self._counted = spent


def begin() -> Server:
    """Returns the server; starts it if there is none yet."""
    global _server
    if _server is None:
        _server = Server()
    return _server


def end() -> None:
    """Ends the server, if there is one."""
    global _server
    if _server is not None:
        _server.end()
        _server = None


def forking() -> Iterator[None]:
    """Makes the processes of dry runs forks, until the end."""
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
    """Runs the server: imports everything that needs no target, then forks until stdin closes."""
    waiting = socket.socket(fileno=number)
    gc.disable()  # as in the dry run's own process, which sets it as needed
    from staticgraph.dryrun import guard

    loaded = guard.load()
    guard.load = lambda: loaded
    from support import after_fork, forked_python, quick_tracing

    after_fork.begin()
    for name in LOADED:
        importlib.import_module(name)
    quick_tracing.begin(seeds=False)
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
