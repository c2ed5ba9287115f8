"""A scheduler of threads, streams and timeouts that decides everything from a seed.

The problem: a race shows only where threads meet at a bad moment, and a test that starts threads
and hopes for it passes a thousand times. The idea, FoundationDB's: the product runs as it is, but
takes its locks, conditions, queues and threads from here. One thread runs at a time; at every
synchronisation it hands the baton to whoever the seed chooses: another thread, the next operation
of a device's stream, or the clock. Time is a number that jumps to the next deadline, so nothing
sleeps. A failure is a seed, and the seed repeats it. What a thread waits for is read by whoever
chooses, so it must not synchronise itself.

:func:`simulated` replaces ``threading`` and ``queue`` in the product's modules and in
``concurrent.futures``, whose executors and futures then run on it. If nobody can go on, or a thread
is left when the main one has ended, :class:`Stuck` says who waits for what.
"""

from __future__ import annotations

import _thread
import concurrent.futures._base
import concurrent.futures.thread
import gc
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

# How often the clock goes on to the next deadline although somebody could run.
EARLY = 0.1
NOW: list[Simulation] = []


class Stuck(AssertionError):
    """Nobody can go on."""


class Stopped(BaseException):
    """Ends a thread of a simulation that has failed."""


class Task:
    """A thread, and what it waits for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ident = 0
        self.ready: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.what = ""
        self.done = False


class Simulation:
    """One run.

    Attributes:
        random: draws every choice.
        now: the virtual time, in seconds.
        devices: whatever else can make a step: objects with ``ready()`` and ``go()``.
        errors: what threads raised that nobody caught.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.devices: list[Any] = []
        self.errors: list[BaseException] = []
        self.failed = False
        self._tasks: list[Task] = []
        self.running = self._begin("main")

    def _begin(self, name: str) -> Task:
        task = Task(name)
        self._tasks.append(task)
        return task

    def run(self, main: Callable[[], Any]) -> None:
        """Runs ``main``, and all threads that it starts, to their end.

        Raises:
            Stuck: somebody waits for what never comes.
        """
        self.running.ident = _thread.get_ident()
        NOW.append(self)
        collects = gc.isenabled()
        gc.disable()  # a finalizer would run wherever the collector happens to
        try:
            main()
            others = self._tasks[1:]
            self.wait(lambda: all(t.done for t in others), None, "all threads to end")
            if self.errors:
                raise self.errors[0]
        finally:
            self.failed = True
            for task in self._tasks[1:]:
                while not task.done:
                    self.running = task
                    task.baton.release()
                    self._tasks[0].baton.acquire()
            NOW.pop()
            if collects:
                gc.enable()

    def start(self, name: str, work: Callable[[], Any]) -> Task:
        """Starts a thread; it runs when the seed chooses it."""
        task = self._begin(name)

        def whole() -> None:
            task.baton.acquire()
            task.ident = _thread.get_ident()
            try:
                if not self.failed:
                    work()
            except Stopped:
                pass
            except BaseException as error:
                self.errors.append(error)
            task.done = True
            self._pass_on(task)

        _thread.start_new_thread(whole, ())
        self.point()
        return task

    def point(self) -> None:
        """Lets the seed choose who goes next."""
        self.wait(None, None, "")

    def wait(self, ready: Callable[[], bool] | None, seconds: float | None, what: str) -> bool:
        """Waits for a condition, at most for some virtual seconds; returns whether it holds."""
        me = self.running
        if _thread.get_ident() != me.ident:
            return True  # not a thread of the simulation
        if self.failed:
            raise Stopped
        me.ready, me.what = ready, what
        me.deadline = None if seconds is None else self.now + seconds
        chosen = self._choose()
        if chosen is not me:
            self.running = chosen
            chosen.baton.release()
            me.baton.acquire()
            if self.failed:
                raise Stopped
        holds = ready is None or ready()
        me.ready = me.deadline = None
        return holds

    def _pass_on(self, ended: Task) -> None:
        if self.failed:
            self._tasks[0].baton.release()
            return
        try:
            self.running = self._choose()
        except Stuck as error:
            self.errors.append(error)
            self._tasks[0].ready, self.running = None, self._tasks[0]
        self.running.baton.release()

    def _choose(self) -> Task:
        """The thread that goes next, after what devices and the clock do before it."""
        while True:
            able: list[Any] = [task for task in self._tasks if self._can_run(task)]
            able += [device for device in self.devices if device.ready()]
            times = [t.deadline for t in self._tasks if not t.done and t.deadline is not None]
            times = [time for time in times if time > self.now]
            if times and (not able or self.random.random() < EARLY):
                self.now = min(times)
                continue
            if not able:
                waits = [f"{t.name} waits for {t.what}" for t in self._tasks if not t.done]
                raise Stuck("; ".join([*waits, *map(repr, self.errors)]))
            chosen = able[int(self.random.random() * len(able))]
            if isinstance(chosen, Task):
                return chosen
            chosen.go()

    def _can_run(self, task: Task) -> bool:
        if task.done:
            return False
        late = task.deadline is not None and task.deadline <= self.now
        return late or task.ready is None or task.ready()


