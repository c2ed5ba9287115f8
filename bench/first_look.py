"""Analyses one recorded step: is it correct, what does it cost the host, what does the device do?

    python -m bench.first_look --model gine:5x300 --batch-size 32 --mode cuda-graph+kernels --json F

The answers are independent and come in this order, the most important for the next work first,
since there may be no time for the last ones: latency and back-to-back time; the kernels of one
replay, by name, from torch's profiler, with the gaps between them; ``verify()``, which compares a
replayed step with eager and changes every input; and the host time and Python calls of a step that
waits for nothing.

Bytes are the full sizes of the tensors passed to a Triton kernel, noted at launch while the step is
recorded. A kernel that reads only some rows moves fewer bytes, and one that reads a tensor twice
moves more. Kernels of libraries have no bytes. The roofline is the bandwidth of a copy on this
device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.bench_host_time import calls_of
from bench.bench_runner import milliseconds
from bench.parts import answer
from bench.rehearsal import LABEL, REHEARSAL
from bench.steps import Contender, Shape, Workload
from staticgraph.text.table import table

COPY_BYTES = 1 << 30
ROUNDS = 100


class Ran(NamedTuple):
    """One kernel that ran on the device; times in microseconds."""

    name: str
    start_us: float
    end_us: float


# ---------------------------------------------------------------------- bytes


class Noted:
    """Bytes per launch of each kernel, from the tensors passed to it."""

    def __init__(self) -> None:
        self._bytes: dict[str, list[int]] = defaultdict(list)

    def launch(self, name: str, given: Iterable[Any]) -> None:
        """Notes one launch; a tensor that is passed twice counts once."""
        tensors = {t.data_ptr(): t for t in given if isinstance(t, Tensor)}
        self._bytes[name].append(sum(t.numel() * t.element_size() for t in tensors.values()))

    def of(self, name: str) -> float | None:
        """Returns the mean per launch, or None if there is none, as for a library's kernel."""
        found = self._bytes.get(name)
        return None if not found else statistics.fmean(found)


@contextmanager
def noting() -> Iterator[Noted]:
    """Notes the launches of Triton kernels, both this library's and Inductor's."""
    noted, put_back = Noted(), []

    def watch(kind: Any, name_of: Any) -> None:
        run = kind.run

        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            noted.launch(name_of(self), (*args, *kwargs.values()))
            return run(self, *args, **kwargs)

        kind.run = watched
        put_back.append((kind, run))

    if torch.cuda.is_available():
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner
        from triton.runtime.jit import JITFunction

        watch(JITFunction, lambda kernel: kernel.fn.__name__)
        watch(CachingAutotuner, lambda tuner: str(tuner.inductor_meta.get("kernel_name", "?")))
    try:
        yield noted
    finally:
        for kind, run in put_back:
            kind.run = run


def copy_bytes_per_second() -> float:
    """Returns the bandwidth of a copy within the device, reads plus writes, best of ten."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    taken = [milliseconds(lambda _: target.copy_(source), 0, 3, "cuda") for _ in range(10)]
    return 2 * COPY_BYTES / (min(taken) / 1e3)


# ---------------------------------------------------------------------- the kernels of a replay


def kernels_of(contender: Contender) -> list[Ran]:
    """Returns the kernels of one step in order, copies and fills included; empty on a CPU."""
    if not torch.cuda.is_available():
        return []
    contender.step(0)
    torch.cuda.synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    ) as profile:
        contender.step(1)
        torch.cuda.synchronize()
    found = [
        Ran(event.name, event.time_range.start, event.time_range.end)
        for event in profile.events() or []
        if str(event.device_type).endswith("CUDA") and not event.is_user_annotation
    ]
    return sorted(found, key=lambda ran: ran.start_us)


def gaps(ran: list[Ran]) -> dict[str, float]:
    """Returns the time from the first kernel to the last, and how much of it no kernel ran."""
    if not ran:
        return {"span_us": 0.0, "busy_us": 0.0, "share_of_gaps": 0.0}
    busy, until = 0.0, ran[0].start_us
    for one in ran:
        busy += max(0.0, one.end_us - max(until, one.start_us))
        until = max(until, one.end_us)
    span = until - ran[0].start_us
    return {"span_us": span, "busy_us": busy, "share_of_gaps": 1 - busy / span if span else 0.0}


def by_name(ran: list[Ran], noted: Noted, per_second: float | None) -> list[dict[str, Any]]:
    """Returns one row per kernel name, the one that takes longest first.

    Args:
        ran: the kernels of one step.
        noted: bytes per launch.
        per_second: bytes per second that the device can move; None if not measured.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for one in ran:
        times[one.name].append(one.end_us - one.start_us)
    rows = []
    for name, taken in sorted(times.items(), key=lambda item: -sum(item[1])):
        moved, total = noted.of(name), sum(taken)
        bytes_ = None if moved is None else moved * len(taken)
        share = None
        if bytes_ is not None and per_second and total:
            share = bytes_ / per_second / (total / 1e6)
        rows.append(
            {
                "kernel": name,
                "launches": len(taken),
                "us": total,
                "bytes": bytes_,
                "share_of_roofline": share,
            }
        )
    return rows


