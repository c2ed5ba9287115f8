"""Trains an unchanged LightningModule on batches of fixed shape; needs the extra ``lightning``."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GINEConv, global_add_pool

import staticgraph as sg
from staticgraph.lightning import StaticDataModule, StaticGraphs


class Solubility(pl.LightningModule):
    """Has no code for fixed shapes: it also runs with PyG's loaders."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Linear(9, width), nn.Linear(3, width)
        mlp = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
        self.conv = GINEConv(mlp)
        self.head = nn.Linear(width, 1)

    def forward(self, data):
        bonds = self.bonds(data.edge_attr.float())
        h = self.conv(self.atoms(data.x.float()), data.edge_index, bonds)
        return self.head(global_add_pool(h, data.batch, data.num_graphs) / 10)

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self(batch), batch.y)
        self.log("loss", loss, on_epoch=True, batch_size=batch.num_graphs)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = F.mse_loss(self(batch), batch.y)
        self.log("val_loss", loss, batch_size=batch.num_graphs)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(molecules: int = 1000, epochs: int = 10, width: int = 32) -> float:
    pl.seed_everything(0, verbose=False)
    store = sg.datasets.open("examples/data/esol.npz")
    splits = {"train": range(molecules), "val": range(1000, 1128)}
    data = StaticDataModule(store, batch_size=64, splits=splits)
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[StaticGraphs()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Solubility(width), datamodule=data)
    print(f"after {epochs} epochs: {float(trainer.callback_metrics['val_loss']):.3f}")
    return float(trainer.callback_metrics["loss_epoch"])


if __name__ == "__main__":
    main()
