"""Whether both sides compute the same: outputs before training, and losses step by step.

Losses can be compared only if a step draws no random numbers; with dropout, two runs of plain PyG
differ just as much. Even without, they slowly drift apart, since rounding occasionally flips a
ReLU, so the tolerance is that of a check's comparison.
"""

from __future__ import annotations

from contextlib import closing

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.checking.comparison import Comparer, RunOptions
from staticgraph.checking.outcome import Tolerance, largest_of
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_state import untouched
from staticgraph.training.versus.setting import VersusSetting
from staticgraph.training.versus.side import Side

# Steps whose losses are compared. Adam takes a full-size step even for a gradient that is only
# rounding error, so later losses drift: GINE 4x64 on ESOL by 2e-4 after 5 steps, 1e-3 after 10.
COMPARED = 5
TOLERANCE = Tolerance.of(torch.float32).other_order


def losses_apart(expected: Tensor, found: Tensor) -> float:
    """The largest difference between the first losses, relative to the largest of them.

    Args:
        expected, found: losses per step, ``[batches]``.
    """
    first, scale = expected[:COMPARED], largest_of([expected[:COMPARED]])
    off = float((first - found[:COMPARED]).abs().max()) / scale if len(first) else 0.0
    return off if off == off else float("inf")


def draws_random(side: Side) -> bool:
    """Whether a training step gives a different loss with a different seed."""
    losses = []
    for seed in (1, 2):
        with untouched(side.model, side.optimizer), side.one_step() as step:
            torch.manual_seed(seed)
            losses.append(step().clone())
    rounding = Tolerance.of(torch.float32).same_order
    return not torch.allclose(*losses, rtol=rounding, atol=0.0, equal_nan=True)


def outputs_apart(setting: VersusSetting) -> float | None:
    """The largest difference of real rows' outputs in evaluation mode, relative to the largest.

    Args:
        setting: the setting of the comparison, whose first batch is run.

    Returns:
        None if the model does not run with fixed shapes, or not in plain PyG.
    """
    comparer = Comparer(Subject(setting.fresh_model(), forward=setting.forward))
    batch = _first_batch(setting).to(setting.device)
    parity = comparer.beside_plain(batch, RunOptions(training=False, gradients=False))
    return None if parity is None else parity.worst


def _first_batch(setting: VersusSetting) -> StaticBatch:
    loader = StaticLoader(
        setting.store, setting.plan, indices=setting.train_ids, shuffle=True, seed=setting.seed
    )
    with closing(iter(loader)) as batches:
        return next(batches).clone()
