"""The counts of a capacity that the bytes of a step are sums of, and the terms of each form.

The notation is that of :mod:`staticgraph.memory.fit`. Pure numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from staticgraph.sizes.capacity import Capacity

Form = Literal["linear", "attention", "quadratic"]
FORMS: tuple[Form, ...] = get_args(Form)


def counts_of(capacity: Capacity) -> dict[str, float]:
    """Every count that a form may have."""
    places = capacity.graphs * capacity.max_graph_nodes
    return {
        "fixed": 1.0,
        "nodes": float(capacity.nodes),
        "edges": float(capacity.edges),
        "graphs": float(capacity.graphs),
        "places": float(places),
        "pairs": float(places * capacity.max_graph_nodes),
        "nodes^2": float(capacity.nodes) ** 2,
        **{rows_of(name): float(rows) for name, rows in capacity.extra},
    }


def rows_of(axis: str) -> str:
    """The term of an axis, which cannot collide with ``nodes`` or another term of a form."""
    return f"rows of {axis}"


TERMS: dict[Form, tuple[str, ...]] = {
    "linear": ("fixed", "nodes", "edges", "graphs", "places"),
    "attention": ("fixed", "nodes", "edges", "graphs", "places", "pairs"),
    "quadratic": ("fixed", "nodes", "edges", "graphs", "nodes^2"),
}
# The terms that are sums over the axes where nodes have types.
SUMS = ("nodes", "edges")


def terms_of(form: Form, axes: Sequence[str] = (), typed: bool = False) -> tuple[str, ...]:
    """The terms of a form over data with these axes."""
    terms = tuple(term for term in TERMS[form] if not (typed and term in SUMS))
    return terms + tuple(map(rows_of, axes))
