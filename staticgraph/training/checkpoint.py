"""A checkpoint file, from which a training run continues as if it had never stopped.

The file holds everything that determines the next step: parameters and buffers, the optimizer,
accumulated gradients, the loader's position within its epoch, the random states of every rank, and
the digest of the data. It is written to a temporary file and renamed, so a run that is killed while
writing still has the previous file. A digest follows the data written by torch: a changed byte is
an error, not a wrong weight, and nothing is unpickled before the digest is compared.

A run that is resumed with the same number of processes computes what it would have computed; with
another number its steps differ, and the rest of an epoch in progress is skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.errors import CheckpointCorrupt
from staticgraph.files import atomic
from staticgraph.text.how_many import how_many
from staticgraph.training.config import CHECKPOINT as FILE
from staticgraph.training.config import require_run
from staticgraph.training.history import History
from staticgraph.training.parts import RunParts, load_weights

FORMAT = "staticgraph.checkpoint"
# 2: a digest after the contents, which include the digest of the data.
VERSION = 2
# The file ends with this and the digest; torch reads the part before it as an ordinary archive.
TRAILER = b"staticgraph.checkpoint.blake2b:"
DIGEST_BYTES = 32
AGAIN = "train again with staticgraph train --overwrite"


def save(folder: Path, **state: Any) -> Path:
    """Writes ``folder/checkpoint.pt`` with ``state`` and the current random states."""
    path = folder / FILE
    content = {"format": FORMAT, "version": VERSION, "random": random_state(), **state}
    with atomic.writing(path) as file:
        torch.save(content, file)
        file.flush()
        end = file.seek(0, 2)
        file.seek(0)
        digest = _digest(file, end)
        file.seek(end)
        file.write(TRAILER + digest)
    return path


def load(folder: Path) -> dict[str, Any]:
    """Reads a file that :func:`save` wrote, on the CPU; the caller restores the random states.

    Raises:
        FileNotFoundError: there is no checkpoint.
        CheckpointCorrupt: the file is truncated, modified, or of another format or version.
    """
    require_run(folder)
    path = folder / FILE
    with path.open("rb") as file:
        end = path.stat().st_size - len(TRAILER) - DIGEST_BYTES
        file.seek(max(0, end))
        sealed = end >= 0 and file.read(len(TRAILER)) == TRAILER
        written = file.read(DIGEST_BYTES)
        file.seek(0)
        if sealed and _digest(file, end) != written:
            raise CheckpointCorrupt(
                f"{path} cannot be read (its checksum is not the one written): put back a "
                f"copy, or {AGAIN}"
            )
        file.seek(0)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises whatever the bytes happen to lead to
            reason = type(error).__name__
            raise CheckpointCorrupt(f"{path} cannot be read ({reason}): {AGAIN}") from error
    if not isinstance(content, dict):
        raise CheckpointCorrupt(f"{path} holds a {type(content).__name__}, no run: {AGAIN}")
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise CheckpointCorrupt(
            f"{path} says {content.get('format')} version {content.get('version')}; this library "
            f"reads {FORMAT} version {VERSION}: {AGAIN}"
        )
    if not sealed:
        raise CheckpointCorrupt(f"{path} cannot be read (its checksum is missing): {AGAIN}")
    return content


def _digest(file: BinaryIO, length: int) -> bytes:
    """BLAKE2b of the next ``length`` bytes."""
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    while length and (block := file.read(min(length, 1 << 20))):
        hashed.update(block)
        length -= len(block)
    return hashed.digest()


def random_state(device: torch.device | None = None) -> dict[str, Any]:
    """The states of torch's generators, on the CPU and on every CUDA device, or on one."""
    if device is not None:
        cuda = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    else:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any], device: torch.device | None = None) -> None:
    """Restores the output of :func:`random_state`; without a device, those of the GPUs only if
    their number is the same."""
    torch.set_rng_state(state["cpu"])
    if device is not None:
        if device.type == "cuda" and state["cuda"]:
            torch.cuda.set_rng_state(state["cuda"][0], device)
    elif torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def save_run(parts: RunParts, loader: StaticLoader, history: History) -> None:
    """Writes the checkpoint; every rank calls this, and rank 0 writes."""
    others, ranks = {}, parts.ranks
    if ranks is not None:
        others["ranks_random"] = ranks.told(random_state(parts.device))
        if not ranks.first:
            return
    save(
        parts.folder,
        **others,
        config=asdict(parts.config),
        data=parts.data,
        plan=parts.plan.to_dict(),
        model=parts.model.state_dict(),
        optimizer=parts.optimizer.state_dict(),
        runner=parts.runner.state_dict(),
        loader=loader.state_dict(),
        **history.state(),
    )


def restore_run(
    state: Mapping[str, Any], parts: RunParts, loader: StaticLoader, history: History
) -> str:
    """Restores a run from the contents of its checkpoint; the others are modified in place.

    Returns:
        A message for the user; empty in most cases.

    Raises:
        CheckpointCorrupt: the weights are those of another model.
    """
    load_weights(parts.model, state["model"], parts.config.model, parts.folder)
    parts.optimizer.load_state_dict(state["optimizer"])
    history.load(state)
    if "runner" in state:  # older checkpoints have no accumulated gradients
        parts.runner.load_state_dict(state["runner"])
    saved, now = state["loader"], loader.batcher.world_size
    then = saved["of"].get("world_size", 1)
    if now == then:
        loader.load_state_dict(saved)
        if parts.ranks is None:
            set_random_state(state["random"])
        else:
            set_random_state(state["ranks_random"][parts.ranks.rank], parts.device)
        return ""
    # The steps of another number of processes differ, so an epoch in progress is not continued.
    begun = saved["position"] > 0
    loader.set_epoch(saved["epoch"] + begun)
    if not begun:
        return ""
    history.seconds = 0.0
    return (
        f"begun on {how_many(then, 'process')}, now {now}: what is left of epoch "
        f"{saved['epoch'] + 1} is left out"
    )
