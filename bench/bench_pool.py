"""Memory of several recorded buckets: one pool, largest bucket first or last, and after teardown.

    python -m bench.bench_pool [--json FILE]          needs CUDA; on a CPU it only rehearses

Records six buckets of 32 to 1,024 molecules, one whole training step each, without Inductor so that
only the recording is measured. The memory that the recordings reserve is compared with that of the
largest bucket alone; the goal is at most 1.1 times as much.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import staticgraph as sg
from bench.options import options_of
from bench.parts import answer
from bench.steps import HIV, bce
from staticgraph.models import build
from staticgraph.recording.recorder import CudaGraphRecorder

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Uncompiled(CudaGraphRecorder):
    """Records the eager step, without Inductor."""

    compiles = False


def reserved() -> int:
    if DEVICE.type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def recorded_bytes(
    store: sg.GraphStore, capacities: list[Any], order: list[int], hidden: int, layers: int
) -> dict[str, int]:
    """Returns the bytes reserved by recording buckets in ``order``, and those after teardown."""
    torch.manual_seed(0)
    model = build("gine", store, hidden=hidden, layers=layers).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), fused=True, capturable=True)
    on_cuda = DEVICE.type == "cuda"
    runner = sg.StaticGraphRunner(
        model,
        capacities,
        "cuda-graph" if on_cuda else "eager",
        loss=bce,
        optimizer=optimizer,
        recording=sg.Recording(recorder=Uncompiled if on_cuda else None),
    )
    smallest = sg.StaticBatch.of(store, range(8), capacities[0], 0).to(DEVICE)
    runner.eager_step(smallest)  # creates the optimizer state
    optimizer.zero_grad(set_to_none=True)
    base = reserved()
    for bucket in order:
        runner.preparation.prepare(runner.mode.name, bucket, "step", store.schema)
    taken = reserved() - base
    runner.close()
    return {"reserved_bytes": taken, "left_after_teardown_bytes": reserved() - base}


def pool(hidden: int, layers: int, graphs: tuple[int, ...]) -> dict[str, Any]:
    store = sg.datasets.open(HIV)
    capacities = [sg.plan_buckets(store, batch_size=count).capacities[-1] for count in graphs]
    every = list(range(len(capacities)))
    largest = recorded_bytes(store, capacities, every[-1:], hidden, layers)
    first = recorded_bytes(store, capacities, every[::-1], hidden, layers)
    last = recorded_bytes(store, capacities, every, hidden, layers)
    alone = max(1, largest["reserved_bytes"])
    return {
        "buckets": [str(capacity) for capacity in capacities],
        "largest_alone": largest,
        "largest_first": first,
        "smallest_first": last,
        "largest_first_over_alone": first["reserved_bytes"] / alone,
        "smallest_first_over_alone": last["reserved_bytes"] / alone,
    }


def main() -> None:
    options = options_of(
        __doc__, hidden=300, layers=5, graphs=[32, 64, 128, 256, 512, 1024], json=Path
    )
    found = answer(
        {"six buckets": lambda: pool(options.hidden, options.layers, tuple(options.graphs))},
        options.json,
        1e9,
    )
    if "error" in found["six buckets"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
