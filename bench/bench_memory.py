"""Compares memory predicted over fake tensors with the memory that a real step allocates.

    python -m bench.bench_memory [--model gps ...] [--json FILE]     every way of training
    python -m pytest bench/bench_memory.py --benchmark-enable        seconds per fake point

The measurement is torch's profiler on the CPU, or the high-water mark of the caching allocator with
``--device cuda``. Every row is fitted on capacities of 32 to 320 molecules of HIV and checked on
one of 640, more than twice the largest; only that last step does real arithmetic. The comparison
covers only what the step adds to model, optimizer state and batch, so that known bytes do not hide
the error.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import staticgraph as sg
from bench import tables
from bench.machine import machine, write
from bench.options import options_of
from staticgraph import models
from staticgraph.probing.allocator import AllocatorReader, CudaAllocator, ProfilerAllocator
from staticgraph.probing.fake_tensors import FakeTensorReader
from staticgraph.probing.probe import probe_capacities
from staticgraph.probing.reading import Probed
from staticgraph.steps.computation.model_setup import Subject

HIV = "examples/data/hiv.npz"
NAMES = ("gine", "gcn", "gat", "gps")
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


def task_of(
    store: sg.GraphStore, name: str, hidden: int, layers: int, device: str = "cpu", **way: Any
) -> Probed:
    """Returns a model of :mod:`staticgraph.models` and how it is trained."""
    torch.manual_seed(0)
    model = models.build(name, store, hidden=hidden, layers=layers).to(device)
    optimizer = OPTIMIZERS[way.pop("optimizer")](model.parameters())
    subject = Subject(
        model,
        loss=lambda out, batch: (out - batch.y).square(),
        optimizer=optimizer,
        autocast=way.get("autocast"),
    )
    return Probed(subject, store.schema, way.get("accumulate", 1))


def compare(
    store: sg.GraphStore, name: str, hidden: int, layers: int, device: str = "cpu", **way: Any
) -> dict:
    """Returns one row: prediction and measurement at the held-out capacity."""
    on_cuda = device == "cuda"
    task = task_of(store, name, hidden, layers, **way)
    begin = time.perf_counter()
    memory = sg.probe(
        task.subject,
        store,
        accumulate=task.accumulate,
        reader="fake-cuda" if on_cuda else "fake",
    )
    seconds = time.perf_counter() - begin
    assert memory.checked is not None
    capacity = memory.checked.capacity
    allocator = CudaAllocator(torch.device(device)) if on_cuda else ProfilerAllocator()
    measures = task_of(store, name, hidden, layers, device, **way) if on_cuda else task
    with AllocatorReader(allocator).open(measures) as read:
        measured = read(capacity)
    predicted = memory.fit.predict(capacity)
    return {
        "model": name,
        "device": device,
        "optimizer": way["optimizer"],
        "autocast": str(way.get("autocast", "")).removeprefix("torch."),
        "accumulate": way.get("accumulate", 1),
        "form": memory.fit.form,
        "planes": len(memory.fit.planes),
        "residual": memory.fit.residual,
        "nodes": capacity.nodes,
        "edges": capacity.edges,
        "graphs": capacity.graphs,
        "max_graph_nodes": capacity.max_graph_nodes,
        "predicted_bytes": round(predicted),
        "measured_bytes": measured.step,
        "error": predicted / measured.step - 1,
        "update_error": memory.update_bytes / measured.update - 1,
        "seconds_a_point": seconds / (len(memory.points) + 1),
    }


def main() -> None:
    """Prints the table, and with ``--json`` writes the rows."""
    args = options_of(__doc__, model=NAMES, hidden=32, layers=2, device="cpu", json=Path)
    torch.set_num_threads(1)
    store = sg.datasets.open(HIV)
    rows = []
    for name in args.model:
        for way in WAYS:
            rows.append(compare(store, name, args.hidden, args.layers, args.device, **way))
            if args.json:  # after every row, so that an interrupted run keeps its results
                setting = {"hidden": args.hidden, "layers": args.layers}
                write(args.json, {"setting": setting, "rows": rows})
            print(f"{name} {way}: {100 * rows[-1]['error']:+.3f}%", flush=True)
    print(tables.memory({"memory": machine() | {"rows": rows}}))


@pytest.mark.parametrize("name", NAMES)
def test_bench_fake_point(benchmark: Any, name: str) -> None:
    """Times one point over fake tensors, warm step included."""
    store = sg.datasets.open("examples/data/esol.npz")
    capacity = probe_capacities(store.sizes)[0][-1]
    with FakeTensorReader().open(task_of(store, name, 64, 4, optimizer="adam")) as read:
        read(capacity)
        benchmark(read, capacity)


if __name__ == "__main__":
    main()
