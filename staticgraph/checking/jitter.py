"""Breaks ties, in the same way on both sides of a comparison.

A model that chooses among rows (TopK, a maximum, a sort) chooses by rounding if two are equal, as
symmetric atoms of a molecule are, and sums over padded rows round differently from those over real
ones. Such a difference is not caused by the padding. It vanishes when no two rows are equal, so
noise is added to the nodes' float fields, to what embeddings and linear layers compute for nodes,
and to the scores of pools, which a saturated ``tanh`` makes equal. A real row gets the same noise
with padding and without.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch

# Of a tensor's largest value: far above rounding, far below the effect of another input.
SIZE = 1e-2
# PyG's Linear included, by its name.
_MIXES = ("Linear", "Embedding")


class Jitter:
    """Noise for the rows of one batch.

    Args:
        batch: its real nodes get noise, its padding none.
    """

    def __init__(self, batch: StaticBatch) -> None:
        self._rows = batch.capacity.nodes
        self._real = batch.real_counts.nodes
        self._fields = [
            field.name
            for field in batch.layout.schema
            if field.level == "node" and not field.is_index
        ]

    @contextmanager
    def on(self, model: torch.nn.Module) -> Iterator[None]:
        """A ``with`` block in which noise is added to what the model computes for nodes."""
        with ExitStack() as stack:
            for path, module in model.named_modules():
                kinds = {kind.__name__ for kind in type(module).__mro__}
                if not kinds.isdisjoint(_MIXES):
                    stack.callback(module.register_forward_hook(self._hook(path)).remove)
                elif "SelectTopK" in kinds and isinstance(module.act, torch.nn.Module):
                    stack.callback(module.act.register_forward_hook(_score_hook(path)).remove)
            yield

    def of(self, batch: Any) -> Any:
        """Sets the noisy fields on a batch, with padding or without, and returns it."""
        for name in self._fields:
            value = getattr(batch, name)
            if value.is_floating_point():
                batch[name] = self._noisy(value, name)
        return batch

    def _hook(self, path: str) -> Any:
        calls = 0

        def hook(_: torch.nn.Module, given: Any, out: Any) -> Any:
            """Adds this call's noise to the output of a module, if it is a tensor of nodes."""
            nonlocal calls
            calls += 1
            if not isinstance(out, Tensor) or not out.dim():
                return None
            return self._noisy(out, f"{path} {calls}")

        return hook

    def _noisy(self, value: Tensor, name: str) -> Tensor:
        if value.shape[0] not in (self._rows, self._real):
            return value
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        drawn = torch.rand((self._real, *value.shape[1:]), generator=random, dtype=torch.float64)
        largest = value[: self._real].detach().abs().max().clamp(min=1e-6)
        noise = torch.zeros_like(value)
        noise[: self._real] = (drawn.to(value) - 0.5) * largest * SIZE
        return value + noise


def _score_hook(path: str) -> Any:
    """Noise for the scores of a pool: real rows come first, in the same order, in every layer."""
    calls = 0

    def add_noise(_: torch.nn.Module, given: Any, scores: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        random = np.random.default_rng(zlib.crc32(f"{path} {calls}".encode()))
        return scores + torch.from_numpy(random.random(len(scores)) - 0.5).to(scores) * SIZE

    return add_noise


@torch.no_grad()
def nudge(model: torch.nn.Module) -> None:
    """Moves the parameters by a few units in their last place."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            noise = torch.rand(parameter.shape, generator=generator) - 0.5
            eps = 8 * torch.finfo(parameter.dtype).eps
            parameter.mul_((1 + eps * noise.double()).to(parameter))
