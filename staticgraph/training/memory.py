"""The memory use of a run, for its report."""

from __future__ import annotations

import sys
from typing import Any

import torch

from staticgraph.probing.resident import distinct_bytes, state_bytes
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore

resource: Any = None
if sys.platform != "win32":
    import resource


def memory_of(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    graphs: GraphStore | DeviceStore,
    device: torch.device,
) -> dict[str, int | None]:
    """Bytes of parameters, optimizer state and graphs, the peak host memory of this process, and
    the peak that torch reserved on the device; None where unknown."""
    return {
        "parameters_bytes": distinct_bytes(model.parameters()),
        "optimizer_bytes": state_bytes(optimizer),
        "graphs_bytes": int(graphs.nbytes),
        "host_peak_bytes": _host_peak(),
        "device_peak_bytes": torch.cuda.max_memory_reserved(device)
        if device.type == "cuda"
        else None,
    }


def _host_peak() -> int | None:
    """The peak resident set size of this process, in bytes."""
    if resource is None:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
