"""``staticgraph check``: whether a model can run with fixed shapes, and what prevents it; with
``--for h100``, also the launches of its step on a GPU that is not present."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from staticgraph.cli.refusals import require_names
from staticgraph.files.document import to_json
from staticgraph.text.progress import waiting
from staticgraph.training.options import (
    GPUS,
    NAMES,
    PICTURE_FILE,
    WORDS,
    BatchSize,
    DataOptions,
    choice,
    read_model,
    several,
    value,
)

if TYPE_CHECKING:
    from staticgraph.checking.report import CheckReport

NOT_STATIC = NOT_WHOLE = 1
UNAVAILABLE = 3
MODEL_FAILED = 4
NOT_RECORDED = "default"
MODES = (NOT_RECORDED, "reduce-overhead", "cuda-graph")
DRY_RUN = Parameter(
    group=Group.create_ordered(
        "a GPU that you do not have",
        help="After the check, compile the training step for it in the modes that can run the "
        "model, and count its launches; nothing runs on a device. The exit status is 1 where it "
        "does not record whole, 3 where a dry run cannot work on this machine, 4 where the model "
        "failed.",
    )
)


@Parameter(name="*")
@dataclass(frozen=True)
class DryRunOptions:
    """The options of a dry run.

    Attributes:
        gpu: compile for this GPU.
        mode: mode to compile; repeat for several; all three if it is left out.
        kernels: use the fused kernels.
        autocast: dtype of the step, such as bfloat16; the model's own if it is left out.
        loss: loss(out, batch), one value per row.
        differentiable: fields the model takes derivatives by, such as pos.
        picture: draw the launches by kind, as PNG.
    """

    gpu: Annotated[str | None, choice(*GPUS), DRY_RUN, Parameter(name="--for")] = None
    mode: Annotated[
        tuple[str, ...], several(str), DRY_RUN, Parameter(choices=MODES, metavar="CHOICE...")
    ] = ()
    kernels: Annotated[bool, DRY_RUN] = False
    autocast: Annotated[str | None, DRY_RUN, Parameter(metavar="DTYPE")] = None
    loss: Annotated[str | None, WORDS, DRY_RUN, Parameter(metavar="MODULE:NAME")] = None
    differentiable: Annotated[tuple[str, ...], NAMES, DRY_RUN, Parameter(metavar="FIELD")] = ()
    picture: Annotated[Path | None, PICTURE_FILE, DRY_RUN] = None


def run(
    *,
    data: DataOptions,
    dry: DryRunOptions = DryRunOptions(),
    model: Annotated[str, value(read_model, metavar="MODEL")],
    batch_size: Annotated[BatchSize, Parameter(metavar="B")] = 32,
    json: bool = False,
) -> int:
    """Run a model once on a padded batch, name what cannot be recorded, and list what is rewritten
    to operators of this library, by the model's own lines.

    For example:
      staticgraph check --model mymodule:build --data esol
      staticgraph check --model mymodule:Net --data tu:PROTEINS --batch-size 64 --json
      staticgraph check --for h100 --model mymodule:build --data esol --kernels

    The model is what build() returns, or build(store) where it takes an argument. The exit status
    is 1 where something prevents it.

    Args:
        data: the data.
        dry: the dry run.
        model: MODULE:NAME of a function that builds it, or one of gine, gps, gin, gcn, gat, sage.
        batch_size: graphs per batch.
        json: print JSON instead of a table.
    """
    require_names(data, model, dry.loss)
    if dry.gpu:
        from staticgraph.dryrun.device_guard import why_not

        if reason := why_not():
            print(f"skipped: {reason}", file=sys.stderr)
            return UNAVAILABLE
    from staticgraph.checking.check import check
    from staticgraph.models.named import built_without_data, make_model
    from staticgraph.plans.choose_capacities import plan_buckets
    from staticgraph.steps.computation.model_setup import Subject
    from staticgraph.training.tasks import named_loss

    early = built_without_data(model)
    loss = named_loss(dry.loss) if dry.loss else None
    store = data.open()
    plan = plan_buckets(store, batch_size=min(batch_size, len(store)))
    module = make_model(model, store) if early is None else early
    subject = Subject.of(module, loss=loss, differentiable=dry.differentiable)
    with waiting("running the model on one batch, with and without padding, and capturing it"):
        report = check(subject, plan, store, rewrites=not dry.gpu)
    if dry.gpu:
        return _dry_run(data, dry, model, batch_size, json, report)
    rewrites: dict[str, Any] = {"done": [], "missed": [], "note": ""}
    if report.rewrites is None:
        reason = "the model does not compile" if report.ran else report.parity_note
        rewrites["note"] = f"not looked for, since {reason}"
    else:
        for name, other in (("done", "reason"), ("missed", "computes")):
            rewrites[name] = [place._asdict() for place in getattr(report.rewrites, name)]
            for place in rewrites[name]:
                del place[other]
    note = rewrites["note"]
    text = f"{report}\n\nrewrites: {note}" if note else report
    print(to_json({**report.to_dict(), "rewrites": rewrites}) if json else text)
    return 0 if report.ok else NOT_STATIC


def _dry_run(
    data: DataOptions,
    dry: DryRunOptions,
    model: str,
    batch_size: int,
    json: bool,
    check: CheckReport,
) -> int:
    """Prints the check, and the counts of each mode that it found possible.

    Returns:
        0 if nothing stands in the way and every run is whole, or one of the codes above.
    """
    from staticgraph.dryrun import dry_run
    from staticgraph.errors import DryRunUnavailable

    wanted = dry.mode or MODES
    possible = MODES if check.recordable else (NOT_RECORDED,) if check.compiles else ()
    modes = tuple(mode for mode in wanted if mode in possible)
    if not json:
        print(f"{check}\n")
    if omitted := [mode for mode in wanted if mode not in possible]:
        print(f"not compiled for {dry.gpu}: mode {', '.join(omitted)}", file=sys.stderr)
    if not modes:
        if json:
            print(to_json(check.to_dict()))
        return NOT_WHOLE
    assert dry.gpu is not None
    try:
        with waiting(f"compiling the step for {dry.gpu} in mode {', '.join(modes)}"):
            report = dry_run(
                model,
                target=dry.gpu,
                data=data.data,
                data_target=data.target,
                data_task=data.task,
                batch_size=batch_size,
                modes=modes,
                kernels=dry.kernels,
                autocast=dry.autocast,
                loss=dry.loss,
                differentiable=dry.differentiable,
            )
    except DryRunUnavailable as error:
        print(f"skipped: {error}", file=sys.stderr)
        return UNAVAILABLE
    except RuntimeError as error:  # from the other process, with its traceback
        print(error, file=sys.stderr)
        return MODEL_FAILED
    ok = check.ok and report.ok and modes == wanted
    counts = {**report.to_dict(), "ok": ok, "check": check.to_dict()}
    print(to_json(counts) if json else report)
    if dry.picture:
        from staticgraph.training import plots

        plots.save_picture(dry.picture, plots.draw_launches, report)
    return 0 if ok else NOT_WHOLE
