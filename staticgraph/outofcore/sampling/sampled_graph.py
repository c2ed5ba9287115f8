"""Sampled neighbourhoods as static batches: the draws are edges, the rung is a bucket.

Problem: the sizes of a sample differ from batch to batch, and the worst case (batch size times all
fan-outs) is several times the actual size. Idea: the numbers of nodes and edges vary by about one
per cent, so a capacity a few per cent over the mean of trial samples holds nearly every batch; the
others take the next bucket, and a batch that fits none is sampled again in two halves of its seeds.
The last bucket holds whatever a single seed can reach. Invariant: no node or edge of a sample is
ever dropped.

A sample is one graph of a batch, whose first nodes are the seeds. Any PyG model runs on it: with as
many layers as hops, the rows of the seeds are those of the model on the sampled neighbourhood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from staticgraph.batches.batch.static_batch import StaticBatch, filled
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.outofcore.sampling.dense import DenseSample
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import Field, Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_columns import GraphColumns

# Relative to the mean of the trial; the first held all of 400 batches on the graphs tried.
MARGINS = (0.05, 0.3)
# The least margin in standard deviations: small batches vary by more than the relative margin.
DEVIATIONS = 5.0
# Rows are a multiple of this, which suits vector units and matrix products.
ALIGNMENT = 8


@dataclass(slots=True)
class SampleStatistics:
    """Counts of how the buckets of a loader were used.

    Attributes:
        batches: the number of batches of each bucket.
        splits: how often the seeds of a batch were halved, since no bucket held their sample.
        real_rows, padded_rows: nodes of the samples, and of their buckets.
    """

    batches: list[int]
    splits: int = 0
    real_rows: int = 0
    padded_rows: int = 0

    @property
    def efficiency(self) -> float:
        """Real rows divided by padded rows."""
        return self.real_rows / self.padded_rows if self.padded_rows else 1.0


def batch_of(
    layout: SlotLayout,
    sample: DenseSample,
    nodes: dict[str, NDArray[np.generic]],
    *degrees: IntArray,
) -> StaticBatch:
    """Pads a sample to the slot of a bucket that holds it; each draw is an edge.

    ``nodes`` are ``[n, ...]`` fields of its nodes. If edges have weights, each node has exactly one
    self-loop, whatever loops were drawn, and there are the two degrees of :func:`gcn_weights`.
    """
    sources, counts, weighted = [], [], "edge_weight" in layout.schema
    last = np.empty((len(sample.nodes) - sample.hops[-2], 0), np.int32)
    for first, drawn in zip(sample.hops, (*sample.draws, last), strict=False):
        if weighted:
            loop = np.arange(first, first + len(drawn), dtype=np.int32)[:, None]
            drawn = np.concatenate([loop, np.where(drawn == loop, -1, drawn)], axis=1)
        real = drawn >= 0
        sources.append(drawn[real])
        counts.append(real.sum(axis=1))
    source = np.concatenate(sources)
    destination = np.repeat(np.arange(len(sample.nodes)), np.concatenate(counts))
    if weighted:
        nodes = {**nodes, "edge_weight": gcn_weights(source, destination, *degrees)}
    nothing = np.empty(0, np.int64)
    graph = GraphColumns(
        schema=layout.schema,
        node_offsets=np.array([0, len(sample.nodes)]),
        edge_offsets=np.array([0, len(source)]),
        edge_src=source,
        edge_dst=destination,
        row_ptr=nothing,  # the runner computes the pointers of a model that reads them
        transpose=nothing,
        edge_origin=nothing,
        columns=nodes,
        name="sample",
    )
    return filled(layout, graph, [0])


def schema_of(width: int, *, labels: bool, weights: bool) -> Schema:
    """Returns the schema of sampled batches: ``x`` of this width if any, ``y``, edge weights."""
    fields = [Field("x", "node", (width,), "float32")] if width else []
    fields += [Field("y", "node", (), "int64")] if labels else []
    fields += [Field("edge_weight", "edge", (), "float32")] if weights else []
    return Schema(tuple(fields))


def plan_of(trials: Sequence[IntArray], bound: tuple[int, int], schema: Schema) -> BucketPlan:
    """Returns buckets for samples as in a trial.

    Args:
        trials: for each state of the buffer ``[n, 2]``, the nodes and edges of n samples.
        bound: the most nodes and edges of a batch of one seed.
        schema: the fields of the batches.
    """
    mean = np.array([sizes.mean(axis=0) for sizes in trials])
    spread = np.array([sizes.std(axis=0) for sizes in trials])
    limits = [
        np.maximum(mean * (1.0 + margin), mean + DEVIATIONS * number * spread).max(axis=0)
        for number, margin in enumerate(MARGINS, 1)
    ]
    limits = np.maximum.accumulate(np.ceil([*limits, bound])).astype(np.int64)
    capacities = [
        # A node and a graph are padding.
        Capacity.distinct(nodes + ALIGNMENT, max(ALIGNMENT, edges), 2)
        for nodes, edges in (-(-limits // ALIGNMENT) * ALIGNMENT).tolist()
    ]
    return replace(BucketPlan.of(capacities), schema=schema)


def size_of(sample: DenseSample, closed: bool) -> tuple[int, int]:
    """Returns the nodes of a sample, and how many edges it has at most."""
    nodes = len(sample.nodes)
    return nodes, sum(int((drawn >= 0).sum()) for drawn in sample.draws) + closed * nodes


def gcn_weights(
    source: NDArray[np.integer], destination: IntArray, degrees: IntArray, whole_degrees: IntArray
) -> NDArray[np.float32]:
    """Returns ``[e]``: GCN's normalisation of edges with one self-loop per node.

    GCN is the mean over a node's closed neighbourhood of ``sqrt((1 + d_i) / (1 + d_j)) x_j``, with
    the degrees d of the whole graph. Here it is the mean over the resident part of the
    neighbourhood, estimated from the neighbours drawn from it, with the same d. Since the resident
    part is random, this is the best available estimate, and it equals GCN if everything is resident
    and drawn. With degrees counted in the resident part instead, the weights in training would
    differ from those in evaluation on full neighbourhoods.

    Args:
        source, destination: ``[e]`` positions among the nodes.
        degrees: ``[n]`` neighbours that could be drawn, without self-loops.
        whole_degrees: ``[n]`` the same in the whole graph.
    """
    root = np.sqrt(1.0 + whole_degrees)
    drawn = np.bincount(destination, minlength=len(root)) - 1
    share = degrees / np.maximum(1, drawn) / (degrees + 1.0)
    neighbour = (root * share)[destination] / root[source]
    return np.where(source == destination, 1.0 / (degrees[destination] + 1.0), neighbour).astype(
        np.float32
    )
