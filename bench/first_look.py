"""Analyses one recorded step: is it correct, what does it cost the host, what does the device do?

    python -m bench.bench_runner --modes pyg cuda-graph+kernels --look cuda-graph+kernels --json F

It runs in the benchmark's own process, on the contender that was recorded and timed there. The
answers are independent and come in this order, the most important for the next work first: the
kernels of one replay, by name and grid, from torch's profiler, with the gaps between them;
``verify()``, which compares a replayed step with eager and changes every input; and the host time
and Python calls of a step that waits for nothing.

Bytes are the full sizes of the tensors passed to a Triton kernel, noted at launch while the step is
captured; the launches of a replay are matched to those of its capture by their order. A kernel that
reads only some rows moves fewer bytes, and one that reads a tensor twice moves more. Kernels of
libraries have no bytes. The roofline is the bandwidth of a copy on this device.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.parts import Part, only_on_cuda
from bench.steps import DEVICE, Contender, milliseconds
from staticgraph.runner.verification import verify

COPY_BYTES = 1 << 30
ROUNDS = 100
# The categories of what runs on a device, in the profiler's trace.
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


class Ran(NamedTuple):
    """One kernel that ran on the device; times in microseconds."""

    name: str
    start_us: float
    end_us: float
    grid: tuple[int, ...] = ()
    registers: int | None = None


class Launched(NamedTuple):
    """One launch of a Triton kernel, as noted during a capture."""

    name: str
    module: str
    nbytes: int
    grid: tuple[int, ...] = ()

    def is_of(self, ran: Ran) -> bool:
        """Returns whether this kernel may be that launch; Inductor's grid is not known."""
        return self.name == ran.name and self.grid in ((), ran.grid)


# ---------------------------------------------------------------------- launches


class Noted:
    """The launches of Triton kernels during each capture, and what came from Triton's cache.

    Attributes:
        captures: for each capture, its launches in order.
        compiled: this library's kernels that were compiled (False) or read from the cache (True).
    """

    def __init__(self) -> None:
        self.captures: list[list[Launched]] = []
        self.compiled: Counter[bool] = Counter()

    def launch(
        self, name: str, module: str, arguments: Iterable[Any], grid: Sequence[int] = ()
    ) -> None:
        """Notes one launch; a tensor that is passed twice counts once."""
        tensors = {t.data_ptr(): t for t in arguments if isinstance(t, Tensor)}
        nbytes = sum(t.numel() * t.element_size() for t in tensors.values())
        if self.captures:
            grid = (*grid, 1, 1)[:3] if grid else ()
            self.captures[-1].append(Launched(name, module, nbytes, grid))

    def compilation(self, *, src: Any, cache_hit: bool, **_: Any) -> None:
        """Counts one compilation, as Triton's listener."""
        module = getattr(getattr(src, "fn", None), "__module__", "")
        self.compiled[cache_hit] += module.startswith("staticgraph")

    def matched(self, ran: list[Ran]) -> list[Launched | None]:
        """Returns the launch of each kernel of a replay; None for those of libraries.

        All are None if no capture launched the same kernels on the same grids in the same order.
        """
        known = {launched.name for capture in self.captures for launched in capture}
        triton = [kernel for kernel in ran if kernel.name in known]
        for capture in self.captures:  # what follows a capture, up to the next, is noted with it
            if len(capture) >= len(triton) and all(map(Launched.is_of, capture, triton)):
                launches = iter(capture)
                return [next(launches) if kernel.name in known else None for kernel in ran]
        return [None] * len(ran)


@contextmanager
def noting() -> Iterator[Noted]:
    """Notes the launches of Triton kernels, both this library's and Inductor's."""
    noted, put_back = Noted(), []

    def watch(kind: Any, method: str, note: Callable[..., None]) -> None:
        before = getattr(kind, method)

        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            note(self, (*args, *kwargs.values()), kwargs.get("grid", ()))
            return before(self, *args, **kwargs)

        setattr(kind, method, watched)
        put_back.append((kind, method, before))

    if torch.cuda.is_available():
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner
        from triton import knobs
        from triton.runtime.jit import JITFunction

        def triton_launch(kernel: Any, arguments: Any, grid: Any) -> None:
            noted.launch(kernel.__name__, kernel.__module__, arguments, grid)

        def inductor_launch(tuner: Any, arguments: Any, _: Any) -> None:
            noted.launch(str(tuner.inductor_meta.get("kernel_name", "?")), "inductor", arguments)

        watch(torch.cuda.CUDAGraph, "capture_begin", lambda *_: noted.captures.append([]))
        watch(JITFunction, "run", triton_launch)
        watch(CachingAutotuner, "run", inductor_launch)
        put_back.append((knobs.compilation, "listener", knobs.compilation.listener))
        knobs.compilation.listener = noted.compilation
    try:
        yield noted
    finally:
        for kind, method, before in reversed(put_back):
            setattr(kind, method, before)


