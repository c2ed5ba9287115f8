"""The device of a run, by the name that its settings give."""

from __future__ import annotations

import torch

from staticgraph.distributed.ranks import Ranks
from staticgraph.training.job import own_device


def device_of(name: str, ranks: Ranks | None = None) -> torch.device:
    """The device of a name; CUDA where there is one, for ``auto``; of several ranks each its own,
    which is the process's present one from then on: every rank would otherwise hold a context on
    the first GPU, and ranks that wait for each other would do so there.

    Raises:
        ValueError: no such device is here.
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
