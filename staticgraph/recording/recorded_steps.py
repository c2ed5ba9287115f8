"""The recorded steps of a runner: one recording per key, made before the first step.

A key is (bucket, work, autocast, scope). Its function reads one input slot, whose addresses the
recording knows; a batch is copied there, the recording is replayed, and its results are copied or
lent (:mod:`staticgraph.recording.lent_outputs`). Each scope records:

* ``step``: gradients to None, forward, loss, backward, clipping, optimizer;
* ``forward_backward``: up to the gradients, which appear in fixed tensors; the optimizer steps
  outside, as do accumulation, schedulers and closures;
* ``forward``: inference alone.

If the dataset is on the device, a key has a second recording, which first makes the batch from its
ids: one launch for the whole step. The first recording serves batches from anywhere else.

A forward with gradients, for a user's own loop, is a pair of recordings in the first two scopes;
see :mod:`staticgraph.recording.recorded_pair`.

Invariants: recording changes no parameter, buffer, optimizer state or random state; nothing is
recorded after :meth:`freeze`; a replay whose parameters, optimizer settings or inputs are not where
they were recorded raises instead of computing with old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.batch_arrays import looked_in_epoch
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.from_device import CollatedTensors
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import NotStatic
from staticgraph.recording.graph_recorder import Recorder
from staticgraph.recording.lent_outputs import handed_out
from staticgraph.recording.recorded_inputs import RecordedCollation, RecordedInputs
from staticgraph.recording.recorded_model import ModelRecording, RecordableOptimizer, RecordedModel
from staticgraph.recording.recorded_pair import RecordedPair
from staticgraph.recording.recorded_work import RecordedWork
from staticgraph.recording.recording_keys import Misses, Recording, RecordingKey, Scope
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_state import train
from staticgraph.store.on_device import DeviceStore
from staticgraph.text.how_many import how_many

# In place of a result: nothing is recorded for it.
MISSED = object()


class RecordedSteps:
    """Records and replays the functions of one model.

    Args:
        subject: its model's parameters are watched; its dtype is part of the keys.
        work: what is recorded.
        recording: how to record.
        layouts: of all buckets.
        store: a dataset on the device, whose ids are accepted, too; None for none.

    Raises:
        NotStatic: the optimizer's step cannot be recorded.
    """

    def __init__(
        self,
        subject: Subject,
        work: RecordedWork,
        recording: Recording,
        layouts: list[SlotLayout],
        store: DeviceStore | None = None,
    ) -> None:
        self.scope: Scope = work.scope
        self.frozen: bool = False
        self._model = subject.model
        self._device = subject.device
        self._recorder: Recorder | None = recording.recorder_on(self._device)
        recorder = self._recorder
        optimizer = subject.optimizer
        self._autocast = subject.precision
        self._misses = Misses(recording.on_miss)
        self._work = work
        self._watched: RecordableOptimizer | None = None
        if self.scope == "step" and optimizer is not None:
            self._watched = RecordableOptimizer(optimizer)
        self._inputs = RecordedInputs(layouts, self._device)
        self._one_launch = recording.one_launch
        self._subject = subject
        self._recordings: dict[RecordingKey, ModelRecording] = {}
        self._pairs: dict[RecordingKey, RecordedPair] = {}
        functions = {"loss": subject.loss, "forward": subject.forward}
        functions["the model"] = type(self._model).forward
        self._recorded_model = RecordedModel(
            self._model, optimizer, self.scope != "step", {n: f for n, f in functions.items() if f}
        )
        if store is not None:
            replays = self._recorded_model.replays
            self._inputs.collation = RecordedCollation(store, self._inputs.batches, replays)
            if not self._one_launch:
                self._inputs.collation.record(recorder)

    # ------------------------------------------------------------------ recording

    def key(self, bucket: int, work: str) -> RecordingKey:
        """Returns the key of a bucket's work."""
        return RecordingKey(bucket, work, self._precision, self.scope)

    def _pair_key(self, bucket: int, training: bool) -> RecordingKey:
        work = "forward and backward"
        return RecordingKey(bucket, work, self._precision, self.scope, training=training)

    @property
    def _precision(self) -> str | None:
        """The subject's precision, or that of an autocast currently entered."""
        return self._autocast or self._work.computation.precision.around

    def record(self, bucket: int, work: str, warmed: Callable[[], None] | None = None) -> None:
        """Warms up and records one key; everything the run touches is restored.

        Args:
            bucket, work: those of the key.
            warmed: called between warm-up and recording, when no gradients are held.

        Raises:
            NotStatic: the work cannot be recorded. All recordings are then freed, since they share
                a pool that a failed one leaves unusable; the runner still runs in eager.
        """
        key = self.key(bucket, work)
        if key in self._recordings:
            return
        if self._recorder is None:
            raise NotStatic(f"{key} cannot be recorded: the runner was closed")
        inputs = self._inputs.blank(bucket)
        if self._work.finite.watches:
            self._work.finite.prepare(bucket)

        def before() -> None:
            """Sets the model's mode, and finds out which results are rows."""
            train(self._model) if work == "step" else self._model.eval()
            self._work.computation.known(inputs)  # its separate run cannot be recorded

        def between() -> None:
            """Drops the gradients after the warm-up, and calls ``warmed``."""
            if work == "step":
                self._work.update.zero_grad()  # those of the warm-up; a recording makes its own
            if warmed is not None:
                warmed()

        keys = [key]
        if self._inputs.collation is not None and self._one_launch:
            keys.append(key._replace(from_ids=True))
        with self._all_or_none():
            for each in keys:
                if each.from_ids and self._inputs.collation is not None:
                    self._inputs.collation.clear()
                body = self._body(each)
                self._recordings[each] = self._recorded_model.record(
                    self._recorder, (body,), str(each), before, between
                )

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """A ``with`` block whose failure frees everything; the first error is the one raised.

        After a failed capture the device may refuse even to free.
        """
        try:
            yield
        except NotStatic as error:
            try:
                self.close()
            except Exception as further:
                note = f"the teardown failed as well: {type(further).__name__}: {further}"
                (error.__cause__ or error).add_note(note)
            raise

    def _body(self, key: RecordingKey) -> Callable[[], Any]:
        """Returns the function to record: it reads the input slot and returns tensors."""
        assert self._recorder is not None
        work = self._work.step if key.work == "step" else self._work.forward
        whole = partial(work, self._inputs.batches[key.bucket], self._recorder.compiles)
        if not key.from_ids:
            return whole
        assert self._inputs.collation is not None
        collate = self._inputs.collation.bodies[key.bucket]

        def from_ids() -> Any:
            """Makes the batch from the ids in the slot, then does the work."""
            collate()
            return whole()

        return from_ids

    def freeze(self) -> None:
        """Allows no further recording; replays count from now on."""
        self.frozen = True
        for key, recording in self._recordings.items():
            if not key.from_ids:
                recording.bodies[0].replays = 0

    # ------------------------------------------------------------------ replaying

    def run(self, work: str, batch: StaticBatch) -> Any:
        """Replays a batch's recording.

        The results are copies, which later replays leave alone, or, if large, lent until the next
        replay of any of these recordings. A key without a recording is recorded now; if frozen, it
        is :data:`MISSED`, for the caller to run in eager.

        Raises:
            NotStatic: frozen without a recording and ``on_miss="error"``; or parameters, optimizer
                or inputs differ from those that were recorded.
        """
        bucket = batch.bucket
        precision = self._autocast  # usually enough for a replay, and saves Python calls
        if precision is None and torch.is_autocast_enabled(self._device.type):
            precision = self._precision
        key: Any = bucket, work, precision, self.scope, False, None  # as a RecordingKey
        recording = self._recordings.get(key)
        if recording is None:
            if self.frozen:
                self._misses.note(self.key(bucket, work), lambda: self.counts)
                return MISSED
            self.record(bucket, work)
            recording = self._recordings[self.key(bucket, work)]
        arrays, ids = batch.tensors(), None
        collation = self._inputs.collation
        if (
            collation is not None
            and type(arrays) is CollatedTensors
            and arrays.store is collation.store
        ):
            joined = self._recordings.get(RecordingKey(*key[:4], from_ids=True))
            if joined is not None:
                ids, recording = arrays, joined
        self._recorded_model.check(recording, looked_in_epoch(batch))
        if (behind := recording.bodies[0].behind) is not None:
            behind()
        if work == "step" and self._watched is not None:
            self._watched.before_replay()
        if collation is not None and ids is not None:
            ids.send_ids(collation.ids[bucket])
        else:
            self._inputs.take(batch, arrays)
        result = self._recorded_model.replay(recording, work == "step")
        if type(result) is Tensor and not result.dim():  # a step's loss
            return result.clone()
        return handed_out(result, self._recorded_model.replays)

    def record_forward(self, bucket: int, training: bool) -> RecordingKey:
        """Records a forward and its backward, unless they are recorded already.

        Raises:
            NotStatic: they cannot be recorded; see :meth:`record`.
        """
        key = self._pair_key(bucket, training)
        if key in self._pairs:
            return key
        if self._recorder is None:
            raise NotStatic(f"{key} cannot be recorded: the runner was closed")
        inputs = self._inputs.blank(bucket)
        compute = partial(self._work.computed, "forward", compiles=self._recorder.compiles)

        def before() -> None:
            """Sets the model's mode, and finds out which results are rows."""
            if training is not self._model.training:
                self._model.train(training)
            self._work.computation.known(inputs)

        model, recorder = self._recorded_model, self._recorder
        with self._all_or_none():
            self._pairs[key] = RecordedPair(
                key, self._subject, model, recorder, compute, inputs, before
            )
            if self._inputs.collation is not None and self._one_launch:
                self._inputs.collation.clear()
                self._inputs.collation.record(self._recorder, bucket)
        return key

    def forward(self, batch: StaticBatch) -> Any:
        """Returns the output of a batch in the model's current mode, as part of autograd's graph.

        Its backward is a replay, too; :data:`MISSED` as of :meth:`run`. See
        :mod:`staticgraph.recording.recorded_pair` for what it raises.
        """
        key = self._pair_key(batch.bucket, self._model.training)
        if key not in self._pairs and self.frozen:
            self._misses.note(key, lambda: self.counts)
            return MISSED
        self.record_forward(batch.bucket, self._model.training)
        arrays = batch.tensors()
        return self._pairs[key].run(batch, lambda: self._inputs.take(batch, arrays))

    # ------------------------------------------------------------------ ending

    @property
    def buffer(self) -> Tensor:
        """``[bytes]`` uint8: the memory of the inputs of all buckets."""
        return self._inputs.buffer

    @property
    def counts(self) -> dict[RecordingKey, int]:
        """How often each recording was replayed."""
        counts = {key: each.bodies[0].replays for key, each in self._recordings.items()}
        for key, pair in self._pairs.items():
            for work, body in zip(("forward", "backward"), pair.recording.bodies, strict=True):
                name = f"{work} of a pair, {key.flag}"
                counts[RecordingKey(key.bucket, name, key.autocast, self.scope)] = body.replays
        return counts

    def missed(self) -> list[str]:
        """Returns a sentence for everything that ran without a recording."""
        return self._misses.sentences() + [
            f"made from ids outside the recordings: {how_many(count, 'batch')}; pass the store on "
            "the device to warmup(store)"
            for count in [self._inputs.unrecorded_fills]
            if count
        ]

    def close(self) -> None:
        """Frees all recordings together. Gradients that a recording owned are dropped."""
        self._recorded_model.drop(self._recordings.values())
        self._recordings.clear()
        self._pairs.clear()
        self._inputs.collation = None
        self.frozen = True
        recorder, self._recorder = self._recorder, None
        try:
            if self._watched is not None:
                self._watched.close()
        finally:
            if recorder is not None:
                recorder.close()
