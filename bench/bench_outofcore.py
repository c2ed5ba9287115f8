"""One graph larger than memory: what a policy costs, and the accuracy of training from disk.

    export OMP_NUM_THREADS=1
    python -m bench.bench_outofcore policies --rounds 3
    python -m bench.bench_outofcore near --seeds 5

``policies``: link prediction on FB15k-237 in memory, with COMET and with BETA. Besides waiting, a
policy costs additional batches: each state ends with one that is not full, and states have as many
rows to gather. All three train in one process, one epoch each in turn, so that a machine whose
speed drifts slows all of them equally. Times are processor time of the process (reading ahead and
writing back included) and wall-clock time; ratios are within a turn. The page cache holds the
graph.

``near``: node classification by PyG in memory, and by the same model trained from disk. All ways
have the same initial parameters per seed, the same optimizer and number of epochs, evaluate on full
neighbourhoods at the same epochs, and choose among these by the best validation accuracy (of equal
ones, the later). The runs of one seed are therefore a pair. Two things necessarily differ: the
order of dropout's random numbers, and, from disk, which part of a neighbourhood is resident in
training.

Every result goes to stdout as JSON, and with ``--save`` to ``bench/results``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from bench.interleave import spread
from bench.machine import RESULTS, write
from bench.options import options_of
from staticgraph.datasets.npz import read_npz
from staticgraph.outofcore import (
    Beta,
    Comet,
    Dispersed,
    InMemory,
    LinkConfig,
    LinkTrainer,
    NodeCache,
    NodeTrainer,
    SampledGNN,
    SampledLoader,
    partition,
)
from staticgraph.outofcore.disk import data

# The partitions for each policy, as the command line chooses them.
POLICIES: dict[str, tuple[int, Any]] = {
    "in memory": (1, InMemory()),
    "COMET": (32, Comet(8, 8)),
    "BETA": (16, Beta(4)),
}


def policies(options: argparse.Namespace) -> dict[str, Any]:
    """Runs ``--rounds`` epochs of each policy."""
    links = data.open_links("fb15k-237")
    with tempfile.TemporaryDirectory() as scratch:
        trainers = {}
        for name, (p, policy) in POLICIES.items():
            folder = Path(scratch) / name
            graph = partition(links.train, links.num_nodes, p, folder / "g", seed=0)
            trainers[name] = LinkTrainer(graph, policy, LinkConfig(seed=0), folder / "e")
        cpu_s: dict[str, list[float]] = {name: [] for name in POLICIES}
        for turn in range(options.rounds):
            for name, trainer in trainers.items():
                before = time.process_time()
                epoch = trainer.train_epoch()
                cpu_s[name].append(time.process_time() - before)
                print(f"{turn} {name} {cpu_s[name][-1]:.1f} s CPU {epoch}", file=sys.stderr)
        rows = []
        for name, trainer in trainers.items():
            epochs = trainer.history
            epoch_s = [epoch.seconds for epoch in epochs]
            base_s = [epoch.seconds for epoch in trainers["in memory"].history]
            # In the first turn, loops are compiled.
            first = min(1, options.rounds - 1)
            cpu_ratio, time_ratio = (
                spread(np.divide(*pair)[first:])
                for pair in ((cpu_s[name], cpu_s["in memory"]), (epoch_s, base_s))
            )
            rows.append(
                {
                    "way": name,
                    "partitions": POLICIES[name][0],
                    "policy": str(POLICIES[name][1]),
                    "batches": epochs[-1].batches,
                    "states": epochs[-1].states,
                    "cpu_s": cpu_s[name],
                    "epoch_s": epoch_s,
                    "waited_s": [epoch.waited_s for epoch in epochs],
                    "cpu_ratio": cpu_ratio,
                    "time_ratio": time_ratio,
                }
            )
            trainer.close()
    return {"graph": "FB15k-237", "epochs": options.rounds, "rows": rows}


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
HALF = PARTITIONS // 2
# The epochs between two evaluations.
EVERY = 5
# None is PyG, which comes first.
WAYS: dict[str, Any] = {
    "pyg": None,
    "random": NodeCache(HALF),
    "near": NodeCache(HALF, near=HALF),
    "dispersed": Dispersed(HALF),
}


def near(options: argparse.Namespace) -> dict[str, Any]:
    """Measures ``--seeds`` pairs of every way on each graph."""
    rows = [row for name in CASES for row in accuracies(name, options.seeds)]
    return {"partitions": PARTITIONS, "resident": HALF, "rows": rows}


def accuracies(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Yields one row per way of training on a graph of :data:`CASES`; runs are paired by seed."""
    case = CASES[name]
    graph = with_labels(name) if name == "cornell5" else data.open_nodes(name)
    pyg: list[float] = []
    for way, policy in WAYS.items():
        accuracy = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            if policy is None:
                accuracy.append(pyg_accuracy(graph, case))
            else:
                accuracy.append(our_accuracy(graph, case, policy, seed))
        pyg = pyg or accuracy
        difference = np.subtract(accuracy, pyg)
        row = {
            "graph": name,
            "model": case.model,
            "way": way,
            "seeds": seeds,
            "mean": float(np.mean(accuracy)),
            "deviation": float(np.std(accuracy, ddof=1)),
            "difference": float(difference.mean()),
            "error": float(difference.std(ddof=1) / np.sqrt(seeds)),
            "accuracy": accuracy,
        }
        print(row, file=sys.stderr, flush=True)
        yield row


