"""Tasks for tests of memory probes: a model with an optimizer, over small capacities."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from staticgraph import models
from staticgraph.probing.allocator import AllocatorReader, ProfilerAllocator
from staticgraph.probing.probe import probe
from staticgraph.probing.step_reading import Probed, Reading
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject
from support.alike import squared

# Small enough for a real step on a busy core, large enough that activations outweigh constants.
POINTS = [
    Capacity(150, 310, 8, 60),
    Capacity(300, 620, 16, 60),
    Capacity(300, 800, 16, 60),
    Capacity(400, 620, 16, 60),
    Capacity(300, 620, 24, 60),
    Capacity(300, 620, 16, 30),
    Capacity(300, 620, 16, 15),
    Capacity(440, 900, 24, 45),
]
HELD_OUT = Capacity(900, 1_850, 50, 55)

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def task_of(store, name="gine", optimizer="adam", **options):
    torch.manual_seed(0)
    model = models.build(name, store, hidden=32, layers=2)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    accumulate = options.pop("accumulate", 1)
    return Probed(Subject(model, squared, optimizer, **options), store.schema, accumulate)


def probed(task, store, **options):
    return probe(
        task.subject,
        store,
        accumulate=task.accumulate,
        **{"capacities": POINTS, "held_out": HELD_OUT, **options},
    )


def measured(task, capacity):
    """What a real step allocates on the CPU."""
    with AllocatorReader(ProfilerAllocator()).open(task) as read:
        return read(capacity)


class GivenReader:
    """Reads from a function of the capacity that returns bytes, or a whole reading."""

    name = "given numbers"

    def __init__(self, bytes_of):
        self._bytes_of = bytes_of

    @contextmanager
    def open(self, probed):
        def read(capacity):
            reading = self._bytes_of(capacity)
            return reading if isinstance(reading, Reading) else Reading(int(reading))

        yield read
