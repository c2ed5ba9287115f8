"""Batches copied on a stream of their own: no use of a slot overtakes the previous use."""

from __future__ import annotations

import pytest
import torch
from support.streams import HOST, Streams

import staticgraph as sg
from staticgraph.batches.loading import loader as loading
from staticgraph.batches.loading.from_device import IdsFeed
from staticgraph.batches.slots.slots import SlotLayout, SlotPool

PLAN = [(410, 850, 31)]
CUDA = torch.device("cuda", 0)


@pytest.fixture
def streams(monkeypatch):
    return Streams().install(monkeypatch)


@pytest.fixture
def loader(esol, streams, monkeypatch):
    """Makes loaders that copy to a device; filling a slot is logged as a write by the host."""
    fill = loading.fill

    def filled(store, ids, layout, arrays):
        streams.touch(torch.from_numpy(arrays["batch"]), HOST, "fill", True)
        return fill(store, ids, layout, arrays)

    monkeypatch.setattr(loading, "fill", filled)
    options = {"exact": False, "device": CUDA}
    return lambda **more: sg.StaticLoader(esol, PLAN, **{**options, **more})


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_no_copy_overtakes_what_stands_in_its_slot(loader, streams, slots):
    """It overtakes neither the zeroing of a new slot nor the step that reads the previous batch."""
    with streams:
        for batch in loader(slots=slots):
            assert bool(batch.node_mask.any())
            del batch
    copies = [who for who, what in streams.log if what == "copy_"]
    assert len(copies) > 2 * slots
    assert "default" not in copies


def test_a_loader_made_while_the_device_is_busy_waits_for_its_zeros_alone(loader, streams):
    """The copy waits for an event recorded after the zeroing, so work that is queued after the
    loader was made does not delay it."""
    with streams:
        made = loader(slots=2)
        before = len(streams.log)
        later = torch.zeros(3, device=CUDA)
        later.add_(1)
        batch = next(iter(made))
        del batch
    waits = [entry for entry in streams.log[before:] if entry[1] == "wait_event"]
    assert waits, streams.log
    copy = streams.log.index((waits[0][0], "copy_"))
    assert streams.log.index(waits[0]) < copy
    assert ("stream 1", "wait_stream default") not in streams.log[:copy]


class Moved:
    """A host store that reports to be on the device."""

    device = CUDA

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_ids_wait_for_the_memory_they_are_written_to(esol, streams):
    """The memory of the ids is new, so the allocator may have reused memory of queued work."""
    store = Moved(esol.to("cpu"))
    capacity = sg.BucketPlan.of(PLAN).capacities[0]
    layouts = [SlotLayout(0, capacity, esol.schema)]
    with streams:
        pool = SlotPool(layouts, 3, CUDA)
        feed = IdsFeed(store, layouts, pool)
        slot = pool.lend()
        freed = torch.zeros(feed._most, dtype=torch.int32, device=CUDA)
        empty_like = torch.empty_like
        freed.add_(1)  # queued work whose memory the allocator reuses

        def reused(like, **options):
            return freed if options.get("device") == CUDA else empty_like(like, **options)

        torch.empty_like = reused
        try:
            sent = [feed._write(esol_ids(first), slot).on_device for first in (0, 7, 11)]
        finally:
            torch.empty_like = empty_like
    assert all(ids is freed for ids in sent)
    assert sent[-1][:3].tolist() == [11, 12, 13]


def esol_ids(first):
    return torch.arange(first, first + 20).numpy()


def test_memory_is_not_reused_before_the_stream_that_read_the_last_batch(loader, streams, esol):
    """The loader and the ids of a store on the device are dropped while that stream is busy."""
    with streams:
        made = loader(slots=2)
        layouts = [SlotLayout(0, sg.BucketPlan.of(PLAN).capacities[0], esol.schema)]
        pool = SlotPool(layouts, 1, CUDA)
        feed = IdsFeed(Moved(esol.to("cpu")), layouts, pool)
        slots = [*made._pool._free]
        side = torch.cuda.Stream(CUDA)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for batch in made:
                assert bool(batch.node_mask.any())
                del batch
            ids = feed._write(esol_ids(0), pool.lend()).on_device
            assert ids[:2].tolist() == [0, 1]
        for memory in (*(slot.buffer for slot in slots), ids):
            streams.free(memory)
            assert any(who == side.name for who, *_ in streams._uses[memory.data_ptr()])
