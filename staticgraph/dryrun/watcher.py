"""The fake tensor mode of a dry run: sees every operation outside of tracing, and may refuse it.

A dispatch mode on the stack would change what Dynamo guards on, so the check is in the fake
tensors' own mode.

While a step is recorded it refuses operations that a CUDA graph cannot hold: a number read by the
host, a copy between host and device, an operation on another device. At other times a number that
the host reads is made up, since a warm-up on a device would read some number as well.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor

from staticgraph.dryrun.launches import (
    COPIES,
    NOTHING,
    READS,
    WATCH,
    CountedStep,
    counted,
    flops,
    tensors,
)
from staticgraph.dryrun.report import Cause
from staticgraph.internals.fakes import FakeTensorMode
from staticgraph.internals.tracing import TracingContext
from staticgraph.kernels.register import CUDA, NAMESPACE
from staticgraph.recording.graph_recorder import Recorded

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_LIBRARY = str(Path(__file__).parents[1])
# How good a line is as the place of an operation, by what the name of its file contains, of which
# the first counts. PyG writes its message passing code to a folder of its own. Of other files, the
# model's, a line is best.
_WORTH = {
    f"{_LIBRARY}/dryrun/selftest": 3,
    f"{_LIBRARY}/models/": 3,
    f"{_LIBRARY}/dryrun/": -1,
    f"{_LIBRARY}/": 1,
    "/torchinductor": 0,
    "/torch/": 0,
    "/torch_geometric": 2,
    "_pyg/": 2,
    "/python3": -1,
    "<": -1,
}
_BEST = 3


def of_trace(trace: str | None) -> str:
    """The line of a traced operation, from the stack that Dynamo recorded; "" without one."""
    frames = [(match["file"], int(match["line"])) for match in _FRAME.finditer(trace or "")]
    return _best(frames[::-1])


def _best(frames: Sequence[tuple[str, int]]) -> str:
    """The best line of a stack, innermost first, as ``file:line: source``; of several the first."""

    def worth(frame: tuple[str, int]) -> int:
        return next((n for part, n in _WORTH.items() if part in frame[0]), _BEST)

    best = max(frames, key=worth, default=None)
    if best is None or worth(best) < 0:
        return ""
    source = linecache.getline(*best).strip()
    return f"{best[0]}:{best[1]}" + (f": {source}" if source else "")


HOST_COPIES = frozenset({"copy_", "_to_copy", "_copy_from", "lift_fresh_copy", "_foreach_copy_"})
# In-place operations without a fake kernel in torch.
SILENT = frozenset({"aten::_fused_adam_.tensor_lr", "aten::_fused_adamw_.tensor_lr"})


class Refused(RuntimeError):
    """A recording cannot hold an operation; like torch's capture error, with name and line.

    Args:
        reason: ``host read``, ``device-to-host copy``, ``host-to-device copy`` or ``operation on
            another device``.
        operation: the operator that runs now.
    """

    def __init__(self, reason: str, operation: str) -> None:
        self.cause: Cause = Cause(reason, operation, _where())
        super().__init__(str(self.cause))


class RefusingRecorder:
    """A replacement for :class:`staticgraph.recording.graph_recorder.CudaGraphRecorder`.

    Args:
        resident: returns the tensors that exist before a step.

    Attributes:
        runs: the counts of each recorded body, in the order of recording.
    """

    compiles = True

    def __init__(self, resident: Callable[[], Iterable[Tensor]]) -> None:
        self.runs: list[CountedStep] = []
        self._resident = resident

    def __call__(self, device: torch.device) -> RefusingRecorder:
        """Returns this recorder, whatever the device."""
        return self

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        """Runs the body as on a device, which compiles it and creates state."""
        for _ in range(runs):
            body()

    def record(self, body: Callable[[], Any]) -> Recorded:
        """Runs the body once and counts it, refusing operations that cannot be recorded.

        Raises:
            Refused: a recording could not hold an operation of the body.
        """
        WATCH.recording = True
        try:
            result, run = counted(body, self._resident())
        finally:
            WATCH.recording = False
        self.runs.append(run)
        return Recorded(lambda: None, result)

    def close(self) -> None:
        """Does nothing, since nothing is held."""


class Watcher(FakeTensorMode):
    """Notes launches in :data:`WATCH`, and refuses operations while it is recording."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._nested = False

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator over fake tensors and notes it where it would launch a kernel.

        Host reads get a made-up number; while recording, they and tensors on the wrong device are
        refused.
        """
        kwargs = kwargs or {}
        if self._nested or TracingContext.try_get() is not None:
            return super().dispatch(func, types, args, kwargs)
        name = func.name()
        namespace, _, short = name.partition("::")
        short = short.split(".")[0]
        if short in READS:
            return self._read(func, args)
        counting = WATCH.step is not None
        cuda = CUDA.get(short) if namespace == NAMESPACE and counting else None
        if cuda is not None:
            WATCH.operator(name)
            return self._own(cuda, func, types, args, kwargs)
        if namespace == "aten" and counting and not func.is_view and func._can_decompose():
            # A product with a composite name, such as linear: its parts are what is launched.
            with self:
                return func.decompose(*args, **kwargs)
        out = None if name in SILENT else self._plain(func, types, args, kwargs)
        if short not in NOTHING and not func.is_view:
            _check_place(short, name, args, kwargs, out)
            if any(t.device.type == "cuda" for t in tensors((args, kwargs, out))):
                kind = "copy" if short in COPIES else "library"
                work = flops(func, args, kwargs, out)
                WATCH.launch(kind, name, (args, kwargs, out), name, work)
        WATCH.count_results(out)
        return out

    def _plain(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        self._nested = True
        try:
            return super().dispatch(func, types, args, kwargs)
        finally:
            self._nested = False

    def _own(self, cuda: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Runs the CUDA implementation of an operator of this library, whose launches are noted one
        by one, and checks its result against the shapes that the fake kernel promises."""
        promised = self._plain(func, types, args, kwargs)
        with self:
            out = cuda(*args, **kwargs)
        WATCH.count_results(out)
        actual, expected = (
            [(tuple(t.shape), t.dtype, t.device) for t in tensors(value)]
            for value in (out, promised)
        )
        if actual != expected:
            raise RuntimeError(
                f"{func.name()} gives {actual} on CUDA, where its fake kernel promises {expected}"
            )
        return out

    def _read(self, func: Any, args: Any) -> Any:
        read = next(iter(tensors(args)))
        if WATCH.recording and read.device.type == "cuda":
            raise Refused("host read", func.name())
        if func.name() in ("aten::is_nonzero", "aten::equal") or read.dtype == torch.bool:
            return True
        return 1.0 if read.dtype.is_floating_point else 1


