"""Options of a loader of samples: which belong to which task, and fan-outs as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from staticgraph.outofcore.disk.whole_number import whole_number

WHY = {
    "node": "they are of edges, and task='node' has none to predict: leave them out",
    "link": "they are of nodes, and task='link' trains on every edge of the graph: leave them out, "
    "and partition the edges to train on alone",
}


def require_of_task(task: str, of_nodes: Mapping[str, Any], of_links: Mapping[str, Any]) -> None:
    """Refuses options of the other task, which would be ignored.

    Raises:
        ValueError: the message names them.
    """
    given = [name for name, value in (of_nodes if task == "link" else of_links).items() if value]
    if given:
        names = ", ".join(f"{name}=" for name in given)
        raise ValueError(f"task={task!r} with {names}: {WHY[task]}")


def hop_fanouts(fanouts: Sequence[int]) -> list[int]:
    """The fan-outs as numbers of Python.

    Raises:
        ValueError: none, or one below 1.
    """
    try:
        found = [whole_number(fanout, "fanouts") for fanout in fanouts]
    except TypeError:
        raise ValueError(f"fanouts={fanouts!r}: give a list, one for each hop") from None
    if not found or min(found) < 1:
        raise ValueError(
            f"fanouts={found}: give at least one hop, each at least 1; for all neighbours the "
            "largest degree, such as int(graph.degrees().max())"
        )
    return found
