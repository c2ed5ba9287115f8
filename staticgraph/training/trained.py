"""A run's folder -> the trained model, ready to predict, without the data.

The checkpoint has the parameters, the plan and the settings. The first layers also depend on how
many categories each column of the data has, which is the length of their embedding tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from staticgraph.errors import CheckpointCorrupt
from staticgraph.files.document import NOT_THERE
from staticgraph.models.named import is_spec
from staticgraph.nn import convert
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.export_manifest import categories_of
from staticgraph.schema import Schema
from staticgraph.store.graph_store import GraphStore
from staticgraph.training import checkpoint
from staticgraph.training.config import CHECKPOINT, REPORT, TrainConfig, require_run
from staticgraph.training.parts import load_weights, model_of


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model and what it was trained on.

    Attributes:
        model: the model, in evaluation mode, on the requested device.
        plan: the plan of the training, with the fields of a graph.
        config: the run's settings.
        task: ``binary``, ``regression`` or ``classes``; None if the run has no report.
        categories: integer field -> the number of categories of each of its columns.
    """

    model: torch.nn.Module
    plan: BucketPlan
    config: TrainConfig
    task: str | None
    categories: Mapping[str, tuple[int, ...]]

    @property
    def schema(self) -> Schema:
        """The fields of a graph."""
        assert self.plan.schema is not None
        return self.plan.schema

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Trained:
        """Reads ``checkpoint.pt``, and the task from ``report.json`` if it exists.

        Raises:
            FileNotFoundError: the folder has no checkpoint.
            CheckpointCorrupt: the checkpoint is damaged, not of a run, or of another model.
        """
        require_run(folder, trained=True)
        state = checkpoint.load(folder)
        try:
            config = TrainConfig(**state["config"])
            plan = BucketPlan.from_dict(state["plan"])
            weights = state["model"]
            if plan.schema is None:
                raise KeyError("schema")
        except NOT_THERE as error:
            raise CheckpointCorrupt(
                f"{folder / CHECKPOINT} is not of a run that this version reads ({error})"
            ) from error
        categories = categories_of(weights, plan.schema)
        outputs = 1 if is_spec(config.model) else len(weights["head.2.bias"])
        model = model_of(config, _example(plan.schema, categories), outputs).to(device)
        convert(model, kernels=config.kernels == "on")
        load_weights(model, weights, config.model, folder)
        return cls(model.eval(), plan, config, _task(folder), categories)


def _example(schema: Schema, categories: Mapping[str, tuple[int, ...]]) -> GraphStore:
    """A store with the largest category in every column, which is all that building a model
    needs."""
    store = GraphStore.zeros(schema)
    largest = {
        name: np.array(sizes, np.int64).reshape(1, *schema[name].shape) - 1
        for name, sizes in categories.items()
    }
    return replace(store, columns={**store.columns, **largest})


def _task(folder: Path) -> str | None:
    try:
        values: Any = json.loads((folder / REPORT).read_text())
        return str(values["task"])
    except (OSError, *NOT_THERE):
        return None