def printed(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as a table."""
    cells = [
        (
            row["kernel"][:70],
            str(row["launches"]),
            f"{row['us']:.1f}",
            "-" if row["bytes"] is None else f"{row['bytes'] / 2**20:.2f}",
            "-" if row["share_of_roofline"] is None else f"{row['share_of_roofline']:.0%}",
        )
        for row in rows
    ]
    return table(("kernel", "launches", "us", "MiB", "of a copy's"), cells)


# ---------------------------------------------------------------------- the questions


def host_us(contender: Contender, device: str) -> float:
    """Returns the median microseconds until a step's call returns, starting on an idle device."""
    taken = []
    for turn in range(ROUNDS):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        contender.step(turn)
        taken.append(1e6 * (time.perf_counter() - started))
    return statistics.median(taken)


class Look:
    """The answers about one contender, which is created with this object."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.workload = Workload(
            Shape.parse(options.model), options.batch_size, options.device, options.precision
        )
        with noting() as self.noted:
            self.contender = self.workload.contender(options.mode, ("step", "eval"))

    def made(self) -> dict[str, Any]:
        """Returns what was compiled and recorded."""
        made = self.contender
        return {
            "warmup_s": made.warmup_s,
            "compiles": made.compiles,
            "recordings": made.recordings,
            "peak_bytes": made.peak_bytes,
            "held_bytes": made.held_bytes,
        }

    def verified(self) -> dict[str, Any]:
        """Runs ``runner.verify`` on the first batch."""
        tolerance = {"fp32": 1e-3}.get(self.options.precision, 5e-2)
        if self.contender.verify is None:
            return {"answer": f"{self.options.mode} is no mode of a runner"}
        found = self.contender.verify(tolerance)
        print(found)
        return {"passed": found.passed, "errors": found.errors, "moved": found.moved}

    def host(self) -> dict[str, Any]:
        """Measures the host time and the Python calls."""
        calls = calls_of(lambda: self.contender.step(0))
        return {"host_us": host_us(self.contender, self.options.device), "python_calls": calls}

    def times(self) -> dict[str, Any]:
        """Measures the median milliseconds of a single step, and per step of twenty in a row."""
        step, device = self.contender.step, self.options.device
        alone = [milliseconds(step, turn, 1, device) for turn in range(30)]
        in_a_row = [milliseconds(step, 20 * turn, 20, device) for turn in range(9)]
        return {
            "latency_ms": statistics.median(alone),
            "back_to_back_ms": statistics.median(in_a_row),
        }

    def kernels(self) -> dict[str, Any]:
        """Measures and prints the kernels of one replay."""
        ran = kernels_of(self.contender)
        if not ran:
            return {"answer": "needs a CUDA device"}
        per_second = copy_bytes_per_second()
        rows = by_name(ran, self.noted, per_second)
        print(printed(rows))
        known = [row["bytes"] for row in rows if row["bytes"] is not None]
        return {
            "kernels": len(ran),
            **gaps(ran),
            "known_bytes": sum(known),
            "copy_bytes_per_second": per_second,
            "rows": rows,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="gine:5x300")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--mode", default="cuda-graph+kernels")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--deadline", type=float, default=1e9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{LABEL}{options.model}, batch {options.batch_size}, {options.mode}", flush=True)
    look: list[Look] = []

    def made() -> dict[str, Any]:
        look.append(Look(options))
        return {"rehearsal": REHEARSAL, "model": options.model, **look[0].made()}

    answer(
        {
            "made": made,
            # Profiling leaves its tracer installed, so the times are measured first.
            "times": lambda: look[0].times(),
            "kernels": lambda: look[0].kernels(),
            "verify": lambda: look[0].verified(),
            "host": lambda: look[0].host(),
        },
        options.json,
        options.deadline,
    )


if __name__ == "__main__":
    main()
