"""Times the attention of a bucket by the paths that counting entries cannot tell apart.

The problem: how long a path takes is arithmetic as far as its tiles go, but ``varlen`` runs on
kernels of torch's own, whose speed no count of ours knows. The idea: before the ways of a bucket
are tried, its attention layers run alone, forward and backward, by turns in the paths that remain
(:func:`staticgraph.sizes.attention.rivals`); the fastest is what all ways of the bucket take.

Invariant: nothing is timed where there is no choice: on a CPU, in a model without such layers,
where a path was asked for, or twice for one bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.nn.attention.paths import attend, setting_of
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.present import Restored
from staticgraph.sizes.attention import AttentionSetting, rivals
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.attention_choices import attending_layers
from staticgraph.steps.computation.model_setup import Subject


class AttentionTrial:
    """The attention layers of one model, to be run alone.

    Args:
        subject: its model is converted.
        context: of the model; says which path was asked for, and is told which was fastest.
    """

    def __init__(self, subject: Subject, context: BatchContext) -> None:
        self._context = context
        self._device = subject.device
        self._autocast = subject.autocast
        found = attending_layers(subject.model)
        self._layers = [attn for _, own, attn in found if attn is not None and own is context]

    def contenders(self, capacity: Capacity, training: bool) -> tuple[str, ...]:
        """Paths to time, simplest first; fewer than two where there is nothing to choose."""
        choice = self._context.attention
        if choice.is_timed(capacity, training) or choice.asked != "auto" or not self._layers:
            return ()
        settings = {self._setting(attn, training) for attn in self._layers}
        found = {rivals(capacity, setting) for setting in settings}
        return found.pop() if len(found) == 1 else ()

    def choose(self, capacity: Capacity, training: bool, path: str) -> None:
        """Lets the model's attention take a path in a bucket from now on."""
        self._context.attention.take(capacity, training, path)

    def function(self, batch: StaticBatch, training: bool) -> Callable[[str], Any]:
        """Runs every layer once by a path: in training forward and backward, else forward.

        Args:
            batch: of the bucket, on the device.
            training: the mode that the model is in.
        """
        choice, capacity = self._context.attention, batch.capacity
        batch = StaticBatch(batch.layout, batch.tensors())  # in the shapes that are compiled
        inputs = [
            torch.randn(
                batch.num_nodes,
                attn.embed_dim,
                device=self._device,
                dtype=attn.out_proj.weight.dtype,
            )
            for attn in self._layers
        ]

        def run(path: str) -> Any:
            """The attention of every layer once, by one path; the choice is put back."""
            choice.take(capacity, training, path)
            try:
                with Restored(), self._precision(), torch.set_grad_enabled(training):
                    self._context.enter(batch)
                    return [
                        self._of_layer(attn, x, training)
                        for attn, x in zip(self._layers, inputs, strict=True)
                    ]
            finally:
                choice.forget(capacity, training)

        return run

    def _of_layer(self, attn: torch.nn.MultiheadAttention, x: Tensor, training: bool) -> Any:
        if not training:
            return attend(self._context, attn, x)
        given = x.detach().requires_grad_()
        wanted = [given, *(p for p in attn.parameters() if p.requires_grad)]
        out = attend(self._context, attn, given)
        return torch.autograd.grad(out.sum(), wanted, allow_unused=True)

    def _setting(self, attn: torch.nn.MultiheadAttention, training: bool) -> AttentionSetting:
        dtype = self._autocast or attn.out_proj.weight.dtype
        kernels = self._context.kernels
        return setting_of(attn, self._device.type, dtype, training, True, kernels)

    def _precision(self) -> Any:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast)
