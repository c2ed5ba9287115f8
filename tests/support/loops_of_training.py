"""A program that lists the numba loops that training calls.

    NUMBA_CACHE_DIR=/tmp/empty python tests/support/loops_of_training.py DATA FOLDER

It trains each named model in mode ``fused`` and prints the called loops with their models, the
slowest to compile first, then the loops that assign arrays to slices. Each run is a fork that has
called nothing before. A loop in numba's cache is loaded and also counts as called, but only an
empty cache shows which loop takes longest to compile.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import traceback
from typing import Any

import numba
import numpy as np
import torch
from numba.core import types
from numba.core.registry import CPUDispatcher
from torch_geometric.data import Batch, Data

from staticgraph import datasets
from staticgraph.models import NAMES
from staticgraph.training import plots, run, train
from staticgraph.training.compile_ahead import Loop
from staticgraph.training.config import TrainConfig
from staticgraph.training.loops import line_of

# A function that numba compiles into a loop that assigns an array to a slice, for the error message
# that their shapes differ: it takes seconds.
COSTLY = "raise_with_shape_context"


class Asked:
    """The seconds to compile or load each loop of this package that Python called."""

    def __init__(self) -> None:
        self.seconds: dict[Loop, float] = {}
        self._stock, self._depth = CPUDispatcher.compile, 0

    def compile(self, dispatcher: CPUDispatcher, kinds: Any) -> Any:
        """Replaces numba's method; loops that another loop calls are compiled inside that one."""
        self._depth += 1
        began = time.perf_counter()
        try:
            return self._stock(dispatcher, kinds)
        finally:
            self._depth -= 1
            module = dispatcher.py_func.__module__
            if not self._depth and module.startswith("staticgraph."):
                loop = Loop(f"{module}.{dispatcher.py_func.__qualname__}", tuple(kinds))
                self.seconds.setdefault(loop, time.perf_counter() - began)


@numba.njit(cache=True)
def assigns_a_slice(values, some):
    """An example of a costly loop."""
    values[:2] = some


def is_costly(dispatcher: CPUDispatcher, kinds: Any) -> bool:
    """Returns whether the compiled or loaded code of a function contains :data:`COSTLY`."""
    return COSTLY in str(dispatcher.overloads[kinds].library._get_module_for_linking())


def with_a_large_one(data: str, folder: str) -> str:
    """Saves molecules of a data set, two of which have more bonds than fit in one byte.

    HIV has such molecules, and the columns of such a store are wider.
    """
    molecules = datasets.open(data)
    graphs = [molecules[i] for i in range(300)]
    large = Batch.from_data_list(graphs[:12])
    for at in (0, 1):
        graphs[at] = Data(
            x=large.x, edge_index=large.edge_index, edge_attr=large.edge_attr, y=large.y[:1]
        )
    torch.save(graphs, f"{folder}/large.pt")
    return f"{folder}/large.pt"


def called_by(data: str, model: str, mode: str, folder: str) -> tuple[dict[Loop, float], list[str]]:
    """Trains in a fork; returns the called loops with their seconds, and names of costly ones."""
    receive, send = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            send.send(_called_by(data, model, mode, folder))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    send.close()
    try:
        return receive.recv()
    except EOFError:
        raise SystemExit(f"training {model} failed: its traceback stands above") from None
    finally:
        os.waitpid(child, 0)


def _called_by(
    data: str, model: str, mode: str, folder: str
) -> tuple[dict[Loop, float], list[str]]:
    asked = Asked()
    CPUDispatcher.compile = lambda dispatcher, kinds: asked.compile(dispatcher, kinds)
    run.compile_ahead = lambda loops, show: 0  # so that each is compiled when it is called
    plots.save_picture = lambda *_, **__: None  # it calls no loop
    options = {"hidden": 32, "layers": 1, "batch_size": 128, "epochs": 1}
    config = TrainConfig(data, model=model, compile_mode=mode, **options)
    train.train(config, f"{folder}/{model}", overwrite=True, progress=False)
    costly = [loop.name for loop in asked.seconds if is_costly(loop.dispatcher, loop.types)]
    return asked.seconds, costly


def main() -> None:
    data, folder = sys.argv[1:]
    assigns_a_slice(np.zeros(3), np.ones(2))
    (kinds,) = assigns_a_slice.signatures
    assert is_costly(assigns_a_slice, kinds), "numba names it otherwise now"
    seconds: dict[Loop, float] = {}
    models: dict[Loop, set[str]] = {}
    costly: set[str] = set()
    for model in sorted(NAMES):
        found, of_these = called_by(data, model, "fused", folder)
        costly.update(of_these)
        for loop, took in found.items():
            seconds[loop] = max(took, seconds.get(loop, 0.0))
            models.setdefault(loop, set()).add(model)
    # For the second data set, only the loops that make batches differ, whatever the model.
    found, of_these = called_by(with_a_large_one(data, folder), "gine", "eager", folder)
    seconds = found | seconds
    assert not any(isinstance(kind, types.Omitted) for loop in seconds for kind in loop.types)
    longest_first = sorted(seconds, key=lambda loop: -seconds[loop])
    lines = [line_of(loop, models.get(loop, ())) for loop in longest_first]
    print(json.dumps({"lines": lines, "costly": sorted(costly.union(of_these))}))


if __name__ == "__main__":
    main()
