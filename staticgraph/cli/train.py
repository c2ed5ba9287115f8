"""``staticgraph train``: trains a model on a data set, with fixed shapes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from staticgraph.cli import DIVERGED, INTERRUPTED
from staticgraph.cli.refusals import (
    OPTIONS_SET,
    UsageError,
    check_mode,
    require_code,
    require_names,
)
from staticgraph.errors import Diverged
from staticgraph.files.document import to_json
from staticgraph.training.config import TrainConfig, named_in, require_free, require_run
from staticgraph.training.options import FILES, INPUT_FILE, OUTPUT_FOLDER

if TYPE_CHECKING:
    from staticgraph.training.report import TrainReport


def run(
    *,
    settings: TrainConfig,
    config: Annotated[Path | None, INPUT_FILE, FILES] = None,
    out: Annotated[Path, OUTPUT_FOLDER, FILES] = Path("runs/latest"),
    resume: Annotated[bool, FILES] = False,
    overwrite: Annotated[bool, FILES] = False,
    json: Annotated[bool, FILES] = False,
) -> int:
    """Train a graph neural network on a data set, in a few fixed shapes.

    For example:
      staticgraph train --data examples/data/hiv.npz --model gps --hidden 32 --layers 3 --epochs 2
      staticgraph train --data tu:PROTEINS --model gin --epochs 20 --out runs/proteins
      staticgraph train --resume --out runs/proteins --epochs 40
      staticgraph train --data examples/data/hiv.npz --model mymodule:build --schedule cosine
      staticgraph train --config runs/proteins/config.toml --lr 0.01 --out runs/proteins2

    The folder gets checkpoint.pt, config.toml, plan.json, steps.csv, report.json, report.png and
    TensorBoard's files. A --config is TOML with the options by name, such as batch-size = 64; what
    is given on the command line overrides it.

    Ctrl-C stops after the present step, with a checkpoint; --resume continues from there as if the
    run had never stopped.

    The exit status is 1 where the training diverged, or no epoch has a finite validation loss.

    On several GPUs or machines, --batch-size is per process:
      torchrun --nproc-per-node 4 -m staticgraph.cli train --data ogb:ogbg-molhiv --out runs/hiv

    Args:
        settings: the settings.
        config: settings as TOML, such as the config.toml of another run.
        out: the run's folder.
        resume: continue the run in --out.
        overwrite: replace the run in --out.
        json: print the report as JSON.
    """
    if resume and overwrite:
        raise UsageError("argument --overwrite: not allowed with --resume")
    alone = "RANK" not in os.environ  # of several processes, rank 0 checks and informs the others
    if resume:
        if alone:
            require_run(out)
        model = settings.model if "model" in OPTIONS_SET else named_in(out)
        require_code(model, settings.loss or named_in(out, "loss"))
    else:
        if alone and not overwrite:
            require_free(out)
        require_names(settings, settings.model, settings.loss)
    check_mode(settings.compile_mode, settings.device, settings.allow_cpu)

    from staticgraph.training import train
    from staticgraph.training.report import TrainReport

    first = int(os.environ.get("RANK", "0")) == 0  # prints for all processes
    try:
        if resume:
            names = OPTIONS_SET & set(TrainConfig.__dataclass_fields__)
            report = train.resume(out, {name: getattr(settings, name) for name in names})
        else:
            report = train.train(settings, out, overwrite=overwrite)
    except train.Interrupted:
        if first:
            raise
        return INTERRUPTED
    except Diverged:
        if first:
            _print(TrainReport.load(out), json)
            raise
        return DIVERGED
    if first:
        _print(report, json)
    return 0 if report.judged else DIVERGED


def _print(report: TrainReport, json: bool) -> None:
    print(to_json(report.to_dict()) if json else f"\n{report}")
