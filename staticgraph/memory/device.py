"""The memory of a device: total, free, and held by torch in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch


class DeviceMemory(NamedTuple):
    """A device's memory in bytes: total, free, and held by torch in this process."""

    name: str
    total_bytes: int
    free_bytes: int
    held_bytes: int


def device_memory(device: Any = None) -> DeviceMemory:
    """Queries a CUDA device; on the CPU, the main memory available without swapping.

    Raises:
        ValueError: the memory of the device cannot be read.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        return DeviceMemory(torch.cuda.get_device_name(device), total, free, held)
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
    return DeviceMemory("cpu", fields["MemTotal"], fields["MemAvailable"], 0)
