"""``staticgraph bench``: counts a training step's operations and launches."""

from __future__ import annotations

import datetime
import sys
from typing import TYPE_CHECKING, Annotated, Any

from staticgraph.cli.refusals import require_names
from staticgraph.files.document import to_json
from staticgraph.text.progress import waiting
from staticgraph.text.table import table
from staticgraph.training.options import LAYERS, MODELS, WIDTH, BatchSize, DataOptions, Gpu, choice

if TYPE_CHECKING:
    from torch.nn import Module


def run(
    *,
    data: DataOptions,
    model: Annotated[str, choice(*MODELS)] = "gine",
    layers: Annotated[int, LAYERS] = 5,
    hidden: Annotated[int, WIDTH] = 300,
    batch_size: BatchSize = 32,
    autocast: Annotated[str | None, choice("bfloat16", "float16")] = None,
    gpu: Gpu = "h100",
    eager: bool = False,
    operators: bool = False,
    count_kernels: bool = True,
    json: bool = False,
) -> None:
    """Count what a training step gives a GPU, three ways: operations of plain PyG, and launches of
    the default plan's step compiled for a GPU that you do not have, of stock layers and with
    kernels. Needs no GPU; compiling takes a minute or more.

    Example:
      staticgraph bench --data esol --model gine --layers 5 --hidden 300 --batch-size 32

    Args:
        data: the data.
        model: a model of the zoo.
        layers: number of convolutions.
        hidden: width of every layer.
        batch_size: graphs per batch.
        autocast: mixed precision.
        gpu: the GPU to compile for.
        eager: compile nothing: count operations in eager mode only, for static batches too.
        operators: also list eager operations by name.
        count_kernels: count kernels, which is what this command does; may be left out.
        json: print JSON instead of tables.
    """
    require_names(data, model)
    import torch

    from staticgraph import models
    from staticgraph.dryrun import operations
    from staticgraph.dryrun.report import PARTS
    from staticgraph.errors import DryRunUnavailable
    from staticgraph.plans.choose_capacities import plan_buckets
    from staticgraph.training.tasks import task_of

    store = data.open()
    task_of(store, data.task)  # refuses data without a target, which the loss needs
    plan = plan_buckets(store, batch_size=min(batch_size, len(store)))
    dtype = None if autocast is None else getattr(torch, autocast)

    def build() -> Module:
        """A new model, each time with the same initial weights."""
        torch.manual_seed(0)
        return models.build(model, store, hidden=hidden, layers=layers)

    ways = operations.EAGER if eager or operators else operations.EAGER[:1]
    with waiting("counting operations in eager mode"):
        counts = {way: operations.dispatched(way, build(), store, plan, dtype) for way in ways}
    columns = [operations.operations_column(way, counted) for way, counted in counts.items()]
    label = ""
    try:
        for kernels in () if eager else (False, True):
            what = "with kernels" if kernels else "of stock layers"
            with waiting(f"compiling the step {what} for {gpu}"):
                column, label = operations.launched(build(), plan, gpu, kernels, dtype)
            columns.append(column)
    except DryRunUnavailable as error:
        print(f"skipped what is compiled: {error}", file=sys.stderr)
    title = f"{model} {layers}x{hidden}"
    if json:
        setting = {
            "model": title, "data": data.data, "batch_size": batch_size, "autocast": autocast,
            "capacity": str(plan.capacities[0]), "label": label,
        }  # fmt: skip
        print(to_json(_document(setting, columns, counts)))
        return
    precision = f", {autocast}" if autocast else ""
    print(f"{title}, batch {batch_size}{precision}, {plan.capacities[0]}: one training step")
    rows: list[list[Any]] = [[part, *(column.parts[part] for column in columns)] for part in PARTS]
    rows.append(["step", *(column.step for column in columns)])
    stock = next((column.step for column in columns if column.name == operations.STOCK), None)
    if stock:
        rows.append([f"of {operations.STOCK}", *(f"{c.step / stock:.2f}" for c in columns)])
    print(table(["", *(f"{column.name}, {column.unit}" for column in columns)], rows))
    print("operations: dispatched in eager mode, views and allocations left out")
    if label:
        print(f"launches: {label}")
    for way, counted in counts.items() if operators else ():
        lines = [
            [operator, *(counted.counts[part][operator] for part in PARTS)]
            for operator in sorted({key for c in counted.counts.values() for key in c})
        ]
        print(f"\n{way}\n{table(['operator', *PARTS], lines)}")


def _document(setting: dict[str, Any], columns: list[Any], counts: dict[str, Any]) -> dict:
    """The output of ``--json``: the table, and the setting that it was made with."""
    from staticgraph.files.versions import STEPS, versions

    document: dict[str, Any] = {
        c.name: {**c.parts, "total": c.step, "unit": c.unit, "kinds": c.kinds} for c in columns
    }
    for way, counted in counts.items():
        document[way]["operators"] = counted.counts
        document[way]["launches"] = counted.launches
        document[way]["host_reads"] = counted.host_reads
    today = datetime.date.today().isoformat()
    return {**document, "setting": {**setting, "versions": versions(STEPS), "date": today}}
