"""A server with misbehaving callers and models: no request waits forever."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading

import pytest
from support.served_graphs import PATIENCE_S, Held, flat_of, graph, runner_of, same

import staticgraph as sg
from staticgraph.serving.checked_graphs import store_of
from staticgraph.serving.request import concatenated


def server_of(**options) -> sg.Server:
    return sg.Server(runner_of(), **{"max_wait_ms": 1e9, **options})


class Mute(RuntimeError):
    """Raises when it is printed."""

    def __str__(self) -> str:
        raise AttributeError("words")


def raises(error: BaseException):
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [(Mute(), "Mute: it cannot say what it is"), (SystemExit("enough"), "SystemExit: enough")],
)
def test_an_error_that_ends_a_thread_fails_its_batch_and_no_other(error, words):
    """One that cannot be printed, and an exit; callers used to wait forever."""
    with server_of(max_wait_ms=0) as server:
        server.runner.model.before = lambda: raises(error)
        with pytest.raises(sg.errors.BatchFailed, match=words):
            server.submit([graph(3)]).result(PATIENCE_S)
        server.runner.model.before = lambda: None
        same(server.submit([graph(3)]).result(PATIENCE_S), server.runner.predict([graph(3)]))


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
def test_a_callback_that_exits_leaves_nobody_else_waiting(fails):
    """SystemExit passes through a future; it used to end the thread amid a batch's answers."""
    with server_of() as server:
        if fails:
            server.runner.model.before = lambda: raises(RuntimeError("no"))
        futures = [server.submit([graph(3, k)]) for k in range(3)]
        futures[0].add_done_callback(lambda _: sys.exit("enough"))
        rest = [server.submit([graph(3, k)]) for k in range(3, 9)]  # nine fill a bucket
        ends = [future.exception(PATIENCE_S) for future in [*futures, *rest]]
        assert [isinstance(end, sg.errors.BatchFailed) for end in ends] == [fails] * 9
        server.runner.model.before = lambda: None
        # At once, since what comes between two batches does not wait for more.
        assert len(server.submit([graph(3)] * 9).result(PATIENCE_S)) == 9


@pytest.mark.parametrize(
    "end",
    [
        lambda future: future.set_result("mine"),
        lambda future: future.set_exception(ValueError("mine")),
        lambda future: future.set_running_or_notify_cancel(),
    ],
    ids=["result", "exception", "running"],
)
def test_a_caller_who_ends_his_future_himself_ends_nobody_elses(end):
    with server_of() as server:
        mine = server.submit([graph(3)])
        others = [server.submit([graph(3, k)]) for k in range(1, 5)]
        end(mine)
        more = [server.submit([graph(3, k)]) for k in range(5, 13)]
    for k, future in enumerate([*others, *more], 1):
        same(future.result(PATIENCE_S), server.runner.predict([graph(3, k)]))


@pytest.mark.parametrize("wait", [1e18, float("inf")])
def test_waiting_without_an_end_is_a_wait_like_others(wait):
    """The thread used to end with an OverflowError."""
    with server_of(max_wait_ms=wait) as server:
        first = server.submit([graph(3)])
        rest = [server.submit([graph(3, k)]) for k in range(1, 9)]
        assert all(future.result(PATIENCE_S) is not None for future in [first, *rest])


def test_a_request_of_no_graphs_is_answered():
    """A store without graphs used to add nothing to the queue, so nothing answered it."""
    with server_of() as server:
        store = store_of(flat_of([graph(3)]), server.schema)
        none = concatenated([(store, range(0))])
        assert (type(none), len(none)) == (sg.GraphStore, 0)
        assert server.submit(none).result(PATIENCE_S) == []
        assert server.submit(iter([])).result(PATIENCE_S) == []


def test_a_fork_is_told_that_nobody_answers_there():
    """Its futures used to wait for a thread that only the parent process has."""
    with server_of(max_wait_ms=0) as server:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                words = []
                for ask in (
                    lambda: server.submit([graph(3)]),
                    lambda: server.submit_all([store_of(flat_of([graph(3)]), server.schema)]),
                    lambda: asyncio.run(server.ask([graph(3)])),
                ):
                    try:
                        ask()
                    except sg.errors.ServerClosed as error:
                        words.append(str(error))
                server.close()
                os.write(write, "\n".join(words).encode())
            finally:
                os._exit(0)
        os.close(write)
        ready, _, _ = select.select([read], [], [], PATIENCE_S)
        found = os.read(read, 1 << 16).decode() if ready else ""
        if not ready:
            os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(read)
        assert found.count(f"the server lives in process {os.getpid()}, and this is a fork") == 3
        assert server.submit([graph(3)]).result(PATIENCE_S) is not None, "the parent goes on"


def test_a_thread_that_fails_leaves_nobody_waiting(monkeypatch, caplog):
    """If the server itself fails, the callers whose graphs were already taken get an error too."""
    server = server_of(max_wait_ms=0)
    monkeypatch.setattr(
        "staticgraph.serving.statistics.Counts.ran",
        lambda *_: raises(MemoryError("none left")),
    )
    held = Held(server)
    first = server.submit([graph(3)])
    assert held.reached.wait(PATIENCE_S)
    waiting = [server.submit([graph(3, k)]) for k in range(3)]
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    held.go.set()
    same(first.result(PATIENCE_S), server.runner.predict([graph(3)]))
    for future in waiting:
        with pytest.raises(sg.errors.ServerClosed, match="thread has ended"):
            future.result(PATIENCE_S)
    with pytest.raises(sg.errors.ServerClosed, match="takes no requests"):
        server.submit([graph(3)])
    server.close()
    assert "none left" in caplog.text
