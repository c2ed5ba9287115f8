"""StaticGraphRunner: a PyG model, one step per bucket, each compiled once.

The problem: a batch of graphs has another shape every time, so every step launches its kernels anew
and every shape compiles anew. Here batches come in the few shapes of a plan; for each the runner
makes one function (forward and loss, or forward alone), compiles it before the first step, and from
then on only calls it. What cannot be static is an error that names it, never a silent fallback.

Outside torch.compile nothing else changes: the same model, parameters, optimizer and autograd.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from staticgraph.batch import StaticBatch
from staticgraph.buckets import BucketPlan
from staticgraph.loader import StaticLoader
from staticgraph.memory.budget import MemoryBudget, MemoryModel
from staticgraph.memory.commitments import Commitments, RunnerStats, drop_recordings
from staticgraph.predictions import Predictions
from staticgraph.report import Report, device_name, versions
from staticgraph.running import warm_start
from staticgraph.running.arguments import Forward
from staticgraph.running.compiled import CompiledFunction, skipped_recordings_of
from staticgraph.running.computation import Computation, Loss
from staticgraph.running.modes import resolve
from staticgraph.running.recorded import OnMiss, RecordedSteps, Scope
from staticgraph.running.recorder import CudaGraphRecorder, Recorder
from staticgraph.running.statistics import BucketStatistics
from staticgraph.running.training_state import train, untouched
from staticgraph.running.verification import Verification, verify
from staticgraph.schema import Schema
from staticgraph.sizes import Capacity
from staticgraph.slots import SlotLayout
from staticgraph.store import GraphStore

# torch's graph trees run a function once to warm up, once to record, and replay from then on.
RECORDING_RUNS = 3


class Key(NamedTuple):
    """What a compiled function belongs to."""

    bucket: int
    phase: str
    training: bool
    grad: bool

    def __str__(self) -> str:
        return (
            f"bucket {self.bucket} {self.phase} {'train' if self.training else 'eval'}"
            f"{'' if self.grad else ' no_grad'}"
        )


class EvalResult(NamedTuple):
    """What :meth:`StaticGraphRunner.eval_step` gives: the padded output and the mean loss."""

    out: Any
    loss: Tensor | None


class StaticGraphRunner:
    """Runs a model over the batches of a plan.

    Args:
        model: any PyG model; its layers are made static in place (see :func:`staticgraph.convert`).
        plan: the buckets, or a plain list of capacities.
        mode: ``eager``, ``default``, ``reduce-overhead``, ``max-autotune``,
            ``max-autotune-no-cudagraphs``; ``cuda-graph``, compiled by Inductor and recorded by
            this library; or ``auto``: ``reduce-overhead`` on CUDA, ``eager`` on the CPU.
        loss: ``loss(out, batch)``, one value a graph (or node, or edge); the runner takes the mean
            over the real rows.
        optimizer: over the model's parameters.
        forward: ``forward(model, batch)``, where the model's own parameter names do not tell.
        autocast: a dtype, such as ``torch.bfloat16``, to run the forward and the loss in.
        allow_cpu: let torch's recording modes run on a CPU, where they record nothing.
        clip_norm: the largest norm of all gradients together; larger ones are scaled to it.
        scope: what ``cuda-graph`` records of a training step: ``step`` (all of it),
            ``forward_backward`` (up to the gradients), or ``forward`` (inference alone).
        on_miss: what ``cuda-graph`` does with a batch whose key was not recorded by
            :meth:`warmup`: ``error``, or ``eager`` (counted in the report).
        recorder: makes what records, given the device; CUDA graphs by default.
        sanitize: set padding rows of every input to zero inside the step; only a batch that was not
            filled by this library can have anything else there.
        budget: a cap on what this runner makes torch hold; see
            :mod:`staticgraph.memory.commitments`.
        memory: predicts a step's bytes, for ``budget``; probed here, in seconds, where None.
        differentiable: float fields that the model takes derivatives by, such as ``("pos",)`` for
            forces; ``data.pos.requires_grad_()`` in the model then compiles.

    Raises:
        BudgetExceeded: the plan needs more than the budget; nothing was compiled yet.
        ValueError: an unknown mode, or one that records CUDA graphs for a model on the CPU.
        NotStatic: the optimizer's step cannot be recorded.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        plan: BucketPlan | Sequence[Capacity | tuple[int, ...]],
        mode: str = "auto",
        *,
        loss: Loss | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        forward: Forward | None = None,
        autocast: torch.dtype | None = None,
        allow_cpu: bool = False,
        clip_norm: float | None = None,
        scope: Scope = "step",
        on_miss: OnMiss = "error",
        recorder: Callable[[torch.device], Recorder] | None = None,
        sanitize: bool = False,
        differentiable: Sequence[str] = (),
        budget: MemoryBudget | None = None,
        memory: MemoryModel | None = None,
    ) -> None:
        self.model = model
        self.plan = plan if isinstance(plan, BucketPlan) else BucketPlan.of(plan)
        self.loss = loss
        self.optimizer = optimizer
        self.autocast = autocast
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.clip_norm = clip_norm
        self.mode = resolve(mode, self.device.type, allow_cpu or recorder is not None)
        self._computation = Computation(
            model, forward, loss, autocast, self.device, sanitize, differentiable
        )
        self._scope: Scope = scope
        self._on_miss: OnMiss = on_miss
        self._recorder = recorder or CudaGraphRecorder
        self._recorded: RecordedSteps | None = None
        self._pointers = any(getattr(m, "reads_pointers", False) for m in model.modules())
        self._compiled: dict[Key, CompiledFunction] = {}
        self._statistics = [BucketStatistics(c, self.device) for c in self.plan.capacities]
        self._schema: Schema | None = self.plan.schema
        self._warmed_up = False
        self._warmup_s: float | None = None
        self._cached = False
        self._commitments = budget and Commitments.of(
            model, self.plan, budget, memory, loss, optimizer, forward, autocast
        )

    # ------------------------------------------------------------------ running

    def __call__(self, batch: StaticBatch) -> Any:
        """The forward in the model's present mode, with autograd as torch has it.

        Returns:
            The model's output over all physical rows; ``out[batch.graph_mask]`` are the real ones.
        """
        return self._run("forward", batch)

    def step(self, batch: StaticBatch) -> Tensor:
        """One training step: gradients to zero, forward, loss, backward, optimizer.

        Puts the model into training mode if it is not.

        Returns:
            The mean loss over the real rows, 0-dim, detached, on the device.

        Raises:
            ValueError: no loss or no optimizer was given, or the loss is a scalar.
            NotStatic: the step cannot be compiled in fixed shapes, or would compile again.
        """
        if self.loss is None or self.optimizer is None:
            raise ValueError("step() needs StaticGraphRunner(..., loss=..., optimizer=...)")
        train(self.model)
        statistics = self._statistics[batch.bucket]
        with statistics.timed():
            if self.mode.own and self._scope != "forward":
                loss = self._run("step", batch)
                inside = self._scope == "step"
            else:
                self.optimizer.zero_grad(set_to_none=True)
                loss = self._run("step", batch)
                loss.backward()
                inside = False
            if not inside:
                self._update()
        return loss.detach().clone() if self.mode.recording else loss.detach()

    def eval_step(self, batch: StaticBatch) -> EvalResult:
        """Output and mean loss in evaluation mode, without gradients.

        Every module's training flag is as before afterwards. Without a loss, ``loss`` is None.
        """
        with self._evaluating():
            out = self._run("forward", batch)
            loss = None if self.loss is None else self._computation.mean_loss(out, batch)
        return EvalResult(out, loss)

    def eager_step(self, batch: StaticBatch) -> Tensor:
        """:meth:`step` without compiling or recording, whatever the mode: the reference."""
        assert self.optimizer is not None
        train(self.model)
        with self._computation.active():
            self.optimizer.zero_grad(set_to_none=True)
            loss = self._computation.run("step", batch)
            loss.backward()
        self._update()
        return loss.detach()

    def eager_forward(self, batch: StaticBatch) -> Any:
        """The output in evaluation mode, without compiling or recording, whatever the mode."""
        with self._evaluating(), self._computation.active():
            return self._computation.run("forward", batch)

    def verify(self, batch: StaticBatch) -> Verification:
        """Compares a step and a forward with eager on one batch, and changes nothing; see
        :func:`staticgraph.running.verification.verify`."""
        return verify(self, batch)

    def predict(self, graphs: Any) -> Any:
        """Outputs for new graphs, in the order given, padding left out.

        Args:
            graphs: a list of ``Data``, a PyG data set, or a :class:`GraphStore`.

        Returns:
            For an output a graph a tensor ``[n, ...]`` on the CPU; for an output a node or an edge
            a list of ``n`` tensors, edges in the order of each graph's ``edge_index``.

        Raises:
            GraphTooLarge: a graph fits no bucket.
            BadGraph: a graph lacks a field, or has one of another dtype or width.
        """
        if isinstance(graphs, GraphStore):
            store = graphs
        elif len(graphs) == 0:
            return []
        else:
            store = GraphStore.from_pyg(graphs, schema=self._schema)
        any_data = replace(self.plan, digest=None)
        loader = StaticLoader(
            store, any_data, exact=False, device=self.device, pointers=self._pointers
        )
        predictions = Predictions(store)
        with self._evaluating():
            for batch in loader:
                predictions.add(batch, self._run("forward", batch))
        return predictions.in_order()

    # ------------------------------------------------------------------ warming up

    def warmup(
        self,
        example: StaticBatch | GraphStore | None = None,
        phases: Iterable[str] | None = None,
        progress: bool = True,
        cache: str | Path | None = None,
    ) -> StaticGraphRunner:
        """Compiles, and records, every bucket now. Parameters, buffers, gradients and random state
        are as before afterwards.

        Args:
            example: a batch or a store, where the plan does not know the fields of the data (a
                plain list of capacities).
            phases: of ``"step"``, ``"eval"`` (:meth:`eval_step`, :meth:`predict`) and
                ``"forward"`` (calling the runner while the model trains); by default the first two,
                or the second alone without a loss and an optimizer.
            progress: show a bar.
            cache: a file of compiled code, used where it exists and written afterwards, so that
                the next process hardly compiles.

        Raises:
            ValueError: the fields of the data are not known.
            NotStatic: the model cannot be compiled in fixed shapes.
        """
        if example is not None:
            layout = getattr(example, "layout", None)
            self._schema = layout.schema if layout is not None else example.schema
        if not self.mode.compiled:
            self._warmed_up = True
            return self
        if self._schema is None:
            raise ValueError(
                "the plan is a plain list of capacities, which does not say what fields a graph "
                "has: pass warmup(example=store) or a batch, or use plan_buckets(store, ...)"
            )
        if phases is None:
            trains = self.loss is not None and self.optimizer is not None
            phases = ("step", "eval") if trains else ("eval",)
        # Largest first: later, smaller recordings fit into the memory of earlier ones.
        keys = [(b, p) for b in reversed(range(len(self.plan.capacities))) for p in phases]
        started = time.perf_counter()
        self._cached = cache is not None and warm_start.load(cache, self.device)
        if self.mode.own:
            self._recorded = self._new_recordings(self._schema)
        with (
            untouched(self.model, self.optimizer),
            tqdm(keys, desc="warming up", unit=" key", disable=not progress, leave=False) as bar,
        ):
            for bucket, phase in bar:
                bar.set_postfix_str(f"bucket {bucket} {phase}")
                self._warm(bucket, phase, self._schema)
        self._warmed_up = True
        self._warmup_s = time.perf_counter() - started
        if cache is not None:
            warm_start.save(cache, self.device)
        if self._recorded is not None:
            self._recorded.freeze()
        return self

    def close(self) -> None:
        """Frees the recordings of ``cuda-graph``, all together. The runner then needs another
        :meth:`warmup`; other modes have nothing to free."""
        if self._recorded is not None:
            self._recorded.close()
            self._recorded = None

    def _new_recordings(self, schema: Schema) -> RecordedSteps:
        self.close()
        recorded = RecordedSteps(
            self.model,
            self._computation,
            self._recorder(self.device),
            self.device,
            scope=self._scope,
            optimizer=self.optimizer,
            clip_norm=self.clip_norm,
            autocast=self._precision,
            on_miss=self._on_miss,
        )
        recorded.prepare(
            [
                SlotLayout(bucket, capacity, schema, self._pointers)
                for bucket, capacity in enumerate(self.plan.capacities)
            ]
        )
        return recorded

    def _tear_down(self) -> None:
        self.close()
        self._compiled.clear()
        if self.mode.recording:
            drop_recordings(self.device)

    def _warm(self, bucket: int, phase: str, schema: Schema) -> None:
        if self._commitments is None:
            self._warm_key(bucket, phase, schema)
        else:
            with self._commitments.recording(bucket, self._tear_down):
                self._warm_key(bucket, phase, schema)

    def _warm_key(self, bucket: int, phase: str, schema: Schema) -> None:
        layout = SlotLayout(bucket, self.plan.capacities[bucket], schema, self._pointers)
        if self._recorded is not None and self._records(phase, phase != "step"):
            with self._computation.active():
                self._recorded.record(bucket, "step" if phase == "step" else "forward")
            return
        batch = StaticBatch.blank(layout, self.device)
        for _ in range(RECORDING_RUNS if self.mode.recording else 1):
            if phase == "step":
                train(self.model)
                self._run("step", batch, counted=False).backward()
            elif phase == "forward":
                train(self.model)
                self._run("forward", batch, counted=False)
            elif phase == "eval":
                with self._evaluating():
                    self._run("forward", batch, counted=False)
            else:
                raise ValueError(f"phase {phase!r}; choose of 'step', 'eval', 'forward'")

    # ------------------------------------------------------------------ reporting

    def stats(self) -> RunnerStats:
        """What the runner holds under its budget; it grows, then stays, and never passes it."""
        return RunnerStats() if self._commitments is None else self._commitments.stats

    def report(self) -> Report:
        """What ran so far, bucket by bucket."""
        own = self._recorded
        functions = [*self._compiled.items(), *(own.functions.items() if own else ())]
        counts = [(key, function.counts) for key, function in functions]
        buckets = []
        for bucket, statistics in enumerate(self._statistics):
            compiled = [count for key, count in counts if key.bucket == bucket]
            recorded = sum(key.bucket == bucket for key in (own.counts if own else ()))
            bytes_of = self._commitments.of_bucket(bucket) if self._commitments else {}
            buckets.append(replace(statistics.report(bucket, compiled, recorded), **bytes_of))
        return Report(
            model=type(self.model).__name__,
            device=device_name(self.device),
            mode=self.mode.name,
            mode_reason=self.mode.reason,
            autocast=self._precision,
            warmup_s=self._warmup_s,
            warm_start=self._cached,
            buckets=tuple(buckets),
            fallbacks=(*skipped_recordings_of(counts), *(own.missed() if own else ())),
            versions=versions(),
        )

    # ------------------------------------------------------------------ inside

    def _run(self, phase: str, batch: StaticBatch, counted: bool = True) -> Any:
        if batch.bucket >= len(self._statistics) or (
            batch.capacity != self.plan.capacities[batch.bucket]
        ):
            raise ValueError(
                f"the batch belongs to bucket {batch.bucket} of {batch.capacity}, which is not in "
                "this runner's plan: give the loader and the runner the same plan"
            )
        if self._pointers and not batch.layout.pointers:
            raise ValueError(
                "the model was converted with kernels=True, which read row pointers, but the batch "
                "carries none: make it with StaticLoader(..., pointers=True), or with "
                "StaticBatch.of(..., pointers=True)"
            )
        if not self._pointers:
            batch = batch.without_pointers()  # a compiled step has the arrays it was made for
        if self._commitments is not None:
            self._commitments.use(batch.bucket)
        if counted and batch.real is not None:
            self._statistics[batch.bucket].count(batch.real, phase)
        with self._computation.active():
            if not self.mode.compiled:
                return self._computation.run(phase, batch)
            if self._records(phase, not torch.is_grad_enabled() and not self.model.training):
                return self._recordings(batch).run(phase, batch)
            key = Key(batch.bucket, phase, self.model.training, torch.is_grad_enabled())
            return self._compiled_for(key, batch)(*batch.tensors().values())

    def _records(self, phase: str, inference: bool) -> bool:
        """Whether a phase is replayed from a recording of our own."""
        if not self.mode.own:
            return False
        return self._scope != "forward" if phase == "step" else inference

    def _recordings(self, batch: StaticBatch) -> RecordedSteps:
        """The recordings, made now where nobody warmed up."""
        if self._recorded is None:
            self._recorded = self._new_recordings(batch.layout.schema)
        return self._recorded

    def _update(self) -> None:
        """Clips the gradients and steps the optimizer."""
        assert self.optimizer is not None
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimizer.step()

    @property
    def _precision(self) -> str | None:
        return None if self.autocast is None else str(self.autocast).removeprefix("torch.")

    def _compiled_for(self, key: Key, batch: StaticBatch) -> CompiledFunction:
        if key not in self._compiled:
            if self._warmed_up:
                self._statistics[key.bucket].late_compiles += 1
                warnings.warn(
                    f"{key} was not warmed up and compiles now; name its phase in "
                    "warmup(phases=...)",
                    stacklevel=4,
                )
            self._compiled[key] = self._compile(key, batch)
        return self._compiled[key]

    def _compile(self, key: Key, batch: StaticBatch) -> CompiledFunction:
        function = self._computation.of_tensors(key.phase, batch)
        return CompiledFunction(function, self.mode, self.device, str(key))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients; every module's flag is put back."""
        trained = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module in trained:
                module.training = True
