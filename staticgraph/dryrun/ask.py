"""The parent side: starts a child process, sends it a model and a plan, and reads its report.

Nothing is patched in this process, so its CUDA, if it has one, keeps working.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from staticgraph.dryrun import guard
from staticgraph.dryrun.guard import why_not
from staticgraph.dryrun.report import DryRun
from staticgraph.dryrun.targets import target_of
from staticgraph.errors import DryRunBroken, DryRunUnavailable
from staticgraph.text.numeric_options import whole_option
from staticgraph.text.progress import say

# How much of a dead child's output is shown.
TAIL_CHARACTERS = 3000


class Child:
    """A child process with an emulated device; a context manager.

    It imports torch once, which takes seconds, and then answers any number of requests.

    Args:
        target: a name of :data:`staticgraph.dryrun.targets.TARGETS`.
        leave_out: a symbol not to patch, used to test the self-test.

    Raises:
        DryRunUnavailable: a dry run cannot work on this machine; the message says why.
        DryRunBroken: torch lacks a symbol that the dry run patches.
        ValueError: an unknown target.
    """

    def __init__(self, target: str = "h100", leave_out: str | None = None) -> None:
        target_of(target)
        if reason := why_not():
            raise DryRunUnavailable(reason)
        guard.built()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the child
        paths = dict.fromkeys(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "staticgraph.dryrun.child", target, *filter(None, [leave_out])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._answer()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends one request and returns the answer.

        Raises:
            ValueError: the request is invalid; the message is the child's.
            RuntimeError: the child failed in another way, or died.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def dry_run(self, request: dict[str, Any]) -> DryRun:
        """Sends one request and returns the report; see :mod:`staticgraph.dryrun.subject`."""
        return DryRun.from_dict(self.ask(request)["report"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._said.seek(0)
            said = self._said.read()[-TAIL_CHARACTERS:]
            raise RuntimeError(f"the dry run's process died with status {code}:\n{said}")
        answer = json.loads(line)
        for said in answer.get("said", ()):
            say(said)
        if "error" not in answer:
            return answer
        kinds = {
            "ValueError": ValueError,
            "DryRunBroken": DryRunBroken,
            "DryRunUnavailable": DryRunUnavailable,
        }
        if kind := kinds.get(answer["kind"]):
            raise kind(answer["error"])
        raise RuntimeError(
            f"the dry run failed: {answer['kind']}: {answer['error']}\n{answer['trace']}"
        )

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._said.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
        "data": data,
        "data_task": data_task,
        "data_target": data_target if isinstance(data_target, str) else list(data_target or ()),
        "modes": list(modes),
        "phases": list(phases),
        "kernels": kernels,
        "autocast": None if autocast is None else str(autocast).removeprefix("torch."),
        "clip_norm": clip_norm,
        "differentiable": list(differentiable),
        "compile_kernels": compile_kernels,
    }
    if batch_size is not None:
        request["batch_size"] = whole_option("batch_size", batch_size, 1)
    objects = {}
    given = {"model": model, "loss": loss, "optimizer": optimizer, "forward": forward}
    for name, value in given.items():
        if isinstance(value, str):
            request[name] = value
        elif value is not None:
            objects[name] = value
    with tempfile.TemporaryDirectory(prefix="staticgraph-dryrun-") as folder:
        if plan is not None:
            request["plan"] = str(Path(folder) / "plan.json")
            plan.save(request["plan"])
        if objects:
            request["pickled"] = str(Path(folder) / "given.pt")
            hand_over(objects, request["pickled"])
        with Child(target) as child:
            return child.dry_run(request)


def hand_over(objects: dict[str, Any], path: str) -> None:
    """Writes objects to a file for another process.

    Raises:
        TypeError: an object cannot be written, or cannot be found in the other process: anything
            defined in the main program, in a function, or as a lambda cannot be imported there.
    """
    import torch

    for name, value in objects.items():
        kind = value if callable(value) and not isinstance(value, torch.nn.Module) else type(value)
        home = getattr(kind, "__module__", None)
        if home == "__main__":
            raise TypeError(
                f"the {name} ({getattr(kind, '__qualname__', kind)}) is defined in the main "
                "program, which the dry run's process does not run: move it to a module of its "
                f"own, or pass {name}='mymodule:name'"
            )
    try:
        torch.save(objects, path)
    except Exception as error:  # pickle raises whatever an object's own methods do
        raise TypeError(
            f"the {', the '.join(objects)} cannot be handed to the dry run's process "
            f"({type(error).__name__}: {error}): pass 'mymodule:name' instead, which it imports"
        ) from error
