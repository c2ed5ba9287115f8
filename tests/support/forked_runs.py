"""``pytest --forks 3``: runs tests in parallel, in processes that fork after collection.

Importing torch, PyG and two hundred test files, and collecting six thousand tests from them, takes
25 seconds of processor time. If each process of a run does this separately, as with pytest-xdist, a
run of three pays it three times, and the same for torch's compiler and for the server that ranks
fork from. Here the first process does all work that is the same for every test, and the processes
that run tests fork from it.

A process requests more work when it begins its last test. It gets a piece: one slow test, or tests
that share fixtures, which are made once per piece. The longest pieces come first, so that at the
end no process waits for another's long one. Reports return through pipes to the first process,
which prints and counts them as pytest does. If a process dies, the test that it was running fails;
the rest of its piece goes to a new process, which takes its place.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import connection, forkserver
from typing import Any

import pytest
from torch_geometric.nn import SimpleConv

from support import compiled_once, dryrun_server, fork_server
from support.first_use import make_tables
from support.tiers import listed

FORK = multiprocessing.get_context("fork") if hasattr(os, "fork") else None


# Assumed seconds of a test that has no time in the list.
QUICK_MEAN_S, SLOW_UNSEEN_S = 0.05, 5.0


def pieces(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> list[list[int]]:
    """Returns the numbers of the tests of each piece, the longest piece first.

    Args:
        items: all tests.
        seconds: processor time by name, of those that were measured as slow.
    """
    found: dict[Any, list[int]] = {}
    for number, item in enumerate(items):
        together = "slow" not in item.keywords or _shares(item)
        piece = item.nodeid.partition("::")[0] if together else number
        found.setdefault(piece, []).append(number)

    def cost(number: int) -> float:
        unseen = SLOW_UNSEEN_S if "slow" in items[number].keywords else QUICK_MEAN_S
        return seconds.get(items[number].nodeid, unseen)

    return sorted(found.values(), key=lambda piece: -sum(map(cost, piece)))


def _shares(item: pytest.Item) -> bool:
    """Returns whether a test shares a fixture with other tests of its file."""
    info = getattr(item, "_fixtureinfo", None)
    known = info.name2fixturedefs.values() if info is not None else ()
    return any(one.scope in ("module", "class") for defs in known for one in defs)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--forks", type=int, default=0, help="run tests in so many processes, side by side"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("--forks")
    if not count or FORK is None or session.testsfailed or session.config.option.collectonly:
        return None  # pytest's own loop runs
    if any(dryrun_server.FIXTURE in getattr(one, "fixturenames", ()) for one in session.items):
        dryrun_server.begin()  # other tests run while it starts
    _make_what_all_need(session.items)
    session.config._tmp_path_factory.getbasetemp()  # pyright: ignore[reportAttributeAccessIssue]
    run = _Run(session, pieces(session.items, listed()))
    try:
        run.all(min(count, len(run.todo)))
    finally:
        run.end()
    return True


def _make_what_all_need(items: Iterable[pytest.Item]) -> None:
    """Prepares the compilers of torch and numba, PyG's templates, and the server of forks."""
    make_tables()
    SimpleConv()
    gc.collect()
    gc.freeze()  # the collectors of forks need not scan these objects again
    needing = {"support.ranks", "support.forked", "support.killed_run"}
    forking = (one for one in items if "forked" in getattr(one, "fixturenames", ()))
    if needing & sys.modules.keys() or any(forking):  # some test needs the server
        fork_server.ensure_running()


