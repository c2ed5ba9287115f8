"""Compiled code kept next to a plan, so that the next process starts without compiling.

torch collects what it compiled as one blob of bytes, valid for the same torch, device and code
(``torch.compiler.save_cache_artifacts``). Tracing is done again in every process; what is saved is
the compilation after it, most of a warm-up. A file of another torch or device is not used, and said
so.

**Such a file is a program**: torch unpickles it and runs the kernels in it, so whoever can write it
can do what you can do. It is therefore read only where it is yours: owned by you, writable by
nobody else, and signed with a key that stands in your own cache folder
(:mod:`staticgraph.files.own_cache`). Anything else is not used, with a warning, and compilation
begins again. Do not take such a file from others; they cannot sign it for you either.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import warnings
from pathlib import Path

import torch

from staticgraph.files import atomic, own_cache
from staticgraph.files.document import NOT_THERE
from staticgraph.files.own_cache import NotOurs

MAGIC = b"staticgraph.compiled.signed\n"


def default_path(*what: object) -> Path | None:
    """Where the compiled code of a model and a plan is kept unless the user says otherwise: a file
    for each in the user's own cache folder. None, with a warning, where there can be none.

    Args:
        what: makes the name; anything whose text tells one use from another.
    """
    name = hashlib.sha256("\n".join(map(str, what)).encode()).hexdigest()[:16]
    try:
        return own_cache.folder() / f"{name}.bin"
    except NotOurs as error:
        warnings.warn(f"compiled code is not kept: {error}", stacklevel=3)
        return None


def save(path: str | Path, device: torch.device, cold_s: float) -> bool:
    """Writes all that this process compiled so far, signed, for its owner alone.

    Args:
        path: of the file.
        device: what was compiled for.
        cold_s: seconds of the warm-up that compiled it, kept for the report of those it serves.

    Returns:
        False where nothing was compiled, or, with a warning, where nothing can be signed.
    """
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is None:
        return False
    head = json.dumps({**_made_for(device), "cold_s": cold_s}).encode()
    contents = MAGIC + head + b"\n" + artifacts[0]
    try:
        signed = contents + own_cache.signature(contents)
    except NotOurs as error:
        warnings.warn(f"compiled code is not kept in {path}, unsigned: {error}", stacklevel=3)
        return False
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(target, signed, mode=0o600)
    return True


def load(path: str | Path, device: torch.device) -> float | None:
    """Hands torch what an earlier process of this user compiled. Torch unpickles it: see above.

    Returns:
        The seconds that process took to warm up; None where there is nothing to use.

    Warns where the file was made for another torch or device, is damaged, belongs to someone else,
    can be written by others, or is not signed by this user.
    """
    source = Path(path)
    if not source.exists():
        return None
    try:
        with source.open("rb") as file:
            own_cache.require_own(file, source)
            contents = file.read()
    except (NotOurs, OSError) as error:
        _refuse(source, str(error))
        return None
    signed, found = contents[: -own_cache.SIGNATURE_BYTES], contents[-own_cache.SIGNATURE_BYTES :]
    head = contents.removeprefix(MAGIC).partition(b"\n")[0]
    try:
        expected = json.loads(head) if contents.startswith(MAGIC) else None
        cold_s = float(expected.pop("cold_s", 0.0)) if expected else 0.0
    except NOT_THERE:
        expected, cold_s = None, 0.0
    if expected != _made_for(device):
        warnings.warn(
            f"{source} was not made by torch {torch.__version__} for this device (it says "
            f"{expected}); compiling again and replacing it",
            stacklevel=3,
        )
        return None
    try:
        ours = hmac.compare_digest(own_cache.signature(signed), found)
    except NotOurs as error:
        _refuse(source, f"its signature cannot be checked: {error}")
        return None
    if not ours:
        _refuse(source, "it was changed, or is not signed by you on this machine")
        return None
    artifacts = signed[len(MAGIC) + len(head) + 1 :]
    return None if torch.compiler.load_cache_artifacts(artifacts) is None else cold_s


def _refuse(source: Path, why: str) -> None:
    warnings.warn(f"{source} holds programs and is not read: {why}; compiling again", stacklevel=4)


def _made_for(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"torch": torch.__version__, "device": name}
