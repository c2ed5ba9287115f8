"""Step time of a model by mode and batch size, compared with plain PyG, on the CPU or a GPU.

    python -m bench.bench_runner --models gine:5x300 gps:10x64 --batch-sizes 32 128 256 \\
        --modes pyg eager reduce-overhead --json FILE
    python -m pytest bench/bench_runner.py --benchmark-enable       two small models, each by itself

The contenders of a row take turns over the same eight batches (A B A B), so that a machine whose
speed drifts slows all of them equally. A step is timed back to back, twenty between two device
events, as in a training loop; and alone, from an idle device to an idle device: its latency. All
contenders then continue to ``--loss-steps``, and the mean losses of their last eight steps must
agree. Name the contenders in order of importance: none begins after the deadline, and one that
fails leaves a row with its error and does not affect the others. So does one whose recordings did
not run once per timed step. ``--look`` takes one of them apart (:mod:`bench.first_look`).
"""

from __future__ import annotations

import argparse
import math
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.first_look import noting, questions
from bench.floor import SOURCE, floor_ms
from bench.machine import write
from bench.parts import answer
from bench.rehearsal import LABEL, REHEARSAL
from bench.steps import Contender, Shape, Workload, compiled_graphs, kernels_per_step, milliseconds
from staticgraph.files.versions import STEPS, versions
from staticgraph.runner.counters import device_name
from staticgraph.text.table import table

# Float32 trajectories differ by the effect of flipped ReLUs; bfloat16 ones by rounding.
LOSS_TOLERANCE = {"fp32": 2e-2, "tf32": 5e-2, "bf16": 1e-1}


@pytest.mark.parametrize("mode", ["pyg", "eager"])
@pytest.mark.parametrize("model", ["gine:4x64", "gps:3x32"])
def test_step(benchmark, model, mode):
    contender = Workload(Shape.parse(model), 128, "cpu", "fp32").contender(mode)
    turn = iter(range(10**9))
    benchmark.pedantic(lambda: contender.step(next(turn)), rounds=20)


class CutOff(Exception):
    """Raised if the time is up while a contender is being prepared."""


def cut_off(options: argparse.Namespace, *_: Any) -> None:
    """On SIGTERM, prepares no other contender, and measures those that are ready."""
    options.until = 0.0
    if options.preparing:
        options.preparing = False
        raise CutOff("the time was up while it was made ready")


def measure(
    contenders: list[Contender], rounds: int, device: str, in_a_row: int
) -> dict[str, np.ndarray]:
    """Returns the milliseconds per step of each contender in each round.

    Every round runs ``in_a_row`` steps of each contender.
    """
    times: dict[str, list[float]] = {c.name: [] for c in contenders}
    for turn in range(rounds):
        for contender in contenders:
            took = milliseconds(contender.step, turn * in_a_row, in_a_row, device)
            times[contender.name].append(took)
    return {name: np.array(values) for name, values in times.items()}


def rows_of(
    shape: Shape, batch_size: int, precision: str, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, Callable[[], dict[str, Any]]]]:
    """Measures all contenders of one model, batch size and precision.

    Returns the rows, and the questions of ``--look``.
    """
    workload = Workload(shape, batch_size, options.device, precision)
    head = {"model": str(shape), "batch_size": batch_size, "precision": precision}
    contenders, failed, asked = [], [], {}
    for mode in options.modes:
        if contenders and time.perf_counter() > options.until:
            failed.append({**head, "mode": mode, "error": "not begun before the deadline"})
            continue
        options.preparing = True
        look = mode == options.look
        try:
            with noting() if look else nullcontext() as noted:
                phases = ("step", "eval") if look else ("step",)
                contenders.append(workload.contender(mode, phases))
            if noted is not None:
                asked = questions(contenders[-1], noted, options.device, precision)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:300]
            failed.append({**head, "mode": mode, "error": text})
        options.preparing = False
    if options.gate:
        options.gate.with_suffix(".ready").touch()
        while not options.gate.exists():
            time.sleep(0.05)
    graphs, before = compiled_graphs(), {c.name: c.proof() for c in contenders}
    latencies = measure(contenders, options.rounds, options.device, 1)
    times = measure(contenders, options.rows_of_steps, options.device, options.in_a_row)
    recompiles = compiled_graphs() - graphs
    proofs = {c.name: c.proof() for c in contenders}
    timed = options.rounds + options.rows_of_steps * options.in_a_row
    refusals = {c.name: c.refusal(timed, before[c.name]) for c in contenders}
    losses = {c.name: last_loss(c, len(workload.ids), options) for c in contenders}
    first = contenders[0].name if contenders else None
    floor = floor_ms(shape.name, shape.layers, shape.hidden, batch_size, precision)
    rows = []
    for contender in contenders:
        taken = times[contender.name]
        low, middle, high = np.percentile(taken, [10, 50, 90])
        latency = np.percentile(latencies[contender.name], [10, 50, 90])
        ratio = np.percentile(times[first] / taken, [10, 50, 90])
        kernels = kernels_per_step(lambda c=contender: c.step(0))
        loss = losses[contender.name]
        if refusals[contender.name]:
            failed.append({**head, "mode": contender.name, "error": refusals[contender.name]})
            continue
        rows.append(
            {
                **head,
                "mode": contender.name,
                "chosen": contender.chosen,
                "step_ms": middle,
                "p10_ms": low,
                "p90_ms": high,
                "latency_ms": dict(zip(("p10", "median", "p90"), latency, strict=True)),
                "rehearsal": REHEARSAL,
                "graphs_per_second": 1e3 * batch_size / middle,
                "ratio_to_first": dict(zip(("p10", "median", "p90"), ratio, strict=True)),
                "floor_ms": floor,
                "floor_source": None if floor is None else SOURCE,
                "times_floor": None if floor is None else middle / floor,
                "kernels": kernels and kernels.ran,
                "kernel_launches": kernels and kernels.launched,
                "graph_launches": kernels and kernels.graphs,
                **proofs[contender.name],
                "compiles": contender.compiles,
                "recompiles_while_timed": recompiles,
                "node_efficiency": contender.efficiency,
                "peak_bytes": contender.peak_bytes,
                "held_bytes": contender.held_bytes,
                "warmup_s": contender.warmup_s,
                "loss": loss,
                "loss_steps": options.loss_steps,
                "loss_agrees": abs(loss - losses[first]) <= LOSS_TOLERANCE[precision],
            }
        )
    return rows + failed, asked


