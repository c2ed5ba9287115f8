"""Whether a device is there, said in one line before anything is moved to it.

torch says "Torch not compiled with CUDA enabled" of a build for CPUs, as an assertion that failed.
"""

from __future__ import annotations

import torch


def require_there(device: torch.device) -> torch.device:
    """The device.

    Raises:
        ValueError: it is CUDA's, and torch sees none, or fewer.
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
