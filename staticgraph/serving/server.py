"""Server: answers requests of many callers with one runner, in full batches.

The problem: callers submit one or a few graphs at a time, from any thread, while a device that runs
fixed shapes is efficient only with full buckets. The idea: a request waits at most a few
milliseconds for others; one thread, the only one that runs the model, takes the next batch from the
queue (:mod:`.request`), runs it, and gives each caller the rows of its own graphs. While a batch
runs, the next one accumulates.

The invariant: every accepted request is answered once, with the output of ``runner.predict`` for
its graphs alone, or failed once: with the error of its own graphs, also the model's, or of the
closed server. A failure of one request affects no other.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch

from staticgraph.batches.batch.static_batch import filled
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import BadGraph, GraphTooLarge, ServerBusy, ServerClosed
from staticgraph.nn.context.bound_batch import Restored
from staticgraph.runner.prediction import Predictor, listed, new_graphs
from staticgraph.schema import ORDERS, Schema
from staticgraph.serving.checked_graphs import BadBody, first_line
from staticgraph.serving.request import (
    Part,
    Request,
    Waiting,
    batch_failed,
    concatenated,
    hand_out,
    log,
    store_of,
)
from staticgraph.serving.statistics import Counts, ServerStats
from staticgraph.store.columns import sort_by_key
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.how_many import how_many, how_many_of
from staticgraph.text.numeric_options import real_option, whole_option

# A retry sooner than this would find the same queue.
SOONEST_RETRY_S = 0.001

ENDED = "the server's thread has ended, by an error that is in the log"


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
        clock: returns the time in seconds; ``time.monotonic`` by default, tests may replace it.

    Raises:
        TypeError: ``runner`` is no runner.
        ValueError: ``max_wait_ms`` is negative, ``max_queue`` is below 1, or the fields of a graph
            are unknown.
    """

    def __init__(
        self,
        runner: Predictor,
        *,
        max_wait_ms: float = 5.0,
        max_queue: int = 4096,
        schema: Schema | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        max_wait_ms = real_option("max_wait_ms", max_wait_ms, 0, infinite=True)
        max_queue = whole_option("max_queue", max_queue, 1)
        if not hasattr(runner, "plan"):
            raise TypeError(
                f"a {type(runner).__name__} is no runner: Server(StaticGraphRunner(model, plan))"
            )
        known = schema or runner.plan.schema
        if known is None:
            raise ValueError(
                "the runner's plan is a plain list of capacities, which does not say what fields a "
                "graph has: pass Server(runner, schema=store.schema), or use plan_buckets(store)"
            )
        self.runner: Predictor = runner
        self.schema: Schema = known
        self.max_queue: int = max_queue
        self._now = clock or time.monotonic
        capacities = runner.plan.capacities
        self._waiting = Waiting(capacities, len(known.components), max_wait_ms / 1e3)
        self._counts = Counts(capacities)
        self._closed = False
        self._changed = threading.Condition()  # guards the three above, and which requests are over
        self._process = os.getpid()
        self._layouts = [
            SlotLayout(bucket, capacity, known, runner.pointers)
            for bucket, capacity in enumerate(capacities)
        ]
        # Compiles the loops that sort edges, concatenate graphs and fill a batch: always in the
        # dtypes that a model sees, even if a store keeps smaller ones.
        sort_by_key(np.empty(0, np.int64), 1)
        filled(self._layouts[0], concatenated([(GraphStore.zeros(known), range(1))]), ())
        self._thread = threading.Thread(target=self._serve, name="staticgraph server", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ submitting

    def submit(self, graphs: Any) -> Future[Any]:
        """Submits graphs, which are copied before this returns.

        Args:
            graphs: a list of ``Data``, a PyG ``Batch`` or data set, or a :class:`GraphStore` with
                the plan's fields.

        Returns:
            A future of the output of ``runner.predict(graphs)``. It raises :class:`BadGraph` or
            :class:`GraphTooLarge` if these graphs are invalid; :class:`BatchFailed` if the model
            failed; :class:`ServerClosed` if the server was closed without answering. It can be
            cancelled until its first graph runs. Callbacks run in the server's thread and delay the
            next batch.

        Raises:
            ServerBusy: the queue is full.
            ServerClosed: the server accepts no more requests.
            ValueError: there are more graphs than the queue holds.
        """
        self._check_process()
        graphs = listed(graphs)
        future: Future[Any] = Future()
        if len(graphs) == 0:
            future.set_result([])
            return future
        with self._changed:
            self._check_room(len(graphs))  # first, since reading the graphs takes longer
        try:
            (future,) = self.submit_split(self._copied(graphs), [len(graphs)])
        except BadGraph as error:
            with self._changed:
                self._counts.ended["failed"] += 1
            future.set_exception(error)
        refusal = future.exception() if future.done() else None
        if isinstance(refusal, ServerBusy | ServerClosed):  # while the graphs were read
            raise refusal
        return future

    def submit_all(self, graphs: Sequence[GraphColumns]) -> list[Future[Any]]:
        """Submits many requests at once.

        Args:
            graphs: those of each request, at least one; checked, and not modified afterwards.

        Returns:
            One future per request, as from :meth:`submit`; it also raises what :meth:`submit`
            raises directly, since the other requests continue.
        """
        self._check_process()
        with self._changed:
            each = [self.submit_split(store, [len(store)]) for store in graphs]
        return [*chain(*each)]

    def submit_split(self, graphs: GraphColumns, counts: Sequence[int]) -> list[Future[Any]]:
        """:meth:`submit_all` for requests whose graphs are consecutive in the same store.

        Args:
            graphs: the graphs of all requests; checked, and not modified afterwards.
            counts: the number of graphs of each request, at least 1.
        """
        self._check_process()
        now, bounds = self._now(), pairwise(accumulate(counts, initial=0))
        requests = [Request(graphs, range(first, last), now) for first, last in bounds]
        unfit = self._waiting.unfit(graphs.sizes)
        with self._changed:
            for request in requests:
                try:
                    self._check_room(len(request))
                    self._check_sizes(request, unfit)
                    self._waiting.add(request)
                except (ServerBusy, ServerClosed, ValueError) as error:
                    request.over = True
                    request.answer(error)
            self._changed.notify_all()
        for request in requests:
            request.future.add_done_callback(self._note_cancelled)
        return [request.future for request in requests]

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
        closed = "the server was closed before it came to this"
        self._end([(request, ServerClosed(closed)) for request in left])
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

    def _check_room(self, graphs: int) -> None:
        """Refuses a request for which there is no room; the caller holds the lock."""
        if graphs > self.max_queue:
            raise BadBody(
                f"{how_many(graphs, 'graph')} in one request, and the queue holds "
                f"{self.max_queue}: ask for fewer at a time, or raise max_queue",
                413,
            )
        if self._closed:
            raise ServerClosed("the server was closed and takes no requests: make another one")
        waiting = len(self._waiting)
        over = waiting + graphs - self.max_queue
        if over > 0:
            self._counts.ended["refused"] += 1
            retry_s = max(SOONEST_RETRY_S, self._waiting.max_wait_s, self._counts.seconds_for(over))
            raise ServerBusy(
                f"{how_many(waiting, 'graph')} {'waits' if waiting == 1 else 'wait'}, and with "
                f"{graphs:,} more they pass max_queue={self.max_queue}: ask again in "
                f"{retry_s:.3f} s",
                retry_s,
            )

    def _check_sizes(self, request: Request, unfit: list[int]) -> None:
        """Refuses a request with a graph that fits no bucket; the caller holds the lock."""
        if (graph := next((g for g in unfit if g in request.graphs), None)) is None:
            return
        self._counts.ended["failed"] += 1
        size = zip(self.schema.components, request.store.sizes[graph].tolist(), strict=True)
        capacities = self.runner.plan.capacities
        raise GraphTooLarge(
            f"graph {graph - request.graphs.start} has "
            f"{' and '.join(how_many_of(count, what) for what, count in size)} and fits no bucket; "
            f"they are {', '.join(map(str, capacities))}, for single graphs of at most "
            f"{how_many(max(c.max_graph_nodes for c in capacities), 'node')}: make a plan "
            "whose data has graphs as large, or leave it out"
        )

    def _copied(self, graphs: Any) -> GraphStore:
        """A store of the plan's fields that the caller does not hold.

        Raises:
            BadGraph: a graph lacks a field, or a store's fields differ from the plan's.
        """
        if not isinstance(graphs, GraphStore):
            with Restored(nothing=True):  # a store is built with PyG's original functions
                return new_graphs(graphs, self.runner.plan, self.schema)
        schemas = self.schema, graphs.schema
        known, layouts = ({each.keep_order, *(f.layout for f in each)} for each in schemas)
        if known == layouts:
            graphs.verify()
            return concatenated([(graphs, range(len(graphs)))])
        wanted, present = (
            {f"edges {ORDERS[each.keep_order]}", *(f"{f.name} {f.describe()}" for f in each)}
            for each in schemas
        )
        lacks, has = ", ".join(sorted(wanted - present)), ", ".join(sorted(present - wanted))
        raise BadGraph(
            f"{graphs.name} has {has or 'nothing'} where the plan has {lacks or 'nothing'}: make "
            "the store as that of the training data was made"
            if lacks or has
            else f"{graphs.name} has indices that count other rows than the plan's"
        )

    def _note_cancelled(self, future: Future[Any]) -> None:
        if future.cancelled():
            with self._changed:
                self._counts.ended["cancelled"] += 1

    # ------------------------------------------------------------------ the server's thread

    def _serve(self) -> None:
        device, parts = self.runner.device, list[Part]()
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                while (batch := self._next(after_batch=bool(parts))) is not None:
                    parts = batch[0]
                    self._answer(*batch)
        except BaseException:
            log.exception("the server's thread failed")
            raise
        finally:  # no caller may wait forever
            with self._changed:
                self._closed = True
                left = [*(part.request for part in parts), *self._waiting.clear()]
            self._end([(request, ServerClosed(ENDED)) for request in left])

    def _next(self, after_batch: bool) -> tuple[list[Part], int] | None:
        """Waits for the next batch; None if the server is closed and its queue is empty.

        Graphs that arrived while a batch ran wait no longer: keeping the device idle for more
        graphs lowers the throughput, since callers that were just answered submit again meanwhile.
        """
        with self._changed:
            while True:
                now = self._now()
                batch = self._waiting.take(now, everything=self._closed or after_batch)
                if batch is not None:
                    return batch
                after_batch = False
                due = self._waiting.due()
                if due is None and self._closed:
                    return None
                wait_s = None if due is None else min(max(0.0, due - now), threading.TIMEOUT_MAX)
                self._changed.wait(wait_s)

    def _answer(self, parts: list[Part], bucket: int) -> None:
        """Runs a batch and answers its requests.

        If the model fails, each half of them runs again: one with graphs that the model cannot take
        fails alone.
        """
        began = self._now()
        with self._changed:
            parts = [part for part in parts if part.request.begin()]
        requests = [request for request, _ in parts]
        if not requests:
            return
        try:
            store = store_of(parts)
            batch = filled(self._layouts[bucket], store, range(len(store)))
            real, waits = batch.real_counts, [began - request.arrived for request in requests]
            with self._changed:
                self._counts.batch(bucket, (real.nodes, real.edges, real.graphs), waits)
            batch = batch.to(self.runner.device)
            hand_out(parts, store, batch, self.runner.predict_batch(batch))
        except BaseException as error:  # even a model that calls sys.exit must not end the server
            if len(requests) > 1 and isinstance(error, Exception):
                middle = len(parts) // 2
                for half in (parts[:middle], parts[middle:]):
                    self._answer(half, bucket)
                return
            with self._changed:
                self._counts.failing += 1
            log.error("a batch failed", exc_info=error)
            graphs = sum(len(graphs) for _, graphs in parts)
            words = (
                f"the model failed on a batch of {how_many(graphs, 'graph')} of "
                f"{how_many(len(requests), 'request')}: {type(error).__name__}: "
                f"{first_line(error) or 'no message'}"
            )
            self._end([(request, batch_failed(words, error)) for request in requests])
        else:
            self._end([(request, request.outcome()) for request in requests if request.complete])
            with self._changed:
                self._counts.ran(len(store), self._now() - began)

    def _end(self, outcomes: list[tuple[Request, Any]]) -> None:
        """Counts requests and gives them their answer, or an error of their own, since raising one
        modifies it; unless they are over."""
        now = self._now()
        with self._changed:
            ended = [(request, outcome) for request, outcome in outcomes if request.end()]
        try:
            with self._changed:
                for request, outcome in ended:
                    if isinstance(outcome, Exception):
                        self._counts.ended["failed"] += 1
                    else:
                        self._counts.answer(len(request), now - request.arrived)
        finally:  # ended requests must be answered even if this thread fails
            for request, outcome in ended:
                request.answer(outcome)
