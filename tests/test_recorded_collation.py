"""Replay equals eager when the recording makes the batch from its ids: ids in, step out."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import assert_same_state, squared
from support.arena import ArenaRecorder
from support.gine_net import Net, adam
from support.runners import made_runner

import staticgraph as sg
from staticgraph.errors import StaleBatch

CAPACITIES = [(410, 850, 31), (900, 1900, 33)]


def runner_of(model, example, **options):
    runner = made_runner(
        model, CAPACITIES, "cuda-graph", loss=squared, optimizer=adam(model), **options
    )
    return runner if example is None else runner.warmup(example)


def loader_of(store):
    """Batches of 30 in the order of the data, over both buckets; the last one has 18 graphs."""
    plan = sg.BucketPlan.of(CAPACITIES, batch_size=30)
    return sg.StaticLoader(store, plan, indices=range(12 * 30 + 18))


@pytest.fixture(scope="module")
def moved(esol):
    return esol.to("cpu")


@pytest.fixture
def models():
    torch.manual_seed(0)
    model = Net()
    return model, copy.deepcopy(model)


def test_an_epoch_from_ids_equals_one_from_the_host(esol, moved, models, monkeypatch):
    """Losses and parameters match bit for bit; training makes batches inside the recordings only.

    (Evaluation reads the batch for its loss, which is outside the recording.)
    """
    ours, theirs = runner_of(models[0], moved), runner_of(models[1], esol)
    seen = set()
    for one, other in zip(loader_of(moved), loader_of(esol), strict=True):
        seen.add(one.bucket)
        with monkeypatch.context() as patch:
            patch.setattr(
                "staticgraph.batches.loading.from_device.collate", lambda *_: pytest.fail("made")
            )
            assert torch.equal(ours.step(one), theirs.step(other))
        result, expected = ours.eval_step(one), theirs.eval_step(other)
        assert torch.equal(result.out, expected.out)
        assert torch.equal(result.loss, expected.loss)
    assert_same_state(models[0], models[1])
    assert seen == {0, 1}
    assert ours.report().fallbacks == ()


def test_batches_of_every_origin_share_the_recordings(esol, moved, models):
    """In turn: from ids, from the host, from ids of another store, and with a field replaced."""
    ours, theirs = runner_of(models[0], moved), runner_of(models[1], esol)
    again = esol.to("cpu")
    streams = zip(*map(loader_of, (moved, esol, again, moved)), strict=True)
    for number, (batches, host) in enumerate(zip(streams, loader_of(esol), strict=True)):
        one = batches[number % 4]
        if number % 4 == 3:
            one, host = one.replace(x=one.x + 1), host.replace(x=host.x + 1)
        assert torch.equal(ours.step(one), theirs.step(host)), number
    (told,) = ours.report().fallbacks
    assert "made from ids outside the recordings: " in told
    assert "pass the store on the device to warmup(store)" in told


def test_a_batch_given_back_is_not_stepped_on(moved, models):
    runner = runner_of(models[0], moved)
    batch = next(iter(loader_of(moved)))
    batch.release()
    with pytest.raises(StaleBatch):
        runner.step(batch)


def test_verify_and_predict_take_it(esol, moved, models):
    runner = runner_of(models[0], moved)
    verification = runner.verify(next(iter(loader_of(moved))))
    assert verification.passed, str(verification)
    assert torch.equal(runner.predict(moved), runner.predict(esol))


def test_pointers_that_were_not_moved_are_missed_before_the_first_step(esol, models):
    model = sg.convert(models[0], kernels=True)
    with pytest.raises(ValueError, match="pointers=True"):
        runner_of(model, esol.to("cpu", pointers=False))


class Counted(ArenaRecorder):
    """Counts the replays of all recordings together, that is, the launches of a step."""

    def __init__(self, device=None) -> None:
        super().__init__(device)
        self.launched = 0
        Counted.last = self

    def record(self, body):
        made = super().record(body)
        replay = made.replay

        def launch() -> None:
            self.launched += 1
            replay()

        made.replay = launch
        return made


class TestOneLaunch:
    """Batch, forward, backward and optimizer of a step form a single recording."""

    def trajectory(self, store, model, **options):
        """Runs two epochs, including the ragged last batches.

        Returns the losses and evaluations, the launches per step, the recorder and the runner.
        """
        runner = runner_of(model, store, recorder=Counted, **options)
        losses, launches = [], []
        for _ in range(2):
            for batch in loader_of(store):
                before = Counted.last.launched
                losses.append(runner.step(batch))
                launches.append(Counted.last.launched - before)
                losses.append(runner.eval_step(batch).out[batch.graph_mask])
        return losses, launches, Counted.last, runner

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("scope", ["step", "forward_backward"])
    def test_the_same_numbers_as_in_two_recordings(self, moved, models, scope):
        twin = copy.deepcopy(models[0])
        ours, launches, recorder, runner = self.trajectory(moved, models[0], scope=scope)
        theirs, twice, apart, _ = self.trajectory(moved, twin, one_launch=False, scope=scope)
        assert all(map(torch.equal, ours, theirs))
        assert_same_state(models[0], twin)
        assert set(launches) == {1}
        assert set(twice) == {2}
        assert recorder.recorded == 8, "two buckets, two phases, of ids and of any origin"
        assert apart.recorded == 6, "a collation a bucket instead"
        replays = runner.report().replays
        assert replays[f"bucket 0 step from ids (scope {scope})"] > 0
        assert replays[f"bucket 0 step (scope {scope})"] == 0

    def test_ids_are_written_to_their_place_and_nowhere_else(self, moved, models, monkeypatch):
        """A recorded step neither makes the batch in its slot nor keeps ids in the slot."""
        from staticgraph.batches.loading.from_device import SlotIds

        runner = runner_of(models[0], moved)
        sent = []
        copy_to = SlotIds.copy_to
        monkeypatch.setattr(
            SlotIds, "copy_to", lambda own, target: (sent.append(target), copy_to(own, target))[1]
        )
        batches = list(zip(range(3), loader_of(moved), strict=False))
        for _, batch in batches:
            runner.step(batch)
        place = runner.steps.recorded._inputs.collation._ids
        assert len(sent) == 3
        assert all(target.data_ptr() == place.data_ptr() for target in sent)
        assert batches[0][1].x.shape[0] in (410, 900), "read now, so made now"
        assert len(sent) == 4

    def test_garbage_where_the_input_stands_is_written_over(self, moved, models):
        """Every fill rewrites the whole input: nothing of the last batch, and no NaN, is left."""
        runner = runner_of(models[0], moved)
        twin = runner_of(models[1], moved)
        for batch in loader_of(moved):
            for inputs in runner.steps.recorded._inputs.batches.values():
                for value in inputs.tensors().values():
                    value.fill_(float("nan") if value.is_floating_point() else 1)
            assert torch.equal(runner.step(batch), twin.step(batch))

    def test_a_failed_recording_of_both_tears_all_down(self, moved, models):
        """The first key is recorded; the second cannot be."""

        class Failing(ArenaRecorder):
            def record(self, body):
                if self.recorded:
                    raise RuntimeError("no more")
                return super().record(body)

        runner = runner_of(models[0], None, recorder=Failing)
        with pytest.raises(sg.NotStatic, match=r"bucket 1 step from ids.*no more"):
            runner.warmup(moved)
        assert runner.steps.recorded._recordings == {}
        assert runner.steps.recorded.counts == {}
