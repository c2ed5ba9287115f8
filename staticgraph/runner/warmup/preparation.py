"""Prepares a phase of a bucket: compiles or records it by running it over padding alone.

The runner's warm-up calls this, under its budget; a step that was not prepared compiles at its
first batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.runner.execution.steps import Steps
from staticgraph.schema import Schema
from staticgraph.steps.compilation.graph_trees import drop_recordings, whole_recording
from staticgraph.steps.compilation.modes import OWN
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_hooks import without_callbacks
from staticgraph.steps.state.training_state import evaluating, train
from staticgraph.steps.update.update import Update

PHASES = ("step", "eval", "forward")
# torch's graph trees run a function once to warm up, once to record, and then replay it.
RECORDING_RUNS = 3


def _unwatched(_bucket: int, _phase: str) -> AbstractContextManager[None]:
    return nullcontext()


class Preparation:
    """Prepares the steps of one runner.

    Args:
        subject: the model, and how it is run.
        steps: the steps to prepare.

    Attributes:
        watched: returns a context manager that is entered around each preparation of a (bucket,
            phase).
        warmed: called between the runs that warm a key up and those whose memory counts as a
            step's; None if nothing is measured.
    """

    def __init__(self, subject: Subject, steps: Steps) -> None:
        self.watched: Callable[[int, str], AbstractContextManager[object]] = _unwatched
        self.warmed: Callable[[], None] | None = None
        self._model, self._update = subject.model, Update(subject)
        self._device: torch.device = subject.device
        self._steps = steps
        self._recorded_whole: set[tuple[str, int, str]] = set()

    def prepare(self, way: str, bucket: int, phase: str, schema: Schema) -> None:
        """Compiles, or records, what a phase of a bucket needs; does nothing for ``eager``.

        Raises:
            NotStatic: it cannot be compiled or recorded.
            ValueError: there is no such phase.
        """
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r}; choose one of {', '.join(map(repr, PHASES))}")
        if way == "eager":
            return
        steps, recordings = self._steps, self._steps.recordings
        work = "step" if phase == "step" else "forward"
        if way == OWN and recordings.records(phase):
            if steps.averaging is not None and phase == "step":
                steps.averaging.check_recordable()
            if phase == "forward":
                recordings.of(schema).record_forward(bucket, training=True)
            else:
                recordings.of(schema).record(bucket, work, self.warmed)
            return
        batch = StaticBatch.blank(steps.form.layout(bucket, schema), self._device)
        key = (way, bucket, phase)
        if steps.mode.recording and key not in self._recorded_whole:
            with whole_recording(self._device, phase, f"bucket {bucket} {phase}") as found:
                self._run_in(way, batch, phase, RECORDING_RUNS)
            steps.compiled.note_recorded(bucket, work, phase != "eval", found)
            self._recorded_whole.add(key)
        else:
            self._run_in(way, batch, phase, RECORDING_RUNS if steps.mode.recording else 1)

    def _run_in(self, way: str, batch: StaticBatch, phase: str, runs: int) -> None:
        """Runs a phase of a batch, so that it compiles and, where torch records, is recorded."""
        work = "step" if phase == "step" else "forward"
        for turn in range(runs if self.warmed is None else max(runs, 2)):
            if turn == 1 and self.warmed is not None:
                if phase == "step":
                    self._update.zero_grad()  # a step makes its own gradients
                self.warmed()
            if phase == "eval":
                with evaluating(self._model):
                    self._steps.run(work, batch, way)
                continue
            train(self._model)
            result = self._steps.run(work, batch, way)
            if phase == "step":
                with without_callbacks(self._model, self._update.optimizer):
                    (result if self._steps.averaging is None else result.total).backward()

    def finish(self) -> None:
        """Ends the preparation: nothing is recorded from now on, and a compilation warns."""
        self._steps.compiled.warmed_up = True
        self._steps.recordings.freeze()

    def tear_down(self) -> None:
        """Frees recordings and compiled functions, torch's graph trees included."""
        self._steps.recordings.close()
        self._steps.compiled.clear()
        self._recorded_whole.clear()
        if self._steps.mode.recording:
            drop_recordings(self._device)
