"""A command that replaces an interpreter, and loops that several processes need at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from numba.core import event
from support import compiled_once
from support.fork_server import CONTEXT
from support.forked import run_forked
from support.forked_python import forked_python
from support.patience import patience
from support.processor_time import processor_s
from support.ranks import on_ranks

LIMIT_S = patience(30)
SLEEPS = "import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)"


@pytest.fixture(scope="module")
def python():
    with forked_python() as command:
        yield command


def test_it_takes_arguments_streams_and_a_folder_and_gives_a_status(python, tmp_path):
    words = "import os, sys; print(sys.argv, os.getcwd(), sys.stdin.read()); sys.exit(3)"
    done = subprocess.run(
        [python, "-u", "-c", words, "one"],
        input="given", capture_output=True, text=True, cwd=tmp_path, timeout=LIMIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, f"['-c', 'one'] {tmp_path} given\n")
    (tmp_path / "program.py").write_text("import sys\nraise ValueError(sys.argv[1])")
    done = subprocess.run(
        [python, str(tmp_path / "program.py"), "two"],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: two\n")


def test_it_takes_what_is_handed_on_and_calls_itself(python):
    """As when a server hands a socket to the processes that it starts."""
    words = "import os, sys; os.write(int(sys.argv[1]), sys.executable.encode())"
    read, write = os.pipe()
    command = [python, "-P", "-c", words, str(write)]
    done = subprocess.run(command, pass_fds=[write], timeout=LIMIT_S)
    os.close(write)
    with open(read) as file:
        assert (done.returncode, file.read()) == (0, python)


def test_it_is_in_the_network_that_it_is_called_in(python):
    alone = ["unshare", "-rn"]
    try:
        allowed = subprocess.run([*alone, "true"], capture_output=True, text=True).returncode == 0
    except OSError as error:
        pytest.skip(f"no network namespaces: {error}")
    if not allowed:
        pytest.skip("no network namespaces")
    words = "import os; print(os.readlink('/proc/self/ns/net'))"
    found = [
        subprocess.run([*start, python, "-c", words], capture_output=True, text=True).stdout
        for start in ([], [], alone)
    ]
    assert found[0] == found[1]
    assert found[2].startswith("net:")
    assert found[2] != found[0]


def test_what_it_starts_is_of_the_kind_that_python_would_take(python):
    """With the fork server's start method, locks have names, which are left over after a kill."""
    words = "import multiprocessing; print(multiprocessing.get_start_method())"
    fresh = subprocess.run([sys.executable, "-S", "-c", words], capture_output=True, text=True)
    forked = subprocess.run([python, "-c", words], capture_output=True, text=True, timeout=LIMIT_S)
    assert forked.stdout == fresh.stdout
    assert run_forked(["-c", words], timeout=LIMIT_S).stdout == fresh.stdout


def _says() -> None:
    print("rank", dist.get_rank())


def test_what_processes_print_is_shown_where_a_test_fails(capsys):
    """And it is not mixed into the lines of the run."""
    on_ranks(2, _says)
    assert capsys.readouterr().out == "rank 0\nrank 1\n"


def test_torch_is_there_already_and_no_thread(python):
    """The server has a single thread, so that no other thread holds a lock when it forks."""
    words = "import sys; print('staticgraph.training.train' in sys.modules)"
    done = subprocess.run([python, "-c", words], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "True\n"
    server: Any = forkserver._forkserver
    assert len(os.listdir(f"/proc/{server._forkserver_pid}/task")) == 1


def test_it_ends_by_the_signal_that_ended_the_fork(python):
    words = "import os; os.kill(os.getpid(), 9)"
    assert subprocess.run([python, "-c", words], timeout=LIMIT_S).returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_fork_too(python, number):
    with subprocess.Popen([python, "-c", SLEEPS], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(LIMIT_S) == -number
    until = time.monotonic() + LIMIT_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_what_it_spent_is_counted():
    before = processor_s()
    with forked_python() as command:
        words = "import time\nwhile time.process_time() < 0.3: pass"
        assert subprocess.run([command, "-c", words], timeout=LIMIT_S).returncode == 0
    assert processor_s() - before > 0.2


LOOP = """
import numba

@numba.njit(cache=True)
def inner(values):
    return values[0] + 2

@numba.njit(cache=True)
def outer(values):
    return inner(values) + 1
"""


def _calls(folder: str, at_once: Any, answers: Any) -> None:
    import numpy as np

    class Compiling(event.Listener):
        names: list[str] = []  # noqa: RUF012

        def on_start(self, event: Any) -> None:
            self.names.append(event.data["dispatcher"].py_func.__name__)

        def on_end(self, event: Any) -> None:
            pass

    compiled_once.begin()
    sys.path.insert(0, folder)
    import loop_of_two

    event.register("numba:compile", listener := Compiling())
    at_once.wait()
    assert loop_of_two.outer(np.ones(3)) == 4
    answers.put(listener.names)


def test_of_several_processes_one_compiles(tmp_path):
    (tmp_path / "loop_of_two.py").write_text(LOOP)
    at_once, answers = CONTEXT.Barrier(2), CONTEXT.Queue()
    both = [
        CONTEXT.Process(target=_calls, args=(str(tmp_path), at_once, answers)) for _ in range(2)
    ]
    for process in both:
        process.start()
    found = [answers.get(timeout=LIMIT_S) for _ in both]
    for process in both:
        process.join(LIMIT_S)
        assert process.exitcode == 0
    assert sorted(found) == [[], ["outer", "inner"]]
