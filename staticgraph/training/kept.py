"""Saves a run in progress to its checkpoint, and restores it from there.

Everything that determines the next step is saved: weights, optimizer, accumulated gradients, the
loader's position in its epoch, and every rank's random state. A run that is resumed with the same
number of processes computes what it would have computed; with another number its steps differ, and
the rest of an epoch in progress is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.text.how_many import how_many
from staticgraph.training import checkpoint
from staticgraph.training.history import History
from staticgraph.training.parts import RunParts
from staticgraph.training.subject import load_weights


def keep(folder: Path, parts: RunParts, loader: StaticLoader, history: History) -> None:
    """Writes the checkpoint; every rank calls this, and rank 0 writes."""
    others, ranks = {}, parts.ranks
    if ranks is not None:
        others["ranks_random"] = ranks.told(checkpoint.random_state(parts.device))
        if not ranks.first:
            return
    checkpoint.save(
        folder,
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


def go_on(
    state: Mapping[str, Any], folder: Path, parts: RunParts, loader: StaticLoader, history: History
) -> str:
    """Restores a run from its checkpoint.

    Args:
        state: the checkpoint's contents.
        folder: the folder of the run, for messages.
        parts, loader, history: those of the resumed run; modified in place.

    Returns:
        A message for the user; empty in most cases.

    Raises:
        CheckpointCorrupt: the weights are those of another model.
    """
    load_weights(parts.model, state["model"], parts.config.model, folder)
    parts.optimizer.load_state_dict(state["optimizer"])
    history.load(state)
    if "runner" in state:  # older checkpoints have no accumulated gradients
        parts.runner.load_state_dict(state["runner"])
    now = loader.batcher.world_size
    then = state["loader"]["of"].get("world_size", 1)
    if now != then:
        return _regrouped(state["loader"], loader, history, then)
    loader.load_state_dict(state["loader"])
    if parts.ranks is None:
        checkpoint.set_random_state(state["random"])
    else:
        checkpoint.set_random_state(state["ranks_random"][parts.ranks.rank], parts.device)
    return ""


def _regrouped(kept: Mapping[str, Any], loader: StaticLoader, history: History, then: int) -> str:
    """Resumes with another number of processes, whose steps differ, so an epoch in progress is not
    continued."""
    begun = kept["position"] > 0
    loader.set_epoch(kept["epoch"] + begun)
    if not begun:
        return ""
    history.seconds = 0.0
    return (
        f"begun on {how_many(then, 'process')}, now {loader.batcher.world_size}: what is left of "
        f"epoch {kept['epoch'] + 1} is left out"
    )
