"""Models that apply one operation to all rows of a batch: correct over padding, handled, or wrong.

In the wrong ones, the line of that operation ends in ``# here``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_mean_pool

from support.alike import sgd, squared
from support.layer_cases import C
from support.parity import BATCH, CAPACITY
from support.runners import made_runner

PLAN = [CAPACITY]


class Probe(nn.Module):
    """A convolution, an operation over its rows, a mean over each graph, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(C, C)
        self.layer = self.make_layer()
        self.head = nn.Linear(C, 2)

    def make_layer(self):
        return nn.Identity()

    def forward(self, x, edge_index, batch):
        h = self.trick(self.conv(x, edge_index))
        return self.head(global_mean_pool(h, batch))

    def trick(self, h):
        return self.layer(h)


class OwnNorm(nn.BatchNorm1d):
    """A subclass that overrides nothing."""


class OptionsOnly(nn.BatchNorm1d):
    def __init__(self, channels):
        super().__init__(channels, eps=1e-3, momentum=0.3)
        self.extra = 3


class Residual(nn.BatchNorm1d):
    def forward(self, input):
        return input + 0.5 * super().forward(input)


class AnyShape(nn.BatchNorm1d):
    def _check_input_dim(self, input):
        pass


class Twice(Residual):
    def forward(self, input):
        return super().forward(super().forward(input))


def with_norm(kind):
    return type(f"With{kind.__name__}", (Probe,), {"make_layer": lambda self: kind(C)})


class SequenceOfNorms(Probe):
    def make_layer(self):
        return nn.Sequential(Residual(C), nn.ReLU(), OwnNorm(C))


SERVED = [with_norm(kind) for kind in (OwnNorm, OptionsOnly, Residual, AnyShape, Twice)]


class Moves(Probe):
    """Changes its input in place."""

    def forward(self, x, edge_index, batch):
        x += 1.0
        return super().forward(x, edge_index, batch)


SERVED += [SequenceOfNorms, Moves]


class WholeForward(nn.BatchNorm1d):
    def forward(self, input):
        return F.batch_norm(  # here
            input, self.running_mean, self.running_var, self.weight, self.bias, True, 0.1, self.eps
        )


class ByName(nn.BatchNorm1d):
    def forward(self, input):
        return nn.BatchNorm1d.forward(self, input)  # here


class FunctionalNorm(Probe):
    def trick(self, h):
        return F.batch_norm(h, None, None, training=True)  # here


class Mean(Probe):
    def trick(self, h):
        return h - h.mean(0)  # here


class MeanKeptApart(Probe):
    def trick(self, h):
        middle = h.mean(0)  # here
        return h.relu() - middle


class InstanceNorm(Probe):
    layer_name = "layer"

    def make_layer(self):
        return nn.InstanceNorm1d(C)

    def trick(self, h):
        return self.layer(h.t()[None])[0].t()  # here


class GroupNorm(Probe):
    layer_name = "layer"

    def make_layer(self):
        return nn.GroupNorm(2, C)

    def trick(self, h):
        return self.layer(h.t()[None])[0].t()  # here


class OverNodes(Probe):
    layer_name = "layer"

    def make_layer(self):
        return nn.Conv1d(C, C, 3, padding=1)

    def trick(self, h):
        return self.layer(h.t()[None])[0].t()  # here


class Softmax(Probe):
    def trick(self, h):
        return h * h.softmax(0)  # here


class Attention(Probe):
    layer_name = "layer"

    def make_layer(self):
        return nn.MultiheadAttention(C, 2, batch_first=True)

    def trick(self, h):
        return self.layer(h[None], h[None], h[None], need_weights=False)[0][0]  # here


class Dots(Probe):
    def trick(self, h):
        return (h @ h.t()).softmax(-1) @ h  # here


class Sum(Probe):
    def trick(self, h):
        return h + h.sum(0)  # here


class Largest(Probe):
    seldom = True  # is padding the largest

    def trick(self, h):
        return h - h.max()  # here


class Sorted(Probe):
    def trick(self, h):
        return h + h.sort(0).values  # here


class Backwards(Probe):
    def trick(self, h):
        return h + h.flip(0).cumsum(0).flip(0)  # here


class Recurrent(Probe):
    layer_name = "layer"

    def make_layer(self):
        return nn.GRU(C, C // 2, batch_first=True, bidirectional=True)

    def trick(self, h):
        return self.layer(h[None])[0][0]  # here


class Norm(Probe):
    def trick(self, h):
        return h / (1 + h).norm()  # here


class LayerNormOverAll(Probe):
    def trick(self, h):
        return F.layer_norm(h, h.shape)  # here


class CountedNodes(Probe):
    """Depends on the number of padding rows, but not on their values."""

    layer_name = ""

    def trick(self, h):
        return h / h.size(0)


class Positions(Probe):
    layer_name = ""

    def trick(self, h):
        return h + torch.linspace(0, 1, h.size(0), dtype=h.dtype)[:, None]


class Cumulated(Probe):
    """Correct, since padding rows come after the real ones."""

    def trick(self, h):
        return h + h.cumsum(0)


class Permuted(Probe):
    """Correct, since the rows are reversed and restored."""

    def trick(self, h):
        return h.flip(0).relu().flip(0)


NAMED = [
    *(with_norm(kind) for kind in (WholeForward, ByName)),
    *(FunctionalNorm, Mean, MeanKeptApart, InstanceNorm, GroupNorm, OverNodes),
    *(Softmax, Attention, Dots, Sum, Largest, Sorted, Backwards, Recurrent, Norm),
    *(LayerNormOverAll, CountedNodes, Positions),
]


RIGHT = [Probe, Cumulated, Permuted]


def runner_of(model, plan=PLAN, **options):
    options.setdefault("mode", "eager")
    optimizer = sgd(model, 0.0)
    return made_runner(model, plan, loss=squared, optimizer=optimizer, **options)


def make_model(kind):
    torch.manual_seed(0)
    model = kind().double()
    nn.init.normal_(model.conv.bias)  # an untrained bias of zeros would hide errors
    return model


def plain_loss(model):
    data = Batch.from_data_list(BATCH.to_data_list())
    return float(squared(model(data.x, data.edge_index, data.batch), data).mean().detach())