def with_labels(name: str) -> data.NodeData:
    """Opens a graph without labels, and makes some, the same each time.

    A label is the index of the largest of five random values that were averaged over neighbours,
    and features are a noisy encoding of the labels.
    """
    file = read_npz(data.find(name))
    n, once = int(file["num_nodes"]), file["edges"].astype(np.int64)
    edges = np.concatenate([once, once[::-1, once[0] != once[1]]], axis=1)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(n, 5))
    degree = np.maximum(1, np.bincount(edges[1], minlength=n))[:, None]
    for _ in range(2):
        mean = np.zeros_like(values)
        np.add.at(mean, edges[1], values[edges[0]])
        values = 0.5 * values + mean / degree
        values = (values - values.mean(axis=0)) / values.std(axis=0)
    labels = values.argmax(axis=1)
    hints = rng.normal(size=(5, 16))[labels]
    features = (hints + 3.0 * rng.normal(size=hints.shape)).astype(np.float32)
    return data.NodeData(
        name, edges, features, labels, *np.split(rng.permutation(n), [n // 10, n // 5])
    )


def model_of(graph: data.NodeData, case: Case) -> SampledGNN:
    classes = int(graph.labels.max()) + 1
    return SampledGNN(case.model, graph.features.shape[1], case.hidden, classes, 2, 0.5)


def chosen(
    epochs: int, train: Callable[[], Any], score: Callable[[Any], float], graph: data.NodeData
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


def our_accuracy(graph: data.NodeData, case: Case, policy: Any, seed: int) -> float:
    """Trains from disk with ``policy``; one state's training nodes are one batch."""
    model, cached = model_of(graph, case), isinstance(policy, NodeCache)
    with tempfile.TemporaryDirectory() as folder:
        parts = partition(
            graph.edges, len(graph.labels), PARTITIONS, Path(folder) / "g",
            features=graph.features, seed=seed, training_nodes=graph.train if cached else None,
            near=len(case.fanouts) if cached and policy.near else 0,
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


def main() -> None:
    measurements = {"policies": policies, "near": near}
    options = options_of(__doc__, measurement=tuple(measurements), rounds=3, seeds=5, save=False)
    torch.set_num_threads(1)
    results = measurements[options.measurement](options)
    print(json.dumps(results, indent=1))
    if options.save:
        write(RESULTS / f"outofcore_{options.measurement}.json", results)


if __name__ == "__main__":
    main()
