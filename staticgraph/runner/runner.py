"""StaticGraphRunner: a PyG model, one step per bucket, each compiled once.

The problem: a batch of graphs has another shape every time, so every step launches its kernels one
by one, and every shape compiles. Here batches come in the few shapes of a plan; for each the runner
makes one function (forward and loss, or forward alone), compiles it before the first step, and from
then on only calls it. What cannot be static is an error that names it, never a silent fallback.

Outside torch.compile nothing else changes: the same model, parameters, optimizer and autograd.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.distributed.ranks import Ranks, check_not_wrapped
from staticgraph.epochs.blocks import Blocks
from staticgraph.memory.budget import MemoryBudget
from staticgraph.nn.bound import bound
from staticgraph.plans.plan import BucketPlan
from staticgraph.recording.recording import Recording
from staticgraph.runner.execution.commitments import RunnerStats
from staticgraph.runner.execution.execution import Execution
from staticgraph.runner.execution.model_locks import (
    Turns,
    check_not_traced,
    refuse_without_gradients,
)
from staticgraph.runner.execution.steps import Steps
from staticgraph.runner.inference import Inference
from staticgraph.runner.parts import RunnerParts
from staticgraph.runner.reporting.report import Report
from staticgraph.runner.timing.auto import Auto
from staticgraph.runner.verification import Verification, verify
from staticgraph.runner.warmup.preparation import Preparation
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.compilation.modes import Mode
from staticgraph.steps.computation.model_arguments import Forward
from staticgraph.steps.computation.model_setup import Subject, warn_of_another_models_optimizer
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.steps.state.evaluation_mode import settle_training
from staticgraph.steps.state.recordable_optimizer import make_recordable
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore
from staticgraph.text.how_many import how_many


class StaticGraphRunner(Inference):
    """Runs a model over the batches of a plan.

    Args:
        model: any PyG model; its layers are made static in place (see :func:`staticgraph.convert`).
            Or a :class:`staticgraph.Subject`: a model with its loss, optimizer, forward and
            autocast, and what else there is to say of its step.
        plan: the buckets, or a plain list of capacities.
        mode: ``eager``, ``default``, ``reduce-overhead``, ``max-autotune``,
            ``max-autotune-no-cudagraphs``; ``fused``, the captured graph rewritten to this
            library's operators; ``cuda-graph``, compiled by Inductor and recorded by
            this library; or ``auto``, or an :class:`staticgraph.Auto`: on CUDA, for each bucket,
            the fastest of eager, compiled and recorded as :meth:`warmup` measures it; on the CPU
            of eager and ``fused``, and, with ``Auto(on_cpu=True)``, compiled; ``eager`` until then.
        loss: ``loss(out, batch)``, one value per graph (node, edge); the runner takes the mean
            over the real rows.
        optimizer: over the model's parameters. Where its step will be recorded, one that has not
            stepped yet is made ready for it (``capturable``, ``fused``).
        forward: ``forward(model, batch)``, where the model's own parameter names do not tell.
        autocast: a dtype, such as ``torch.bfloat16``, to run the forward and the loss in.
        recording: how ``cuda-graph`` records, and how much; see :class:`staticgraph.Recording`.
        budget: a cap on what this runner makes torch hold; see
            :mod:`staticgraph.runner.execution.commitments`. Where it has no memory model the model
            is probed here, in seconds.
        distributed: ``"auto"``: where ``torch.distributed`` is initialised, all its processes train
            this model, and the loss is the mean over the real rows of all; ``"off"``: this process
            alone; or a process group. Every rank makes the runner, with the same model and plan,
            and takes as many steps; a runner that does not train is each rank's own. See
            ``docs/distributed.md``.

    Any thread may call any method. Runners whose models share a module take turns, a batch at a
    time, since training flags and gradients belong to the modules; others, and plain PyG, do not
    wait. A runner may be called inside the forward or the loss of another's step in eager.

    Raises:
        BudgetExceeded: the plan needs more than the budget; nothing was compiled yet.
        ValueError: an unknown mode, one that records CUDA graphs for a model on the CPU, or
            ``fused`` for a model that takes derivatives by its fields.
        NotStatic: the optimizer's step cannot be recorded.
        TypeError: no module, a loss module of torch, an optimizer that needs a closure, or an
            option that a given ``Subject`` says already.

    Attributes:
        steps: the ways in which batches run, below turns and statistics: for tools that look
            inside, such as the dry run. A training loop needs none of it.
    """

    steps: Steps

    def __init__(
        self,
        model: torch.nn.Module | Subject,
        plan: BucketPlan | Sequence[Capacity | tuple[int, ...]],
        mode: str | Auto = "auto",
        *,
        loss: Loss | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        forward: Forward | None = None,
        autocast: torch.dtype | None = None,
        recording: Recording | None = None,
        budget: MemoryBudget | None = None,
        distributed: str | torch.distributed.ProcessGroup = "auto",
    ) -> None:
        subject = Subject.of(
            model, loss=loss, optimizer=optimizer, forward=forward, autocast=autocast
        )
        plan = plan if isinstance(plan, BucketPlan) else BucketPlan.of(plan)
        self._execution = execution = Execution.of(subject, mode, recording, distributed)
        self.mode: Mode = execution.mode
        self.ranks: Ranks | None = execution.ranks
        if execution.records_step:
            make_recordable(subject.optimizer)
        turns = Turns(subject.model)
        self._trains = subject.trains
        if self._trains:
            settle_training(subject.model)
            warn_of_another_models_optimizer(subject)
        if self.ranks is not None:
            check_not_wrapped(subject.model)
            alike = {"the plan": list(map(str, plan.capacities)), "the mode": self.mode.name}
            self.ranks.check_alike(**alike)
        parts = RunnerParts.of(subject, plan, execution, budget)
        super().__init__(subject, plan, turns, parts)
        self.preparation: Preparation = parts.preparation
        self._warming, self._account = parts.warming, parts.account

    def __repr__(self) -> str:
        of = how_many(len(self.plan.capacities), "bucket")
        return (
            f"{type(self).__name__}({type(self.model).__name__} on {self.device}, mode "
            f"{self.mode.name}, {of})"
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """Over the model's parameters, as given."""
        return self.subject.optimizer

    @property
    def measures(self) -> bool:
        """Whether ``warmup()`` times the ways of each bucket, given graphs to time them with."""
        return self._execution.auto is not None

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses to be copied or pickled.

        Raises:
            TypeError: always; the message says what to copy or to save instead.
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
        """A loader of batches for this runner: of its plan, on its device, and with row pointers
        where the model reads them.

        Args:
            store, indices, exact, shuffle, seed, num_workers: as for
                :class:`staticgraph.StaticLoader`, which also says what it raises.
            **options: its others; ``rank`` and ``world_size`` are the runner's own, where several
                processes train.

        Raises:
            TypeError: ``device`` or ``pointers`` is given.
        """
        for name in ("device", "pointers"):
            if name in options:
                raise TypeError(
                    f"runner.loader() gives {name}= itself, by the runner's model: leave it out"
                )
        if self.ranks is not None:
            own = {"rank": self.ranks.rank, "world_size": self.ranks.world_size}
            options = {**own, **options}
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
        """The forward in the model's present mode, with autograd as torch has it: for a loop of
        your own, in every mode. Recorded (``cuda-graph``), its backward is valid until the runner's
        next call. A field that requires a gradient gets one; where that is recorded,
        ``Subject(differentiable=)`` must name it.

        Returns:
            The model's output over all physical rows; ``out[batch.graph_mask]`` are the real ones.
        """
        check_not_traced("the forward")
        with self._turns.forward:
            return self._run("forward", batch)

    @contextmanager
    def bind(self, batch: StaticBatch) -> Iterator[StaticBatch]:
        """As a ``with`` block: inside, the model may be called as it is, on a batch of this
        runner's plan, in eager; see :class:`staticgraph.bound`."""
        check_not_traced("bind()")
        with self._turns.forward, bound(self.model, self._intake.take(batch, "forward")) as data:
            yield data

    def step(self, batch: StaticBatch) -> Tensor:
        """One training step: gradients to zero, forward, loss, backward, optimizer; with
        ``Subject(accumulate=K)`` the optimizer at every K-th.

        Puts the model into training mode if it is not, by its own ``train()``; layers that you
        have put into evaluation mode yourself stay so.

        Returns:
            The mean loss over the real rows, 0-dim, detached, on the device.

        Raises:
            ValueError: no loss or no optimizer was given, or the loss is a scalar.
            RuntimeError: gradients are off around it.
            NotStatic: the step cannot be compiled in fixed shapes, or would compile again.
            NonFiniteLoss: the loss is NaN or infinite, or one since the last check was.
            PaddingLeaks: padding reaches real rows.
        """
        if not self._trains:
            raise ValueError("step() needs StaticGraphRunner(..., loss=..., optimizer=...)")
        if torch.compiler.is_compiling():
            check_not_traced("step()")
        if not torch.is_grad_enabled():
            refuse_without_gradients()
        with self._turns.step:
            batch = self._intake.take(batch, "step")
            statistics = self._account.statistics[batch.bucket]
            started = statistics.started()
            loss = self.steps.train(batch)
            statistics.ended(started)
            self.steps.count()
        if self.steps.averaging is not None:
            self.steps.averaging.compare()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides model and optimizer, in plain values and tensors: with
        ``accumulate`` the gradients that wait for their update."""
        return {"accumulated": self.steps.accumulated.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what :meth:`state_dict` gave."""
        self.steps.accumulated.load(state["accumulated"])

    def check_finite(self) -> None:
        """Waits for the device and checks the losses of the steps so far; for the end of an epoch.
        A norm that met one real row in a batch whose counts only the device knows is warned of,
        once.

        Raises:
            NonFiniteLoss: one since the last check was NaN or infinite; it names the graphs.
        """
        self.steps.check()

    def eager_step(self, batch: StaticBatch) -> Tensor:
        """:meth:`step` without compiling or recording, whatever the mode: the reference."""
        with self._turns.step:
            return self.steps.train(self.steps.form.accept(batch), "eager")

    def verify(self, batch: StaticBatch) -> Verification:
        """Compares a step and a forward with eager on one batch, and changes nothing; see
        :func:`staticgraph.runner.verification.verify`."""
        with self._turns.whole, self.steps.accumulated.kept():
            return verify(self, batch)

    # ------------------------------------------------------------------ warming up

    def warmup(
        self,
        example: StaticBatch | GraphStore | DeviceStore | None = None,
        phases: Iterable[str] | None = None,
        progress: bool = True,
        cache: str | Path | bool | None = None,
        choices: str | Path | None = None,
    ) -> StaticGraphRunner:
        """Compiles, and records, every bucket now; ``auto`` measures and chooses. Parameters,
        buffers, gradients, optimizer and random state are as before afterwards.

        Args:
            example: a batch or a store, where the plan does not know the fields of the data (a
                plain list of capacities); ``auto`` measures with graphs of it. Of a store on the
                device, ``cuda-graph`` also records how a batch is made from its ids.
            phases: of ``"step"``, ``"eval"`` (:meth:`eval_step`, :meth:`predict`) and
                ``"forward"`` (calling the runner while the model trains); by default the first two,
                or the second alone without a loss and an optimizer.
            progress: show a bar.
            cache: a file of compiled code, used where it exists and written afterwards, so that
                the next process hardly compiles; True keeps it in your own cache folder. Torch
                unpickles and runs it, so only a file of yours, signed, is used: see
                :mod:`staticgraph.runner.warmup.compile_cache`.
            choices: a JSON file of what ``auto`` chose: taken where it exists, without measuring,
                and written afterwards; by default ``cache`` with ``.choices.json`` added.

        Raises:
            ValueError: the fields of the data are not known.
            NotStatic: the model cannot be compiled in fixed shapes.
            PaddingLeaks: padding reaches real rows.
        """
        with self._turns.warmup, torch.inference_mode(False), torch.enable_grad():
            self._warming.run(example, phases, progress, cache, choices)
        return self

    def close(self) -> None:
        """Frees the recordings of ``cuda-graph``, all together. The runner then needs another
        :meth:`warmup`; other modes have nothing to free. Of several ranks over NCCL, call it before
        ``dist.destroy_process_group()``, which waits for graphs that hold its sums."""
        with self._turns.whole:
            self.steps.recordings.close()

    # ------------------------------------------------------------------ reporting

    def stats(self) -> RunnerStats:
        """What the runner holds under its budget; it grows, then stays, and never passes it."""
        return self._account.stats

    def report(self) -> Report:
        """What ran so far, bucket by bucket."""
        return self._account.report()
