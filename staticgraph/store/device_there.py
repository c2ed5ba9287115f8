"""Checks that a device exists, with a one-line error, before anything is moved to it.

On a CPU build, torch itself raises an AssertionError, "Torch not compiled with CUDA enabled".
"""

from __future__ import annotations

import torch


def require_there(device: torch.device) -> torch.device:
    """Returns the device.

    Raises:
        ValueError: if it is a CUDA device and torch sees none, or its index is out of range.
    """
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else f", and torch {torch.__version__} is built without"
        raise ValueError(
            f"device={str(device)!r}: torch sees no CUDA device{build}: leave device= out, or give "
            "'cuda' if torch.cuda.is_available() else 'cpu'"
        )
    if (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={str(device)!r}: torch sees {torch.cuda.device_count()} CUDA devices, the "
            "first of which is 'cuda:0'"
        )
    return device