class _Run:
    """The first process: hands out pieces and receives reports.

    Attributes:
        todo: pieces that are not assigned.
    """

    def __init__(self, session: pytest.Session, given: Iterable[list[int]]) -> None:
        self.todo = deque(given)
        self._session, self._config = session, session.config
        self._own: dict[Any, tuple[Any, list[int]]] = {}  # by pipe: process, unfinished tests
        self._made = 0

    def all(self, count: int) -> None:
        """Runs everything.

        Raises:
            pytest.Session.Failed: after the maximum number of failures (``--maxfail``).
            pytest.Session.Interrupted: if something requested a stop.
        """
        for _ in range(count):
            self._another()
        while self._own:
            for line in connection.wait(list(self._own)):
                try:
                    kind, *told = line.recv()
                except (EOFError, ConnectionResetError):
                    self._gone(line)
                else:
                    getattr(self, f"_{kind}")(line, *told)
            if self._session.shouldfail:
                raise self._session.Failed(self._session.shouldfail)
            if self._session.shouldstop:
                raise self._session.Interrupted(self._session.shouldstop)

    def end(self) -> None:
        """Ends all processes."""
        for process, _ in self._own.values():
            process.terminate()
        for line, (process, _) in self._own.items():
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            line.close()
        self._own.clear()

    def _another(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        others = [ours, *self._own]
        assert FORK is not None
        process = FORK.Process(
            target=_work,
            args=(self._session, theirs, others, self._made),
            name=f"fork {self._made}",
        )
        self._made += 1
        with warnings.catch_warnings():  # Python 3.12 warns if a library has a sleeping thread
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self._own[ours] = process, []

    def _more(self, line: Any) -> None:
        piece = self.todo.popleft() if self.todo else []
        self._own[line][1].extend(piece)
        line.send(piece)

    def _start(self, line: Any, number: int) -> None:
        item = self._session.items[number]
        self._config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

    def _finish(self, line: Any, number: int) -> None:
        item = self._session.items[number]
        self._own[line][1].remove(number)
        self._config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _report(self, line: Any, data: dict[str, Any]) -> None:
        hook = self._config.hook
        report = hook.pytest_report_from_serializable(config=self._config, data=data)
        hook.pytest_runtest_logreport(report=report)

    def _warning(self, line: Any, told: dict[str, Any]) -> None:
        self._config.hook.pytest_warning_recorded.call_historic(kwargs=told)

    def _gone(self, line: Any) -> None:
        """Handles the end of a process's pipe: it has finished, or it died."""
        process, left = self._own.pop(line)
        line.close()
        process.join()
        if not left:
            if process.exitcode:
                raise RuntimeError(f"{process.name} ended with status {process.exitcode}")
            return
        item = self._session.items[left[0]]
        how = f"the process that ran this test died, exit status {process.exitcode}"
        self._config.hook.pytest_runtest_logreport(
            report=pytest.TestReport(
                item.nodeid, item.location, {}, "failed", f"{item.nodeid}: {how}", "call"
            )
        )
        if left[1:]:
            self.todo.appendleft(left[1:])
        if self.todo:
            self._another()


class _Sender:
    """A plugin of a forked process that sends its reports and warnings to the first process."""

    def __init__(self, config: pytest.Config, line: Any) -> None:
        self._config, self._line = config, line
        self._knows_the_past = False
        config.pluginmanager.register(self, "sender")  # also replays warnings from before the fork
        self._knows_the_past = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._line.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: Any
    ) -> None:
        if not self._knows_the_past:
            return
        text = f"{warning_message.category.__name__}: {warning_message.message}"  # any class
        where = warning_message.filename, warning_message.lineno
        told = warnings.WarningMessage(UserWarning(text), UserWarning, *where)
        given = {"warning_message": told, "when": when, "nodeid": nodeid, "location": location}
        self._line.send(("warning", given))


def _work(session: pytest.Session, line: Any, others: Iterable[Any], number: int) -> None:
    """Runs a forked process from its start to its end."""
    config = session.config
    for other in others:
        other.close()  # otherwise the first process would not notice that a process died
    _be_apart(config, number)
    _Sender(config, line)
    todo: deque[int] = deque()

    def ask() -> None:
        line.send(("more",))
        todo.extend(line.recv())

    try:
        ask()
        while todo:
            now = todo.popleft()
            if not todo:
                ask()  # fixtures are kept if the next test uses them, too
            item, following = session.items[now], session.items[todo[0]] if todo else None
            line.send(("start", now))
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            line.send(("finish", now))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):  # the first process is ending, too
        os._exit(0)
    line.close()


def _be_apart(config: pytest.Config, number: int) -> None:
    """Separates what was made before the fork: captured output, folders, pipes."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    reporter._tw._file = io.StringIO()
    factory: Any = config._tmp_path_factory  # pyright: ignore[reportAttributeAccessIssue]
    factory._basetemp = factory.getbasetemp() / f"fork-{number}"
    factory._basetemp.mkdir()
    # The server is not a child of this process, which could not check whether it is alive.
    server: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]
    server.ensure_running = lambda: None
    compiled_once.begin()
