"""DENSE compared with PyG's NeighborLoader, and how well static hops fit samples."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

from staticgraph.outofcore.buffer.resident import Neighbours
from staticgraph.outofcore.disk import data
from staticgraph.outofcore.sampling.dense import DenseSampler
from staticgraph.outofcore.sampling.sampled_graph import (
    SampledGraphs,
    plan_of,
    schema_of,
    size_of,
)


def sample(args: argparse.Namespace) -> dict[str, Any]:
    """Measures sampling 1 to 4 layers on Cornell5 (both directions of each friendship)."""
    graph = data.open_nodes("cornell5")
    n = len(graph.labels)
    neighbours = Neighbours.of(graph.edges[0], graph.edges[1], n)
    peer = pyg_sampler(graph) if has_wheels() else None
    rows = []
    for layers in range(1, 5):
        fanouts = [10] * layers
        sampler = DenseSampler(neighbours, fanouts)
        rng = np.random.default_rng(0)
        batches = [rng.choice(n, args.batch_size, replace=False) for _ in range(args.batches)]
        found = [sampler.sample(seeds, k) for k, seeds in enumerate(batches)]
        dense_s = [timed(sampler.sample, seeds, k) for k, seeds in enumerate(batches)]
        few = batches[: 3 if layers < 3 else 1]
        other_s = [timed(peer, fanouts, seeds, k) for k, seeds in enumerate(few)] if peer else []
        edges = np.mean([s.num_edges for s in found])
        again = np.mean(
            [sum((layers - h) * (t >= 0).sum() for h, t in enumerate(s.draws)) for s in found]
        )
        rows.append(
            {
                "layers": layers,
                "ms": round(1e3 * float(np.median(dense_s)), 2),
                "ms_p90": round(1e3 * float(np.quantile(dense_s, 0.9)), 2),
                "other_ms": round(1e3 * float(np.median(other_s)), 1) if other_s else None,
                "nodes": round(float(np.mean([len(s.nodes) for s in found]))),
                "edges": round(float(edges)),
                "edges_without_reuse": round(float(again)),
                "reuse": round(float(again / edges), 2),
            }
        )
    return {
        "graph": "cornell5", "fanout": 10, "batch_size": args.batch_size,
        "other": "PyG NeighborLoader" if peer else "none (no pyg-lib or torch-sparse)",
        "layers": rows,
    }  # fmt: skip


def has_wheels() -> bool:
    from torch_geometric import typing

    return bool(typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE)


def pyg_sampler(graph: data.NodeData) -> Any:
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    whole = Data(edge_index=torch.from_numpy(graph.edges), num_nodes=len(graph.labels))

    def run(fanouts: list[int], seeds: np.ndarray, seed: int) -> Any:
        loader = NeighborLoader(
            whole, fanouts, input_nodes=torch.from_numpy(seeds), batch_size=len(seeds)
        )
        return next(iter(loader))

    return run


def timed(function: Any, *arguments: Any) -> float:
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def hops(args: argparse.Namespace) -> dict[str, Any]:
    """Measures how well two buckets fit 400 batches, compared with the bound that always fits."""
    rows = []
    schema = schema_of(0, labels=False, weights=False)
    for name, fanouts in (("cornell5", [15, 10]), ("cornell5", [10, 10, 10]), ("cora", [15, 10])):
        graph = data.open_nodes(name)
        n = len(graph.labels)
        sampler = DenseSampler(Neighbours.of(graph.edges[0], graph.edges[1], n), fanouts)
        for batch_size in (64, 256, 1024):
            rng = np.random.default_rng(1)
            samples = (
                sampler.sample(rng.choice(n, batch_size, replace=False), k) for k in range(424)
            )
            trial = np.array([size_of(next(samples), False) for _ in range(24)])
            graphs = SampledGraphs(plan_of([trial], (1, 1), schema), schema)
            counts, lost = [], 0
            for sample in samples:
                counts.append(len(sample.nodes))
                lost += graphs.bucket_of(sample) is None
            bound = sum(
                min(n, batch_size * int(np.prod(fanouts[:h]))) for h in range(len(fanouts) + 1)
            )
            rows.append(
                {
                    "graph": name, "fanouts": fanouts, "batch_size": batch_size,
                    "deviation_of_rows": round(float(np.std(counts) / np.mean(counts)), 4),
                    "batches_a_rung": graphs.statistics.batches, "splits": lost,
                    "efficiency": round(graphs.statistics.efficiency, 3),
                    "bound_over_mean": round(bound / float(np.mean(counts)), 2),
                }
            )  # fmt: skip
    return {"batches": 400, "hops": rows}
