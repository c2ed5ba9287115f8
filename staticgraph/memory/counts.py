"""The counts of a capacity that the bytes of a step are sums of, and the terms of each form.

The notation is that of :mod:`staticgraph.memory.fit`. Pure numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, get_args

from staticgraph.sizes.attention import AttentionBlock, attention_path, clipped
from staticgraph.sizes.capacity import Capacity

Form = Literal["linear", "attention", "blocks", "quadratic"]
FORMS: tuple[Form, ...] = get_args(Form)

# How a bucket's attention is laid out: one block of all graphs, each as wide as the largest, or
# the blocks by size of a converted model's attention (where they are worth it, or always).
Layout = Literal["dense", "auto", "size-classed"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def counts_of(
    capacity: Capacity, layout: Layout = "dense", counted: bool = False
) -> dict[str, float]:
    """Every count that a form may have.

    With ``counted``, rows and blocks of attention are as large as real graphs can make them, as for
    layers that follow real counts: the difference for padding is then in the fixed term, whose sign
    a fit can determine.
    """
    blocks = blocks_in(capacity, layout, counted)
    nodes, edges, graphs = capacity.nodes, capacity.edges, capacity.graphs
    extra = capacity.extra
    if counted:
        nodes, edges, graphs = capacity.node_limit, capacity.edge_limit, capacity.graph_limit
        extra = tuple((name, rows - 1) for name, rows in extra)
    places = float(sum(block.places for block in blocks))
    pairs = float(sum(block.places * block.width for block in blocks))
    widest = float(max(block.places * block.width for block in blocks))
    return {
        "fixed": 1.0,
        "nodes": float(nodes),
        "edges": float(edges),
        "graphs": float(graphs),
        "places": places,
        "pairs": pairs,
        "widest": widest,
        "block": float(max(block.places for block in blocks)),
        "nodes^2": float(nodes) ** 2,
        **{rows_of(name): float(rows) for name, rows in extra},
    }


# A fit needs the blocks of a thousand capacities, again for every form.
@lru_cache(maxsize=1 << 13)
def blocks_in(capacity: Capacity, layout: Layout, counted: bool) -> tuple[AttentionBlock, ...]:
    """The blocks of attention, by descending size.

    With ``counted``, they are only as large as real graphs can make them.
    """
    blocks = (AttentionBlock(0, capacity.graphs, capacity.max_graph_nodes),)
    if layout != "dense":
        blocks = attention_path(capacity, layout).blocks
    if counted:
        limits = capacity.node_limit, capacity.graph_limit
        blocks = clipped(blocks, *limits, capacity.max_graph_nodes)
    return blocks


def rows_of(axis: str) -> str:
    """The term of an axis, which cannot collide with ``nodes`` or another term of a form."""
    return f"rows of {axis}"


TERMS: dict[Form, tuple[str, ...]] = {
    "linear": ("fixed", "nodes", "edges", "graphs", "places"),
    "attention": ("fixed", "nodes", "edges", "graphs", "places", "pairs"),
    "blocks": ("fixed", "nodes", "edges", "graphs", "places", "pairs", "widest", "block"),
    "quadratic": ("fixed", "nodes", "edges", "graphs", "nodes^2"),
}
# ``block`` is the places of the largest of several blocks: memory that only one block at a time
# needs.
# The layouts that a form may have: with a single block, the widest block is all of them.
LAYOUTS_OF: dict[Form, tuple[Layout, ...]] = {
    "linear": LAYOUTS,
    "attention": LAYOUTS,
    "blocks": LAYOUTS[1:],
    "quadratic": LAYOUTS[:1],
}
# The terms that are sums over the axes where nodes have types.
SUMS = ("nodes", "edges")


def terms_of(form: Form, axes: Sequence[str] = (), typed: bool = False) -> tuple[str, ...]:
    """The terms of a form over data with these axes."""
    terms = tuple(term for term in TERMS[form] if not (typed and term in SUMS))
    return terms + tuple(map(rows_of, axes))
