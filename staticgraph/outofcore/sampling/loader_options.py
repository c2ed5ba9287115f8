"""Checks the options of a sampled loader: those of the other task, and fan-outs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from staticgraph.text.numeric_options import whole_option

WHY = {
    "node": "they are of edges, and task='node' has none to predict: leave them out",
    "link": "they are of nodes, and task='link' trains on every edge of the graph: leave them out, "
    "and partition the edges to train on alone",
}


def require_of_task(task: str, of_nodes: Mapping[str, Any], of_links: Mapping[str, Any]) -> None:
    """Rejects options of the other task, which would be ignored.

    Raises:
        ValueError: if there are any; the message names them.
    """
    given = [name for name, value in (of_nodes if task == "link" else of_links).items() if value]
    if given:
        names = ", ".join(f"{name}=" for name in given)
        raise ValueError(f"task={task!r} with {names}: {WHY[task]}")


def hop_fanouts(fanouts: Sequence[int]) -> list[int]:
    """Returns the fan-outs as Python ints.

    Raises:
        ValueError: if there is none, or one is below 1.
    """
    try:
        found = [whole_option("fanouts", fanout) for fanout in fanouts]
    except TypeError:
        raise ValueError(f"fanouts={fanouts!r}: give a list, one for each hop") from None
    if not found or min(found) < 1:
        raise ValueError(
            f"fanouts={found}: give at least one hop, each at least 1; for all neighbours the "
            "largest degree, such as int(graph.degrees().max())"
        )
    return found
