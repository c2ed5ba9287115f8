"""Compares a model of several types over padding with plain PyG over the unpadded batch."""

from __future__ import annotations

import copy

from torch import nn
from torch_geometric.data import Batch

from staticgraph.nn import context_of
from staticgraph.nn.context.bound_batch import Restored
from staticgraph.steps.loss.mean_loss import masked_mean
from staticgraph.steps.tracing.trace import trace_step
from support.alike import squared
from support.parity import Result


def plain(model: nn.Module, batch, follow: tuple[str, ...] = ()) -> Result:
    """Runs plain PyG on the unpadded batch."""
    model = copy.deepcopy(model)
    data = Batch.from_data_list(batch.to_data_list(), follow_batch=list(follow))
    out = model(data)
    mean = squared(out, data).mean()
    mean.backward()
    return Result(model, out, mean)


def static(model: nn.Module, batch, trace: bool = False) -> Result:
    """Runs the same with the static forms, eagerly or through the captured graph."""
    model = copy.deepcopy(model)
    context = context_of(model)
    traced = None

    def compute(inputs):
        context.enter(inputs)
        out = model(inputs)
        mean = masked_mean(squared(out, inputs), inputs)
        context.leave()
        return out, mean

    with Restored():
        if trace:
            traced = trace_step(compute, batch)
            assert traced.static, (traced.error, traced.obstacles)
            out, mean = traced.result
        else:
            out, mean = compute(batch)
        mean.backward()
    return Result(model, out[: batch.real_counts.graphs], mean)
