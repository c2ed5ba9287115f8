"""What a key computes: the forward of a model, or the forward and the mean loss, of one batch.

The same function runs in eager, is compiled, and is recorded. While it runs, the model's converted
layers see the batch and PyG's functions have their fixed shapes; before and after, neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from staticgraph.batch import StaticBatch
from staticgraph.errors import NotStatic
from staticgraph.nn.call_sites import StaticCalls
from staticgraph.nn.context import BatchContext
from staticgraph.nn.convert import context_of
from staticgraph.nn.refused import caching_layers, unheard_hooks
from staticgraph.running.arguments import Forward, forward_of
from staticgraph.running.losses import check_not_broadcast, masked_mean, without_missing
from staticgraph.running.padding import sanitized, zero_padding

Loss = Callable[[Any, StaticBatch], Tensor]


class Computation:
    """One model with its loss.

    Args:
        model: converted in place.
        forward: how it is called; by its parameter names where None.
        loss: one value a row.
        autocast: the dtype of forward and loss, or None.
        device: where the model is.
        sanitize: set padding rows of the input to zero inside the step.
        differentiable: fields that the model takes derivatives by, such as ``pos``; in evaluation
            too, though gradients are off around it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        forward: Forward | None,
        loss: Loss | None,
        autocast: torch.dtype | None,
        device: torch.device,
        sanitize: bool = False,
        differentiable: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._forward = forward or forward_of(model)
        self._loss = loss
        self._autocast = autocast
        self._device = device
        self._sanitize = sanitize
        self._differentiable = tuple(differentiable)
        for path, why in caching_layers(model).items():
            raise NotStatic(f"{path or 'the model'}: {why}")
        self._context = context_of(model)
        self._static_calls = StaticCalls(model, self._context)

    @property
    def context(self) -> BatchContext:
        """What the model's converted layers know of the batch."""
        return self._context

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, PyG's listed functions are the static ones; afterwards no batch is bound."""
        with self._static_calls:
            try:
                yield
            finally:
                self._context.leave()

    def run(self, phase: str, batch: StaticBatch, keep: bool = False) -> Any:
        """The output for phase ``forward``, the mean loss for ``step``, both for ``both``.

        With ``keep`` the layers go on seeing the batch until :meth:`active` ends: a backward that
        runs parts of the forward again (activation checkpointing) then runs them as they were.
        """
        if self._sanitize:
            batch = sanitized(batch)
        if self._differentiable:
            batch = self._with_derivatives(batch)
        self._context.enter(batch)
        precision = (
            nullcontext()
            if self._autocast is None
            else torch.autocast(self._device.type, dtype=self._autocast)
        )
        with precision:
            seen = batch.replace()  # what the model sets on its batch ends with this forward
            out = zero_padding(self._output(seen), batch)
            result = out if phase == "forward" else self.mean_loss(out, seen)
            if phase == "both":
                result = out, result
        if not keep:
            self._context.leave()
        return result

    def _output(self, batch: StaticBatch) -> Any:
        """The model's; one that differentiates gets to do so where gradients are off around it,
        and what comes out then has none, as anything else has."""
        if not self._differentiable or torch.is_grad_enabled():
            return self._forward(self._model, batch)
        with torch.enable_grad():
            out = self._forward(self._model, batch)
        return _detached(out)

    def _with_derivatives(self, batch: StaticBatch) -> StaticBatch:
        """The batch with fields that already require a gradient: torch.compile traces no
        ``requires_grad_()`` of an input, but lets one be that changes nothing."""
        anchor = next(p for p in self._model.parameters() if p.requires_grad)
        with torch.enable_grad():
            none = 0 * anchor.flatten()[0]
            return batch.replace(**{name: batch[name] + none for name in self._differentiable})

    def of_tensors(self, phase: str, like: StaticBatch) -> Callable[..., Any]:
        """:meth:`run` as a function of tensors alone, given in the order of ``like``'s: what can be
        compiled. The batch it makes knows no real counts, so nothing depends on them.

        Raises:
            NotStatic: the model has hooks that a compiled step would leave out.
        """
        for path, why in unheard_hooks(self._model).items():
            raise NotStatic(f"{path}: {why}" if path else why)
        layout, names, run = like.layout, tuple(like.tensors()), self.run

        def function(*tensors: Tensor) -> Any:
            return run(phase, StaticBatch(layout, dict(zip(names, tensors, strict=True))))

        return function

    def mean_loss(self, out: Any, batch: StaticBatch) -> Tensor:
        """The loss over the real rows of a batch, 0-dim."""
        assert self._loss is not None
        values = self._loss(out, without_missing(batch))
        check_not_broadcast(values, out)
        return masked_mean(values, batch)


def _detached(out: Any) -> Any:
    if isinstance(out, Tensor):
        return out.detach()
    if type(out) in (tuple, list):
        return type(out)(_detached(item) for item in out)
    if type(out) is dict:
        return {key: _detached(item) for key, item in out.items()}
    return out
