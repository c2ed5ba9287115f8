"""The parent side: starts a child process, sends it a model and a plan, and reads its report.

Nothing is patched in this process, so its CUDA, if it has one, keeps working.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from staticgraph.dryrun import device_guard
from staticgraph.dryrun.device_guard import why_not
from staticgraph.dryrun.report import DryRun
from staticgraph.dryrun.targets import target_of
from staticgraph.errors import DryRunUnavailable
from staticgraph.text.numeric_options import whole_option
from staticgraph.text.progress import say

# How much of a dead child's output is shown.
TAIL_CHARACTERS = 3000


@contextmanager
def emulated(target: str = "h100") -> Iterator[Callable[[dict[str, Any] | None], Any]]:
    """A ``with`` block with a child process that has an emulated device.

    The child imports torch once, which takes seconds, and then answers any number of requests.

    Args:
        target: a name of :data:`staticgraph.dryrun.targets.TARGETS`.

    Yields:
        A function that sends a request (see :func:`staticgraph.dryrun.measure.measure`) and returns
        its :class:`DryRun`; for None, the stages of the self-test
        (:func:`staticgraph.dryrun.selftest.tried`). It raises TypeError where an object cannot be
        passed to another process, ValueError for an invalid request, and RuntimeError where the
        child failed in another way, or died.

    Raises:
        DryRunUnavailable: a dry run cannot work on this machine; the message says why.
        DryRunBroken: torch lacks a symbol that the dry run patches.
        ValueError: an unknown target.
    """
    target_of(target)
    if reason := why_not():
        raise DryRunUnavailable(reason)
    device_guard.built()
    connection, theirs = Pipe()
    paths = dict.fromkeys(path or os.getcwd() for path in sys.path)
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            [sys.executable, "-m", "staticgraph.dryrun.child", str(theirs.fileno()), target],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)},
        ) as process,
        connection,
    ):
        theirs.close()

        def next_answer() -> Any:
            """The child's answer, or an error with its last output where it died."""
            try:
                return receive(connection)
            except (EOFError, ConnectionResetError):
                code = process.wait()
                output.seek(0)
                tail = output.read()[-TAIL_CHARACTERS:]
                raise RuntimeError(
                    f"the dry run's process died with status {code}:\n{tail}"
                ) from None

        def ask(request: dict[str, Any] | None) -> Any:
            """Sends a request and returns the answer."""
            connection.send_bytes(packed(request))
            return next_answer()

        next_answer()  # it is ready
        yield ask


def receive(connection: Connection) -> Any:
    """Returns the child's next answer and prints the messages that came with it; raises its error.

    Raises:
        EOFError: the child ended.
    """
    messages, answer = pickle.loads(connection.recv_bytes())
    for message in messages:
        say(message)
    if isinstance(answer, Exception):
        raise answer
    return answer


def dry_run(
    model: Any,
    plan: Any = None,
    target: str = "h100",
    *,
    data: str | None = None,
    data_target: str | Sequence[str] | None = None,
    data_task: str = "auto",
    batch_size: int | None = None,
    loss: Callable[..., Any] | str | None = None,
    optimizer: Any = None,
    forward: Callable[..., Any] | str | None = None,
    modes: Sequence[str] = ("default", "reduce-overhead", "cuda-graph"),
    phases: Sequence[str] = ("step", "eval"),
    kernels: bool = False,
    autocast: Any = None,
    clip_norm: float | None = None,
    differentiable: Sequence[str] = (),
    compile_kernels: bool = True,
) -> DryRun:
    """Compiles a training step for a GPU that is not present, and counts its launches.

    A child process trains a copy of the model over fake CUDA tensors: torch's compiler does its
    real work, and a launch is noted instead of made. No kernel runs, and no time is promised.

    Args:
        model: a module, passed to the child by :func:`torch.save`; or ``"module:build"``, which is
            imported there and called (with the data, where it takes an argument).
        plan: a :class:`staticgraph.BucketPlan` that has the fields of the data
            (``plan_buckets(store, ...)``); made from ``data`` where None.
        target: ``h100``, ``h200``, ``a100`` or ``l4``.
        data: as ``staticgraph train --data``; needed without a plan, or where the model is built
            from it.
        data_target: columns of a CSV to predict, as ``staticgraph train --target``.
        data_task: the kind of target, as ``staticgraph train --task``.
        batch_size: of the plan that is made from ``data``.
        loss: ``loss(out, batch)``, as for the runner, or ``"module:name"``; the mean square of the
            output where None.
        optimizer: over the model's parameters, or ``"module:make"``, called with them; fused
            capturable Adam where None.
        forward: as for the runner, or ``"module:name"``.
        modes, phases: what to count, of ``default``, ``reduce-overhead``, ``cuda-graph``, and of
            ``step``, ``eval``.
        kernels: use the fused kernels in the model (``convert(model, kernels=True)``).
        autocast: a dtype, or its name.
        clip_norm, differentiable: as for the runner.
        compile_kernels: compile every Triton kernel for the target, for its registers and spills.

    Raises:
        DryRunUnavailable: a dry run cannot work on this machine; the message says why.
        DryRunBroken: torch lacks a symbol that the dry run patches.
        RuntimeError: the child process failed in another way, or died.
        TypeError: the model, loss or optimizer cannot be passed to another process.
        ValueError: an unknown target, mode, or module.
    """
    request: dict[str, Any] = {
        "model": model,
        "plan": plan,
        "loss": loss,
        "optimizer": optimizer,
        "forward": forward,
        "data": data,
        "data_task": data_task,
        "data_target": data_target,
        "modes": modes,
        "phases": phases,
        "kernels": kernels,
        "autocast": autocast,
        "clip_norm": clip_norm,
        "differentiable": tuple(differentiable),
        "compile_kernels": compile_kernels,
    }
    if batch_size is not None:
        request["batch_size"] = whole_option("batch_size", batch_size, 1)
    with emulated(target) as ask:
        return ask(request)


def packed(request: dict[str, Any] | None) -> bytes:
    """A request as another process can unpickle it.

    Raises:
        TypeError: an object cannot be written, or cannot be found in the other process: anything
            defined in the main program, in a function, or as a lambda cannot be imported there.
    """
    import torch

    objects = {
        name: value
        for name in ("model", "loss", "optimizer", "forward")
        if (value := (request or {}).get(name)) is not None and not isinstance(value, str)
    }
    for name, value in objects.items():
        kind = value if callable(value) and not isinstance(value, torch.nn.Module) else type(value)
        home = getattr(kind, "__module__", None)
        if home == "__main__":
            raise TypeError(
                f"the {name} ({getattr(kind, '__qualname__', kind)}) is defined in the main "
                "program, which the dry run's process does not run: move it to a module of its "
                f"own, or pass {name}='mymodule:name'"
            )
    file = io.BytesIO()
    try:
        torch.save(request, file)
    except Exception as error:  # pickle raises whatever an object's own methods do
        raise TypeError(
            f"the {', the '.join(objects)} cannot be handed to the dry run's process "
            f"({type(error).__name__}: {error}): pass 'mymodule:name' instead, which it imports"
        ) from error
    return file.getvalue()
