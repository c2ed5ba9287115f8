"""What of a run in progress is kept in its checkpoint, and how it goes on from there.

Everything that decides the next step is kept: weights, optimizer, gradients that wait, the loader's
place in its epoch, and every rank's random state. A run that goes on with as many processes
computes what it would have computed; with another number its steps are others, and an epoch that
had begun is left.
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
    """Writes the checkpoint; called on every rank, written by the first."""
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
    """Puts everything back as it was kept.

    Args:
        state: the checkpoint's contents.
        folder: of the run, for messages.
        parts, loader, history: of the run that goes on; changed in place.

    Returns:
        What there is to say about it; empty in most cases.

    Raises:
        ValueError: the weights are those of another model.
    """
    load_weights(parts.model, state["model"], parts.config.model, folder)
    parts.optimizer.load_state_dict(state["optimizer"])
    history.load(state)
    if "runner" in state:  # runs of an older version accumulated nothing
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
    """Goes on with another number of processes, whose steps are others, so an epoch that had begun
    is not continued."""
    begun = kept["position"] > 0
    loader.set_epoch(kept["epoch"] + begun)
    if not begun:
        return ""
    history.seconds = 0.0
    return (
        f"begun on {how_many(then, 'process')}, now {loader.batcher.world_size}: what is left of "
        f"epoch {kept['epoch'] + 1} is left out"
    )
