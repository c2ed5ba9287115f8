"""``staticgraph check --for h100``: compiles the step for a GPU that is not present, and counts its
launches, in the modes that the check has found possible."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from staticgraph.cli import values
from staticgraph.files.json_text import to_json
from staticgraph.text.progress import is_left_out, waiting

if TYPE_CHECKING:
    from staticgraph.checking.report import CheckReport

NOT_WHOLE = 1
UNAVAILABLE = 3
FAILED = 4
NOT_RECORDED = "default"
MODES = (NOT_RECORDED, "reduce-overhead", "cuda-graph")


def register(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a dry run to ``check``."""
    group = parser.add_argument_group(
        "a GPU that you do not have",
        "After the check, compile the training step for it in the modes that can run the model, "
        "and count its launches; nothing runs on a device. The exit status is 1 where it does not "
        "record whole, 3 where a dry run cannot work on this machine, 4 where the model failed.",
    )
    group.add_argument(
        "--for", dest="gpu", choices=("h100", "h200", "a100", "l4"), help="compile for this GPU"
    )
    group.add_argument(
        "--mode",
        action="append",
        choices=MODES,
        help="mode to compile; repeat for several (default: all three)",
    )
    group.add_argument("--kernels", action="store_true", help="use the fused kernels")
    group.add_argument(
        "--autocast",
        metavar="DTYPE",
        help="dtype of the step, such as bfloat16 (default: the model's own)",
    )
    group.add_argument("--loss", metavar="MODULE:NAME", help="loss(out, batch), one value per row")
    group.add_argument("--differentiable", nargs="+", default=(), metavar="FIELD",
                       help="fields the model takes derivatives by, such as pos")  # fmt: skip
    group.add_argument(
        "--picture",
        type=values.picture_to_write,
        metavar="FILE",
        help="draw the launches by kind, as PNG",
    )


def is_unavailable() -> bool:
    """Whether a dry run cannot work on this machine; prints why."""
    from staticgraph.dryrun.availability import why_not

    if reason := why_not():
        print(f"skipped: {reason}", file=sys.stderr)
    return reason is not None


def run(args: argparse.Namespace, check: CheckReport) -> int:
    """Prints the check, and the counts of each mode that it found possible.

    Returns:
        0 if nothing stands in the way and every run is whole, or one of the codes above.
    """
    from staticgraph.dryrun import dry_run
    from staticgraph.errors import DryRunUnavailable

    asked = tuple(args.mode or MODES)
    possible = MODES if check.recordable else (NOT_RECORDED,) if check.compiles else ()
    modes = tuple(mode for mode in asked if mode in possible)
    if not args.json:
        print(f"{check}\n")
    if left_out := [mode for mode in asked if mode not in possible]:
        print(f"not compiled for {args.gpu}: mode {', '.join(left_out)}", file=sys.stderr)
    if not modes:
        if args.json:
            print(to_json(check.to_dict()))
        return NOT_WHOLE
    try:
        with waiting(f"compiling the step for {args.gpu} in mode {', '.join(modes)}"):
            report = dry_run(
                args.model,
                target=args.gpu,
                data=args.data,
                data_target=args.target,
                data_task=args.task,
                batch_size=args.batch_size,
                modes=modes,
                kernels=args.kernels,
                autocast=args.autocast,
                loss=args.loss,
                differentiable=args.differentiable,
            )
    except DryRunUnavailable as error:
        print(f"skipped: {error}", file=sys.stderr)
        return UNAVAILABLE
    except RuntimeError as error:  # from the other process, with its traceback
        print(error, file=sys.stderr)
        return FAILED
    ok = check.ok and report.ok and modes == asked
    counts = {**report.to_dict(), "ok": ok, "check": check.to_dict()}
    print(to_json(counts) if args.json else report)
    if args.picture and not is_left_out(args.picture, "matplotlib"):
        from staticgraph.dryrun.picture import draw

        draw(report, args.picture)
    return 0 if ok else NOT_WHOLE
