"""One graph larger than memory: partitions on disk, sampled into static buckets.

The problem: a large graph with its features or embeddings fits neither the device nor the host, and
a sampled mini-batch has another shape every time. The idea, after Marius (OSDI 2021) and MariusGNN
(EuroSys 2023): nodes are cut into partitions on disk, a replacement policy brings a few of them at
a time into a fixed buffer, sampling stays inside the buffer, and every sampled batch is padded hop
by hop into a few static shapes. The invariant: in an epoch every edge is trained on exactly once,
with both ends resident. It does not spread one graph over several machines.

This is a room of its own: nothing else in the library imports it.
"""

from staticgraph.outofcore import data
from staticgraph.outofcore.bias import edge_permutation_bias
from staticgraph.outofcore.encoded_link import EncodedLinkTrainer
from staticgraph.outofcore.graph import PartitionedGraph
from staticgraph.outofcore.hops import HopBatch, HopCapacity, HopLadder
from staticgraph.outofcore.layers import SampledGNN
from staticgraph.outofcore.link import LinkEpoch, LinkTrainer
from staticgraph.outofcore.link_step import LinkConfig
from staticgraph.outofcore.loader import SampledLoader
from staticgraph.outofcore.node import NodeEpoch, NodeTrainer
from staticgraph.outofcore.node_policy import Dispersed, NodeCache
from staticgraph.outofcore.partitioning import partition
from staticgraph.outofcore.policy import Beta, Comet, InMemory
from staticgraph.outofcore.ranking import LinkScore, evaluate_links
from staticgraph.outofcore.sampled_batch import SampledBatch
from staticgraph.outofcore.schedule import NodeSchedule, NodeState, Schedule, State
from staticgraph.outofcore.tuning import Tuning, tune

__all__ = [
    "Beta",
    "Comet",
    "Dispersed",
    "EncodedLinkTrainer",
    "HopBatch",
    "HopCapacity",
    "HopLadder",
    "InMemory",
    "LinkConfig",
    "LinkEpoch",
    "LinkScore",
    "LinkTrainer",
    "NodeCache",
    "NodeEpoch",
    "NodeSchedule",
    "NodeState",
    "NodeTrainer",
    "PartitionedGraph",
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
