"""Inference: runs a model over the batches of a plan, without training it.

Everything that reads the model's output and changes nothing: evaluation, prediction and export. It
holds the model, its plan and the steps of the plan's buckets;
:class:`staticgraph.StaticGraphRunner` adds training.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.own_class import static_of
from staticgraph.batches.batch.predictions import Predictions
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.padding.padder import Padder, SplitBatch
from staticgraph.batches.padding.read_batch import graphs_of
from staticgraph.checking.plain_batch import PlainBatch
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.counters import BucketStatistics, take
from staticgraph.runner.export import export
from staticgraph.runner.model_locks import Turns, check_not_traced
from staticgraph.runner.own_batches import as_static
from staticgraph.runner.prediction import predict, require_rows
from staticgraph.runner.preparation import Preparation
from staticgraph.runner.steps import Steps
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.steps.state.training_state import Evaluation
from staticgraph.store.graph_store import GraphStore


class EvalResult(NamedTuple):
    """What :meth:`StaticGraphRunner.eval_step` returns: the padded output and the mean loss."""

    out: Any
    loss: Tensor | None


class Inference:
    """Evaluation and prediction with one model.

    Args:
        turns: locks the model; every forward of a batch takes a turn.
        steps: run the batches, each in its bucket's way.
        preparation: prepares the steps.

    Attributes:
        steps: runs the batches, without locking or statistics: for tools that look inside, such as
            the dry run. A training loop does not need it.
        preparation: prepares the steps, and looks at batches that it has not seen the like of.
        statistics: what was counted of each bucket, and last of batches of their own sizes.
        padder: pads batches that are not a loader's; None until there is one.
    """

    def __init__(
        self,
        turns: Turns,
        steps: Steps,
        preparation: Preparation,
    ) -> None:
        self.subject: Subject = steps.subject
        self.device: torch.device = steps.subject.device
        self.steps: Steps = steps
        self.preparation: Preparation = preparation
        self.statistics: list[BucketStatistics] = [
            BucketStatistics(capacity, self.device) for capacity in (*steps.plan.capacities, None)
        ]
        self._turns = turns
        self._evaluating = Evaluation(steps.subject.model)
        self.padder: Padder | None = None
        self._loss_differentiates = False

    @property
    def plan(self) -> BucketPlan:
        """The buckets."""
        return self.steps.plan

    @property
    def model(self) -> torch.nn.Module:
        """The model that is run."""
        return self.subject.model

    @property
    def pointers(self) -> bool:
        """Whether the model's batches need row pointers."""
        return self.subject.pointers

    @property
    def loss(self) -> Loss | None:
        """The loss function, one value per row, as given; None without one."""
        return self.subject.loss

    def eval_step(self, batch: StaticBatch) -> EvalResult:
        """Computes the output and the mean loss in evaluation mode, without gradients.

        As after ``model.eval()``; a model that is not in training itself is run with its modules'
        flags as they are. Every flag is restored afterwards. Without a loss function, ``loss`` is
        None; a loss that differentiates by a field runs in eager.
        """
        check_not_traced("eval_step()")
        batch = as_static(self, batch)
        with self._turns.forward, self._evaluating() as sampled:
            computation = self.steps.computation
            if self._loss_differentiates:
                return EvalResult(*computation.differentiated(take(self, batch, "forward")))
            out = self._run("forward", batch, "eager" if sampled else None)
            if self.loss is None or not isinstance(batch, StaticBatch):
                return EvalResult(out, None)
            try:
                return EvalResult(out, computation.mean_loss(out, batch))
            except RuntimeError:  # there is nothing to differentiate
                if not self.subject.differentiable:
                    raise
                result = EvalResult(*computation.differentiated(batch))
                self._loss_differentiates = True
                return result

    def eager_forward(self, batch: StaticBatch) -> Any:
        """Returns the output in evaluation mode, in eager, whatever the mode."""
        batch = as_static(self, batch)
        with self._turns.forward, self._evaluating():
            return self.steps.run("forward", self.steps.accept(batch), "eager")

    def predict(self, graphs: Any) -> Any:
        """Returns outputs for new graphs, in the order given, without padding.

        In evaluation mode, as after ``model.eval()``. To sample with dropout, call ``model.eval()``
        yourself and then ``train()`` of the dropout layers: they stay in training, and the model
        runs in eager mode.

        Args:
            graphs: a list of ``Data``, a PyG dataset, or a :class:`GraphStore`, also one on a
                device; or one batch of the class that the runner's :class:`Padder` was told of.

        Returns:
            For one output per graph, a tensor ``[n, ...]`` on the CPU; for one per node or per
            edge, a list of ``n`` tensors, edges in the order of each graph's ``edge_index``; also a
            list for blocks that are as wide as the largest graph of a batch (``to_dense_batch``).
            Tuples, lists and dicts of these as the model returns them; within them, a scalar tensor
            gives one value per batch, and None stays None.

        Raises:
            GraphTooLarge: a graph fits no bucket.
            BadGraph: a graph lacks a field, or has one of another dtype or width.
            TypeError: ``graphs`` is a loader, which yields batches.
        """
        check_not_traced("predict()")
        schema = self.preparation.schema
        declared = schema is not None and schema.names and not isinstance(graphs, list | GraphStore)
        if self.padder is None or not (declared or static_of(graphs) is not None):
            return predict(self, graphs, schema)
        padded = as_static(self, graphs)
        parts = padded if isinstance(padded, SplitBatch) else [padded]
        predictions = Predictions(sum(part.real_counts.graphs for part in parts))
        for part in parts:
            predictions.add(part, self.predict_batch(part))
        return predictions.in_order()

    def predict_batch(self, batch: StaticBatch) -> Any:
        """Returns the output of one batch in evaluation mode, without gradients and without a loss.

        Returns:
            The model's output over all physical rows, on the device; each of its tensors has rows
            of the batch, as ``batch.unpad`` and :class:`Predictions` take them.

        Raises:
            ValueError: a tensor of the output has no rows of the batch.
        """
        check_not_traced("predict_batch()")
        batch = as_static(self, batch)
        with self._turns.forward, self._evaluating() as sampled:
            out = self._run("forward", batch, "eager" if sampled else None)
            require_rows(out, self.steps.computation.levels(out, batch))
        return out

    def export(
        self,
        folder: str | Path,
        example: StaticBatch | GraphStore | None = None,
        *,
        overwrite: bool = False,
        progress: bool = True,
    ) -> str:
        """Writes the model's forward in evaluation mode as compiled code: one package per bucket.

        The packages are AOTInductor's; the plan and the fields are written with them.
        :func:`staticgraph.load_exported` loads the folder without the model's source, with the same
        version of torch and the same kind of processor or GPU.

        Args:
            folder: a new folder or, with ``overwrite``, one that an earlier export wrote.
            example: a batch or a store, needed where the plan does not know the fields of the data.
            overwrite: whether to replace an earlier export.
            progress: whether to show a progress bar.

        Returns:
            The digest of the folder. A package is code: pass the digest on to those who load it,
            for ``load_exported(folder, digest=...)``.

        Raises:
            FileExistsError: the folder holds something that must not be replaced.
            NotStatic: the model cannot be exported; the message has torch's reason.
            ValueError: the fields of the data are not known.
        """
        check_not_traced("export()")
        schema = self.preparation.fields_of(example, "export(folder, example=store)")
        with self._turns.whole:
            return export(
                folder,
                self.steps.computation,
                self.subject,
                replace(self.plan, schema=schema),
                graphs_of(self.plan) if example is None else example,
                overwrite=overwrite,
                progress=progress,
            )

    def _run(self, work: str, batch: StaticBatch, way: str | None = None) -> Any:
        if isinstance(batch, PlainBatch):  # in a plain run of the check of another runner's model
            return self.steps.computation.plain(batch)
        return self.steps.run(work, take(self, batch, work), way)
