"""Builds the small model around a layer of the table, with its weights initialized."""

from __future__ import annotations

import torch
from torch_geometric.data import Batch

from support.layer_cases import Case, Model
from support.parity import BATCH


def model_of(case: Case) -> Model:
    torch.manual_seed(0)
    model = Model(case).to(case.dtype)
    with torch.no_grad():  # sets the width of the lazy head
        model.eval()(Batch.from_data_list(BATCH.to_data_list()))
    return model.train()
