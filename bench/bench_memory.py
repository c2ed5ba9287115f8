"""Compares memory predicted over fake tensors with the memory that a real step allocates.

    python -m bench.bench_memory [--model gps ...] [--json FILE]     every way of training

The measurement is torch's profiler on the CPU, or the high-water mark of the caching allocator with
``--device cuda``. Every row is fitted on capacities of 32 to 320 molecules of HIV and checked on
one of 640, more than twice the largest; only that last step does real arithmetic. The comparison
covers only what the step adds to model, optimizer state and batch, so that known bytes do not hide
the error.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

import staticgraph as sg
from bench import tables
from bench.machine import machine, write
from bench.options import options_of
from bench.steps import HIV
from staticgraph import models
from staticgraph.probing.allocator import AllocatorReader, CudaAllocator, ProfilerAllocator
from staticgraph.probing.step_reading import Probed
from staticgraph.steps.computation.model_setup import Subject

HIDDEN, LAYERS = 32, 2
NAMES = ["gine", "gcn", "gat", "gps"]
OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}
# Variations, one at a time, of Adam in float32 without accumulation.
WAYS: tuple[dict[str, Any], ...] = (
    {"optimizer": "adam"},
    {"optimizer": "adamw"},
    {"optimizer": "sgd"},
    {"optimizer": "adam", "autocast": torch.bfloat16},
    {"optimizer": "adam", "accumulate": 2},
)


def task_of(store: sg.GraphStore, name: str, device: str, way: dict[str, Any]) -> Probed:
    """Returns a model of :mod:`staticgraph.models` and how it is trained."""
    torch.manual_seed(0)
    model = models.build(name, store, hidden=HIDDEN, layers=LAYERS).to(device)
    subject = Subject(
        model,
        loss=lambda out, batch: (out - batch.y).square(),
        optimizer=OPTIMIZERS[way["optimizer"]](model.parameters()),
        autocast=way.get("autocast"),
    )
    return Probed(subject, store.schema, way.get("accumulate", 1))


def compare(store: sg.GraphStore, name: str, device: str, way: dict[str, Any]) -> dict[str, Any]:
    """Returns one row: prediction and measurement at the held-out capacity."""
    on_cuda = device == "cuda"
    task = task_of(store, name, "cpu", way)
    reader = "fake-cuda" if on_cuda else "fake"
    memory = sg.probe(task.subject, store, accumulate=task.accumulate, reader=reader)
    assert memory.checked is not None
    capacity = memory.checked.capacity
    allocator = CudaAllocator(torch.device(device)) if on_cuda else ProfilerAllocator()
    with AllocatorReader(allocator).open(task_of(store, name, device, way)) as read:
        measured = read(capacity)
    predicted = memory.fit.predict(capacity)
    return {
        "model": name,
        "device": device,
        "optimizer": way["optimizer"],
        "autocast": str(way.get("autocast", "")).removeprefix("torch."),
        "accumulate": task.accumulate,
        "form": memory.fit.form,
        "capacity": str(capacity),
        "predicted_bytes": round(predicted),
        "measured_bytes": measured.step,
        "error": predicted / measured.step - 1,
        "update_error": memory.update_bytes / measured.update - 1,
    }


def main() -> None:
    """Prints the table, and with ``--json`` writes the rows."""
    options = options_of(__doc__, model=NAMES, device="cpu", json=Path)
    torch.set_num_threads(1)
    store = sg.datasets.open(HIV)
    rows = []
    for name, way in itertools.product(options.model, WAYS):
        rows.append(compare(store, name, options.device, way))
        if options.json:  # after every row, so that an interrupted run keeps its results
            write(options.json, {"setting": {"hidden": HIDDEN, "layers": LAYERS}, "rows": rows})
        print(f"{name} {way}: {100 * rows[-1]['error']:+.3f}%", flush=True)
    print(tables.memory({"memory": machine() | {"rows": rows}}))


if __name__ == "__main__":
    main()
