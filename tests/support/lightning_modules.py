"""LightningModules as users write them: the whole step in one call, or in parts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GCNConv, global_add_pool

from support.alike import sgd
from support.gine_net import Net

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")
import lightning.pytorch as pl


class Whole(pl.LightningModule):
    """The usual form: the model takes the whole batch, and the step takes a mean."""

    def __init__(self):
        super().__init__()
        self.net, self.losses = Net(), []

    def forward(self, data):
        return self.net(data.x, data.edge_index, data.edge_attr, data.batch)

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self(batch), batch.y)
        self.log("loss", loss, on_epoch=True, on_step=False)
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.l1_loss(self(batch), batch.y), batch_size=batch.num_graphs)

    def predict_step(self, batch, batch_idx):
        return batch.graph_ids, self(batch)

    def configure_optimizers(self):
        return sgd(self, 0.05, momentum=0.9)


class InParts(Whole):
    """Calls its parts one by one, with work in between: on the batch, on results, in a pool."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(9, 8), GCNConv(8, 8)])
        self.norm = nn.BatchNorm1d(8)

    def forward(self, data):
        raise AssertionError("the step calls the parts")

    def training_step(self, batch, batch_idx):
        batch.x = batch.x.float()
        h = self.convs[0](batch.x, batch.edge_index)
        h = self.convs[1](self.norm(h), batch.edge_index)
        pooled = global_add_pool(h.relu(), batch.batch, batch.num_graphs) / 30
        loss = F.mse_loss(self.net.head(pooled), batch.y)
        self.losses.append(loss.detach())
        return loss


class Variational(Whole):
    """Adds a KL term of a drawn latent, with a weight that is annealed from 0."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.encode = nn.Sequential(nn.Linear(9, 16), nn.BatchNorm1d(16))

    def forward(self, data):
        mean, scale = self.encode(data.x.float()).chunk(2, -1)
        kl = 0.5 * (mean.square() + scale.exp() - scale - 1)
        self.kl = kl.mean() if self.rows == "padded" else global_add_pool(kl, data.batch)
        self.latent = mean + torch.randn_like(mean) * (0.5 * scale).exp()
        return super().forward(data)

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self(batch), batch.y)
        kl = self.kl if self.rows == "padded" else self.kl[: batch.num_graphs].mean()
        return loss + min(1.0, self.current_epoch) * kl + 0 * self.latent.sum()


def make_module(kind):
    torch.manual_seed(0)
    return kind()
