"""The memory of a device, for :meth:`staticgraph.memory.budget.MemoryBudget.of_device`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def device_memory(device: Any = None) -> tuple[str, int, int]:
    """Returns a device's name, its bytes, and those that this process may take or has taken.

    On the CPU these are the main memory, and what is available of it without swapping.

    Raises:
        ValueError: the memory of the device cannot be read.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        ours = free + torch.cuda.memory_reserved(device)
        return torch.cuda.get_device_name(device), total, ours
    if device.type != "cpu":
        raise ValueError(
            f"the memory of {device} cannot be read: give a cap, MemoryBudget('20GiB')"
        )
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:
        raise ValueError(
            "the free main memory cannot be read here: give a cap, MemoryBudget('20GiB')"
        ) from None
    fields = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return "cpu", fields["MemTotal"], fields["MemAvailable"]