def _check_place(short: str, name: str, args: Any, kwargs: Any, out: Any) -> None:
    """Refuses, while recording, operations that are not entirely on the one device."""
    if not WATCH.recording:
        return
    in_place = short.endswith("copy_")
    inputs = list(tensors((args[1:] if in_place else args, kwargs)))
    outputs = list(tensors(args[0] if in_place else out))
    read, written = ({t.device.type for t in side} for side in (inputs, outputs))
    elsewhere = [t for t in (*inputs, *outputs) if t.dim() and str(t.device) != "cuda:0"]
    if "cuda" in read and "cpu" in written:
        raise Refused("device-to-host copy", name)
    if short in HOST_COPIES and "cuda" in written and "cpu" in read:
        raise Refused("host-to-device copy", name)
    if elsewhere:
        raise Refused(f"operation on another device ({elsewhere[0].device})", name)


def _where() -> str:
    """The source line of the operation; in a compiled graph, what Inductor knows about it."""
    causes = WATCH.graph.causes if WATCH.graph is not None else ()
    split = [f"{cause.operation} at {cause.where}" for cause in causes if cause.operation]
    running = [(frame.f_code.co_filename, line) for frame, line in walk_stack(None)]
    return "; ".join(dict.fromkeys(split)) or _best(running)
