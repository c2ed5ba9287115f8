"""Whether both sides compute the same: outputs before training, and losses step by step.

Losses can be compared only if a step draws no random numbers; with dropout, two runs of plain PyG
differ just as much. Even without, they slowly drift apart, since rounding occasionally flips a
ReLU, so the tolerance is that of a preflight's comparison.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.checking.comparison import TOLERANCE, relative_difference
from staticgraph.nn.bound import bound
from staticgraph.nn.convert import context_of
from staticgraph.steps.state.training_state import untouched
from staticgraph.training.versus.plain_side import PlainSide
from staticgraph.training.versus.setting import VersusSetting
from staticgraph.training.versus.side import Side

__all__ = ["TOLERANCE", "draws_random", "losses_apart", "outputs_apart"]

# Steps whose losses are compared. Adam takes a full-size step even for a gradient that is only
# rounding error, so later losses drift: GINE 4x64 on ESOL by 2e-4 after 5 steps, 1e-3 after 10.
COMPARED = 5
# The tolerance for two identical steps on a GPU, whose sums have no fixed order.
ROUNDING = 1e-5


def losses_apart(expected: Tensor, found: Tensor) -> float:
    """The largest difference between the first losses, relative to the largest of them.

    Args:
        expected, found: losses per step, ``[batches]``.
    """
    return relative_difference(expected[:COMPARED], found[:COMPARED])


def draws_random(side: Side) -> bool:
    """Whether a training step gives a different loss with a different seed."""
    losses = []
    for seed in (1, 2):
        with untouched(side.model, side.optimizer), side.one_step() as step:
            torch.manual_seed(seed)
            losses.append(step().clone())
    return not torch.allclose(losses[0], losses[1], rtol=ROUNDING, atol=0.0, equal_nan=True)


def outputs_apart(setting: VersusSetting, plain: PlainSide) -> float:
    """The largest difference of real rows' outputs in evaluation mode, relative to the largest.

    Args:
        setting: the setting of the comparison, whose first batch is run.
        plain: the plain side, before its first step.
    """
    model = setting.fresh_model().eval()
    batch = _first_batch(setting).to(setting.device)
    with torch.no_grad(), bound(model, batch) as data:
        out = setting.forward(model, data)
        found = [_real_rows(model, tensor) for tensor in tensors_in(out)]
    expected = tensors_in(plain.outputs(batch))
    if [t.shape for t in expected] != [t.shape for t in found]:
        return float("inf")
    pairs = zip(expected, found, strict=True)
    return max((relative_difference(a, b) for a, b in pairs), default=0.0)


def _first_batch(setting: VersusSetting) -> StaticBatch:
    loader = StaticLoader(
        setting.store, setting.plan, indices=setting.train_ids, shuffle=True, seed=setting.seed
    )
    with closing(iter(loader)) as batches:
        return next(batches).clone()


def _real_rows(model: Any, tensor: Tensor) -> Tensor:
    rows = context_of(model).find_rows(tensor.shape[0]) if tensor.dim() else None
    return tensor if rows is None else tensor[rows.mask]
