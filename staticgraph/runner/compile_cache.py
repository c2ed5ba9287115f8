"""Compiled code kept next to a plan, so that the next process starts without compiling.

torch collects what it compiled as one blob of bytes, valid for the same torch, device and code
(``torch.compiler.save_cache_artifacts``). Every process still traces again; the file saves the
compilation after it, which is most of a warm-up. A file of another torch version or device is not
used, with a warning.

**Such a file is a program**: torch unpickles it and runs the kernels in it, so whoever can write it
can do anything you can do. It is therefore read only if it is yours: owned by you, writable by
nobody else, and signed with a key kept in your own cache folder
(:mod:`staticgraph.files.own_cache`). Any other file is ignored, with a warning, and everything is
compiled again. Do not accept such a file from others; they cannot sign it for you either.
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
    """The default path for the compiled code of a model and a plan, in the user's cache folder.

    None, with a warning, if there can be no such folder.

    Args:
        what: determines the file name; anything whose text tells one use from another.
    """
    name = hashlib.sha256("\n".join(map(str, what)).encode()).hexdigest()[:16]
    try:
        return own_cache.folder() / f"{name}.bin"
    except NotOurs as error:
        warnings.warn(f"compiled code is not kept: {error}", stacklevel=3)
        return None


def save(path: str | Path, device: torch.device, cold_s: float) -> bool:
    """Writes everything this process has compiled so far, signed, readable by its owner alone.

    Args:
        path: of the file.
        device: the device that the code was compiled for.
        cold_s: seconds of the warm-up that compiled it, kept for the reports of later processes.

    Returns:
        False if nothing was compiled or, with a warning, if nothing can be signed.
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
    """Gives torch what an earlier process of this user compiled; torch unpickles it.

    Returns:
        The seconds that process took to warm up; None if there is nothing to use.

    Warns if the file was made for another torch version or device, is damaged, belongs to someone
    else, can be written by others, or is not signed by this user.
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
    signed, signature = (
        contents[: -own_cache.SIGNATURE_BYTES],
        contents[-own_cache.SIGNATURE_BYTES :],
    )
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
        ours = hmac.compare_digest(own_cache.signature(signed), signature)
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
