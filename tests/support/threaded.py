"""A small net that can stop in its forward, and threads that pass on their results and errors.

Interleaving is deterministic: a forward stops in the middle until the other thread has finished or
waits for its turn, or until all threads reach a barrier there.
"""

from __future__ import annotations

import threading

import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_mean_pool

import staticgraph as sg
from support.graphs import drawn_graphs
from support.patience import patience
from support.runners import made_runner

PATIENCE_S = patience(30)  # until a hanging test fails; nothing is timed


GRAPHS = drawn_graphs((3 + number * 5 % 7 for number in range(24)), x=("node", 4), y=("graph",))


STORE = sg.GraphStore.from_pyg(GRAPHS)


CAPACITY = sg.Capacity(nodes=100, edges=200, graphs=13, max_graph_nodes=10)


class Net(nn.Module):
    """Calls ``middle`` between layers of PyG."""

    def __init__(self, seed: int = 0, middle=lambda: None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = pyg.GATConv(4, 6)  # self-loops removed and added
        self.norm = nn.BatchNorm1d(6)
        self.second = pyg.GCNConv(6, 6)
        self.again = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 1)
        self.middle = middle
        self.double()

    def forward(self, x, edge_index, batch):
        h = self.norm(self.first(x, edge_index)).relu()
        self.middle()
        h = self.again(self.second(h, edge_index)).relu()
        return self.head(global_mean_pool(h, batch)).view(-1)


def loss(out, batch):
    return (out - batch.y.view(-1)).square()


def runner_of(model: nn.Module, **options) -> sg.StaticGraphRunner:
    """Returns a runner that has already inspected its model.

    So only the steps of a test reach the model's ``middle``.
    """
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, fused=options.get("mode") == "cuda-graph"
    )
    runner = made_runner(
        model,
        [CAPACITY],
        **{"mode": "eager", "loss": loss, "check_padding": False} | options,
        optimizer=optimizer,
    )
    middle, training = vars(model).pop("middle", None), model.training
    if middle is not None:
        model.middle = lambda: None
    for flag in (not training, training):
        model.train(flag)
        runner.steps.computation.known(batch_of())
    if middle is not None:
        model.middle = middle
    return runner


def batch_of(first: int = 0, count: int = 10) -> sg.StaticBatch:
    return sg.StaticBatch.of(STORE, range(first, first + count), CAPACITY)


def plain(model: nn.Module, some: list[Data]) -> torch.Tensor:
    """Returns plain PyG's output on a batch without padding; ``model`` must not be converted."""
    data = Batch.from_data_list(some)
    return model(data.x, data.edge_index, data.batch)


class Elsewhere(threading.Thread):
    """A thread that passes on the result or the exception of its work."""

    def __init__(self, work) -> None:
        super().__init__(daemon=True)
        self._work, self._result, self._error = work, None, None

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def result(self):
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
        return self._result


class Once:
    """Calls ``work`` the first time it is called."""

    def __init__(self, work=None) -> None:
        self.work = work

    def __call__(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()


def same(actual, expected) -> bool:
    return torch.allclose(actual, expected, rtol=0, atol=1e-12)
