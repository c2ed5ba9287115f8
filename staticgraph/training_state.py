"""Warming up changes nothing: what a run of the model may touch is put back after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Restores buffers, gradients, training flags and random state when the block ends.

    Parameters and the optimizer are not saved: nothing inside steps the optimizer.
    """
    on_cuda = any(p.is_cuda for p in model.parameters())
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    flags = [(module, module.training) for module in model.modules()]
    for parameter, _ in grads:
        parameter.grad = None
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_cuda else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            for parameter, grad in grads:
                parameter.grad = grad
            for module, flag in flags:
                module.training = flag
