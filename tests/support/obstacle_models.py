"""A static model, models with one obstacle each, whose line ends in ``# here``, and a model that
chooses among equal rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn
from torch_geometric.nn import GCNConv, global_add_pool, global_mean_pool

from support.layer_cases import C
from support.parity import BATCH, CAPACITY

PLAN = [CAPACITY]


class Net(nn.Module):
    """A static model; those with obstacles derive from it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(C, C)
        self.norm = nn.BatchNorm1d(C)
        self.head = nn.Linear(C, 2)

    def forward(self, x, edge_index, batch):
        h = self.trick(self.norm(self.conv(x, edge_index)))
        return self.head(global_mean_pool(h, batch))

    def trick(self, h):
        return h.relu()


class Item(Net):
    def trick(self, h):
        return h / h.detach().max().item()  # here


class Nonzero(Net):
    def trick(self, h):
        rows = (h[:, 0] > 0).nonzero().view(-1)  # here
        return h.index_fill(0, rows, 0.0)


class Unique(Net):
    def trick(self, h):
        values = torch.unique(h.detach())  # here
        return h - values.mean()


class MaskIndex(Net):
    def trick(self, h):
        positive = h[h[:, 0] > 0]  # here
        return h - positive.mean(0)


class MaskWrite(Net):
    def trick(self, h):
        h = h.clone()
        h[h[:, 0] > 0] = torch.ones(C, dtype=h.dtype, device=h.device)  # here
        return h


class HostTensor(Net):
    def trick(self, h):
        return h * torch.tensor([1.0, 2.0] * 4, dtype=h.dtype).to(h.device)  # here


class HostRange(Net):
    def trick(self, h):
        return h * torch.arange(C)  # here


class Branch(Net):
    def trick(self, h):
        if h.mean() > 0:  # here
            return h.relu()
        return h


class Checkpointed(Net):
    def trick(self, h):
        return torch.utils.checkpoint.checkpoint(torch.tanh, h, use_reentrant=False)  # here


class CheckpointedReentrant(Net):
    def trick(self, h):
        return torch.utils.checkpoint.checkpoint(torch.tanh, h, use_reentrant=True)  # here


class ToHost(Net):
    def trick(self, h):
        return h + h.detach().cpu().std()  # here


class Repeats(Net):
    def trick(self, h):
        counts = (h[:, 0] > 0).long()
        return h + torch.repeat_interleave(h.detach(), counts, dim=0).mean()  # here


class Classes(Net):
    def trick(self, h):
        return h * nn.functional.one_hot((h[:, 0] > 0).long()).sum(1, keepdim=True)  # here


class ToList(Net):
    def trick(self, h):
        return h * sum(h.detach()[0].tolist())  # here


class Formatted(Net):
    def trick(self, h):
        self.seen = f"largest {h.detach().max():.3f}"  # here
        return h


class NewTensor(Net):
    def trick(self, h):
        return h * h.new_tensor([1.0, 2.0] * 4)  # here


class FromNumpy(Net):
    def trick(self, h):
        return h * torch.from_numpy(np.ones(C))  # here


class Tied(nn.Module):
    """Chooses among equal rows, and rounds differently when there are more of them."""

    def __init__(self, off=0.0):
        super().__init__()
        self.off = off
        self.lin = nn.Linear(C, C)
        self.head = nn.Linear(C, 2)

    def forward(self, x, edge_index, batch, num_graphs):
        h = self.lin(torch.ones_like(x))
        rounds = (
            1e-13 * torch.arange(len(h), device=h.device) * (1 if len(h) == BATCH.num_nodes else -1)
        )
        score = h[:, 0] + rounds
        best = h.new_full((num_graphs,), -torch.inf)
        best = best.scatter_reduce(0, batch, score.detach(), "amax")
        chosen = torch.where((score == best[batch])[:, None], x, 0)
        padded = self.off * (len(h) - 34)
        return self.head(global_add_pool(chosen, batch, num_graphs)) + padded


OBSTACLES = [
    (Item, "host read", ".item()"),
    (ToList, "host read", ".tolist()"),
    (Formatted, "host read", "a tensor as text"),
    (NewTensor, "host-to-device copy", "a tensor of the host's values"),
    (Classes, "host read", "one_hot without num_classes"),
    (FromNumpy, "host-to-device copy", "a tensor of the host's values"),
    (HostTensor, "host-to-device copy", "torch.tensor"),
    (HostRange, "host-to-device copy", "torch.arange without device="),
    (Nonzero, "size from data", "nonzero"),
    (Unique, "size from data", "unique"),
    (Repeats, "size from data", "repeat_interleave"),
    (MaskWrite, "write through a mask", "x[mask] = y"),
    (MaskIndex, "index with a mask", "x[mask]"),
    (Checkpointed, "activation checkpointing", "checkpoint"),
    (CheckpointedReentrant, "activation checkpointing", "checkpoint"),
    (ToHost, "device-to-host copy", ".cpu()"),
    (Branch, "branch on data", "bool() of a tensor"),
]


def where_of(kind: type) -> str:
    """Returns the file and line of a model's obstacle."""
    lines = Path(__file__).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"class {kind.__name__}("))
    line = next(i for i in range(start, len(lines)) if "# here" in lines[i]) + 1
    return f"{__file__}:{line}"
