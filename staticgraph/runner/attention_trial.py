"""Times a bucket's attention in the paths that counting entries cannot tell apart.

The problem: the cost of a path can be calculated as far as its tiles go, but ``varlen`` runs on
torch's own kernels, whose speed no such count predicts. The idea: before the ways of a bucket are
tried, its attention layers run alone, forward and backward, alternating between the remaining paths
(:func:`staticgraph.sizes.attention.rivals`); all ways of the bucket then take the fastest.

Invariant: nothing is timed where there is no choice: on a CPU, in a model without such layers,
where the user requested a path, or a second time for one bucket.
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
from staticgraph.sizes.attention import AttentionSetting, rivals, timing_key
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.attention_choices import attending_layers
from staticgraph.steps.computation.model_setup import Subject


class AttentionTrial:
    """The attention layers of one model, run alone.

    Args:
        subject: its model is converted.
        context: the model's context, which holds the requested path and is told the fastest one.
    """

    def __init__(self, subject: Subject, context: BatchContext) -> None:
        self._context = context
        self._device = subject.device
        self._autocast = subject.autocast
        found = attending_layers(subject.model)
        self._layers = [attn for _, own, attn in found if attn is not None and own is context]

    def contenders(self, capacity: Capacity, training: bool) -> tuple[str, ...]:
        """Returns the paths to time, simplest first; fewer than two if there is no choice."""
        choice = self._context.attention
        timed = timing_key(capacity, training) in choice.timed
        if timed or choice.requested != "auto" or not self._layers:
            return ()
        settings = {self._setting(attn, training) for attn in self._layers}
        found = {rivals(capacity, setting) for setting in settings}
        return found.pop() if len(found) == 1 else ()

    def choose(self, capacity: Capacity, training: bool, path: str) -> None:
        """Makes the model's attention take a path in a bucket from now on."""
        self._context.attention.timed[timing_key(capacity, training)] = path

    def function(self, batch: StaticBatch, training: bool) -> Callable[[str], Any]:
        """Returns a function that runs every layer once by a path; in training also its backward.

        Args:
            batch: of the bucket, on the device.
            training: the mode that the model is in.
        """
        timed, key = self._context.attention.timed, timing_key(batch.capacity, training)
        batch = StaticBatch(batch.layout, batch.tensors())  # without real counts, as when compiled
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
            """Runs the attention of every layer once, by one path; restores the choice."""
            timed[key] = path
            try:
                with Restored(), self._precision(), torch.set_grad_enabled(training):
                    self._context.enter(batch)
                    return [
                        self._of_layer(attn, x, training)
                        for attn, x in zip(self._layers, inputs, strict=True)
                    ]
            finally:
                del timed[key]

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
        return setting_of(attn, self._device.type, dtype, training, kernels)

    def _precision(self) -> Any:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast)
