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
import io
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.errors import CheckpointCorrupt
from staticgraph.files import atomic
from staticgraph.text.how_many import how_many
from staticgraph.training.config import CHECKPOINT as FILE
from staticgraph.training.config import require_run
from staticgraph.training.parts import RunParts, load_weights
from staticgraph.training.report import History

FORMAT = "staticgraph.checkpoint"
# 2: a digest after the contents, which include the digest of the data.
VERSION = 2
# The file ends with this and the digest; torch reads the part before it as an ordinary archive.
TRAILER = b"staticgraph.checkpoint.blake2b:"
DIGEST = 32
LAST = len(TRAILER) + DIGEST
AGAIN = "train again with staticgraph train --overwrite"


def save(folder: Path, **state: Any) -> Path:
    """Writes ``folder/checkpoint.pt`` with ``state``, by default with the present random states."""
    content = {"format": FORMAT, "version": VERSION, "random": random_state(), **state}
    archive = io.BytesIO()
    torch.save(content, archive)
    written = archive.getvalue()
    atomic.write_bytes(folder / FILE, written + TRAILER + _digest(written))
    return folder / FILE


def load(folder: Path) -> dict[str, Any]:
    """Reads a file that :func:`save` wrote, on the CPU; the caller restores the random states.

    Raises:
        FileNotFoundError: there is no checkpoint.
        CheckpointCorrupt: the file is truncated, modified, or of another format or version.
    """
    require_run(folder)
    path = folder / FILE
    written = path.read_bytes()
    written, trailer, digest = written[:-LAST], written[-LAST:-DIGEST], written[-DIGEST:]
    if trailer == TRAILER and _digest(written) != digest:
        raise CheckpointCorrupt(
            f"{path} cannot be read (its checksum is not the one written): put back a copy, or "
            f"{AGAIN}"
        )
    sealed = trailer == TRAILER
    archive = io.BytesIO(written if sealed else path.read_bytes())
    try:
        content: Any = torch.load(archive, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever the bytes happen to lead to
        reason = type(error).__name__
        raise CheckpointCorrupt(f"{path} cannot be read ({reason}): {AGAIN}") from error
    problem = ""
    if not isinstance(content, dict):
        problem = f"holds a {type(content).__name__}, no run"
    elif content.get("format") != FORMAT or content.get("version") != VERSION:
        problem = (
            f"says {content.get('format')} version {content.get('version')}; this library reads "
            f"{FORMAT} version {VERSION}"
        )
    elif not sealed:
        problem = "cannot be read (its checksum is missing)"
    if problem:
        raise CheckpointCorrupt(f"{path} {problem}: {AGAIN}")
    return content


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


def random_state(device: torch.device | None = None) -> dict[str, Any]:
    """The states of torch's generators on the CPU and, for a CUDA device, on it."""
    on_cuda = device is not None and device.type == "cuda"
    cuda = [torch.cuda.get_rng_state(device)] if on_cuda and device is not None else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restores the output of :func:`random_state`; earlier versions wrote the states of all GPUs,
    in their order."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and (states := state["cuda"]):
        torch.cuda.set_rng_state(states[min(device.index or 0, len(states) - 1)], device)


def save_run(parts: RunParts, loader: StaticLoader, history: History) -> None:
    """Writes the checkpoint; every rank calls this, and rank 0 writes."""
    random, ranks = random_state(parts.device), parts.ranks
    of_ranks = {} if ranks is None else {"ranks_random": ranks.told(random)}
    if ranks is not None and not ranks.first:
        return
    save(
        parts.folder,
        **of_ranks,
        random=random,
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
        ranks = parts.ranks
        random = state["random"] if ranks is None else state["ranks_random"][ranks.rank]
        set_random_state(random, parts.device)
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
