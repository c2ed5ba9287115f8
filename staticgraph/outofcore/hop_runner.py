"""A model over padded hops, compiled once a rung and phase.

The runner of sampled batches: what :class:`staticgraph.StaticGraphRunner` is for batches of whole
graphs. A rung of the ladder is a shape, so a rung has one compiled function for training and one
for evaluation; a batch that fits no rung runs in eager, and the ladder counts it. On CUDA a batch
is copied on a stream of its own, beside the step before, and its slot is not filled again before
the copy is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from staticgraph.outofcore.hops import HopBatch
from staticgraph.running.compiled import CompiledFunction
from staticgraph.running.modes import OWN, resolve

Compiler = Callable[[Callable[..., Tensor], str], Callable[..., Tensor]]


class HopRunner:
    """Runs a model over padded hops, compiled once a rung and phase.

    Args:
        model: takes ``x [R, F]``, the hops, and whatever else a step brings.
        mode: as of :class:`staticgraph.StaticGraphRunner`, but for ``cuda-graph``.
        compiler: makes a compiled function of a function and a name, instead of the mode's own.

    Attributes:
        compiled: what was compiled, by (rung, training).

    Raises:
        ValueError: a mode that does not exist, or not here.
    """

    def __init__(
        self, model: nn.Module, mode: str = "auto", compiler: Compiler | None = None
    ) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        if mode == OWN:
            raise ValueError(
                f"mode={mode!r} records whole steps of StaticGraphRunner; sampled batches are "
                "recorded by torch: use mode='reduce-overhead'"
            )
        self.mode = resolve(mode, self.device.type)
        self._compiler = compiler or (
            (lambda function, name: CompiledFunction(function, self.mode, self.device, name))
            if self.mode.compiled
            else None
        )
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.compiled: dict[tuple[int, bool], Callable[..., Tensor]] = {}

    def __call__(self, hops: HopBatch) -> Tensor:
        """The model's output over a batch with features: ``[N_0, out]``."""
        if hops.x is None:
            raise ValueError("the batch has no features: pass features= to outofcore.partition")
        return self.run(hops, self.on_device(hops, hops.x.float()))

    def on_device(self, hops: HopBatch, x: Tensor, more: Sequence[Tensor] = ()) -> list[Tensor]:
        """The inputs of :meth:`run`: ``x``, degrees, ``more`` and the tables, copied."""
        tensors = [x, hops.degree, hops.whole, *more, *hops.tables]
        if self._stream is None:
            return [tensor.to(self.device) for tensor in tensors]
        present = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            copies = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
            hops.copied = hops.copied or torch.cuda.Event()
            hops.copied.record()
        present.wait_stream(self._stream)
        for copy in copies:
            copy.record_stream(present)
        return copies

    def run(self, hops: HopBatch, inputs: Sequence[Tensor]) -> Tensor:
        """The model's output over what :meth:`on_device` gave."""
        first = len(inputs) - hops.hops

        def forward(x: Tensor, degree: Tensor, whole: Tensor, *others: Tensor) -> Tensor:
            more, tables = others[: first - 3], others[first - 3 :]
            return self.model(x, _Tables(degree, whole, tables), *more)

        if self._compiler is None or hops.rung is None:
            return forward(*inputs)
        key = (hops.rung, self.model.training)
        if key not in self.compiled:
            phase = "train" if self.model.training else "eval"
            self.compiled[key] = self._compiler(forward, f"rung {hops.rung} {phase}")
        return self.compiled[key](*inputs)


@dataclass(slots=True)
class _Tables:
    """What layers read of a batch, around tensors of a compiled function."""

    degree: Tensor
    whole: Tensor
    tables: tuple[Tensor, ...]
