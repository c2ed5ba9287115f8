"""Server: requests of many callers, answered by one runner in full batches.

The problem: callers ask for a graph or a few at a time, from any thread, and a device that runs
fixed shapes wants them by the bucket. The idea: a request waits at most a few milliseconds for
others; one thread, the only one that runs the model, takes what goes together next
(:mod:`staticgraph.serving.waiting`), runs it, and hands each caller the rows of his own graphs.
While a batch runs, the next one gathers.

The invariant: every request that was accepted is answered once, with what ``runner.predict`` gives
for its graphs alone, or failed once: with the error of its own graphs, of the batch that they ran
in, or of a server that was closed. What fails one request, or one batch, touches no other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from staticgraph.batches.predictions import Predictions
from staticgraph.batches.static_batch import StaticBatch
from staticgraph.errors import BadGraph, BatchFailed, GraphTooLarge, ServerBusy, ServerClosed
from staticgraph.nn.context.present import Restored
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.schema import Schema
from staticgraph.serving.clock import Clock
from staticgraph.serving.joined import Run, joined
from staticgraph.serving.request import Piece, Request, rows_of
from staticgraph.serving.statistics import Counts, ServerStats
from staticgraph.serving.waiting import Taken, Waiting
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore

# A retry sooner than this finds the same queue.
SOONEST_RETRY_S = 0.001


class Server:
    """Answers requests from any thread, until it is closed; ``with Server(...)`` closes it.

    Args:
        runner: whose :meth:`~StaticGraphRunner.warmup` is over, where its mode compiles.
        max_wait_ms: how long a graph waits for others, in milliseconds; what waits while a batch
            runs goes with the next one in any case. 0 waits for nobody.
        max_queue: graphs that may wait; with more, :meth:`submit` raises :class:`ServerBusy`.
        schema: the fields of a graph, where the runner's plan does not say them.
        clock: tells the time and waits; a test's own.

    Raises:
        ValueError: ``max_wait_ms`` is negative, ``max_queue`` below 1, or the fields are not known.
    """

    def __init__(
        self,
        runner: StaticGraphRunner,
        *,
        max_wait_ms: float = 5.0,
        max_queue: int = 4096,
        schema: Schema | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not max_wait_ms >= 0 or max_queue < 1:
            raise ValueError(
                f"max_wait_ms={max_wait_ms} must not be negative, and max_queue={max_queue} must "
                "be at least 1"
            )
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
        self._changed = threading.Condition()  # of all that follows, and of the two above
        self._closed = False
        self._warm()
        self._thread = threading.Thread(target=self._serve, name="staticgraph server", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ asking

    def submit(self, graphs: Any) -> Future[Any]:
        """Asks for the outputs of some graphs, which are copied before this returns.

        Args:
            graphs: a list of ``Data``, a PyG data set, or a :class:`GraphStore` with the plan's
                fields.

        Returns:
            A future of what ``runner.predict(graphs)`` gives. It raises what is wrong with these
            graphs, :class:`BadGraph` or :class:`GraphTooLarge`; :class:`BatchFailed` where the
            model failed; :class:`ServerClosed` where the server was closed without answering.
            Until its first graph runs it can be cancelled. Callbacks run in the server's thread,
            and hold up the next batch.

        Raises:
            ServerBusy: the queue is full.
            ServerClosed: the server takes no requests any more.
            ValueError: more graphs than the queue holds.
        """
        if not isinstance(graphs, GraphStore) and len(graphs) == 0:
            return _done([])
        if len(graphs) > self.max_queue:
            raise ValueError(
                f"{len(graphs)} graphs in one request, and the queue holds {self.max_queue}: ask "
                "for fewer at a time, or raise max_queue"
            )
        with self._changed:
            self._check_room(len(graphs))  # before the graphs are read, which takes longer
        try:
            request = Request(self._columns(graphs), self._clock.now())
        except (BadGraph, GraphTooLarge) as error:
            with self._changed:
                self._counts.failed += 1
            return _done(error=error)
        request.future.add_done_callback(self._note_cancelled)
        with self._changed:
            self._check_room(len(graphs))
            self._waiting.add(request)
            self._changed.notify_all()
        return request.future

    def submit_each(self, graphs: Sequence[Any]) -> list[Future[Any]]:
        """A request for each graph, so that one that is wrong fails alone; futures of one graph's
        rows each. Raises as :meth:`submit`, where what was accepted before is cancelled."""
        futures: list[Future[Any]] = []
        try:
            for graph in graphs:
                futures.append(self.submit([graph]))
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return futures

    async def ask(self, graphs: Any) -> Any:
        """:meth:`submit` for asyncio: waits for the answer without holding up the event loop."""
        return await asyncio.wrap_future(self.submit(graphs))

    def stats(self) -> ServerStats:
        """What it did so far."""
        with self._changed:
            return self._counts.stats(len(self._waiting))

    def close(self, drain: bool = True) -> None:
        """Takes no more requests, and returns when the server's thread has ended.

        Args:
            drain: answer what waits; else it fails with :class:`ServerClosed`, and only the batch
                that is running is answered.
        """
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

    # ------------------------------------------------------------------ taking in

    def _check_room(self, graphs: int) -> None:
        """Refuses a request for which there is no room; holding the lock."""
        if self._closed:
            raise ServerClosed("the server was closed and takes no requests: make another one")
        waiting = len(self._waiting)
        if waiting + graphs <= self.max_queue:
            return
        self._counts.refused += 1
        over = waiting + graphs - self.max_queue
        retry = max(SOONEST_RETRY_S, self._max_wait_s, self._counts.seconds_for(over))
        raise ServerBusy(
            f"{waiting} graphs wait, and with {graphs} more they pass max_queue={self.max_queue}: "
            f"ask again in {retry:.3f} s",
            retry,
        )

    def _columns(self, graphs: Any) -> GraphColumns:
        """The graphs as columns of the plan's fields, each of which fits a bucket."""
        if isinstance(graphs, GraphStore):
            store = graphs
            if {f.layout for f in store.schema} != {f.layout for f in self.schema}:
                raise BadGraph(
                    f"{store.name} has {', '.join(f.name for f in store.schema)} in other dtypes, "
                    "shapes or levels than the plan's "
                    f"{', '.join(f.describe() + ' ' + f.name for f in self.schema)}"
                )
        else:
            with Restored(nothing=True):  # a store is made by PyG's own functions
                store = GraphStore.from_pyg(graphs, schema=self.schema, progress=False)
        unfit = self._waiting.unfit(store.sizes)
        if len(unfit):
            capacities = self.runner.plan.capacities
            size = dict(zip(self.schema.components, store.sizes[unfit[0]].tolist(), strict=True))
            raise GraphTooLarge(
                f"graph {unfit[0]} has {' and '.join(f'{n} {what}' for what, n in size.items())} "
                f"and fits no bucket; they are {', '.join(map(str, capacities))}, for single "
                f"graphs of at most {max(c.max_graph_nodes for c in capacities)} nodes: make a "
                "plan whose data has graphs as large, or leave it out"
            )
        return store

    def _note_cancelled(self, future: Future[Any]) -> None:
        if future.cancelled():
            with self._changed:
                self._counts.cancelled += 1

    # ------------------------------------------------------------------ the server's thread

    def _warm(self) -> None:
        """Has the loops compiled that pack and fill, before the first request waits for them."""
        example = Run(GraphStore.zeros(self.schema), 0, 1)
        StaticBatch.of(
            joined([example]),
            (),
            self.runner.plan.capacities[0],
            pointers=self.runner.subject.pointers,
        )
        self._waiting.warm()

    def _serve(self) -> None:
        device = self.runner.device
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                while (taken := self._next()) is not None:
                    self._answer(taken)
        finally:
            with self._changed:  # after an error of this thread's own nobody shall wait for ever
                self._closed = True
                left = self._waiting.clear()
            self._fail(left, lambda: ServerClosed("the server's thread has ended"))

    def _next(self) -> Taken | None:
        """What runs next, once there is something; None where the server is closed and done."""
        with self._changed:
            while True:
                now = self._clock.now()
                taken = self._waiting.take(now, everything=self._closed)
                if taken is not None:
                    return taken
                due = self._waiting.due()
                if due is None and self._closed:
                    return None
                self._clock.wait(self._changed, None if due is None else max(0.0, due - now))

    def _answer(self, taken: Taken) -> None:
        began = self._clock.now()
        pieces = [piece for piece in taken.pieces if piece.request.begin()]
        if not pieces:
            return
        requests = list({id(piece.request): piece.request for piece in pieces}.values())
        try:
            out = self._run(pieces, taken.bucket, [began - r.arrived for r in requests])
        except Exception as error:
            with self._changed:
                self._counts.failing += 1
            self._fail(requests, partial(_failed, error, len(pieces), len(requests)))
            return
        ended = self._clock.now()
        with self._changed:
            self._counts.failing = 0
            self._counts.ran(len(pieces), ended - began)
        for place, (request, graph) in enumerate(pieces):
            if request.take(graph, *rows_of(out, place)) and request.end():
                with self._changed:
                    self._counts.answer(len(request.store), ended - request.arrived)
                request.answer()

    def _run(self, pieces: list[Piece], bucket: int, waits: list[float]) -> Any:
        """The graphs' outputs, in their order, on the CPU."""
        store = joined(_runs(pieces))
        capacity, subject = self.runner.plan.capacities[bucket], self.runner.subject
        batch = StaticBatch.of(store, range(len(store)), capacity, bucket, subject.pointers)
        assert batch.real is not None
        with self._changed:
            self._counts.batch(bucket, batch.real[:3], waits)
        batch = batch.to(self.runner.device)
        predictions = Predictions(store)
        predictions.add(batch, self.runner.predict_batch(batch))
        return predictions.in_order()

    def _fail(self, requests: list[Request], error: Any) -> None:
        """Ends requests, each with an error of its own, since raising changes one."""
        for request in requests:
            if request.end():
                with self._changed:
                    self._counts.failed += 1
                request.future.set_exception(error())


def _runs(pieces: list[Piece]) -> list[Run]:
    """Neighbours in a request are cut out together."""
    runs: list[Run] = []
    for request, graph in pieces:
        if runs and runs[-1].store is request.store and runs[-1].last == graph:
            runs[-1] = runs[-1]._replace(last=graph + 1)
        else:
            runs.append(Run(request.store, graph, graph + 1))
    return runs


def _failed(error: Exception, graphs: int, requests: int) -> BatchFailed:
    first = str(error).splitlines()[0] if str(error) else "no message"
    failed = BatchFailed(
        f"the model failed on a batch of {graphs} graphs of {requests} requests: "
        f"{type(error).__name__}: {first}"
    )
    failed.__cause__ = error
    return failed


def _done(result: Any = None, error: BaseException | None = None) -> Future[Any]:
    """A future that waits for nothing."""
    future: Future[Any] = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
    return future
