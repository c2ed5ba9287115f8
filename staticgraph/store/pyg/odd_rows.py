"""The error message for a field whose rows are neither nodes nor edges nor constant in number."""

from __future__ import annotations

from collections.abc import Mapping

from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many

# A field that matches a level in at least this share of graphs belongs to it; the others are
# errors.
MOST = 0.5


def odd_rows(key: str, lengths: IntArray, levels: Mapping[str, IntArray]) -> str:
    """Describes the graph, what was found and expected, and the fix.

    Args:
        key: the field.
        lengths: its rows in each graph, not all equal.
        levels: candidate levels, such as ``node``, with each graph's number of rows.
    """
    if not lengths.any():
        return (
            f"{key!r} has no row in any graph, so that nothing tells what its rows are: "
            f"exclude=[{key!r}] in GraphStore.from_pyg(graphs, ...) leaves it out, "
            f"levels={{{key!r}: 'rows'}} gives it rows of its own"
        )
    shares = {what: float((lengths == counts).mean()) for what, counts in levels.items()}
    nearest = max(shares, key=lambda what: shares[what], default=None)
    remedy = (
        f"levels={{{key!r}: 'rows'}} in GraphStore.from_pyg(graphs, ...) gives it rows of its own, "
        f"exclude=[{key!r}] leaves it out"
    )
    if nearest is not None and shares[nearest] >= MOST:
        counts = levels[nearest]
        odd = int((lengths != counts).argmax())
        return (
            f"{key!r} has {how_many(lengths[odd], 'row')} in graph {odd}, which has "
            f"{_has(levels, odd)}; expected were {counts[odd]}, one for each {nearest}, as in "
            f"{int((lengths == counts).sum()):,} of the {how_many(len(lengths), 'graph')}: fix "
            f"graph {odd}; or, if its rows are something else, {remedy}"
        )
    other = int((lengths != lengths[0]).argmax())
    could = [f"{counts[0]} (one for each {what})" for what, counts in levels.items()]
    expected = " or ".join([*could, "as many in every graph"])
    return (
        f"{key!r} has {how_many(lengths[0], 'row')} in graph 0, which has {_has(levels, 0)}, but "
        f"{how_many(lengths[other], 'row')} in graph {other}, which has {_has(levels, other)}; "
        f"expected were {expected}: {remedy}"
    )


def _has(levels: Mapping[str, IntArray], graph: int) -> str:
    """Describes how many rows of each level a graph has."""
    found = [
        how_many(counts[graph], what) if what in ("node", "edge") else f"{counts[graph]} of {what}"
        for what, counts in levels.items()
    ]
    return " and ".join(found) or "none of a type of that name"
