"""Step time of a model by mode, compared with plain PyG, on the CPU or a GPU.

    python -m bench.bench_runner --model gine:5x300 --batch-size 32 \\
        --modes pyg eager reduce-overhead --json FILE

The contenders take turns over the same eight batches (A B A B), so that a machine whose speed
drifts slows all of them equally. A step is timed back to back, ``--in-a-row`` of them between two
device events, as in a training loop; and alone, from an idle device to an idle device: its latency.
All contenders then continue to ``--loss-steps``, and the mean losses of their last eight steps must
agree. Name the contenders in order of importance: none begins after ``--deadline`` seconds, and one
that fails leaves a row with its error and does not affect the others. So does one whose recordings
did not run once per timed step. ``--look`` takes one of them apart (:mod:`bench.first_look`), and
``--gate`` is a file to wait for before anything is timed.
"""

from __future__ import annotations

import argparse
import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import figures
from bench.first_look import Look, noting
from bench.floor import floor_ms
from bench.interleave import spread
from bench.options import options_of
from bench.parts import answer
from bench.rehearsal import LABEL, REHEARSAL
from bench.steps import DEVICE, Contender, Shape, Workload, compiled_graphs, milliseconds
from staticgraph.dryrun.operations import kernels_on_cuda
from staticgraph.runner.counters import device_name

# Float32 trajectories differ by the effect of flipped ReLUs; bfloat16 ones by rounding.
LOSS_TOLERANCE = {"fp32": 2e-2, "bf16": 1e-1}


def prepare(
    workload: Workload, options: argparse.Namespace
) -> tuple[list[Contender], dict[str, str], Look | None]:
    """Returns the contenders that are ready, errors of the others, and what ``--look`` asks."""
    until = time.perf_counter() + options.deadline
    contenders, errors, look = [], {}, None
    for mode in options.modes:
        if contenders and time.perf_counter() > until:
            errors[mode] = "not begun before the deadline"
            continue
        looked_at = mode == options.look
        phases = ("step", "eval") if looked_at else ("step",)
        try:
            with noting() if looked_at else nullcontext() as noted:
                contenders.append(workload.contender(mode, phases))
        except Exception as error:
            errors[mode] = f"{type(error).__name__}: {error}"[:300]
        else:
            if noted is not None:
                look = Look(contenders[-1], noted, options.precision)
    return contenders, errors, look


def measure(contenders: list[Contender], rounds: int, in_a_row: int) -> dict[str, np.ndarray]:
    """Returns the milliseconds per step of each contender in each round.

    Every round runs ``in_a_row`` steps of each contender.
    """
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for turn in range(rounds):
        for contender in contenders:
            took = milliseconds(contender.step, turn * in_a_row, in_a_row)
            times[contender.name].append(took)
    return {name: np.array(values) for name, values in times.items()}


def rows_of(
    contenders: list[Contender], batches: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measures contenders in turns; one whose time is not that of replays has an error."""
    graphs, before = compiled_graphs(), [contender.proof() for contender in contenders]
    latencies = measure(contenders, options.rounds, 1)
    times = measure(contenders, options.rows_of_steps, options.in_a_row)
    recompiles = compiled_graphs() - graphs
    timed = options.rounds + options.rows_of_steps * options.in_a_row
    refusals = [c.refusal(timed, proof) for c, proof in zip(contenders, before, strict=True)]
    proofs = [contender.proof() for contender in contenders]
    losses = [last_loss(c, batches, 2 * batches + timed, options.loss_steps) for c in contenders]
    floor = floor_ms(*Shape.parse(options.model), options.batch_size, options.precision)
    rows = []
    for contender, refusal, proof, loss in zip(contenders, refusals, proofs, losses, strict=True):
        if refusal:
            rows.append({"mode": contender.name, "error": refusal})
            continue
        taken = spread(step_ms := times[contender.name])
        ratio = times[contenders[0].name] / step_ms
        on_cuda = DEVICE.type == "cuda"
        rows.append(
            {
                "mode": contender.name,
                "step_ms": taken["median"],
                "p10_ms": taken["p10"],
                "p90_ms": taken["p90"],
                "latency_ms": spread(latencies[contender.name]),
                "rehearsal": REHEARSAL,
                "graphs_per_second": 1e3 * options.batch_size / taken["median"],
                "ratio_to_first": spread(ratio),
                "times_floor": floor and taken["median"] / floor,
                "kernels": kernels_on_cuda(lambda c=contender: c.step(0)) if on_cuda else None,
                **proof,
                "recompiles_while_timed": recompiles,
                "node_efficiency": contender.efficiency,
                "peak_bytes": contender.peak_bytes,
                "warmup_s": contender.warmup_s,
                "loss": loss,
                "loss_agrees": abs(loss - losses[0]) <= LOSS_TOLERANCE[options.precision],
            }
        )
    return rows


def last_loss(contender: Contender, batches: int, taken: int, steps: int) -> float:
    """Returns the mean loss over the batches, after ``steps`` steps of which some were taken."""
    for i in range(taken, steps):
        contender.step(i)
    return float(torch.stack([contender.step(i) for i in range(batches)]).mean())


def main() -> None:
    options = options_of(
        __doc__, model="gine:5x300", batch_size=128, modes=["pyg", "eager"], precision="fp32",
        rounds=50, rows_of_steps=9, in_a_row=20, loss_steps=300, look=str, gate=Path,
        deadline=math.inf, json=Path,
    )  # fmt: skip
    shape = Shape.parse(options.model)
    workload = Workload(shape, options.batch_size, options.precision)
    contenders, errors, look = prepare(workload, options)
    if options.gate:
        options.gate.with_suffix(".ready").touch()
        while not options.gate.exists():
            time.sleep(0.05)
    rows = rows_of(contenders, len(workload.ids), options)
    rows += [{"mode": mode, "error": error} for mode, error in errors.items()]
    head = {"model": str(shape), "batch_size": options.batch_size, "precision": options.precision}
    results = {
        "device": device_name(DEVICE),
        "rows": [head | row for row in rows],
        "look": options.look,
    }
    answer(look.questions() if look else {}, options.json, results)
    print(f"{LABEL}{results['device']}\n{figures.steps({'': results})}")
    for mode, error in errors.items():
        print(f"{mode}: {error}")


if __name__ == "__main__":
    main()
