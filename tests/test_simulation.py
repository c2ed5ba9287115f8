"""Loader, slots, copies, recorded inputs, ranks and server under a scheduler that a seed decides.

Each run is one interleaving (:mod:`support.simulation`). A failure names its seed:
``SEEDS=7 pytest tests/test_simulation.py`` repeats it, ``SEEDS=0:20000`` tries as many.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import simulation
from support.arena import ArenaRecorder
from support.simulation import Simulation, Thread, point, simulated
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.batches.loading import loader as loading
from staticgraph.recording.recorded_inputs import RecordedInputs
from staticgraph.serving import request as requests
from staticgraph.serving.checked_graphs import store_of
from staticgraph.serving.server import Server

FIRST, _, LAST = os.environ.get("SEEDS", "0:120").partition(":")
SEEDS = range(int(FIRST), int(LAST) if LAST else int(FIRST) + 1)


def every_seed(run: Callable[[Simulation], None], few: int = 1) -> None:
    """Runs a scenario once per seed, or per ``few`` seeds; the first failure names the seed."""
    with simulated():
        for seed in SEEDS[::few]:
            simulated_run = Simulation(seed)
            try:
                simulated_run.run(lambda sim=simulated_run: run(sim))
            except Exception as error:
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


# ---------------------------------------------------------------------- a device


class Marker:
    """A place in a stream's work."""

    def __init__(self) -> None:
        self.done = False


class Stream:
    """Work in order; the seed chooses when each piece of it runs."""

    def __init__(self, device: Device) -> None:
        self.work: deque[tuple[Marker | None, Callable[[], Any]]] = deque()
        device.sim.devices.append(self)

    def ready(self) -> bool:
        return bool(self.work) and (self.work[0][0] is None or self.work[0][0].done)

    def go(self) -> None:
        self.work.popleft()[1]()

    def wait_event(self, event: Event) -> None:
        if event.marker is not None:
            self.work.append((event.marker, lambda: None))

    def wait_stream(self, other: Stream) -> None:
        event = Event(None)
        event.record(other)
        self.wait_event(event)


class Event:
    def __init__(self, device: Device | None) -> None:
        self.marker: Marker | None = None
        self._device = device

    def record(self, stream: Stream | None = None) -> None:
        self.marker = marker = Marker()
        where = stream or self._device.present
        where.work.append((None, lambda: setattr(marker, "done", True)))

    def synchronize(self) -> None:
        if (marker := self.marker) is not None:
            simulation.wait(lambda: marker.done, None, "an event")


class Device(TorchFunctionMode):
    """Tensors asked for on ``cuda`` are on the CPU, and asynchronous copies go to a stream."""

    def __init__(self, sim: Simulation, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.sim = sim
        self._present: dict[Any, Stream] = {}  # of each thread
        for name, value in {
            "Stream": lambda device=None: Stream(self),
            "Event": lambda *_, **__: Event(self),
            "stream": self.use,
            "current_stream": lambda device=None: self.present,
        }.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(Tensor, "record_stream", lambda *_: None)
        patch.setattr(loading, "require_there", torch.device)

    @property
    def present(self) -> Stream:
        if self.sim.running not in self._present:
            self._present[self.sim.running] = Stream(self)
        return self._present[self.sim.running]

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        before, self._present[self.sim.running] = self.present, stream
        try:
            yield
        finally:
            self._present[self.sim.running] = before

    def launch(self, work: Callable[[], Any]) -> None:
        self.present.work.append((None, work))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is Tensor.copy_ and kwargs.pop("non_blocking", False):
            into, source = args
            self.launch(lambda: into.copy_(source))
            return into
        if func is Tensor.to and any(str(arg).startswith("cuda") for arg in args[1:]):
            return args[0]
        return func(*args, **kwargs)


# ---------------------------------------------------------------------- loader, slots, ranks

RANDOM = np.random.default_rng(0)
SIZES = RANDOM.integers(1, 5, 14)
GRAPHS = [
    Data(x=torch.full((n, 1), float(k)), edge_index=torch.zeros((2, n), dtype=torch.int64))
    for k, n in enumerate(SIZES)
]
STORE = sg.GraphStore.from_pyg(GRAPHS)
PLAN = sg.plan_buckets(STORE, batch_size=3)


class Meeting:
    """What ranks send each other: each waits for the message of every other, once per step."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._said: list[dict[int, Any]] = []

    def exchange(self, rank: int, step: int, message: Any) -> list[Any]:
        while len(self._said) <= step:
            self._said.append({})
        said = self._said[step]
        said[rank] = message
        simulation.wait(lambda: len(said) == self._ranks, None, f"the ranks in step {step}")
        return list(said.values())


def torn_fill(real: Callable[..., Any]) -> Callable[..., Any]:
    """A fill during which others run, and that first leaves what no batch holds."""

    def fill(store: Any, ids: Any, layout: Any, arrays: Any) -> Any:
        arrays["x"][:] = -1.0
        point()
        found = real(store, ids, layout, arrays)
        point()
        return found

    return fill


def read(tensors: dict[str, Tensor], ids: list[int], seen: Counter[int]) -> None:
    """Reads a batch's memory, as a step does that begins now, and checks what is there."""
    expected = [float(k) for k in ids for _ in range(SIZES[k])]
    found = tensors["x"][tensors["node_mask"]].flatten().tolist()
    assert found == expected, f"the batch of {ids} holds {found}"
    seen.update(ids)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["host", "device", "recorded"])
