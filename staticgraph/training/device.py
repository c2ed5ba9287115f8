"""The device of a run, from the name in its settings."""

from __future__ import annotations

import torch

from staticgraph.distributed.ranks import Ranks
from staticgraph.training.job import own_device


def device_of(name: str, ranks: Ranks | None = None) -> torch.device:
    """The device with a name; ``auto`` is CUDA if available, else the CPU.

    With several ranks, ``cuda`` is each rank's own GPU, which also becomes the current device of
    the process: otherwise every rank would create a context on the first GPU, and collectives would
    run there.

    Raises:
        ValueError: the name is invalid, or there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and ranks is not None:
        name = f"cuda:{own_device()}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name!r}: use 'cpu', 'cuda', 'cuda:1' or 'auto'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}: torch sees no CUDA device; use device='cpu' or 'auto'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={name!r}: torch sees {torch.cuda.device_count()} CUDA devices")
    if device.type == "cuda" and ranks is not None:
        torch.cuda.set_device(device)
    return device
