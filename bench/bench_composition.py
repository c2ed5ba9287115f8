"""Does packing hurt training? Batch composition and training results under each strategy.

    python -m bench.bench_composition                     composition on HIV's sizes, seconds
    python -m bench.bench_composition --train [--json F]  and training on NCI1, three seeds, minutes

Composition: the correlation of the sizes of two graphs of one batch (0 at random; 1 if batches are
sorted; slightly below 0 if sums are balanced), how much the mean size differs between batches,
relative to random batches, and how many pairs of graphs share a batch in two successive epochs,
relative to chance. Training: a GIN with the same initial weights per seed under every strategy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from staticgraph.epochs.batcher import Batcher
from staticgraph.epochs.strategies import EpochBatches
from staticgraph.packing.exact import exact_bounds
from staticgraph.packing.place import limits_array, place_batches
from staticgraph.packing.random import shuffle, stream_of
from staticgraph.plans.choose import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.table import table

STRATEGIES = ("random", "exact", "stream", "offline", "sorted")
HIV, NCI1 = "examples/data/hiv.npz", "examples/data/NCI1.npz"
SEEDS, EPOCHS, BATCH_SIZE, RATE = (0, 1, 2), 25, 64, 3e-3


def make_batcher(strategy: str, sizes: np.ndarray, plan: BucketPlan, indices, seed: int) -> Batcher:
    """Returns a batcher for the strategy; the library has no ``random`` and ``sorted``."""
    packed = strategy in ("stream", "offline")
    batcher = Batcher(
        sizes,
        plan,
        indices=indices,
        exact=not packed,
        shuffle=True,
        seed=seed,
        window=None if strategy == "offline" else 8,
    )
    if strategy in ("random", "sorted"):
        batcher._made = unbalanced(batcher, by_size=strategy == "sorted")  # type: ignore
    return batcher


def unbalanced(batcher: Batcher, by_size: bool) -> Callable[[int], EpochBatches]:
    """Makes batches as drawn, or of graphs of similar size with the batches in random order."""

    def made(epoch: int) -> EpochBatches:
        order = batcher.indices.copy()
        shuffle(order, stream_of(batcher.seed, epoch))
        size = batcher.plan.batch_size or 1
        bounds = exact_bounds(len(order), size)
        if by_size:
            order = order[np.argsort(batcher.sizes[order, 0], kind="stable")]
            batches = np.arange(len(bounds) - 1)
            shuffle(batches, stream_of(batcher.seed, epoch, 1))
            order = np.concatenate([order[bounds[b] : bounds[b + 1]] for b in batches])
            bounds = np.concatenate([[0], np.cumsum(np.diff(bounds)[batches])])
        limits = limits_array(batcher.plan.capacities)
        buckets = place_batches(batcher.sizes, order, bounds.astype(np.int64), limits)
        assert (buckets >= 0).all(), "the plan of this benchmark must hold every batch"
        return EpochBatches(order, bounds, buckets)

    return made


def roomy(plan: BucketPlan, sizes: np.ndarray) -> BucketPlan:
    """Returns the plan with one more bucket, which holds a batch of the largest graphs."""
    size = plan.batch_size or 1
    nodes, edges = np.sort(sizes, axis=0)[-size:].sum(axis=0).tolist()
    return BucketPlan.of([*plan.capacities, Capacity(nodes + 1, edges, size + 1)], size)


@dataclass(frozen=True)
class Composition:
    """How a strategy composes batches.

    Attributes:
        strategy: name of the strategy.
        correlation: correlation between the node counts of two graphs of one batch.
        spread: standard deviation of the mean node count per batch, over that of random batches.
        again: pairs of graphs that share a batch in two successive epochs, over the number
            expected by chance.
        filled: real nodes over physical nodes.
    """

    strategy: str
    correlation: float
    spread: float
    again: float
    filled: float


def composition(strategy: str, sizes: np.ndarray, plan: BucketPlan, epochs: int = 4) -> Composition:
    """Measures a strategy over a few epochs of all graphs."""
    batcher = make_batcher(strategy, sizes, plan, None, seed=0)
    nodes = sizes[:, 0].astype(float)
    within, spread, filled, last, again = [], [], [], None, []
    for epoch in range(epochs):
        batches = [b.ids for b in batcher.epoch(epoch)]
        full = [ids for ids in batches if len(ids) > len(nodes) / len(batches) / 2]
        within.append(correlation([nodes[ids] for ids in full], nodes))
        expected = np.sqrt(np.mean([nodes.var() / len(ids) for ids in full]))
        spread.append(np.std([nodes[ids].mean() for ids in full]) / expected)
        rows = sum(batcher.plan.capacities[b.bucket].nodes for b in batcher.epoch(epoch))
        filled.append(nodes.sum() / rows)
        batch_of = np.empty(len(nodes), dtype=np.int64)
        for number, ids in enumerate(batches):
            batch_of[ids] = number
        if last is not None:
            again.append(met_again(last, batch_of))
        last = batch_of
    means = (float(np.mean(values)) for values in (within, spread, again, filled))
    return Composition(strategy, *means)


def correlation(batches: list[np.ndarray], values: np.ndarray) -> float:
    """Returns the intraclass correlation: between two different members of a batch, all pairs."""
    mean, variance = values.mean(), values.var()
    pairs = products = 0.0
    for members in batches:
        d = members - mean
        products += d.sum() ** 2 - (d**2).sum()
        pairs += len(d) * (len(d) - 1)
    return products / pairs / variance


def met_again(before: np.ndarray, after: np.ndarray) -> float:
    """Returns the pairs that share a batch before and after, over those expected by chance."""
    n = len(before)
    _, both = np.unique(before * (after.max() + 1) + after, return_counts=True)

    def pairs(counts: np.ndarray) -> float:
        return float((counts * (counts - 1.0)).sum())

    chance = pairs(np.bincount(before)) * pairs(np.bincount(after)) / (n * (n - 1.0))
    return pairs(both) / chance


def train(strategy: str, seed: int, epochs: int) -> tuple[list[float], float, int]:
    """Trains on NCI1; returns the loss per epoch, the final test accuracy and the step count."""
    import torch
    from torch.nn.functional import cross_entropy

    import staticgraph as sg
    from staticgraph.models import build

    store = sg.datasets.open(NCI1)
    ids = np.random.default_rng(1).permutation(len(store.sizes))
    held, trained = ids[:822], ids[822:]
    exact = plan_buckets(store.sizes, BATCH_SIZE, indices=trained)
    plan = roomy(exact, store.sizes) if strategy in ("random", "sorted") else exact
    plan = BucketPlan.of(plan.capacities, BATCH_SIZE)
    if strategy in ("stream", "offline"):
        c = exact.capacities[0]
        slots = int(1.25 * BATCH_SIZE) + 1
        plan = BucketPlan.of([Capacity(c.nodes, c.edges, slots, c.max_graph_nodes)], BATCH_SIZE)
    torch.manual_seed(seed)
    model = build("gin", store, hidden=32, layers=3, num_outputs=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)

    def loss_of(out, batch):
        return cross_entropy(out, batch.y.reshape(-1).long(), reduction="none")

    runner = sg.StaticGraphRunner(model, plan, "eager", loss=loss_of, optimizer=optimizer)
    packed = strategy in ("stream", "offline")
    loader = sg.StaticLoader(
        store, plan, indices=trained, exact=not packed, shuffle=True, seed=seed
    )
    loader._batcher = make_batcher(strategy, store.sizes, plan, trained, seed)
    losses, steps = [], 0
    for epoch in range(epochs):
        # Linear decay to nearly zero: at a constant rate, the running statistics of BatchNorm lag
        # and the accuracy of the last epoch is arbitrary (0.47 to 0.73), in plain PyG as well.
        optimizer.param_groups[0]["lr"] = RATE * (1.0 - epoch / epochs)
        total = graphs = 0.0
        for batch in loader:
            number = int(batch.num_real_graphs)
            total += float(runner.step(batch)) * number
            graphs += number
            steps += 1
        losses.append(total / graphs)
    model.eval()
    test = sg.StaticLoader(store, plan_buckets(store, BATCH_SIZE), indices=held, exact=False)
    tester = sg.StaticGraphRunner(model, test.plan, "eager")
    right = 0
    with torch.no_grad():
        for batch in test:
            out = tester(batch)
            hit = out.argmax(1) == batch.y.reshape(-1)
            right += int(hit[batch.graph_mask].sum())
    return losses, right / len(held), steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict = {"composition": [], "training": []}
    sizes = np.load(HIV, allow_pickle=False)
    sizes = np.stack([sizes["num_nodes"], 2 * sizes["num_bonds"]], axis=1).astype(np.int64)
    for batch_size in (32, 128):
        plan = plan_buckets(sizes, batch_size, indices=np.arange(len(sizes)))
        for strategy in STRATEGIES:
            given = roomy(plan, sizes) if strategy in ("random", "sorted") else plan
            found["composition"].append(
                {"batch_size": batch_size, **asdict(composition(strategy, sizes, given))}
            )
    print(
        table(
            ["batch", "strategy", "correlation", "spread", "met again", "filled"],
            [
                [r["batch_size"], r["strategy"], f"{r['correlation']:.4f}", f"{r['spread']:.3f}",
                 f"{r['again']:.2f}", f"{r['filled']:.2%}"]
                for r in found["composition"]
            ],
        )
    )  # fmt: skip
    if args.train:
        for seed in SEEDS:  # interleaved, so that a slow minute affects every strategy
            for strategy in STRATEGIES:
                losses, accuracy, steps = train(strategy, seed, args.epochs)
                found["training"].append(
                    {"strategy": strategy, "seed": seed, "losses": losses, "accuracy": accuracy,
                     "steps": steps}
                )  # fmt: skip
                print(strategy, seed, f"{losses[-1]:.4f} {accuracy:.4f} {steps}", flush=True)
        for strategy in STRATEGIES:
            rows = [r for r in found["training"] if r["strategy"] == strategy]
            last, hits = [r["losses"][-1] for r in rows], [r["accuracy"] for r in rows]
            print(
                f"{strategy:8} loss {np.mean(last):.4f} +- {np.std(last, ddof=1):.4f}, accuracy "
                f"{np.mean(hits):.4f} +- {np.std(hits, ddof=1):.4f}"
            )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
