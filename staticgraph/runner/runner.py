"""StaticGraphRunner: a PyG model, one step per bucket, each compiled once.

The problem: every batch of graphs has another shape, so every step launches its kernels one by one,
and every new shape compiles again. Here batches come in the few shapes of a plan. For each shape
the runner makes one function (forward and loss, or forward alone), compiles it before the first
step, and from then on only calls it. Anything that cannot be static raises an error that names it;
there is never a silent fallback.

Outside torch.compile nothing else changes: the same model, parameters, optimizer and autograd.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, Unpack

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.batches.padding.padder import Padder, SplitBatch
from staticgraph.distributed.lost_rank import Watching
from staticgraph.distributed.ranks import Ranks, check_not_wrapped
from staticgraph.epochs.blocks import Blocks
from staticgraph.memory.budget import MemoryBudget
from staticgraph.nn.custom_loop import bound
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.recording.recording_keys import Recording
from staticgraph.runner.counters import RUNNERS, report_of, take
from staticgraph.runner.inference import Inference
from staticgraph.runner.memory_commitments import RunnerStats
from staticgraph.runner.model_locks import (
    Turns,
    check_not_traced,
    refuse_without_gradients,
)
from staticgraph.runner.own_batches import as_static
from staticgraph.runner.preparation import Preparation
from staticgraph.runner.report import Report
from staticgraph.runner.steps import Steps
from staticgraph.runner.verification import Verification, verify
from staticgraph.runner.ways import Auto, Execution
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.compilation.modes import Mode
from staticgraph.steps.computation.model_call import Forward
from staticgraph.steps.computation.model_setup import (
    StepOptions,
    Subject,
    warn_of_another_models_optimizer,
)
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.steps.state.recordable_optimizer import make_recordable
from staticgraph.steps.state.training_state import settle_training
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option


class StaticGraphRunner(Inference):
    """Runs a model over the batches of a plan.

    Args:
        model: any PyG model; its layers are made static in place (see :func:`staticgraph.convert`).
            Or a :class:`~staticgraph.steps.computation.model_setup.Subject`, which is a model with
            its loss, optimizer and options, for code that passes these on together.
        plan: the buckets, a plain list of capacities, or the :class:`staticgraph.Padder` of the
            user's own batches.
        mode: ``eager``, ``default``, ``reduce-overhead``, ``max-autotune``,
            ``max-autotune-no-cudagraphs``; ``fused``, the captured graph rewritten to this
            library's operators; ``cuda-graph``, compiled by Inductor and recorded by this library;
            or ``auto``: each bucket takes the fastest way, as measured by :meth:`warmup`: on CUDA
            among eager, compiled and recorded, and ``default`` until then; on the CPU among eager
            and ``fused``, and ``eager`` until then. An :class:`~staticgraph.runner.ways.Auto` sets
            what ``auto`` measures, and for how long.
        loss: ``loss(out, batch)``, one value per graph (node, edge); the runner takes the mean over
            the real rows.
        optimizer: over the model's parameters. If its step will be recorded and it has not stepped
            yet, it is made recordable (``capturable``, ``fused``).
        forward: ``forward(model, batch)``, needed where the names of the model's own parameters do
            not say what to pass.
        autocast: a dtype, such as ``torch.bfloat16``, to run the forward and the loss in.
        recording: how ``cuda-graph`` records, and how much; see :class:`staticgraph.Recording`.
        budget: a cap on what this runner makes torch hold; see
            :mod:`staticgraph.runner.memory_commitments`. If it has no memory model, the model is
            probed here, which takes seconds.
        distributed: ``"auto"``: if ``torch.distributed`` is initialised, all its processes train
            this model, and the loss is the mean over the real rows of all of them; ``"off"``: this
            process alone; or a process group. Every rank makes the runner with the same model and
            plan, and takes the same number of steps; a runner that does not train is independent on
            each rank. See ``docs/distributed.md``.
        **options: ``clip_norm``, ``differentiable``, ``rows``, ``accumulate``, ``sanitize``,
            ``check_padding`` and ``check_finite``, which
            :class:`~staticgraph.steps.computation.model_setup.Subject` describes.

    Any thread may call any method. Runners whose models share a module take turns, one batch at a
    time, since training flags and gradients belong to the modules; other runners, and plain PyG, do
    not wait. A runner may be called inside the forward or the loss of another runner's step in
    eager.

    Raises:
        BudgetExceeded: the plan needs more than the budget; nothing was compiled yet.
        ValueError: an unknown mode, one that records CUDA graphs for a model on the CPU, or
            ``fused`` for a model that takes derivatives by its fields.
        NotStatic: the optimizer's step cannot be recorded.
        TypeError: the model is not a module, the loss is a loss module of torch, the optimizer
            needs a closure, or an option repeats one of a given ``Subject``.
    """

    def __init__(
        self,
        model: torch.nn.Module | Subject,
        plan: BucketPlan | Sequence[Capacity | tuple[int, ...]] | Padder,
        mode: str | Auto = "auto",
        *,
        loss: Loss | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        forward: Forward | None = None,
        autocast: torch.dtype | None = None,
        recording: Recording | None = None,
        budget: MemoryBudget | None = None,
        distributed: str | torch.distributed.ProcessGroup = "auto",
        **options: Unpack[StepOptions],
    ) -> None:
        subject = Subject.of(
            model,
            loss=loss,
            optimizer=optimizer,
            forward=forward,
            autocast=autocast,
            **options,
        )
        padder = plan if isinstance(plan, Padder) else None
        plan = plan.plan if isinstance(plan, Padder) else plan
        plan = plan if isinstance(plan, BucketPlan) else BucketPlan.of(plan)
        execution = Execution.of(subject, mode, recording, distributed)
        self.mode: Mode = execution.mode
        self.ranks: Ranks | None = execution.ranks
        self._watching = Watching(self.ranks)
        if execution.records_step:
            make_recordable(subject.optimizer)
        turns = Turns(subject.model, subject.device)
        self._trains = subject.trains
        if self._trains:
            settle_training(subject.model)
            warn_of_another_models_optimizer(subject)
        with self._watching:
            if self.ranks is not None:
                check_not_wrapped(subject.model)
                capacities = list(map(str, plan.capacities))
                self.ranks.check_alike({"the plan": capacities, "the mode": self.mode.name})
            steps = Steps(subject, plan, execution)
            preparation = Preparation(steps, budget)
        super().__init__(turns, steps, preparation)
        self.padder = padder
        if padder is not None:
            padder.least_fills = preparation.least_fills
        RUNNERS.add(self)

    def __repr__(self) -> str:
        of = how_many(len(self.plan.capacities), "bucket")
        return (
            f"{type(self).__name__}({type(self.model).__name__} on {self.device}, mode "
            f"{self.mode.name}, {of})"
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer over the model's parameters, as given."""
        return self.subject.optimizer

    @property
    def measures(self) -> bool:
        """Whether ``warmup()`` times the ways of each bucket, if given graphs to time them with."""
        return self.steps.execution.auto is not None

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses to be copied or pickled.

        Raises:
            TypeError: always; the message says what to copy or save instead.
        """
        raise TypeError(
            "a StaticGraphRunner cannot be copied or pickled: its compiled and recorded steps, and "
            "its turns with other threads, are of this process and of its model. For another one "
            "copy the model and make a new runner, StaticGraphRunner(copy.deepcopy(runner.model), "
            "runner.plan, ...); for a checkpoint save runner.model.state_dict(), "
            "runner.optimizer.state_dict() and runner.state_dict(); another process makes its own "
            "runner, or loads what runner.export(folder) wrote"
        )

    # ------------------------------------------------------------------ loading

    def loader(
        self,
        store: GraphStore | DeviceStore,
        *,
        indices: Sequence[int] | np.ndarray | torch.Tensor | None = None,
        exact: bool | None = None,
        shuffle: bool | Literal["blocks"] | Blocks = False,
        seed: int = 0,
        num_workers: int = 0,
        **options: Any,
    ) -> StaticLoader:
        """Makes a loader of batches for this runner.

        The batches are of its plan, on its device, and have row pointers if the model reads them.

        Args:
            store, indices, exact, shuffle, seed, num_workers: as for
                :class:`staticgraph.StaticLoader`, which also lists what it raises.
            **options: its other options; where several processes train, ``rank`` and ``world_size``
                default to the runner's own.

        Raises:
            TypeError: ``device`` or ``pointers`` is given.
        """
        for name in ("device", "pointers"):
            if name in options:
                raise TypeError(
                    f"runner.loader() gives {name}= itself, by the runner's model: leave it out"
                )
        if self.ranks is not None:
            place = {"rank": self.ranks.rank, "world_size": self.ranks.world_size}
            options = {**place, **options}
        return StaticLoader(
            store,
            self.plan,
            device=self.device,
            pointers=self.subject.pointers,
            indices=indices,
            exact=exact,
            shuffle=shuffle,
            seed=seed,
            num_workers=num_workers,
            **options,
        )

    # ------------------------------------------------------------------ running

    def __call__(self, batch: StaticBatch) -> Any:
        """Runs the forward in the model's current mode, with autograd, for a loop of your own.

        Works in every mode. If recorded (``cuda-graph``), its backward is valid until the runner's
        next call. A field that requires a gradient gets one; if the forward is recorded,
        ``differentiable=`` must name that field.

        Returns:
            The model's output over all physical rows; ``out[batch.graph_mask]`` are the real ones.
            A backward that brings it NaN or infinities, as a loss of missing labels does, raises
            :class:`NonFiniteLoss` before they reach a parameter.
        """
        check_not_traced("the forward")
        batch = as_static(self, batch)
        with self._turns.forward:
            out = self._run("forward", batch)
        finite = self.steps.finite
        if finite.watches and torch.is_grad_enabled():
            for value in tensors_in(out):
                if value.requires_grad:
                    value.register_hook(partial(finite.before_backward, batch=batch))
        return out

    @contextmanager
    def bind(self, batch: StaticBatch) -> Iterator[StaticBatch]:
        """Deprecated: write ``with staticgraph.bound(runner.model, batch)``, which does the same.

        Other threads that call this runner wait for the block to end.
        """
        check_not_traced("bind()")
        message = "runner.bind(batch) is deprecated: write sg.bound(runner.model, batch)"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        batch = as_static(self, batch)
        with self._turns.forward, bound(self.model, take(self, batch, "forward")) as data:
            yield data

    def step(self, batch: StaticBatch) -> Tensor:
        """Takes one training step: zeroes gradients, forward, loss, backward, optimizer step.

        With ``accumulate=K`` the optimizer steps at every K-th call. Puts the model into
        training mode if it is not, by its own ``train()``; layers that you have put into evaluation
        mode yourself stay in it.

        Returns:
            The mean loss over the real rows, 0-dim, detached, on the device.

        Raises:
            ValueError: no loss or no optimizer was given, or the loss is a scalar.
            RuntimeError: gradients are disabled around the call.
            NotStatic: the step cannot be compiled in fixed shapes, or would compile again.
            NonFiniteLoss: the loss, or one since the last check, is NaN or infinite.
            PaddingLeaks: padding reaches real rows.
            RankLost: another process of the job is gone; the message has its error if it is known.
        """
        if not self._trains:
            raise ValueError("step() needs StaticGraphRunner(..., loss=..., optimizer=...)")
        if torch.compiler.is_compiling():
            check_not_traced("step()")
        if not torch.is_grad_enabled():
            refuse_without_gradients()
        if self.ranks is None:
            return self._step(batch)
        with self._watching:
            loss = self._step(batch)
            assert self.steps.averaging is not None
            self.steps.averaging.compare()
        return loss

    def _step(self, batch: Any) -> Tensor:
        if type(batch) is not StaticBatch:
            batch = as_static(self, batch, training=True)
            if isinstance(batch, SplitBatch):
                return self._step_parts(batch)
        with self._turns.step:
            batch = take(self, batch, "step")
            statistics = self.statistics[batch.bucket]
            started = statistics.started()
            loss = self.steps.train(batch)
            statistics.ended(started)
            self.steps.count()
        return loss

    def _step_parts(self, parts: SplitBatch) -> Tensor:
        with self._turns.step:
            loss = self.steps.train_parts([take(self, part, "step") for part in parts])
            self.steps.count()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint needs besides model and optimizer, in plain values and tensors.

        With ``accumulate``, these are the gradients that wait for their update.
        """
        return {"accumulated": self.steps.accumulated.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what :meth:`state_dict` returned.

        Raises:
            ValueError: it is another dict.
        """
        if "accumulated" not in state:
            raise ValueError(
                "this dict is not the state of a runner: pass what runner.state_dict() returned; a "
                "checkpoint may hold it among other states"
            )
        self.steps.accumulated.load(state["accumulated"])

    def check_finite(self) -> None:
        """Waits for the device and checks the losses of the steps so far; for the end of an epoch.

        Also warns, once, of a norm that met a single real row in a batch whose counts only the
        device knows.

        Raises:
            NonFiniteLoss: a loss since the last check was NaN or infinite; the error names the
                graphs.
        """
        self.steps.finite.check()

    def eager_step(self, batch: StaticBatch) -> Tensor:
        """Takes a :meth:`step` without compiling or recording, whatever the mode: the reference."""
        batch = as_static(self, batch, training=True)
        with self._turns.step:
            return self.steps.train(self.steps.accept(batch), "eager")

    def verify(self, batch: StaticBatch) -> Verification:
        """Compares a step and a forward with eager on one batch, without changing anything.

        See :func:`staticgraph.runner.verification.verify`.
        """
        batch = as_static(self, batch, training=True)
        with self._turns.whole, self.steps.accumulated.set_aside():
            return verify(self, batch)

    # ------------------------------------------------------------------ warming up

    def warmup(
        self,
        example: Any = None,
        phases: Iterable[str] | None = None,
        progress: bool = True,
        cache: str | Path | bool | None = None,
        choices: str | Path | None = None,
        steps: int | None = None,
    ) -> StaticGraphRunner:
        """Compiles, and records, every bucket now; ``auto`` measures and chooses.

        Parameters, buffers, gradients, optimizer state and random state are restored afterwards.

        Args:
            example: a batch (padded, PyG's, or a list of graphs) or a store, needed where the plan
                does not know the fields of the data (a plain list of capacities); by default the
                store that the plan was made for, if it still exists. ``auto`` measures with its
                graphs; without any, on a CPU, with the first batch of each bucket. With a store on
                the device, ``cuda-graph`` also records how a batch is made from its ids.
            phases: any of ``"step"``, ``"eval"`` (:meth:`eval_step`, :meth:`predict`) and
                ``"forward"`` (calling the runner while the model trains); by default the first two,
                or only the second without a loss and an optimizer.
            progress: whether to show a progress bar.
            cache: a file of compiled code, used if it exists and written afterwards, so that the
                next process hardly compiles; True keeps it in your own cache folder. Torch
                unpickles and runs it, so only a signed file of your own is used: see
                :mod:`staticgraph.runner.compile_cache`.
            choices: a JSON file of the ways that ``auto`` chose: used if it exists, instead of
                measuring, and written otherwise; by default ``cache`` with ``.choices.json`` added.
            steps: how many steps there will be; ``auto`` then tries no way whose preparation cannot
                be earned back in them.

        Raises:
            ValueError: the fields of the data are not known, or ``steps`` is negative.
            TypeError: the example is neither.
            NotStatic: the model cannot be compiled in fixed shapes.
            PaddingLeaks: padding reaches real rows.
        """
        steps = None if steps is None else whole_option("steps", steps, 0)
        with self._watching, self._turns.warmup, torch.inference_mode(False), torch.enable_grad():
            self.preparation.run(example, phases, progress, cache, choices, steps)
        return self

    def close(self) -> None:
        """Frees all recordings and compiled steps.

        The runner then needs another :meth:`warmup`. With several ranks over NCCL, call it before
        ``dist.destroy_process_group()``, which waits for graphs that contain its collectives.
        """
        with self._turns.whole:
            self.preparation.tear_down()

    # ------------------------------------------------------------------ reporting

    def stats(self) -> RunnerStats:
        """Returns what the runner holds; it grows, then stays, and never exceeds the budget."""
        commitments = self.preparation.commitments
        return RunnerStats() if commitments is None else commitments.stats

    def report(self) -> Report:
        """Returns what ran so far, per bucket."""
        return report_of(self)


def prepare(
    model: torch.nn.Module,
    graphs: Any,
    batch_size: int,
    *,
    mode: str | Auto = "auto",
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    forward: Forward | None = None,
    autocast: torch.dtype | None = None,
    seed: int = 0,
    epochs: int | None = None,
    **options: Unpack[StepOptions],
) -> tuple[StaticGraphRunner, StaticLoader]:
    """Makes a warmed-up runner of a model, and its shuffled loader, from graphs.

    The same as a store, a plan, a runner, its ``warmup`` and its loader, made one by one.

    Args:
        model: any PyG model.
        graphs: a PyG data set, a list of ``Data``, or a :class:`staticgraph.GraphStore`.
        batch_size: graphs per batch.
        mode, loss, optimizer, forward, autocast, **options: as for
            :class:`staticgraph.StaticGraphRunner`.
        seed: of the order of the graphs.
        epochs: how many there will be; ``auto`` then tries no way whose preparation cannot be
            earned back in them.

    Returns:
        The runner, and a loader that gives another order in every epoch. ``loader.plan`` is the
        plan.

    Raises:
        BadGraph: a graph cannot be stored; the message names it.
        NotStatic: the model cannot run with fixed shapes.
        PaddingLeaks: padding reaches real rows.
        ValueError, TypeError: as for the runner.
    """
    store = graphs if isinstance(graphs, GraphStore) else GraphStore.from_pyg(graphs)
    plan = plan_buckets(store, min(batch_size, len(store)))
    runner = StaticGraphRunner(
        model,
        plan,
        mode,
        loss=loss,
        optimizer=optimizer,
        forward=forward,
        autocast=autocast,
        **options,
    )
    loader = runner.loader(store, shuffle=True, seed=seed)
    runner.warmup(store, steps=None if epochs is None else epochs * len(loader))
    return runner, loader
