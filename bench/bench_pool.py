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
from bench.steps import DEVICE, HIV, Shape, Uncompiled, adam, bce


def reserved() -> int:
    if DEVICE.type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def recorded_bytes(
    store: sg.GraphStore, shape: Shape, capacities: list[Any], order: list[int]
) -> dict[str, int]:
    """Returns the bytes reserved by recording buckets in ``order``, and those after teardown."""
    model = shape.build(store).to(DEVICE)
    optimizer = adam(model)
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


def pool(shape: Shape, graphs: list[int]) -> dict[str, Any]:
    store = sg.datasets.open(HIV)
    capacities = [sg.plan_buckets(store, batch_size=count).capacities[-1] for count in graphs]
    buckets = list(range(len(capacities)))
    orders = {"largest_alone": buckets[-1:], "largest_first": buckets[::-1]}
    orders["smallest_first"] = buckets
    return {"buckets": [str(capacity) for capacity in capacities]} | {
        name: recorded_bytes(store, shape, capacities, order) for name, order in orders.items()
    }


def main() -> None:
    options = options_of(
        __doc__, model="gine:5x300", graphs=[32, 64, 128, 256, 512, 1024], json=Path
    )
    shape = Shape.parse(options.model)
    answers = answer({"six buckets": lambda: pool(shape, options.graphs)}, options.json)
    if "error" in answers["six buckets"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
