"""One graph larger than memory: partitions on disk, sampled into static buckets.

Problem: a large graph with its features or embeddings fits on neither the device nor the host, and
every sampled mini-batch has a different shape. Idea, after Marius (OSDI 2021) and MariusGNN
(EuroSys 2023): nodes are divided into partitions on disk, a replacement policy loads a few of them
at a time into a fixed buffer, sampling stays inside the buffer, and every sampled batch is padded
to one of a few buckets, on which any PyG model runs. Invariant: when training on edges, each epoch
trains on every edge exactly once, with both endpoints resident. This package does not distribute
one graph over several machines.

It is self-contained: nothing else in the library imports it.
"""

from staticgraph.outofcore.disk import data
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.partitioning import partition
from staticgraph.outofcore.policies.policy import (
    Beta,
    Comet,
    Dispersed,
    InMemory,
    NodeCache,
    Schedule,
    State,
    edge_permutation_bias,
)
from staticgraph.outofcore.policies.tuning import Tuning, tune
from staticgraph.outofcore.sampling.sampled_graph import SampleStatistics
from staticgraph.outofcore.sampling.sampled_loader import SampledBatch, SampledLoader
from staticgraph.outofcore.training.gnn import SampledGNN
from staticgraph.outofcore.training.link import LinkEpoch, LinkTrainer
from staticgraph.outofcore.training.link_step import LinkConfig
from staticgraph.outofcore.training.node import NodeEpoch, NodeTrainer
from staticgraph.outofcore.training.ranking import LinkScore, evaluate_links

__all__ = [
    "Beta",
    "Comet",
    "Dispersed",
    "InMemory",
    "LinkConfig",
    "LinkEpoch",
    "LinkScore",
    "LinkTrainer",
    "NodeCache",
    "NodeEpoch",
    "NodeTrainer",
    "PartitionedGraph",
    "SampleStatistics",
    "SampledBatch",
    "SampledGNN",
    "SampledLoader",
    "Schedule",
    "State",
    "Tuning",
    "data",
    "edge_permutation_bias",
    "evaluate_links",
    "partition",
    "tune",
]
