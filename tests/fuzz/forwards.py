"""Random forwards in mode ``fused`` on real molecules, compared with plain PyG.

A forward whose result in plain PyG itself depends on rounding (the largest of values that differ in
their last bit, say) is left out.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from support.examples import EXAMPLES
from support.random_forward import LATER, NEWEST, RandomForward
from support.rewritten import difference, in_plain_pyg, runs, seeded, sines
from torch import Tensor, nn

import staticgraph as sg

from .subject import Subject

TOLERANCE = 1e-9
# Relative changes of the parameters, small enough to change nothing but rounding.
ROUNDING = (1e-15, -1e-15, 3e-15)


@cache
def molecules() -> Any:
    return sg.datasets.open(EXAMPLES / "esol.npz")


def check(seed: int) -> None:
    model, store = seeded(lambda: RandomForward(seed)), molecules()
    if seed >= NEWEST:  # read edges by their position
        store = store.in_first_order()
    if not runs(model, store):
        return
    torch._dynamo.reset()
    largest, _ = difference(copy.deepcopy(model), store)
    if not largest <= TOLERANCE:
        assert _is_rounding(model, store), f"off by {largest:.1e}:\n{model.steps}"


def _is_rounding(model: nn.Module, store: Any) -> bool:
    """Whether plain PyG's gradients change by more than rounding when the parameters do not."""
    exact = _gradients(model, store, 0.0)
    scale = max(1.0, max(float(g.abs().max()) for g in exact))
    return any(
        float((one - other).abs().max()) > TOLERANCE / 100 * scale
        for change in ROUNDING
        for one, other in zip(_gradients(model, store, change), exact, strict=True)
    )


def _gradients(model: nn.Module, store: Any, change: float) -> list[Tensor]:
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + change * torch.randn_like(parameter))
    sines(in_plain_pyg(model, store)).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


SUBJECT = Subject("forwards", lambda: st.integers(LATER, 2**31), check, 12)
