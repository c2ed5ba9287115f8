"""The name by which people know a device."""

from __future__ import annotations

import torch

from staticgraph.text.how_many import how_many


def device_name(device: torch.device) -> str:
    """Returns a GPU's name, or the CPU with the number of threads that torch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({how_many(torch.get_num_threads(), 'thread')})"