def copy_bytes_per_second() -> float:
    """Returns the bandwidth of a copy within the device, reads plus writes, best of ten."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    taken = [milliseconds(lambda _: target.copy_(source), 0, 3) for _ in range(10)]
    return 2 * COPY_BYTES / (min(taken) / 1e3)


# ---------------------------------------------------------------------- the kernels of a replay


def kernels_of(step: Callable[[int], object]) -> list[Ran]:
    """Returns the kernels of one step in order, copies and fills included."""
    step(0)
    torch.cuda.synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    ) as profile:
        step(1)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        return ran_in(json.loads(trace.read_text()))


def ran_in(trace: dict[str, Any]) -> list[Ran]:
    """Returns what ran on the device by the profiler's trace, which has the grid and registers."""
    kernels = [
        Ran(
            event["name"],
            event["ts"],
            event["ts"] + event["dur"],
            tuple(event["args"].get("grid", ())),
            event["args"].get("registers per thread"),
        )
        for event in trace["traceEvents"]
        if event.get("cat") in ON_DEVICE
    ]
    return sorted(kernels, key=lambda kernel: kernel.start_us)


def gaps(ran: list[Ran]) -> dict[str, float]:
    """Returns the time from the first kernel to the last, and how much of it no kernel ran."""
    if not ran:
        return {"span_us": 0.0, "busy_us": 0.0, "share_of_gaps": 0.0}
    busy, until = 0.0, ran[0].start_us
    for kernel in ran:
        busy += max(0.0, kernel.end_us - max(until, kernel.start_us))
        until = max(until, kernel.end_us)
    span = until - ran[0].start_us
    return {"span_us": span, "busy_us": busy, "share_of_gaps": 1 - busy / span if span else 0.0}


def by_kernel(ran: list[Ran], noted: Noted, per_second: float | None) -> list[dict[str, Any]]:
    """Returns one row per kernel and grid, the one that takes longest first.

    Args:
        ran: the kernels of one step.
        noted: the launches of its capture.
        per_second: bytes per second that the device can move; None if not measured.
    """
    groups: dict[Any, list[tuple[float, int | None]]] = defaultdict(list)
    for kernel, launched in zip(ran, noted.matched(ran), strict=True):
        module = None if launched is None else launched.module.removeprefix("staticgraph.kernels.")
        moved = None if launched is None else launched.nbytes
        groups[kernel.name, module, kernel.grid, kernel.registers].append(
            (kernel.end_us - kernel.start_us, moved)
        )
    rows = []
    for (name, module, grid, registers), taken in groups.items():
        total = sum(us for us, _ in taken)
        moved = [nbytes for _, nbytes in taken if nbytes is not None]
        nbytes = sum(moved) if moved else None
        share = None
        if nbytes is not None and per_second and total:
            share = nbytes / per_second / (total / 1e6)
        rows.append(
            {
                "kernel": name,
                "module": module,
                "grid": grid,
                "registers": registers,
                "launches": len(taken),
                "us": total,
                "bytes": nbytes,
                "share_of_roofline": share,
            }
        )
    return sorted(rows, key=lambda row: -row["us"])


# ---------------------------------------------------------------------- the questions


def calls_of(step: Callable[[], Any]) -> list[str]:
    """Returns the module of each Python function that one run calls."""
    modules = []

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            modules.append(frame.f_globals.get("__name__", ""))

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return modules


class Look(NamedTuple):
    """A contender that was prepared under :func:`noting`."""

    contender: Contender
    noted: Noted
    precision: str

    def questions(self) -> dict[str, Part]:
        """Returns what is asked of it, most important first."""
        return {"kernels": only_on_cuda(self.kernels), "verify": self.verify, "host": self.host}

    def kernels(self) -> dict[str, Any]:
        ran, per_second = kernels_of(self.contender.step), copy_bytes_per_second()
        rows = by_kernel(ran, self.noted, per_second)
        return {
            "kernels": len(ran),
            **gaps(ran),
            "known_bytes": sum(row["bytes"] or 0 for row in rows),
            "copy_bytes_per_second": per_second,
            "from_cache": self.noted.compiled[True],
            "compiled": self.noted.compiled[False],
            "rows": rows,
        }

    def verify(self) -> dict[str, Any]:
        runner, batches = self.contender.runner, self.contender.batches
        if runner is None or batches is None:
            return {"answer": f"{self.contender.name} is no mode of a runner"}
        verified = verify(runner, batches[0])
        print(verified)
        return {"passed": verified.passed, "errors": verified.errors, "moved": verified.moved}

    def host(self) -> dict[str, Any]:
        """Returns the median time until a step's call returns, starting on an idle device."""
        taken_us = []
        for turn in range(ROUNDS):
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
            self.contender.step(turn)
            taken_us.append(1e6 * (time.perf_counter() - started))
        calls = calls_of(lambda: self.contender.step(0))
        return {"host_us": statistics.median(taken_us), "python_calls": len(calls)}
