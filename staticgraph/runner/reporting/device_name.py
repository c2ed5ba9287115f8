"""What a person calls a device."""

from __future__ import annotations

import torch

from staticgraph.text.how_many import how_many


def device_name(device: torch.device) -> str:
    """A GPU's name, or a CPU with the threads that torch has of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({how_many(torch.get_num_threads(), 'thread')})"
