"""``staticgraph predict``: a trained model's predictions for every graph of a data set."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from staticgraph.cli.refusals import require_trained
from staticgraph.errors import BadGraph
from staticgraph.files import atomic
from staticgraph.files.document import to_json
from staticgraph.serving.checked_graphs import BadBody, check_categories
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import bar
from staticgraph.training.options import FOLDER, OUTPUT_FILE, DataOptions, Device, Mode, choice

if TYPE_CHECKING:
    from staticgraph.store.graph_store import GraphStore
    from staticgraph.training.checkpoint import Trained

SPLITS = ("all", "train", "val", "test")


def run(
    *,
    data: DataOptions,
    folder: Annotated[Path, FOLDER, Parameter(name="--run")],
    split: Annotated[str, choice(*SPLITS)] = "all",
    out: Annotated[Path, OUTPUT_FILE] = Path("predictions.csv"),
    device: Device = "auto",
    compile_mode: Annotated[Mode, Parameter(show_choices=False)] = "auto",
    json: bool = False,
) -> None:
    """Write a trained model's predictions for a data set: a CSV with one row per graph, its number
    in the data set first.

    For example:
      staticgraph predict --run runs/hiv --data examples/data/hiv.npz --out predictions.csv
      staticgraph predict --run runs/esol --data molecules.csv --target solubility --json

    The columns after graph_id are the outputs of the model. A model that was trained to answer yes
    or no, or to choose a class, also gets its probabilities. The data needs the fields of the data
    that the model was trained on; labels are not read, though a CSV needs a column of them, which
    may be 0 in every row.

    Args:
        data: the data.
        folder: folder of a run of staticgraph train.
        split: the graphs to predict.
        out: the CSV to write.
        device: cpu, cuda, cuda:1, or auto.
        compile_mode: as for staticgraph train.
        json: print the predictions as JSON, and write no file.

    Raises:
        BadGraph: the split has no graphs, or they are not like those of the training.
    """
    require_trained(folder, compile_mode, device)
    from staticgraph.training.checkpoint import Trained
    from staticgraph.training.job import device_of

    place = device_of(device)
    trained = Trained.load(folder, place)
    store = data.open(trained.config.seed)
    ids = range(len(store)) if split == "all" else store.splits.get(split, ())
    if not len(ids):
        raise BadGraph(f"{store.name} has no graphs to predict in --split {split}")
    _require_inputs(trained, store, folder)
    columns = _predict(trained, store, ids, compile_mode)
    if json:
        document = {"run": str(folder), "data": store.name, "task": trained.task, **columns}
        print(to_json(document))
    else:
        atomic.write_text(out, _csv(columns))
        print(f"{how_many(len(ids), 'prediction')}: {out}", file=sys.stderr)


def _require_inputs(trained: Trained, store: GraphStore, folder: Path) -> None:
    """Refuses data that the model cannot read; labels may differ, or be absent.

    Raises:
        BadGraph: a field differs, or has a category that was not in the training's data.
    """
    trained_on, offered = (
        {field.layout for field in schema if field.name != "y"}
        for schema in (trained.schema, store.schema)
    )
    if trained_on != offered:
        differing = sorted({name for name, *_ in trained_on ^ offered})
        raise BadGraph(
            f"{store.name} differs in {', '.join(differing)} from the data that {folder} was "
            "trained on: give data with the same fields"
        )
    for name, sizes in trained.categories.items():
        field = store.schema[name]
        offsets = {field.level: store.offsets_of(field.level)}
        try:
            check_categories(field, store.columns[name], offsets, sizes)
        except BadBody as error:
            remedy = "train on data with these categories too"
            raise BadGraph(f"{store.name}: {error}: {remedy}") from None


def _predict(trained: Trained, store: GraphStore, ids: Any, mode: str) -> dict[str, Any]:
    """The outputs of the graphs, by id, as lists; with probabilities for a task that has them.

    Raises:
        BadGraph: the model's output is not one row per graph.
    """
    import torch

    from staticgraph.batches.batch.predictions import Predictions
    from staticgraph.runner.runner import StaticGraphRunner

    any_data = replace(trained.plan, digest=None, schema=None)
    runner = StaticGraphRunner(trained.model, any_data, mode)
    loader = runner.loader(store, indices=ids, exact=False)
    predictions = Predictions(len(store))
    for batch in bar(loader, desc="predicting", unit=" batches"):
        predictions.add(batch, runner.predict_batch(batch))
    out = predictions.in_order()
    if not isinstance(out, torch.Tensor) or len(out) != len(ids):
        raise BadGraph(
            f"{trained.config.model} does not return one row per graph, which a file of "
            "predictions needs: use runner.predict, which returns rows of nodes too"
        )
    outputs = out.reshape(len(out), -1).float()
    columns = {"graph_ids": sorted(map(int, ids)), "outputs": outputs.tolist()}
    if trained.task in ("binary", "classes"):
        shares = outputs.sigmoid() if trained.task == "binary" else outputs.softmax(1)
        columns["probabilities"] = shares.tolist()
    return columns


def _csv(columns: dict[str, Any]) -> str:
    """One row per graph: its id, the outputs, and the probabilities if there are any."""
    names = ["graph_id"]
    for key, label in (("outputs", "output"), ("probabilities", "probability")):
        width = len(columns[key][0]) if key in columns else 0
        names += [label] if width == 1 else [f"{label}_{k}" for k in range(width)]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(names)
    for number, *rows in zip(*columns.values(), strict=True):
        writer.writerow([number, *chain(*rows)])
    return text.getvalue()
