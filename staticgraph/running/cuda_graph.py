"""Proof that CUDA graphs were recorded: they are counted, not inferred.

``torch.compile(mode="reduce-overhead")`` may skip a recording without a word (an input on the CPU,
a mutated input, a partition), so the absence of a warning proves nothing. The graph trees keep
every recording as a node; counting the nodes before and after a warm-up says what was recorded.
"""

from __future__ import annotations

from typing import Any

import torch


def recorded_graphs(device: torch.device) -> int:
    """CUDA graphs that torch's graph trees hold on a device; 0 where there is no CUDA."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0
    from torch._inductor.cudagraph_trees import get_manager

    index = torch.cuda.current_device() if device.index is None else device.index
    manager = get_manager(index, create_if_none_exists=False)
    if manager is None:
        return 0
    return sum(_nodes(root) for roots in manager.roots.values() for root in roots)


def _nodes(root: Any) -> int:
    count, waiting = 0, [root]
    while waiting:
        node = waiting.pop()
        count += 1
        waiting.extend(child for children in node.children.values() for child in children)
    return count


def skipped_recordings() -> int:
    """Compiled graphs that Inductor declined to record, as it counts them itself."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["cudagraph_skips"])


def drop_recordings(device: torch.device) -> None:
    """Frees what torch's graph trees recorded, all of it: they share one pool a device."""
    if device.type != "cuda":
        return
    # Not in torch's public API; torch.compiler.reset() calls it, with more that need not go.
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    reset_cudagraph_trees()