def test_every_graph_once_from_slots_that_nobody_overwrites(where, monkeypatch):
    """Read when a step runs, which on a device is later; ranks see the same bucket in a step."""
    monkeypatch.setattr(loading, "fill", torn_fill(loading.fill))

    def run(sim: Simulation) -> None:
        patch = pytest.MonkeyPatch()
        ranks, seen = sim.random.choice((1, 1, 2)), Counter[int]()
        workers, slots, seed = (sim.random.randrange(a, b) for a, b in ((0, 3), (2, 5), (0, 99)))
        meeting = Meeting(ranks)
        device = Device(sim, patch) if where != "host" else None

        def rank(number: int) -> None:
            with device or nullcontext():
                train(number)

        def train(number: int) -> None:
            loader = sg.StaticLoader(
                STORE, PLAN, shuffle=True, seed=seed, num_workers=workers, slots=slots,
                device="cpu" if device is None else "cuda", rank=number, world_size=ranks,
            )  # fmt: skip
            layouts = list(loader.layouts) if where == "recorded" else []
            inputs = RecordedInputs(layouts, torch.device("cuda")) if layouts else None
            planned = [chosen.ids.tolist() for chosen in loader._batcher.batches(0)]
            steps = iter(range(len(planned)))  # enumerate and zip would keep a batch
            for batch in loader:
                step = next(steps)
                assert len(set(meeting.exchange(number, step, batch.bucket))) == 1
                ids = planned[step]
                point()
                if device is None:
                    read(batch.tensors(), ids, seen)
                elif where == "device":
                    # As a stream would: it has the memory, and not the batch that leases it.
                    device.launch(partial(read, batch.tensors(), ids, seen))
                else:
                    inputs.take(batch, batch.tensors())
                    device.launch(partial(read, inputs.batches[batch.bucket].tensors(), ids, seen))
                del batch
                point()
            for stream in sim.devices:
                simulation.wait(lambda s=stream: not s.work, None, "a stream to end")
            assert loader._pool.free == loader._pool.count, "a slot is not back"

        try:
            if ranks == 1:
                rank(0)
            else:
                both = [Thread(target=rank, args=(k,), name=f"rank {k}") for k in range(2)]
                for thread in both:
                    thread.start()
                for thread in both:
                    thread.join()
            assert not sim.errors, sim.errors[0]
            assert seen == Counter(range(len(GRAPHS))), "every graph once"
        finally:
            patch.undo()

    every_seed(run)


# ---------------------------------------------------------------------- a whole runner


