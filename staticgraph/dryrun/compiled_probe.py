"""The memory of a compiled step, computed without the device that it is compiled for.

The problem: torch's compiler fuses operations and keeps fewer results, so that a compiled step of
stock layers takes about half the memory of the same step run operation by operation, and buckets
planned for the latter are half as large as they could be for the former. The idea: the wrapper that
Inductor generated is run by the dry run's child (:mod:`.start_child`) with every allocation and
release counted; the fit over capacities is that of :mod:`staticgraph.probing.probe`. The workspaces
of cuBLAS and the rounding of the caching allocator are separate terms
(:mod:`staticgraph.probing.live_storages`). The step is compiled but not run: on the device, probe
again.

A compiled step does not show which layer an allocation is for. But layers request blocks of the
same widths as operation by operation, so the same step is also read that way next to the child, in
a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from staticgraph.dryrun.start_child import emulated, packed
from staticgraph.dryrun.targets import target_of
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing import probe as probing
from staticgraph.probing.fake_tensors import CUBLAS_WORKSPACES, FakeTensorReader
from staticgraph.probing.step_reading import Probed, Read, Reading
from staticgraph.sizes.capacity import Capacity

MODE = "default"


class CompiledReader:
    """Reads compiled steps by dry runs; a :class:`staticgraph.probing.step_reading.MemoryReader`.

    Args:
        target: as for :func:`staticgraph.dryrun.dry_run`.
    """

    def __init__(self, target: str = "h100") -> None:
        self._target = target
        self.name: str = (
            f"a dry run of the step compiled for {target_of(target).device}, not run there"
        )

    @contextmanager
    def open(self, probed: Probed) -> Iterator[Read]:
        """Starts the child and sends it model, loss and optimizer; this process is not changed.

        Raises:
            DryRunUnavailable: a dry run cannot work on this machine.
            TypeError: model, loss or optimizer cannot be passed to another process.
            ValueError: accumulated steps, which a compiled step does not have.
        """
        subject = probed.subject
        if probed.accumulate != 1:
            raise ValueError(
                f"accumulate={probed.accumulate} has no compiled reading: a compiled step is one "
                "backward; leave compiled=True out"
            )
        request: dict[str, Any] = {
            "model": subject.model,
            "loss": subject.loss,
            "optimizer": subject.optimizer,
            "forward": subject.forward,
            "modes": [MODE],
            "phases": ["eval" if subject.loss is None else "step"],
            "autocast": subject.autocast,
            "compile_kernels": False,
            "moments": True,
        }
        packed(request)  # raises before a process is started
        with FakeTensorReader("cuda").open(probed) as uncompiled, emulated(self._target) as ask:

            def read(capacity: Capacity) -> Reading:
                """Reads the compiled step's bytes, and the layers' widths from fake tensors."""
                plan = replace(BucketPlan.of([capacity]), schema=probed.schema)
                (run,) = ask(request | {"plan": plan}).runs
                if run.error is not None:
                    raise RuntimeError(f"the step does not compile: {run.error}")
                added = [
                    (part, name, live - run.resident_bytes) for part, name, live in run.moments
                ]
                step = [(name, live) for part, name, live in added if part != "optimizer"]
                update = [live for part, _, live in added if part == "optimizer"]
                return Reading(
                    max(live for _, live in step),
                    max(update, default=0) if subject.optimizer is not None else 0,
                    # In bytes, not as a share: most of it is the last segments, whatever the step.
                    workspaces=CUBLAS_WORKSPACES + max(0, run.reserved_bytes - run.peak_bytes),
                    moments=step,
                    widths=uncompiled(capacity).widths,
                )

            yield read


def probe(
    model: Any,
    store: Any,
    *,
    like: Literal["cpu", "cuda"] | None = None,
    compiled: bool = False,
    target: str = "h100",
    **options: Any,
) -> MemoryModel:
    """Measures the memory of a step as a function of the capacity.

    Args:
        model: any PyG model, as for :class:`staticgraph.StaticGraphRunner`.
        store: a :class:`staticgraph.GraphStore`, or anything with ``.sizes`` and ``.schema``.
        like: count without running, as on the ``cpu`` or on ``cuda``; instead of ``reader``.
        compiled: with ``like="cuda"``, read the step as generated by torch's compiler rather than
            operation by operation: for the compiled and the recorded modes. It compiles the step at
            each capacity, so it takes minutes; it has the requirements of
            :func:`staticgraph.dryrun.dry_run`.
        target: the device to compile for.
        options: ``loss``, ``optimizer``, ``form``, ``reader``, ``forward``, ``autocast``,
            ``accumulate``, ``capacities`` and ``held_out``, as for
            :func:`staticgraph.probing.probe.probe`.

    Raises:
        DryRunUnavailable: with ``compiled``, a dry run cannot work on this machine.
        FitRefused: the points do not determine the form, or no form explains them within 5%.
        ProbeFailed: memory ran out before enough points were measured.
        TypeError: with ``compiled``, an object cannot be passed to another process.
        ValueError: options that contradict each other, or an invalid one.
    """
    if like not in (None, "cpu", "cuda"):
        raise ValueError(f"like={like!r}; choose 'cpu' or 'cuda'")
    if compiled and like != "cuda":
        raise ValueError(f"compiled=True reads a step as on CUDA: pass like='cuda', not {like!r}")
    if like is not None:
        if "reader" in options:
            raise ValueError("like= and reader= both say how bytes are read: give one of them")
        options["reader"] = CompiledReader(target) if compiled else FakeTensorReader(like)
    return probing.probe(model, store, **options)
