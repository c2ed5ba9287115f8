"""A model on a device other than the current one: events, launches and times use the model's."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import staticgraph as sg
from staticgraph.batches.loading.from_device import SlotIds
from staticgraph.batches.slots.slots import Slot
from staticgraph.kernels import register
from staticgraph.runner import counters
from staticgraph.runner.ways import Stopwatch

OTHER = torch.device("cuda", 1)


class Event:
    """A fake ``torch.cuda.Event``: by default it records on the current device's stream, and every
    record takes a millisecond."""

    recorded: list[str]
    made: int

    def __init__(self, enable_timing: bool = False) -> None:
        Event.made += 1

    def record(self, stream: str | None = None) -> None:
        self.recorded.append(stream or "stream of the present device")
        self.at = len(self.recorded)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return float(end.at - self.at)


@pytest.fixture
def recorded(monkeypatch):
    """The streams that events were recorded on."""
    Event.recorded, Event.made = [], 0
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    return Event.recorded


def test_a_way_is_timed_on_its_stream(recorded):
    assert Stopwatch(OTHER).milliseconds("eager", lambda: None) == 1.0
    assert recorded == ["stream of cuda:1"] * 2


def test_a_step_is_timed_on_its_stream(recorded):
    statistics = counters.BucketStatistics(sg.Capacity(10, 12, 2), OTHER)
    statistics.ended(statistics.started())
    assert recorded == ["stream of cuda:1"] * 2


def test_events_of_a_step_that_failed_are_no_time_and_old_ones_serve_again(recorded, monkeypatch):
    monkeypatch.setattr(counters, "TIMES_KEPT", 3)
    bucket = counters.BucketStatistics(sg.Capacity(9, 8, 3), OTHER)
    for number in range(8):
        started = bucket.started()
        if number % 3 != 1:  # the others fail
            bucket.ended(started)
    assert bucket.report(0, ()).step_ms == 1.0
    assert Event.made == 2 * 3, "three pairs are kept, and one of them is taken for the next"


def test_ids_are_written_again_after_the_copy_on_their_stream(recorded, monkeypatch):
    """An event on another stream is done at once: the host would overwrite ids being copied."""
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *size, pin_memory=False, **more: empty(*size, **more)
    )
    slot = object.__new__(Slot)
    ids = SlotIds(4, OTHER, slot)
    ids.write(np.arange(3))
    target = empty(4, dtype=torch.int32)
    ids.copy_to(target)
    assert target.tolist() == [0, 1, 2, -1]
    assert recorded == ["stream of cuda:1"]


class There(torch.Tensor):
    """A tensor that reports the other device as its own."""

    device = OTHER

    def get_device(self) -> int:
        return 1


class TestALaunch:
    @pytest.fixture
    def entered(self, monkeypatch):
        """The devices that launches were made on."""
        present = [0]

        @contextmanager
        def device(wanted):
            before, present[0] = present[0], torch.device(wanted).index
            try:
                yield
            finally:
                present[0] = before

        monkeypatch.setattr(torch.cuda, "current_device", lambda: present[0])
        monkeypatch.setattr(torch.cuda, "device", device)
        return present

    @pytest.mark.parametrize("inside", [False, True])
    def test_it_is_on_the_device_of_its_tensors(self, entered, inside):
        value = torch.zeros(2).as_subclass(There)
        launched = register.beside_its_tensors(lambda *args: list(entered))
        args = (None, 3, [value]) if inside else (None, value, 3)
        assert launched(*args) == [1]
        assert entered == [0]

    def test_every_operator_launches_so(self, entered, monkeypatch):
        made = {}
        library = type(
            "L",
            (),
            {"define": lambda *_, **__: None, "impl": lambda _, n, f, k: made.update({k: f})},
        )
        monkeypatch.setattr(register, "LIBRARY", library())
        monkeypatch.setattr(register, "CUDA", {})
        monkeypatch.setattr(torch.library, "register_fake", lambda *_, **__: None)
        kernels = SimpleNamespace(forward=lambda x: list(entered))
        monkeypatch.setattr(register, "import_module", lambda name: kernels)
        register.operator(
            "table_sum(Tensor x) -> Tensor", cpu=abs, cuda="table_sum.gpu:forward", fake=abs
        )
        assert made["CUDA"](torch.zeros(2).as_subclass(There)) == [1]
