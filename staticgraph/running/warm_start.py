"""Compiled code kept beside a plan, so that the next process starts without compiling.

torch collects what it compiled as one blob of bytes, valid for the same torch, device and code
(``torch.compiler.save_cache_artifacts``). Tracing is done anew in every process; what is saved is
the compilation after it, most of a warm-up. A file of another torch or device is not used, and said
so.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch

from staticgraph.documents import NOT_THERE

MAGIC = b"staticgraph.compiled\n"


def save(path: str | Path, device: torch.device, cold_s: float) -> bool:
    """Writes all that this process compiled so far; False where that is nothing.

    Args:
        path: of the file.
        device: what was compiled for.
        cold_s: seconds of the warm-up that compiled it, kept for the report of those it serves.
    """
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is None:
        return False
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.part")
    head = json.dumps({**_made_for(device), "cold_s": cold_s}).encode()
    scratch.write_bytes(MAGIC + head + b"\n" + artifacts[0])
    scratch.replace(target)
    return True


def load(path: str | Path, device: torch.device) -> float | None:
    """Hands torch what an earlier process compiled.

    Returns:
        The seconds that process took to warm up; None where there is nothing to use.

    Warns where the file was made for another torch or device, or is damaged.
    """
    source = Path(path)
    if not source.exists():
        return None
    head, _, rest = source.read_bytes().partition(b"\n")
    made_for, _, artifacts = rest.partition(b"\n")
    try:
        expected = json.loads(made_for) if head + b"\n" == MAGIC else None
        cold_s = float((expected or {}).pop("cold_s", 0.0))
    except NOT_THERE:
        expected, cold_s = None, 0.0
    if expected != _made_for(device):
        warnings.warn(
            f"{source} was not made by torch {torch.__version__} for this device (it says "
            f"{expected}); compiling anew and replacing it",
            stacklevel=3,
        )
        return None
    return None if torch.compiler.load_cache_artifacts(artifacts) is None else cold_s


def _made_for(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"torch": torch.__version__, "device": name}
