"""A checkpoint file, from which a run continues as if it had never stopped, or is only used.

The file holds everything that determines the next step: parameters and buffers, the optimizer,
accumulated gradients, the loader's position within its epoch, the random states of every rank, and
the digest of the data. It is written to a temporary file and renamed, so a run that is killed while
writing still has the previous file. A digest follows the data written by torch: a changed byte is
an error, not a wrong weight, and nothing is unpickled before the digest is compared.

A run that is resumed with the same number of processes computes what it would have computed; with
another number its steps differ, and the rest of an epoch in progress is skipped.

The trained model is loaded from it without the data. Its first layers also depend on how many
categories each column of the data has, which is the length of their embedding tables.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from staticgraph.errors import CheckpointCorrupt
from staticgraph.files import atomic
from staticgraph.files.document import NOT_THERE
from staticgraph.models.named import is_spec
from staticgraph.nn import convert
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.export_manifest import categories_of
from staticgraph.schema import Schema
from staticgraph.store.graph_store import GraphStore
from staticgraph.training.build_run import load_weights, model_of
from staticgraph.training.config import CHECKPOINT, REPORT, TrainConfig, require_run

FORMAT = "staticgraph.checkpoint"
# 2: a digest after the contents, which include the digest of the data.
VERSION = 2
# The file ends with this and the digest; torch reads the part before it as an ordinary archive.
TRAILER = b"staticgraph.checkpoint.blake2b:"
DIGEST = 32
LAST = len(TRAILER) + DIGEST
AGAIN = "train again with staticgraph train --overwrite"


def save(folder: Path, **state: Any) -> None:
    """Writes ``folder/checkpoint.pt`` with ``state``."""
    content = {"format": FORMAT, "version": VERSION, **state}
    archive = io.BytesIO()
    torch.save(content, archive)
    written = archive.getvalue()
    atomic.write_bytes(folder / CHECKPOINT, written + TRAILER + _digest(written))


def load(folder: Path) -> dict[str, Any]:
    """Reads a file that :func:`save` wrote, on the CPU; the caller restores the random states.

    Raises:
        FileNotFoundError: there is no checkpoint.
        CheckpointCorrupt: the file is truncated, modified, or of another format or version.
    """
    require_run(folder)
    path = folder / CHECKPOINT
    whole = path.read_bytes()
    archive = whole[:-LAST]
    if whole[-LAST:] != TRAILER + _digest(archive):
        raise CheckpointCorrupt(
            f"{path} cannot be read (its checksum is not the one written): put back a copy, or "
            f"{AGAIN}"
        )
    content: Any = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
    if (content["format"], content["version"]) != (FORMAT, VERSION):
        raise CheckpointCorrupt(
            f"{path} says {content['format']} version {content['version']}; this library reads "
            f"{FORMAT} version {VERSION}: {AGAIN}"
        )
    return content


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


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
        state = load(folder)
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
        task = None
        with suppress(OSError, *NOT_THERE):
            task = str(json.loads((folder / REPORT).read_text())["task"])
        return cls(model.eval(), plan, config, task, categories)


def _example(schema: Schema, categories: Mapping[str, tuple[int, ...]]) -> GraphStore:
    """A store with the largest category in every column, which is all that building a model
    needs."""
    store = GraphStore.zeros(schema)
    largest = {
        name: np.array(sizes, np.int64).reshape(1, *schema[name].shape) - 1
        for name, sizes in categories.items()
    }
    return replace(store, columns={**store.columns, **largest})
