"""``staticgraph try``: compares this library with plain PyG on a data set and a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from staticgraph.cli.refusals import require_names
from staticgraph.files.document import to_json
from staticgraph.training.options import (
    NAMES,
    OUTPUT_FOLDER,
    POSITIVE,
    BatchSize,
    Device,
    ModelOptions,
    Seed,
)

NOT_EQUAL = 1
REPORT, PICTURE = "try.json", "try.png"


def run(
    *,
    options: ModelOptions,
    batch_size: Annotated[BatchSize, Parameter(metavar="SIZE")] = 128,
    seconds: Annotated[float, POSITIVE] = 60.0,
    modes: Annotated[tuple[str, ...], NAMES, Parameter(metavar="MODE")] = (),
    device: Device = "auto",
    seed: Seed = 0,
    out: Annotated[Path, OUTPUT_FOLDER] = Path("runs/try"),
    submit: bool = False,
    json: bool = False,
) -> int:
    """Train a model by plain PyG and by this library in turn for about a minute, and say which is
    faster, at what memory, and whether both compute the same.

    For example:
      staticgraph try --data esol --model gine
      staticgraph try --data examples/data/hiv.npz --model mymodule:build --seconds 30
      staticgraph try --data tu:PROTEINS --model gin --modes eager fused --batch-size 32

    Plain PyG and this library train the same model from the same weights over the same batches, and
    take turns: PyG with its fastest number of workers, this library in each mode. A mode is one of
    staticgraph train --compile-mode, with +kernels for the fused kernels, as default+kernels;
    pyg-compiled is plain PyG under torch.compile(dynamic=True). The folder gets try.json, which is
    for a bug report, and try.png. The exit status is 1 where no mode of this library runs the
    model, or where losses or outputs differ.

    Args:
        options: data, model and loss.
        batch_size: graphs per batch.
        seconds: about how many seconds in all, without compiling.
        modes: modes to try; eager and fused on a CPU, on CUDA also compiled and recorded ones, if
            it is left out.
        device: cpu, cuda, cuda:1, or auto.
        seed: seed of split, model and order.
        out: folder for try.json and try.png.
        submit: also print the result as a row of a table, to paste into an issue.
        json: print JSON instead of a table.
    """
    require_names(options, options.model, options.loss)
    from staticgraph.training import plots
    from staticgraph.training.build_run import open_step
    from staticgraph.training.job import device_of, machine
    from staticgraph.training.versus.comparison import compare

    out.mkdir(parents=True, exist_ok=True)  # fails before a minute of measuring, not after it
    place = device_of(device)
    store, loss, model = open_step(options, seed)
    report = compare(
        model,
        store,
        loss=loss,
        batch_size=batch_size,
        seconds=seconds,
        modes=modes,
        device=place,
        seed=seed,
    )
    report.save(out / REPORT)
    print(to_json(report.to_dict()) if json else report)
    if submit:
        row = report.submission(machine(), options.model)
        print(f"\n{row}", file=sys.stderr if json else sys.stdout)
    written = [out / REPORT]
    if report.winner and plots.save_picture(out / PICTURE, plots.draw_versus, report):
        written.append(out / PICTURE)
    print(f"written: {', '.join(map(str, written))}", file=sys.stderr)
    return 0 if report.ok else NOT_EQUAL
