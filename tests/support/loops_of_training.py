"""Run as a program: trains each model that fused kernels are put under, and prints the loops that
were called, the longest to compile first, then what numba compiled inside them.

    python tests/support/loops_of_training.py DATA FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from numba.core import event, types
from numba.core.registry import CPUDispatcher
from torch_geometric.data import Batch, Data

from staticgraph import datasets
from staticgraph.training import run, train
from staticgraph.training.compile_ahead import Loop
from staticgraph.training.config import KERNELS_GAIN, TrainConfig
from staticgraph.training.loops import line_of


class Compiled(event.Listener):
    """Seconds of every function that numba compiled, those inside others included."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.seconds: dict[tuple[str, Any], float] = {}
        self.names: set[str] = set()

    def on_start(self, event: Any) -> None:
        self.began.append(time.perf_counter())

    def on_end(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        name = f"{function.__module__}.{function.__qualname__}"
        self.names.add(name)
        if len(self.began) == 1:
            self.seconds[name, event.data["args"]] = time.perf_counter() - self.began[0]
        self.began.pop()


def called() -> Iterator[Loop]:
    """Loops of this package that Python called, with their types."""
    for module_name, module in sorted(sys.modules.items()):
        for name, value in vars(module).items() if module_name.startswith("staticgraph") else ():
            if isinstance(value, CPUDispatcher) and value.py_func.__module__ == module_name:
                for kinds in value.signatures:
                    yield Loop(f"{module_name}.{name}", kinds)


def with_a_large_one(data: str, folder: str) -> str:
    """Molecules of a data set, two of them of more bonds than one byte counts, as HIV has them:
    columns of such a store are wider."""
    molecules = datasets.open(data)
    graphs = [molecules[i] for i in range(300)]
    large = Batch.from_data_list(graphs[:12])
    for at in (0, 1):
        graphs[at] = Data(
            x=large.x, edge_index=large.edge_index, edge_attr=large.edge_attr, y=large.y[:1]
        )
    torch.save(graphs, f"{folder}/large.pt")
    return f"{folder}/large.pt"


def main() -> None:
    compiled = Compiled()
    event.register("numba:compile", compiled)
    run.compile_ahead = lambda loops, show: 0  # each is compiled where it is called
    folder = sys.argv[2]
    runs = [(sys.argv[1], model) for model in sorted(KERNELS_GAIN)]
    for data, model in [*runs, (with_a_large_one(sys.argv[1], folder), "gine")]:
        train.train(
            TrainConfig(data, model=model, hidden=16, layers=1, batch_size=128, epochs=1),
            f"{folder}/{model}",
            overwrite=True,
            progress=False,
        )
    found = sorted(
        (loop for loop in called() if (loop.name, loop.types) in compiled.seconds),
        key=lambda loop: -compiled.seconds[loop.name, loop.types],
    )
    assert not any(isinstance(kind, types.Omitted) for loop in found for kind in loop.types)
    print(json.dumps({"lines": [line_of(loop) for loop in found], "names": [*compiled.names]}))


if __name__ == "__main__":
    main()