def last_loss(contender: Contender, batches: int, options: argparse.Namespace) -> float:
    """Returns the mean loss over the batches, after ``loss_steps`` steps in total."""
    done = 2 * batches + options.rounds + options.rows_of_steps * options.in_a_row
    for i in range(done, options.loss_steps):
        contender.step(i)
    return float(torch.stack([contender.step(i) for i in range(batches)]).mean())


HEADERS = (
    "model",
    "batch",
    "precision",
    "mode",
    "step ms",
    "p10",
    "p90",
    "latency",
    "graphs/s",
    "times first",
    "times floor",
    "kernels",
    "launches",
    "compiles",
    "node eff",
    "peak MiB",
    "held MiB",
    "warm-up s",
    "loss agrees",
)


def as_cells(row: dict[str, Any]) -> tuple[str, ...]:
    head = (row["model"], str(row["batch_size"]), row["precision"], row["mode"])
    if "error" in row:
        blank = ("-",) * (len(HEADERS) - len(head) - 1)
        return (*head, *blank, row["error"].splitlines()[0][:60])
    launches = "-"
    if row["kernel_launches"] is not None:
        launches = f"{row['kernel_launches']} + {row['graph_launches']} graphs"
    if row["chosen"]:
        head = (*head[:-1], f"{row['mode']} ({row['chosen']})")
    return (
        *head,
        f"{row['step_ms']:.2f}",
        f"{row['p10_ms']:.2f}",
        f"{row['p90_ms']:.2f}",
        f"{row['latency_ms']['median']:.2f}",
        f"{row['graphs_per_second']:,.0f}",
        f"{row['ratio_to_first']['median']:.2f}",
        "-" if row["times_floor"] is None else f"{row['times_floor']:.1f}",
        "-" if row["kernels"] is None else str(row["kernels"]),
        launches,
        str(row["compiles"]),
        "-" if row["node_efficiency"] is None else f"{row['node_efficiency']:.1%}",
        f"{row['peak_bytes'] / 2**20:,.0f}",
        f"{row['held_bytes'] / 2**20:,.0f}",
        f"{row['warmup_s']:.1f}",
        "yes" if row["loss_agrees"] else "NO",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["gine:5x300", "gps:10x64"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[32, 128, 256])
    parser.add_argument("--modes", nargs="+", default=["pyg", "eager"])
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--rounds", type=int, default=50, help="steps timed alone")
    parser.add_argument("--rows-of-steps", type=int, default=9, help="timed back to back")
    parser.add_argument("--in-a-row", type=int, default=20, help="steps of each of these")
    parser.add_argument("--look", metavar="MODE", help="take this contender's step apart, too")
    parser.add_argument("--gate", type=Path, help="a file to wait for before anything is timed")
    parser.add_argument("--loss-steps", type=int, default=300)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--deadline", type=float, default=1e9, help="seconds; no row begins later")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.until, options.preparing = time.perf_counter() + options.deadline, False
    signal.signal(signal.SIGTERM, partial(cut_off, options))
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    for precision in options.precision:
        for batch_size in options.batch_sizes:
            for text in options.models:
                if time.perf_counter() > options.until:
                    skipped.append(f"{text} at {batch_size} in {precision}")
                    continue
                more, asked = rows_of(Shape.parse(text), batch_size, precision, options)
                rows += more
                result = {
                    "device": device_name(torch.device(options.device)),
                    "rows": rows,
                    "not_run": skipped,
                    "look": options.look,
                }
                if options.json:  # after every row, so that an interrupted run keeps its results
                    write(options.json, result)
                answer(asked, options.json, math.inf, result)
                torch.compiler.reset()  # the next row is another model or batch size
    print(f"{LABEL}{device_name(torch.device(options.device))}, {versions(STEPS)}")
    print(table(HEADERS, [as_cells(row) for row in rows]))
    if skipped:
        print(f"not run before the deadline: {'; '.join(skipped)}")


if __name__ == "__main__":
    main()
