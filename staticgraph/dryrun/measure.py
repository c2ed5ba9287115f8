"""Answering a request: each mode's runner is warmed up over fake tensors, and a step is counted.

The model is built on the CPU, as usual; the runner's is a copy over fake CUDA tensors.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.dryrun import ptx
from staticgraph.dryrun.device_guard import caveat
from staticgraph.dryrun.launches import WATCH, CompiledGraph, CountedStep, counted
from staticgraph.dryrun.report import BucketRun, Counts, DryRun
from staticgraph.dryrun.stubs import ATTENTION_EMULATED, INDUCTOR_EMULATED, TREES
from staticgraph.dryrun.targets import TargetDevice
from staticgraph.dryrun.watcher import Refused, RefusingRecorder, Watcher
from staticgraph.errors import NotStatic
from staticgraph.internals.tracing import forget_compiled
from staticgraph.models.named import make_model, named
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing.fake_tensors import fake_twin, state_of
from staticgraph.recording.recording_keys import Recording
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.compilation.graph_trees import WHOLE
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_state import evaluating

MODES = ("default", "reduce-overhead", "cuda-graph")
OWN_RECORDS = 1
STAND_IN = "no loss was given: the mean square of the output is used instead"
BATCH_SIZE = 32
FUSED_ADAM = partial(torch.optim.Adam, lr=1e-3, capturable=True, fused=True)


MakeOptimizer = Callable[..., torch.optim.Optimizer]


def candidate_of(
    model: Any,
    plan: BucketPlan | None = None,
    *,
    data: str | None = None,
    data_target: str | Sequence[str] | None = None,
    data_task: str = "auto",
    batch_size: int = BATCH_SIZE,
    loss: Any = None,
    optimizer: Any = None,
    forward: Any = None,
    kernels: bool = False,
    autocast: Any = None,
    clip_norm: float | None = None,
    differentiable: Sequence[str] = (),
) -> tuple[Subject, BucketPlan, MakeOptimizer]:
    """Builds what the arguments, those of :func:`staticgraph.dryrun.dry_run`, describe.

    Returns:
        The model and how it is trained, the buckets, and what is called with the model's
        parameters if the subject has no optimizer.

    Raises:
        ValueError: a name that cannot be resolved, or neither plan nor data.
    """
    store = None
    if data:
        from staticgraph import datasets

        store = datasets.open(data, target=data_target or None, task=data_task)
    if plan is None:
        if store is None:
            raise ValueError("a dry run needs a plan or data: without, no shape is known")
        plan = plan_buckets(store, batch_size=min(batch_size, len(store)))
    torch.manual_seed(0)
    if isinstance(model, str):
        model = make_model(model, store)
    if kernels:
        from staticgraph.nn import convert

        model = convert(model, kernels=True)
    loss, optimizer, forward = (
        named(value, option) if isinstance(value, str) else value
        for option, value in (("--loss", loss), ("--optimizer", optimizer), ("--forward", forward))
    )
    is_made = isinstance(optimizer, torch.optim.Optimizer)
    subject = Subject(
        model,
        loss=loss or mean_square,
        optimizer=optimizer if is_made else None,
        forward=forward,
        autocast=getattr(torch, autocast) if isinstance(autocast, str) else autocast,
        clip_norm=clip_norm,
        differentiable=differentiable,
    )
    return subject, plan, FUSED_ADAM if optimizer is None or is_made else optimizer


def mean_square(out: Any, batch: Any) -> Tensor:
    """A loss that needs no target: one value per row."""
    while not isinstance(out, Tensor):
        out = next(iter(out.values() if isinstance(out, Mapping) else out))
    return out.float().square().flatten(1).mean(1) if out.dim() > 1 else out.float().square()


def measure(
    target: TargetDevice,
    *,
    modes: Sequence[str],
    phases: Sequence[str],
    compile_kernels: bool = True,
    moments: bool = False,
    **options: Any,
) -> DryRun:
    """Answers a request.

    Args:
        target: the emulated GPU.
        modes, phases, compile_kernels: as for :func:`staticgraph.dryrun.dry_run`.
        moments: whether to report them.
        options: those of :func:`candidate_of`.

    Raises:
        ValueError: a mode that has no dry run.
    """
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise ValueError(
            f"mode {unknown[0]!r} has no dry run; choose one of {', '.join(MODES)} (max-autotune "
            "times kernels on the device)"
        )
    subject, plan, make_optimizer = candidate_of(**options)
    WATCH.sources.clear()
    WATCH.kernels.clear()
    WATCH.compiles = compile_kernels
    computed = _computed(subject, plan)
    runs: list[BucketRun] = []
    for mode in modes:
        tried = _Mode(subject, plan, make_optimizer, computed, mode, target, moments)
        runs += tried.runs(tuple(phases))
    notes = [None if options.get("loss") else STAND_IN, caveat()]
    return DryRun(
        target=target.name,
        device=target.device,
        torch=torch.__version__,
        model=type(subject.model).__name__,
        kernels=bool(options.get("kernels")),
        autocast=subject.precision,
        runs=tuple(runs),
        uses=tuple(ptx.uses()) if compile_kernels else (),
        emulated=(ATTENTION_EMULATED, INDUCTOR_EMULATED),
        notes=tuple(filter(None, notes)),
    )


def _computed(subject: Subject, plan: BucketPlan) -> Computation:
    """A copy of the model that has run once, on the CPU, over padding alone."""
    subject = replace(subject, model=copy.deepcopy(subject.model))
    computation = Computation(subject)
    assert plan.schema is not None
    layout = SlotLayout(0, plan.capacities[0], plan.schema)
    computation.known(StaticBatch.blank(layout, subject.device))
    return computation


@dataclass
class _Mode:
    """One mode of one model.

    Attributes:
        noted: what the preparation of a bucket and phase compiled.
        key: the bucket and phase that are prepared or counted; None before the first.
    """

    subject: Subject
    plan: BucketPlan
    make_optimizer: MakeOptimizer
    computed: Computation
    mode: str
    target: TargetDevice
    moments: bool
    noted: dict[tuple[int, str] | None, BucketRun] = field(default_factory=dict)
    key: tuple[int, str] | None = None

    def runs(self, phases: tuple[str, ...]) -> list[BucketRun]:
        """The runs of all buckets; a phase that cannot run does not prevent the others."""
        self.key = None
        try:
            return self._warmed(phases)
        except Exception as error:  # whatever stops a step is the result
            stopped = phases if self.key is None else (self.key[1],)
            failed = [run for phase in stopped for run in self._failed(error, phase)]
            rest = tuple(phase for phase in phases if phase not in stopped)
            return failed + (self.runs(rest) if rest else [])

    def _warmed(self, phases: tuple[str, ...]) -> list[BucketRun]:
        forget_compiled()
        TREES.roots.clear()
        with Watcher() as watcher:
            subject = self.subject
            model, optimizer = fake_twin(subject.model, subject.optimizer, watcher, "cuda")
            if optimizer is None:
                trained = [p for p in model.parameters() if p.requires_grad]
                optimizer = self.make_optimizer(trained)
            recorder = RefusingRecorder(lambda: _resident(runner))
            runner = StaticGraphRunner(
                replace(subject, model=model, optimizer=optimizer, check_padding=False),
                self.plan,
                self.mode,
                recording=Recording(recorder=recorder),
            )
            runner.steps.computation.assume_rows(self.computed)
            runner.preparation.watched = self._noting
            runner.warmup(progress=False, phases=phases)
            buckets = reversed(range(len(self.plan.capacities)))
            keys = [(bucket, phase) for bucket in buckets for phase in phases]
            steps = recorder.runs
            if self.mode != "cuda-graph":
                steps = [self._counted(runner, *key) for key in keys]
            runs = [self._run(runner, *key, step) for key, step in zip(keys, steps, strict=True)]
            runner.close()
        return runs

    @contextmanager
    def _noting(self, bucket: int, phase: str) -> Iterator[None]:
        """Notes what the preparation of a bucket and phase compiles."""
        self.key, WATCH.graphs = (bucket, phase), []
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self.noted[self.key] = self._outline(bucket, phase, WATCH.graphs, seconds)

    def _outline(
        self, bucket: int, phase: str, graphs: Sequence[CompiledGraph] = (), seconds: float = 0.0
    ) -> BucketRun:
        """What is known of a run before it is counted."""
        expected = {"cuda-graph": OWN_RECORDS, "reduce-overhead": WHOLE[phase]}.get(self.mode)
        return BucketRun(
            self.mode,
            bucket,
            str(self.plan.capacities[bucket]),
            phase,
            pieces=None if expected is None else sum(graph.recorded for graph in graphs),
            expected=expected,
            causes=tuple(dict.fromkeys(cause for graph in graphs for cause in graph.causes)),
            partitions=tuple(graph.partitions for graph in graphs),
            devices=tuple(sorted({device for graph in graphs for device in graph.devices})),
            mutated_not_static=sum(graph.moving for graph in graphs),
            compile_s=round(seconds, 2),
        )

    def _counted(self, runner: StaticGraphRunner, bucket: int, phase: str) -> CountedStep:
        """Counts a step after the warm-up."""
        self.key = bucket, phase
        steps, schema = runner.steps, self.plan.schema
        assert schema is not None
        batch = StaticBatch.blank(steps.layout(bucket, schema), runner.device)

        def body() -> Any:
            """One step, or one forward in evaluation mode, over the blank batch."""
            if phase == "step":
                return steps.train(batch)
            with evaluating(runner.model):
                return steps.run("forward", batch)

        body()  # the optimizer creates its state
        return counted(body, [*_resident(runner), *batch.tensors().values()])[1]

    def _run(
        self, runner: StaticGraphRunner, bucket: int, phase: str, step: CountedStep
    ) -> BucketRun:
        noted, launches = self.noted[bucket, phase], step.launches
        nested: Counts = {}
        for (part, kind, name), number in Counter(launch[:3] for launch in launches).items():
            nested.setdefault(part, {}).setdefault(kind, {})[name] = number
        counts = [
            count
            for compiled, count in runner.steps.compiled.counts
            if compiled.bucket == bucket and compiled.grad == (phase == "step")
        ]
        half = self.subject.autocast in (torch.bfloat16, torch.float16)
        # In float32 TF32 is off.
        rate = self.target.tensor_flops if half else self.target.float32_flops
        bandwidth = self.target.bandwidth_bytes_s
        return replace(
            noted,
            pieces=OWN_RECORDS if self.mode == "cuda-graph" else noted.pieces,
            graphs=sum(count.compiles for count in counts),
            graph_breaks=sum(count.graph_breaks for count in counts),
            launches=nested,
            operators={part: dict(calls) for part, calls in step.operators.items()},
            resident_bytes=step.resident_bytes,
            peak_bytes=step.live.peak_bytes,
            reserved_bytes=step.pool.reserved_bytes,
            moments=tuple(step.moments) if self.moments else (),
            moved_bytes=sum(launch.nbytes for launch in launches),
            flops=sum(launch.flops for launch in launches),
            at_least_s=sum(max(x.nbytes / bandwidth, x.flops / rate) for x in launches),
        )

    def _failed(self, error: Exception, phase: str) -> list[BucketRun]:
        """The runs that report a stopped phase, one per bucket."""
        noted, refused = self.noted.get(self.key) or self._outline(0, phase), _refusal(error)
        text = str(error)
        if not isinstance(error, NotStatic):
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        causes = noted.causes if refused is None else (refused.cause,)
        return [
            replace(noted, bucket=bucket, capacity=str(capacity), causes=causes, error=text)
            for bucket, capacity in enumerate(self.plan.capacities)
        ]


def _resident(runner: StaticGraphRunner) -> Iterable[Tensor]:
    """The tensors that are on the device before a step."""
    yield from runner.model.parameters()
    yield from runner.model.buffers()
    yield from state_of(runner.optimizer)
    recorded = runner.steps.recorded
    if recorded is not None and recorded.buffer is not None:
        yield recorded.buffer


def _refusal(error: BaseException | None) -> Refused | None:
    """The recorder's own exception, found in the chain of causes of a raised one."""
    while error is not None and not isinstance(error, Refused):
        error = error.__cause__ or error.__context__
    return error
