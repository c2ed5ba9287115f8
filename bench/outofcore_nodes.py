"""Test accuracy of node classification: PyG in memory, and the same model trained from disk.

From disk, the number c of resident partitions varies. All ways have the same initial parameters per
seed, the same optimizer and number of epochs, evaluate on full neighbourhoods at the same epochs,
and choose among these by the best validation accuracy (of equal ones, the later). The runs of one
seed are therefore a pair, and their differences are tested with a paired Student's t-test. Two
things necessarily differ: the order of dropout's random numbers, and, from disk, which part of a
neighbourhood is resident in training.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import ttest_rel
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from staticgraph.outofcore import (
    Dispersed,
    InMemory,
    NodeCache,
    NodeTrainer,
    SampledGNN,
    SampledLoader,
    partition,
)
from staticgraph.outofcore.disk import data


class Case(NamedTuple):
    """The model trained on a graph; an epoch in memory is one step on all training nodes."""

    model: str
    fanouts: list[int]
    hidden: int
    epochs: int


# The fan-outs of the citation graphs are their largest degrees, 168 and 99.
CASES = {
    "cora": Case("gcn", [168, 168], 64, 60),
    "citeseer": Case("gcn", [99, 99], 64, 60),
    "cornell5": Case("sage", [10, 10], 32, 48),
}
PARTITIONS = 16
BUFFERS = [4, 8, 12]
EVERY = 5


def nodes(args: argparse.Namespace) -> dict[str, Any]:
    """Measures ``--seeds`` runs of every way, and how far each is from PyG."""
    rows: list[dict[str, Any]] = []
    for name in args.graph or CASES:
        ways: dict[str, Any] = {"pyg": None, "memory": (1, InMemory())}
        for policy in (NodeCache, Dispersed):
            if not args.policy or policy.__name__ in args.policy:
                ways |= {f"{policy.__name__}({c})": (PARTITIONS, policy(c)) for c in args.buffers}
            if policy is NodeCache and args.near:
                ways |= {f"NodeCache({c}, near)": (PARTITIONS, policy(c, c)) for c in args.buffers}
        rows += measured(name, ways, args.seeds)
    return {"partitions": PARTITIONS, "seeds": args.seeds, "rows": rows}


def measured(name: str, ways: Mapping[str, Any], seeds: int) -> Iterator[dict[str, Any]]:
    """Yields one row per way of training on a graph.

    Args:
        name: name of the graph, a key of :data:`CASES`.
        ways: name -> partitions and policy, or None for PyG, which must come first.
        seeds: runs per way, paired by their seeds.
    """
    graph, case = data.open_nodes(name), CASES[name]
    pyg: list[float] = []
    for way, parts in ways.items():
        started, found = time.process_time(), []
        for seed in range(seeds):
            torch.manual_seed(seed)
            if parts is None:
                found.append(pyg_accuracy(graph, case))
            else:
                found.append(our_accuracy(graph, case, *parts, seed))
        pyg = pyg or found
        row = {
            "graph": name, "model": case.model, "way": way, "seeds": seeds,
            "mean": round(float(np.mean(found)), 4),
            "deviation": round(float(np.std(found, ddof=1)), 4),
            **compared(found, pyg),
            "accuracy": [round(a, 4) for a in found],
            "cpu_s": round(time.process_time() - started, 1),
        }  # fmt: skip
        print(row, file=sys.stderr, flush=True)
        yield row


def compared(found: list[float], pyg: list[float]) -> dict[str, float]:
    """Returns the mean difference of the pairs, its standard error and Student's p."""
    difference = np.subtract(found, pyg)
    if not difference.any():
        return {"difference": 0.0, "error": 0.0, "p": 1.0}
    return {
        "difference": round(float(difference.mean()), 4),
        "error": round(float(difference.std(ddof=1) / np.sqrt(len(difference))), 4),
        "p": round(float(ttest_rel(found, pyg).pvalue), 3),
    }


def model_of(graph: data.NodeData, case: Case) -> SampledGNN:
    classes = int(graph.labels.max()) + 1
    return SampledGNN(case.model, graph.features.shape[1], case.hidden, classes, 2, 0.5)


def chosen(
    epochs: int, train: Callable[[], Any], score: Callable[[Any], float], graph: Any
) -> float:
    """Returns the test accuracy at the best validation accuracy; of equal ones, the later."""
    best = (-1.0, 0.0)
    for epoch in range(1, epochs + 1):
        train()
        if epoch % EVERY == 0:
            valid = score(graph.valid)
            if valid >= best[0]:
                best = (valid, score(graph.test))
    return best[1]


def pyg_accuracy(graph: data.NodeData, case: Case) -> float:
    """Trains the same layers with PyG, in full batch."""
    model = model_of(graph, case)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
    x, y = torch.from_numpy(graph.features), torch.from_numpy(graph.labels)
    inputs = [x, torch.from_numpy(graph.edges)]
    if case.model == "gcn":
        inputs = [x, *gcn_norm(inputs[1], num_nodes=len(y))]

    def train() -> None:
        model.train()
        loss = nn.functional.cross_entropy(model(*inputs)[graph.train], y[graph.train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def score(which: Any) -> float:
        model.eval()
        with torch.no_grad():
            return float((model(*inputs).argmax(1) == y)[which].float().mean())

    return chosen(case.epochs, train, score, graph)


def our_accuracy(graph: data.NodeData, case: Case, p: int, policy: Any, seed: int) -> float:
    """Trains from ``p`` partitions with ``policy``; one state's training nodes are one batch."""
    model = model_of(graph, case)
    with tempfile.TemporaryDirectory() as folder:
        parts = partition(
            graph.edges, len(graph.labels), p, Path(folder) / "g", features=graph.features,
            seed=seed, training_nodes=graph.train if isinstance(policy, NodeCache) else None,
            near=len(case.fanouts) if isinstance(policy, NodeCache) and policy.near else 0,
        )  # fmt: skip
        loader = SampledLoader(
            parts, policy, case.fanouts, len(graph.train), seeds=graph.train, labels=graph.labels,
            seed=seed, gcn_norm=case.model == "gcn",
        )  # fmt: skip
        trainer = NodeTrainer(model, loader)

        def score(which: Any) -> float:
            return trainer.evaluate_whole(which, graph.labels)

        accuracy = chosen(case.epochs, trainer.train_epoch, score, graph)
        loader.close()
    return accuracy


RESULT = Path(__file__).parent / "results" / "outofcore_near.json"
HALF = PARTITIONS // 2
WAYS: dict[str, Any] = {
    "pyg": None,
    "random": (PARTITIONS, NodeCache(HALF)),
    "near": (PARTITIONS, NodeCache(HALF, near=HALF)),
    "dispersed": (PARTITIONS, Dispersed(HALF)),
}


def near(args: argparse.Namespace) -> dict[str, Any]:
    """Measures ``--seeds`` pairs of every way on each graph.

    With ``--save``, the rows of graphs that were measured before and are not named now are kept.
    """
    names = args.graph or list(CASES)
    before = json.loads(RESULT.read_text())["rows"] if args.save and RESULT.exists() else []
    rows = [row for row in before if row["graph"] not in names]
    rows += [row for name in names for row in measured(name, WAYS, args.seeds)]
    return {"partitions": PARTITIONS, "resident": HALF, "rows": rows}
