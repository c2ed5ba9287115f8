"""``python -m staticgraph.dryrun.selftest``: checks whether a dry run works here, or what broke.

It prints one line per stage. The exit status is 0 if all stages pass, 1 if one fails, and 2 where
the platform does not support dry runs.

Each stage exercises one group of patches on a tiny example, in the child process. A failing stage
reports its group's patched symbols and the line of torch at which it failed. A symbol that no
longer exists is reported earlier, when it is patched.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from staticgraph.dryrun import ptx
from staticgraph.dryrun.device_guard import torch_version
from staticgraph.dryrun.launches import WATCH, counted
from staticgraph.dryrun.patches import PATCHED
from staticgraph.dryrun.start_child import emulated
from staticgraph.dryrun.stubs import TREES
from staticgraph.dryrun.watcher import Refused, RefusingRecorder, Watcher
from staticgraph.errors import DryRunBroken, DryRunUnavailable
from staticgraph.internals.tracing import forget_compiled


def tried() -> list[dict[str, Any]]:
    """Runs all stages, in a patched process.

    Returns:
        For each stage ``stage``, ``ok``, and on failure ``error``, ``where`` (the line of torch)
        and ``points`` (the symbols patched for it).
    """
    results: list[dict[str, Any]] = []
    for name, (of_stage, stage) in STAGES.items():
        WATCH.graphs, WATCH.sources = [], {}
        forget_compiled()
        result: dict[str, Any] = {"stage": name, "ok": True}
        try:
            with Watcher():
                stage(torch.ones(4, 16, device="cuda"))
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            last = next((f for f in reversed(frames) if "/torch/" in f.filename), frames[-1])
            result |= {
                "ok": False,
                "error": f"{type(error).__name__}: {str(error)[:500]}",
                "where": f"{last.filename}:{last.lineno}",
                "points": [s.replace(":", ".") for group in of_stage for s in PATCHED[group]],
            }
        results.append(result)
    return results


def _net() -> Callable[[Tensor], Tensor]:
    with torch.device("cuda"):
        net = nn.Sequential(
            nn.Linear(16, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Dropout(), nn.Linear(32, 8)
        )
    return lambda x: net(x).square().mean()


def _device(x: Tensor) -> None:
    if not torch.cuda.is_available() or torch.cuda.device_count() != 1:
        raise RuntimeError("torch.cuda does not see the device")
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())


def _tape(x: Tensor) -> None:
    _net()(x.requires_grad_()).backward()
    for tensor in (x.grad, torch.tensor(1.0, device="cuda")):
        if tensor is None or str(tensor.device) != "cuda:0":
            raise RuntimeError("a gradient or a number is not on the device")


def _compiled(x: Tensor) -> None:
    step = torch.compile(_net(), fullgraph=True, dynamic=False)
    step(x).backward()
    _, run = counted(lambda: step(x).backward())
    kinds = {(launch.part, launch.kind) for launch in run.launches}
    parts = {(part, kind) for part in ("forward", "backward") for kind in ("inductor", "library")}
    if not parts <= kinds:
        raise RuntimeError(f"launches of {sorted(parts - kinds)} are not seen")


def _recorded(x: Tensor) -> None:
    TREES.roots.clear()
    step = torch.compile(_net(), fullgraph=True, dynamic=False, mode="reduce-overhead")
    for _ in range(3):
        step(x).backward()
    recorded = [graph.recorded for graph in WATCH.graphs]
    if recorded != [1, 1] or len(TREES.roots.get(0, ())) != 2:
        causes = [str(cause) for graph in WATCH.graphs for cause in graph.causes]
        raise RuntimeError(f"a forward and a backward are recorded as {recorded}: {causes}")


def _cut(x: Tensor) -> None:
    step = torch.compile(
        lambda x: (x * 2).cpu().sin().cuda() * 3, fullgraph=True, mode="reduce-overhead"
    )
    step(x)
    causes = [cause for graph in WATCH.graphs for cause in graph.causes]
    if not any("selftest.py" in cause.where for cause in causes):
        raise RuntimeError(f"a part on the CPU is not named: {causes}")


def _refused(x: Tensor) -> None:
    for body in (lambda: x.sum().item(), lambda: x.cpu(), lambda: torch.ones(4) + 1):
        try:
            RefusingRecorder(list).record(body)
        except Refused:
            continue
        raise RuntimeError("a recording does not refuse what it must")


def _attention(x: Tensor) -> None:
    q = x.new_ones(2, 4, 8, 16, dtype=torch.bfloat16)
    _, run = counted(lambda: nn.functional.scaled_dot_product_attention(q, q, q))
    if not any("flash" in launch.name for launch in run.launches):
        raise RuntimeError(f"attention is {[launch.name for launch in run.launches]}, not flash")


def _ptx(x: Tensor) -> None:
    torch.compile(lambda x: (x * 2).sin().sum(0), fullgraph=True, dynamic=False)(x)
    uses = ptx.uses()
    if not uses or not all(use.registers for use in uses):
        raise RuntimeError("no registers are known of any kernel")


# By name: the groups of patches that a stage is for, and the stage, which takes a tensor.
STAGES: dict[str, tuple[tuple[str, ...], Callable[[Tensor], None]]] = {
    "a device is seen": (("cuda", "guard"), _device),
    "autograd over fake CUDA tensors": (("guard", "cuda", "fakes"), _tape),
    "a compiled step, its launches noted": (("cuda", "triton", "inductor"), _compiled),
    "recordings counted": (("inductor",), _recorded),
    "a cut recording, its cause named": (("inductor",), _cut),
    "a recording refuses": (("fakes",), _refused),
    "attention's kernel chosen": (("attention",), _attention),
    "kernels compiled for the target": (("triton", "inductor"), _ptx),
}


def main(argv: list[str]) -> int:
    """Runs the self-test, prints its stages, and returns the exit status."""
    try:
        with emulated(*argv[:1]) as ask:
            stages = ask(None)
    except DryRunUnavailable as error:
        print(f"skipped: {error}")
        return 2
    except DryRunBroken as error:
        print(f"broken: {error}")
        return 1
    print(f"torch {torch_version()}")
    for stage in stages:
        print(f"{'ok    ' if stage['ok'] else 'broken'}  {stage['stage']}")
        if not stage["ok"]:
            print(f"        {stage['error']}\n        at {stage['where']}")
            print(f"        patched for it: {', '.join(stage['points'])}")
    return 0 if all(stage["ok"] for stage in stages) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