def point() -> None:
    """A place where the seed may choose somebody else."""
    if NOW:
        NOW[-1].point()


def wait(ready: Callable[[], bool], seconds: float | None, what: str) -> bool:
    """Waits in the present simulation."""
    return NOW[-1].wait(ready, None if seconds is None or seconds < 0 else seconds, what)


class Lock:
    """``threading.Lock``, and ``threading.RLock`` where it nests."""

    nests = False

    def __init__(self) -> None:
        self.owner: Task | None = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        point()
        me = NOW[-1].running
        held = self.owner is not None and not (self.nests and self.owner is me)
        if held and not (blocking and wait(lambda: self.owner is None, timeout, "a lock")):
            return False
        self.owner = me
        self.depth += 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if not self.depth:
            self.owner = None
            if not (NOW and NOW[-1].failed):
                point()

    def locked(self) -> bool:
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    nests = True


class Condition:
    """``threading.Condition``."""

    def __init__(self, lock: Lock | None = None) -> None:
        self.lock = lock or RLock()
        self.acquire, self.release = self.lock.acquire, self.lock.release
        self._waiters: deque[list[bool]] = deque()

    def __enter__(self) -> bool:
        return self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        token, depth, owner = [False], self.lock.depth, self.lock.owner
        self._waiters.append(token)
        self.lock.owner, self.lock.depth = None, 0
        notified = wait(lambda: token[0], timeout, "a notification")
        if not notified:
            self._waiters.remove(token)
        wait(lambda: self.lock.owner is None, None, "the lock of a condition")
        self.lock.owner, self.lock.depth = owner, depth
        return notified

    def wait_for(self, holds: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else NOW[-1].now + timeout
        while not (result := holds()):
            left = None if until is None else until - NOW[-1].now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiters))):
            self._waiters.popleft()[0] = True

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    """``threading.Event``."""

    def __init__(self) -> None:
        self.flag = False

    def is_set(self) -> bool:
        return self.flag

    def set(self) -> None:
        self.flag = True
        point()

    def wait(self, timeout: float | None = None) -> bool:
        return wait(lambda: self.flag, timeout, "an event")


class Semaphore:
    """``threading.Semaphore``."""

    def __init__(self, value: int = 1) -> None:
        self.value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not wait(lambda: self.value > 0, timeout if blocking else 0, "a semaphore"):
            return False
        self.value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self.value += n


class SimpleQueue:
    """``queue.SimpleQueue``."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()

    def put(self, item: Any, *_: Any) -> None:
        self.items.append(item)
        point()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not wait(lambda: bool(self.items), timeout if block else 0, "a queue"):
            raise queue.Empty
        return self.items.popleft()

    def get_nowait(self) -> Any:
        return self.get(False)

    def empty(self) -> bool:
        return not self.items


class Thread:
    """``threading.Thread``."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str = "a thread",
        args: Any = (),
        kwargs: Any = None,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._work = lambda: target and target(*args, **(kwargs or {}))
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        return self._task.ident if self._task else None

    def start(self) -> None:
        self._task = NOW[-1].start(self.name, self._work)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        assert task is not None
        wait(lambda: task.done, timeout, f"{self.name} to end")


def current_thread() -> Any:
    """The running task, which equals no :class:`Thread` but its own."""
    return SimpleNamespace(name=NOW[-1].running.name, ident=NOW[-1].running.ident)


THREADING = SimpleNamespace(
    **{**vars(threading), "Lock": Lock, "RLock": RLock, "Condition": Condition, "Event": Event},
)
vars(THREADING).update(Semaphore=Semaphore, Thread=Thread, current_thread=current_thread)
QUEUE = SimpleNamespace(**{**vars(queue), "SimpleQueue": SimpleQueue})


@contextmanager
def simulated() -> Iterator[None]:
    """Inside, the product and ``concurrent.futures`` take threads and queues from here."""
    names = [name for name in sys.modules if name.startswith("staticgraph.")]
    rooms = [sys.modules[name] for name in names]
    rooms += [concurrent.futures._base, concurrent.futures.thread]
    with ExitStack() as stack:
        for room in rooms:
            for name, real in list(vars(room).items()):
                if type(real) in MADE:  # a lock of the module, made before
                    stack.callback(setattr, room, name, real)
                    setattr(room, name, MADE[type(real)]())
                for other, ours in ((threading, THREADING), (queue, QUEUE)):
                    if real is other:
                        stack.callback(setattr, room, name, real)
                        setattr(room, name, ours)
        yield


MADE = {type(threading.Lock()): Lock, type(threading.RLock()): RLock}
