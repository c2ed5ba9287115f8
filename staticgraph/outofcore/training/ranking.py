"""Ranks links: the rank of the true endpoint of an edge among all nodes.

For each test edge, every node is a candidate for its destination and for its source; candidates
that form an edge known to be true are excluded. All nodes are scored, partition by partition, so
that the embedding table need not fit in memory; the rank is 1 plus the number of better candidates
plus half the number of equal ones. A score that is not finite is worse than every finite one, and a
true endpoint with such a score is ranked last, so that neither a model which scores everything
alike nor a diverged one gains anything. Scores are computed in float64 and compared in float32: in
float32 alone, the rounding of a product would decide between equal candidates. Source: Bordes et
al., NeurIPS 2013.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.inputs import check_edges, check_form
from staticgraph.outofcore.training.link import LinkTrainer
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many

# Queries scored at once: with partitions of 16,384 nodes, a block of scores takes 32 MiB.
QUERIES = 512


@dataclass(frozen=True, slots=True)
class LinkScore:
    """Filtered metrics over both directions of ``edges`` edges.

    ``not_finite`` counts those of the ``2 * edges`` true endpoints whose score is not finite and
    which are ranked last; it is 0 unless the model has diverged.
    """

    edges: int
    mrr: float
    hits: dict[int, float]
    not_finite: int = 0


def evaluate_links(
    trainer: LinkTrainer, edges: ArrayLike, known: ArrayLike, hits: Sequence[int] = (1, 3, 10)
) -> LinkScore:
    """Ranks edges among all nodes.

    Args:
        trainer: the trainer whose committed embeddings are used, encoded if it has an encoder.
        edges: ``[3, T]`` source, destination, relation in the caller's numbers, or ``[2, T]`` if
            the graph has no relations.
        known: ``[3, K]`` (or ``[2, K]``) all true edges; those of an undirected graph in both
            directions, as in ``LinkData.known``, or true neighbours would count as errors. With no
            edges (``edges[:, :0]``), the ranks are unfiltered.
        hits: the values of k for Hits@k.

    Raises:
        BadGraph: if there are no edges, an array has another form, a node does not exist, or a
            relation does not occur in the training edges.
    """
    places, not_finite = filtered_places(trainer, edges, known)
    return LinkScore(
        edges=places.shape[1],
        mrr=float((1.0 / places).mean()),
        hits={k: float((places <= k).mean()) for k in hits},
        not_finite=not_finite,
    )


def filtered_places(
    trainer: LinkTrainer, edges: ArrayLike, known: ArrayLike
) -> tuple[NDArray[np.float64], int]:
    """Returns filtered ranks ``[2, T]`` of destinations and sources, and a count.

    The count is the number of true endpoints whose score is not finite.

    Raises:
        BadGraph: as :func:`evaluate_links`.
    """
    graph = trainer.graph
    tested, true = _triples(edges, graph, "edges"), _triples(known, graph, "known")
    if not tested.shape[1]:
        raise BadGraph(f"edges has shape {np.shape(edges)}: there is nothing to rank")
    # Nothing was learned for relations beyond those of the training edges.
    unknown = tested[2] >= max(1, graph.num_relations)
    if unknown.any():
        edge = int(unknown.argmax())
        raise BadGraph(
            f"edges: edge {edge} has relation {tested[2, edge]}, and "
            f"the edges of training have {how_many(graph.num_relations, 'relation')}: leave out "
            f"{how_many(int(unknown.sum()), 'edge')} with relations from {graph.num_relations} on"
        )
    owners, inside = np.divmod(tested[:2], graph.partition_size)
    values = torch.empty(*owners.shape, trainer.rows(0).size(-1))
    for partition in np.unique(owners).tolist():
        here = owners == partition
        values[torch.from_numpy(here)] = trainer.rows(partition)[torch.from_numpy(inside[here])]
    # Those that look for the destination, and after them those that look for the source.
    relations = trainer.relations[:, torch.from_numpy(tested[2])]
    query = trainer.decoder.query(values, relations).flatten(0, 1)
    ends = values.flip(0).flatten(0, 1).unsqueeze(1)
    positive = trainer.decoder.ranked(query.unsqueeze(1), ends).flatten(1).numpy()
    rows, nodes = _no_candidates(tested, true)
    better, equal = np.zeros((2, len(query)))
    for partition in range(graph.num_partitions):
        block = trainer.rows(partition)
        for first in range(0, len(query), QUERIES):
            span = slice(first, first + QUERIES)
            scores, against = trainer.decoder.ranked(query[span], block).numpy(), positive[span]
            last = ~np.isfinite(against)
            candidate = np.ones(scores.shape, bool)
            pairs = slice(*np.searchsorted(rows, [first, first + QUERIES]))
            owner, offset = np.divmod(nodes[pairs], graph.partition_size)
            here = owner == partition
            candidate[rows[pairs][here] - first, offset[here]] = False
            higher = (scores > against) & (scores < np.inf)
            better[span] += (candidate & (last | higher)).sum(axis=1)
            equal[span] += (candidate & ~last & (scores == against)).sum(axis=1)
    return (1.0 + better + 0.5 * equal).reshape(2, -1), int((~np.isfinite(positive)).sum())


def _triples(edges: ArrayLike, graph: PartitionedGraph, name: str) -> IntArray:
    """Returns ``[3, n]`` int64 with the graph's numbers; relation 0 if the graph has none, where
    ``[2, n]`` will do.

    Raises:
        BadGraph: for another shape or dtype, nodes that do not exist, or relations that are
            negative or of a graph without relations.
    """
    array = np.asarray(edges)
    check_form(array, (3,) if graph.columns == 3 else (2, 3), name)
    triples = np.zeros((3, array.shape[1]), np.int64)
    triples[: len(array)] = array
    check_edges(triples, graph.num_nodes, f"{name}: ")
    if graph.columns == 2 and triples[2].any():
        raise BadGraph(f"{name} has relations, and {graph.folder} was partitioned without any")
    triples[:2] = graph.numbers[triples[:2]]
    return triples


def _no_candidates(tested: IntArray, true: IntArray) -> tuple[IntArray, IntArray]:
    """Returns pairs of a query and a node that is no candidate of it, ascending by query.

    They are the true endpoint itself, and all known ones. Each of the ``[3, T]`` tested edges is
    two queries, each of which knows one end; ``[3, K]`` edges are true.
    """
    relations = 1 + int(max(tested[2].max(initial=0), true[2].max(initial=0)))
    nodes: list[IntArray] = []
    for way in (0, 1):
        codes, known = (edges[way] * relations + edges[2] for edges in (tested, true))
        order = np.argsort(known, kind="stable")
        begins, ends = (np.searchsorted(known[order], codes, side) for side in ("left", "right"))
        others = true[1 - way][order]
        nodes += (
            np.append(others[begin:end], node)
            for begin, end, node in zip(begins, ends, tested[1 - way], strict=True)
        )
    return np.repeat(np.arange(len(nodes)), [len(each) for each in nodes]), np.concatenate(nodes)
