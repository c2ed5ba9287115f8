"""A command that takes the arguments of an interpreter but forks, for programs that start others.

:func:`support.forked.run_forked` forks a program that a test starts. If that program starts others
(torchrun its workers, a script its parts), each of them would still import torch and PyG, four
seconds of processor time. So :func:`forked_python` gives the path of a command to use instead of
``python``. It requests a fork from a server that has imported everything and done nothing else; the
fork gets the command's arguments, environment, folder, streams and network. The command forwards
the signals that it receives and ends as the fork ended, with the same signal if one ended it. If
the command is killed, its fork is killed too. In the fork, ``sys.executable`` is the command.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from support.fork_server import CONTEXT, process, show
from support.forked import program
from support.patience import patience
from support.processor_time import add_elsewhere, own_processor_s

COMMAND = """#!{python} -ISs
import json, os, signal, socket, sys

server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = {{"argv": sys.argv[1:], "environ": dict(os.environ), "folder": os.getcwd()}}
asked["python"] = os.path.abspath(sys.argv[0])
asked["streams"] = [0, 1, 2]
for number in map(int, os.listdir("/proc/self/fd")):
    if number > 2 and os.path.exists(f"/proc/self/fd/{{number}}") and os.get_inheritable(number):
        asked["streams"].append(number)  # it was handed on
text = json.dumps(asked).encode()
socket.send_fds(server, [len(text).to_bytes(8, "big")], asked["streams"])
server.sendall(text)
answers = server.makefile()
pid = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
status = int(answers.readline() or 1)
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""
# Options of an interpreter that have no effect here.
OPTIONS = ("-u", "-P")
MOST_STREAMS, ASIDE = 60, 200  # ASIDE: a number above those of all streams
PEER = struct.Struct("3i")  # process, user, group


@contextmanager
def forked_python() -> Iterator[str]:
    """Yields the path of a command that runs ``-c CODE``, ``-m MODULE`` or ``FILE``.

    It works like an interpreter, until the end of the context.
    """
    with tempfile.TemporaryDirectory(prefix="python-") as name:
        folder = Path(name)
        address, spent, said = str(folder / "socket"), folder / "spent", folder / "said"
        ready, told = CONTEXT.Pipe(duplex=False)
        server = process(_serve, address, str(spent), told, said=said)
        server.start()
        told.close()
        try:
            assert ready.poll(patience(60)), "the server of forks did not start"
            command = folder / "python"
            command.write_text(COMMAND.format(python=sys.executable, address=address))
            command.chmod(stat.S_IRWXU)
            yield str(command)
        finally:
            server.terminate()
            server.join(patience(20))
            if server.is_alive():
                server.kill()
            show(said)
            if spent.exists():
                add_elsewhere(float(spent.read_text()))


class _Ended(BaseException):
    """Raised when the server is told to end."""


def _serve(address: str, spent: str, told: Any) -> None:
    def end(*_: object) -> None:
        raise _Ended

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    waiting = socket.socket(socket.AF_UNIX)
    waiting.bind(address)
    waiting.listen(64)
    told.send("ready")
    keepers: set[int] = set()
    try:
        while True:
            asking, _ = waiting.accept()
            keeper = os.fork()
            if keeper == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                waiting.close()
                _keep(asking)
            asking.close()
            keepers.add(keeper)
    except _Ended:
        for keeper in keepers:
            os.waitpid(keeper, 0)
        Path(spent).write_text(str(own_processor_s()))


def _keep(asking: socket.socket) -> None:
    """Runs one fork from its start to its end; does not return."""
    head, streams, _, _ = socket.recv_fds(asking, 8, MOST_STREAMS)
    left, text = int.from_bytes(head, "big"), b""
    while len(text) < left:
        text += asking.recv(left - len(text))
    pid = os.fork()
    if pid == 0:
        credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        asking.close()
        _take(streams, (asked := json.loads(text)).pop("streams"))
        _enter(PEER.unpack(credentials)[0])
        _become(**asked)
    for stream in streams:
        os.close(stream)
    with suppress(OSError):  # the command may already be gone
        asking.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    found, _, _ = select.select([ended, asking], [], [])
    if ended not in found:  # the command is gone
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        asking.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _enter(pid: int) -> None:
    """Enters the user and network namespaces of another process, if they differ."""
    for kind in ("user", "net"):  # entering the second requires root in the first
        there = f"/proc/{pid}/ns/{kind}"
        if os.readlink(there) != os.readlink(f"/proc/self/ns/{kind}"):
            with open(there) as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                    raise OSError(ctypes.get_errno(), f"cannot enter {there}")


def _take(streams: list[int], numbers: list[int]) -> None:
    """Installs the streams of the command under the numbers that they have there."""
    aside = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, ASIDE) for stream in streams]
    for stream in streams:
        os.close(stream)
    for stream, number in zip(aside, numbers, strict=True):
        os.dup2(stream, number)
        os.close(stream)


def _become(argv: list[str], environ: dict[str, str], folder: str, python: str) -> None:
    """Turns this process into the program; does not return."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.executable = python  # processes that the program starts fork, too
    torch.set_num_threads(int(environ.get("OMP_NUM_THREADS", "1")))
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    for path in reversed(environ.get("PYTHONPATH", "").split(os.pathsep)):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    status = 0
    try:
        program(*argv[next(i for i, word in enumerate(argv) if word not in OPTIONS) :])
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 0xFF)
