"""Server: answers requests of many callers with one runner, in full batches.

The problem: callers submit one or a few graphs at a time, from any thread, while a device that runs
fixed shapes is efficient only with full buckets. The idea: a request waits at most a few
milliseconds for others; one thread, the only one that runs the model, takes the next batch from the
queue (:mod:`.waiting`), runs it, and gives each caller the rows of its own graphs. While a batch
runs, the next one accumulates.

The invariant: every accepted request is answered once, with the output of ``runner.predict`` for
its graphs alone, or failed once: with the error of its own graphs, of a batch that they ran in, or
of the closed server. A failure of one request, or one batch, affects no other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from staticgraph.errors import BadGraph, BatchFailed, GraphTooLarge, ServerBusy, ServerClosed
from staticgraph.runner.prediction import Predictor, listed
from staticgraph.schema import Schema
from staticgraph.serving.bodies.flat_graphs import FlatGraphs, split
from staticgraph.serving.engine.admission import Admission
from staticgraph.serving.engine.batch_spans import handed_out
from staticgraph.serving.engine.clock import Clock
from staticgraph.serving.engine.completion_queue import CompletionQueue, Ticket
from staticgraph.serving.engine.error_words import batch_failed
from staticgraph.serving.engine.outputs import Output
from staticgraph.serving.engine.request import Piece, Request, requests_of
from staticgraph.serving.engine.served_batches import ServedBatches
from staticgraph.serving.engine.statistics import Counts, ServerStats
from staticgraph.serving.engine.waiting import TakenBatch, Waiting
from staticgraph.text.numeric_options import real_option, whole_option

log: logging.Logger = logging.getLogger("staticgraph.serving")


class Server:
    """Answers requests from any thread until it is closed; ``with Server(...)`` closes it on exit.

    Args:
        runner: a runner, after its :meth:`~StaticGraphRunner.warmup` if its mode compiles; or the
            result of :func:`staticgraph.load_exported`.
        max_wait_ms: how long a graph waits for others, in milliseconds; graphs that arrive while a
            batch runs go into the next one without further waiting. 0 to not wait.
        max_queue: the most graphs that may wait; beyond it, :meth:`submit` raises
            :class:`ServerBusy`.
        schema: the fields of a graph, if the runner's plan has no schema.
        clock: gives the time and waits; tests may replace it.

    Raises:
        ValueError: ``max_wait_ms`` is negative, ``max_queue`` is below 1, or the fields of a graph
            are unknown.
    """

    runner: Predictor
    schema: Schema
    max_queue: int

    def __init__(
        self,
        runner: Predictor,
        *,
        max_wait_ms: float = 5.0,
        max_queue: int = 4096,
        schema: Schema | None = None,
        clock: Clock | None = None,
    ) -> None:
        max_wait_ms = real_option("max_wait_ms", max_wait_ms, 0, infinite=True)
        max_queue = whole_option("max_queue", max_queue, 1)
        known = schema or runner.plan.schema
        if known is None:
            raise ValueError(
                "the runner's plan is a plain list of capacities, which does not say what fields a "
                "graph has: pass Server(runner, schema=store.schema), or use plan_buckets(store)"
            )
        self.runner, self.schema, self.max_queue = runner, known, max_queue
        self._max_wait_s = max_wait_ms / 1e3
        self._clock = clock or Clock()
        capacities = runner.plan.capacities
        self._waiting = Waiting(capacities, len(known.components), self._max_wait_s)
        self._counts = Counts(capacities)
        self._closed = False
        self._changed = threading.Condition()  # guards the three above
        self._process = os.getpid()
        self._admission = Admission(known, runner.plan, self._waiting.unfit, max_queue)
        self._batches = ServedBatches(runner, known)
        self._batches.warm()
        self._waiting.warm()
        self._thread = threading.Thread(target=self._serve, name="staticgraph server", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ submitting

    def submit(self, graphs: Any) -> Future[Any]:
        """Submits graphs, which are copied before this returns.

        Args:
            graphs: one ``Data`` or a list of them, a PyG data set, a :class:`GraphStore` with the
                plan's fields, or checked
                :class:`~staticgraph.serving.bodies.flat_graphs.FlatGraphs`, which are not copied.

        Returns:
            A future of the output of ``runner.predict(graphs)``. It raises :class:`BadGraph` or
            :class:`GraphTooLarge` if these graphs are invalid; :class:`BatchFailed` if the model
            failed; :class:`ServerClosed` if the server was closed without answering. It can be
            cancelled until its first graph runs. Callbacks run in the server's thread and delay the
            next batch.

        Raises:
            ServerBusy: the queue is full.
            ServerClosed: the server accepts no more requests.
            ValueError: there are more graphs than the queue holds. For ``FlatGraphs``, the future
                raises these three instead.
        """
        self._check_process()
        graphs = listed(graphs)
        if len(graphs) == 0:
            return _done([])
        if isinstance(graphs, FlatGraphs):
            return self.submit_split(graphs, [len(graphs)])[0]
        self._admission.check_size(len(graphs))
        with self._changed:
            self._check_room(len(graphs))  # first, since reading the graphs takes longer
        try:
            columns = self._admission.columns(graphs)
        except (BadGraph, GraphTooLarge) as error:
            with self._changed:
                self._counts.failed += 1
            return _done(error=error)
        future = Future[Any]()
        future.add_done_callback(self._note_cancelled)
        request = Request(columns, self._clock.now(), due=future)
        with self._changed:
            self._check_room(len(graphs))
            self._waiting.add(request)
            self._changed.notify_all()
        return future

    def submit_each(self, graphs: Sequence[Any]) -> list[Future[Any]]:
        """Submits one request per graph, so that an invalid graph fails alone; returns one future
        per graph. Raises as :meth:`submit`, after cancelling the requests accepted so far."""
        futures: list[Future[Any]] = []
        try:
            for graph in graphs:
                futures.append(self.submit([graph]))
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return futures

    def submit_split(
        self,
        graphs: FlatGraphs,
        counts: Sequence[int],
        tickets: tuple[CompletionQueue, int] | None = None,
    ) -> list[Future[Any]]:
        """Submits many requests at once, whose graphs are consecutive in the same arrays.

        Args:
            graphs: the graphs of all requests; checked, and not modified afterwards.
            counts: the number of graphs of each request.
            tickets: a queue and a number: the answers are put into the queue as plain values,
                numbered consecutively from this number, and no futures are made.

        Returns:
            One future per request, as from :meth:`submit`; it also raises what :meth:`submit`
            raises directly, since the other requests continue. Empty if there are tickets.
        """
        self._check_process()
        unfit = self._waiting.unfit(graphs.sizes)
        now, futures = self._clock.now(), list[Future[Any]]()
        accepted, refused, room_for = list[Request](), list[tuple[Request, Exception]](), 0
        with self._changed:
            for place, (_, first, last) in enumerate(split(graphs, counts)):
                if tickets is None:
                    futures.append(Future())
                due = Ticket(tickets[0], tickets[1] + place) if tickets else futures[-1]
                request = Request(graphs, now, first, last, due)
                inside = unfit[(unfit >= first) & (unfit < last)] if len(unfit) else unfit
                try:
                    self._admission.check_size(last - first)
                    self._check_room(last - first, room_for)
                    if len(inside):
                        self._counts.failed += 1
                        raise self._admission.too_large(
                            int(inside[0]) - first, graphs.sizes[inside[0]]
                        )
                except (ServerBusy, ServerClosed, ValueError) as error:
                    refused.append((request, error))
                else:
                    accepted.append(request)
                    room_for += len(request)
            accepted, empty = [r for r in accepted if len(r)], [r for r in accepted if not len(r)]
            if accepted:
                self._waiting.add(*accepted)
                self._changed.notify_all()
        for request, error in refused:
            request.over = True
            request.fail(error)
        for request in empty:
            request.over = True
            request.answer([])
        if tickets is not None:
            tickets[0].notify()
        for future in futures:
            future.add_done_callback(self._note_cancelled)
        return futures

    async def ask(self, graphs: Any) -> Any:
        """:meth:`submit` for asyncio: awaits the answer without blocking the event loop."""
        return await asyncio.wrap_future(self.submit(graphs))

    def stats(self) -> ServerStats:
        """The statistics of the server so far."""
        with self._changed:
            return self._counts.stats(len(self._waiting))

    def close(self, drain: bool = True) -> None:
        """Accepts no more requests, and returns when the server's thread has ended.

        Args:
            drain: answer the waiting requests; otherwise they fail with :class:`ServerClosed`, and
                only the running batch is answered.
        """
        if os.getpid() != self._process:
            return  # the thread and the queue belong to the parent process
        with self._changed:
            self._closed = True
            left = [] if drain else self._waiting.clear()
            self._changed.notify_all()
        self._fail(left, lambda: ServerClosed("the server was closed before it came to this"))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------ admission

    def _check_process(self) -> None:
        """Refuses use in a forked process; called before taking a lock, which another thread may
        have held at the fork."""
        if os.getpid() != self._process:
            raise ServerClosed(
                f"the server lives in process {self._process}, and this is a fork of it, "
                f"{os.getpid()}, without the thread that answers: make a server here, or ask over "
                "HTTP (staticgraph serve)"
            )

    def _check_room(self, graphs: int, accepted: int = 0) -> None:
        """Refuses a request for which there is no room, in addition to ``accepted`` graphs that are
        not in the queue yet; the caller holds the lock."""
        if self._closed:
            raise ServerClosed("the server was closed and takes no requests: make another one")
        waiting = len(self._waiting) + accepted
        over = self._admission.over(graphs, waiting)
        if over:
            self._counts.refused += 1
            retry_s = max(self._max_wait_s, self._counts.seconds_for(over))
            raise self._admission.busy(graphs, waiting, retry_s)

    def _note_cancelled(self, future: Future[Any]) -> None:
        if future.cancelled():
            with self._changed:
                self._counts.cancelled += 1

    # ------------------------------------------------------------------ the server's thread

    def _serve(self) -> None:
        device = self.runner.device
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                after_batch = False
                while (taken := self._next(after_batch)) is not None:
                    try:
                        self._answer(taken)
                    except BaseException:  # the taken graphs are in no queue any more
                        log.exception("the server's thread failed")
                        self._fail(requests_of(taken.pieces), self._ended)
                        raise
                    after_batch = True
        finally:
            with self._changed:  # if this thread fails, no caller may wait forever
                self._closed = True
                left = self._waiting.clear()
            self._fail(left, self._ended)

    def _next(self, after_batch: bool) -> TakenBatch | None:
        """Waits for the next batch; None if the server is closed and its queue is empty.

        Graphs that arrived while a batch ran wait no longer: keeping the device idle for more
        graphs lowers the throughput, since callers that were just answered submit again meanwhile.
        """
        with self._changed:
            while True:
                now = self._clock.now()
                taken = self._waiting.take(now, everything=self._closed or after_batch)
                if taken is not None:
                    return taken
                after_batch = False
                due = self._waiting.due()
                if due is None and self._closed:
                    return None
                self._clock.wait(self._changed, None if due is None else max(0.0, due - now))

    def _answer(self, taken: TakenBatch) -> None:
        began = self._clock.now()
        pieces = [piece for piece in taken.pieces if piece.request.begin()]
        if not pieces:
            return
        requests = requests_of(pieces)
        try:
            out = self._run(pieces, taken.bucket, [began - r.arrived for r in requests])
            whole_ones = handed_out(pieces, out)
        except BaseException as error:  # even a model that calls sys.exit must not end the server
            with self._changed:
                self._counts.failing += 1
            self._fail(requests, partial(batch_failed, error, len(pieces), len(requests)))
            return
        ended = self._clock.now()
        outcomes = [(request, request.outcome()) for request in whole_ones]
        done = [(request, outcome) for request, outcome in outcomes if request.end()]
        try:
            self._count(done, len(pieces), began, ended)
        finally:  # ended requests must be answered even if this thread fails
            for request, outcome in done:
                if isinstance(outcome, BatchFailed):
                    request.fail(outcome)
                else:
                    request.answer(outcome)
            _notify(requests)

    def _count(
        self, done: list[tuple[Request, Any]], graphs: int, began: float, ended: float
    ) -> None:
        """Counts a batch that did not fail, and how its requests ended."""
        with self._changed:
            self._counts.failing = 0
            self._counts.ran(graphs, ended - began)
            for request, outcome in done:
                if isinstance(outcome, BatchFailed):
                    self._counts.failed += 1
                else:
                    self._counts.answer(len(request), ended - request.arrived)

    def _run(self, pieces: list[Piece], bucket: int, waits: list[float]) -> Output:
        served = self._batches.of(pieces, bucket)
        with self._changed:
            self._counts.batch(bucket, served.real, waits)
        return self._batches.run(served)

    def _fail(self, requests: list[Request], error: Any) -> None:
        """Fails requests, each with a separate error object, since raising an error modifies it."""
        for request in requests:
            if request.end():
                with self._changed:
                    self._counts.failed += 1
                request.fail(error())
        _notify(requests)

    @staticmethod
    def _ended() -> ServerClosed:
        return ServerClosed("the server's thread has ended, by an error that is in the log")


def _notify(requests: list[Request]) -> None:
    """Wakes the threads that fetch answers, once for all of these requests."""
    for completions in {
        request.completions for request in requests if request.completions is not None
    }:
        completions.notify()


def _done(result: Any = None, error: BaseException | None = None) -> Future[Any]:
    """A future that is already done."""
    future: Future[Any] = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
    return future
