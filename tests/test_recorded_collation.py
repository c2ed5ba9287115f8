"""Replay equals eager where a recording makes the batch from its ids: ids in, step out."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.arena import ArenaRecorder
from support.collated import assert_same_bits, filled, layout_for, padded_ids
from support.runners import made_runner
from torch import nn
from torch_geometric.nn import GINEConv, global_add_pool

import staticgraph as sg
from staticgraph.batches.collate_arguments import collate_arguments
from staticgraph.errors import StaleBatch
from staticgraph.kernels.collate import collate_reference
from staticgraph.recording.recorded_collation import RecordedCollation

CAPACITIES = [(410, 850, 31), (900, 1900, 33)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Linear(9, 8), nn.Linear(3, 8)
        self.conv = GINEConv(nn.Linear(8, 8))
        self.head = nn.Linear(8, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.conv(self.atoms(x.float()), edge_index, self.bonds(edge_attr.float()))
        return self.head(global_add_pool(h, batch) / 30)


def runner_of(model, example, **options):
    optimizer = torch.optim.Adam(
        model.parameters(), lr=torch.tensor(1e-2), fused=True, capturable=True
    )
    runner = made_runner(
        model,
        CAPACITIES,
        mode="cuda-graph",
        loss=lambda out, batch: F.mse_loss(out, batch.y, reduction="none"),
        optimizer=optimizer,
        recorder=ArenaRecorder,
        **options,
    )
    return runner.warmup(example, progress=False)


def loader_of(store):
    """In the order of the data, whose batches of 30 go to both buckets; the last has 18."""
    return sg.StaticLoader(store, sg.BucketPlan.of(CAPACITIES, batch_size=30))


@pytest.fixture(scope="module")
def moved(esol):
    return esol.to("cpu")


@pytest.fixture
def models():
    torch.manual_seed(0)
    model = Net()
    return model, copy.deepcopy(model)


def test_an_epoch_from_ids_equals_one_from_the_host(esol, moved, models, monkeypatch):
    """Losses and parameters bit for bit, and training makes no batch but in the recordings.

    (Evaluation reads the batch for its loss, which stands outside the recording.)
    """
    ours, theirs = runner_of(models[0], moved), runner_of(models[1], esol)
    seen = set()
    for one, other in zip(loader_of(moved), loader_of(esol), strict=True):
        seen.add(one.bucket)
        with monkeypatch.context() as patch:
            patch.setattr("staticgraph.batches.from_device.collate", lambda *_: pytest.fail("made"))
            assert torch.equal(ours.step(one), theirs.step(other))
        result, expected = ours.eval_step(one), theirs.eval_step(other)
        assert torch.equal(result.out, expected.out)
        assert torch.equal(result.loss, expected.loss)
    for (name, value), other in zip(
        models[0].state_dict().items(), models[1].state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), name
    assert seen == {0, 1}
    assert ours.report().fallbacks == ()


def test_ids_that_were_not_copied_show(esol, moved, models, monkeypatch):
    ours, theirs = runner_of(models[0], moved), runner_of(models[1], esol)
    monkeypatch.setattr(RecordedCollation, "_send", lambda *_: None)
    different = [
        not torch.equal(ours.step(one), theirs.step(other))
        for one, other in zip(loader_of(moved), loader_of(esol), strict=True)
    ]
    assert all(different)


def test_batches_of_every_origin_share_the_recordings(esol, moved, models):
    """From ids, from the host, from ids of another store, with a field exchanged: in turn."""
    ours, theirs = runner_of(models[0], moved), runner_of(models[1], esol)
    again = esol.to("cpu")
    streams = zip(*map(loader_of, (moved, esol, again, moved)), strict=True)
    for number, (batches, host) in enumerate(zip(streams, loader_of(esol), strict=True)):
        one = batches[number % 4]
        if number % 4 == 3:
            one, host = one.replace(x=one.x + 1), host.replace(x=host.x + 1)
        assert torch.equal(ours.step(one), theirs.step(host)), number
    (told,) = ours.report().fallbacks
    assert "made from ids outside the recordings; pass the store" in told


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


def test_the_reference_is_recordable_as_it_is(esol, moved):
    """Its own operations, one by one, repeated on their tensors with other ids."""
    layout = layout_for(esol, range(40))
    tensors = layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8))
    ids = padded_ids([], layout)
    arguments = collate_arguments(moved, layout, tensors)
    recording = ArenaRecorder(torch.device("cpu")).record(
        lambda: collate_reference(ids, *arguments)
    )
    for chosen in (range(40), range(1000, 1020), [3], []):
        ids.copy_(padded_ids(chosen, layout))
        recording.replay()
        assert_same_bits(tensors, filled(esol, chosen, layout))
