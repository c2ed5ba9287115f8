"""Proof that CUDA graphs were recorded: they are counted, not inferred.

``torch.compile(mode="reduce-overhead")`` may silently skip a recording (an input on the CPU, a
mutated input, a partition), so the absence of a warning proves nothing. The graph trees keep every
recording as a node; counting the nodes before and after a warm-up gives the number of recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from staticgraph.errors import NotStatic
from staticgraph.internals.inductor import counting_pieces, drop_trees, roots_of_trees
from staticgraph.internals.tracing import counters
from staticgraph.text.how_many import how_many

# Graphs in a whole recording: a forward and a backward, or a forward alone.
WHOLE = {"step": 2, "eval": 1}


def recorded_graphs(device: torch.device) -> int:
    """Counts the CUDA graphs in torch's graph trees on a device; 0 without CUDA."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0
    index = torch.cuda.current_device() if device.index is None else device.index
    return sum(map(_nodes, roots_of_trees(index)))


def _nodes(root: Any) -> int:
    count, waiting = 0, [root]
    while waiting:
        node = waiting.pop()
        count += 1
        waiting.extend(child for children in node.children.values() for child in children)
    return count


def skipped_recordings() -> int:
    """Returns how many compiled graphs Inductor declined to record, by its own count."""
    return int(counters["inductor"]["cudagraph_skips"])


@dataclass(slots=True)
class RecordedGraphs:
    """What torch recorded, and declined to record, inside :func:`whole_recording`."""

    graphs: int = 0
    skipped: int = 0


@contextmanager
def whole_recording(device: torch.device, phase: str, name: str) -> Iterator[RecordedGraphs]:
    """A ``with`` block in which torch's graph trees warm up and record one phase of a bucket.

    Afterwards the recordings are counted and checked: one each for forward and backward, nothing
    left out.

    The graph trees record late: a function at its second run, its backward at that run or the next.
    Counting around a first run finds nothing.

    With ``graph_partition`` on, torch's default, a graph is split around anything that cannot be
    recorded: the pieces are recorded separately, and no skip is counted or reported. The pieces are
    counted where torch makes them, and the recordings in its trees.

    Raises:
        NotStatic: there are more or fewer recordings than a whole one takes.
    """
    recorded = RecordedGraphs()
    if device.type != "cuda":
        yield recorded
        return
    before, skipped = recorded_graphs(device), skipped_recordings()

    with counting_pieces() as counted:
        yield recorded
    pieces = counted.count
    recorded.graphs = recorded_graphs(device) - before
    recorded.skipped = skipped_recordings() - skipped
    whole = WHOLE.get(phase)
    if whole is None or pieces == whole <= recorded.graphs:
        return
    raise NotStatic(
        f"{name} is not recorded whole: torch recorded {recorded.graphs} of "
        f"{how_many(pieces, 'piece')}, where a whole recording has {whole} (one each way). "
        "Something in it cannot be recorded, such as a part on the CPU, an operator tagged "
        "cudagraph_unsafe, or an input that is written and may move; TORCH_LOGS=cudagraphs or "
        "`staticgraph check --for h100` names it. Or use mode='cuda-graph' or 'default'"
    )


def drop_recordings(device: torch.device) -> None:
    """Frees everything that torch's graph trees recorded: they share one pool per device."""
    if device.type != "cuda":
        return
    drop_trees()