class Dropping(nn.Module):
    """Draws in training alone; others run in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.dropout = nn.Linear(1, 8), nn.Dropout(0.5)

    def forward(self, x: Tensor, batch: Tensor, batch_size: int) -> Tensor:
        h = self.linear(x)
        point()
        h = self.dropout(h)
        point()
        return global_add_pool(h, batch, batch_size)


def epoch_of(mode: str, meanwhile: Callable[[Any, Any], Any] = lambda *_: None, **options: Any):
    """Losses of an epoch of a loader and a runner, and what runs in between."""
    model = Dropping()
    loader = sg.StaticLoader(STORE, PLAN, shuffle=True, seed=1, **options)
    recording = sg.Recording(recorder=ArenaRecorder)
    runner = sg.StaticGraphRunner(
        model,
        PLAN,
        mode,
        loss=lambda out, batch: out.square(),
        optimizer=torch.optim.SGD(model.parameters(), lr=torch.tensor(0.0)),
        recording=recording if mode == "cuda-graph" else None,
    ).warmup(STORE, phases=("step", "eval"))
    torch.manual_seed(1)
    meanwhile(runner, model)
    losses = []
    for batch in loader:
        losses.append(float(runner.step(batch)))
        del batch
    assert loader._pool.free == loader._pool.count, "a slot is not back"
    assert mode == "eager" or sum(runner.report().replays.values()) >= len(losses)
    return losses, runner


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "cuda-graph"])
def test_steps_and_predictions_of_several_threads_are_as_alone(mode):
    """Losses bit for bit, whoever predicts and evaluates in the middle of a step: neither training
    flags nor random numbers nor another batch reach the other thread, be it with this runner, with
    another over the same model or in plain PyG."""
    expected, runner = epoch_of(mode)
    parts = [GRAPHS[:5], GRAPHS[5:]]
    alone = [runner.predict(part) for part in parts]
    runner.close()

    plain = Dropping().eval()

    def run(sim: Simulation) -> None:
        wrong = []

        def predict(runner: Any) -> None:
            for part, rows in zip(parts, alone, strict=True):
                if not torch.allclose(runner.predict(part), rows):
                    wrong.append(part)
                point()

        def compute() -> None:
            data = Batch.from_data_list(parts[0])
            if not torch.allclose(plain(data.x, data.batch, len(parts[0])), alone[0]):
                wrong.append("plain PyG")

        def meanwhile(runner: Any, model: Dropping) -> None:
            other = sg.StaticGraphRunner(model, PLAN, "eager")
            for name, work in (
                ("caller", partial(predict, runner)),
                ("other runner", partial(predict, other)),
                ("plain PyG", compute),
            ):
                Thread(target=work, name=name).start()

        losses, runner = epoch_of(
            mode, meanwhile, num_workers=sim.random.randrange(3), slots=sim.random.randrange(2, 5)
        )
        others = sim._tasks[1:]
        simulation.wait(lambda: all(task.done for task in others), None, "the callers")
        runner.close()
        assert not wrong
        assert losses == expected

    every_seed(run, few=10)


# ---------------------------------------------------------------------- server

SERVED = sg.BucketPlan(
    (sg.Capacity(9, 10, 4, max_graph_nodes=4), sg.Capacity(17, 18, 8, max_graph_nodes=4)),
    schema=STORE.schema,
)
POISON = 3  # a graph that the model rejects


def served(ids: list[int]) -> sg.GraphStore:
    sizes = SIZES[ids]
    ends = np.zeros((2, int(sizes.sum())), np.int64)
    x = np.repeat(np.array(ids, np.float32), sizes)[:, None]
    graphs = {"num_nodes": sizes, "num_edges": sizes, "edge_index": ends, "x": x}
    return store_of(graphs, STORE.schema)


class Sums:
    """A model of one number per graph, during whose forward others run."""

    plan, pointers, device = SERVED, False, torch.device("cpu")

    def predict_batch(self, batch: sg.StaticBatch) -> Tensor:
        point()
        x, graphs = batch.x.flatten(), batch.capacity.graphs
        if (x[batch.node_mask] == POISON).any():
            raise RuntimeError("poison")
        return torch.zeros(graphs).index_add(0, batch.batch, x)


@pytest.mark.slow
def test_every_request_is_answered_once_and_as_alone(monkeypatch):
    """Alone and many at once, from several callers, who cancel, poison and close."""
    twice: list[Any] = []
    monkeypatch.setattr(requests.log, "exception", lambda *args: twice.append(args))

    def run(sim: Simulation) -> None:
        draw, futures, ended = sim.random, [], list[Any]()
        drain, cancelled = draw.random() < 0.7, set[int]()
        server = Server(
            Sums(), max_wait_ms=draw.choice((0, 5)), max_queue=draw.choice((9, 99)),
            clock=lambda: sim.now,
        )  # fmt: skip

        def call() -> None:
            for _ in range(draw.randrange(1, 4)):
                many = [
                    [draw.randrange(len(SIZES)) for _ in range(draw.choice((1, 2, 9)))]
                    for _ in range(draw.choice((1, 3)))
                ]
                submitted = server.submit_split(
                    served([graph for ids in many for graph in ids]), [len(ids) for ids in many]
                )
                for ids, future in zip(many, submitted, strict=True):
                    futures.append((ids, future))
                    future.add_done_callback(ended.append)
                    if draw.random() < 0.2 and future.cancel():
                        cancelled.add(id(future))
                point()

        def check(ids: list[int], answer: Any) -> None:
            if isinstance(answer, sg.errors.BatchFailed):
                assert any(POISON in asked for asked, _ in futures)
            elif isinstance(answer, BaseException):
                assert isinstance(answer, sg.errors.ServerBusy | sg.errors.ServerClosed), answer
            else:
                assert POISON not in ids
                rows = answer.tolist() if isinstance(answer, Tensor) else answer
                assert rows == [float(k * SIZES[k]) for k in ids], (ids, answer)

        callers = [Thread(target=call, name=f"caller {k}") for k in range(draw.randrange(1, 4))]
        for thread in callers:
            thread.start()
        if draw.random() < 0.5:
            for thread in callers:
                thread.join()
            simulation.wait(
                lambda: len(ended) == len(futures), None, "the answers of an open server"
            )
        server.close(drain=drain)
        for thread in callers:
            thread.join()
        for ids, future in futures:
            try:
                found = future.result()
            except CancelledError:
                assert id(future) in cancelled
            except Exception as error:
                check(ids, error)
            else:
                check(ids, found)
        stats = server.stats()
        assert stats.queue == 0
        counted = stats.answered + stats.failed + stats.cancelled + stats.refused
        assert counted <= len(futures), "no request ends twice"
        assert len(ended) == len(futures), "every future once"
        assert not twice, twice

    every_seed(run)
