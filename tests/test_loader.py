"""The loader: every graph once per epoch, and the same seed gives the same batches."""

from __future__ import annotations

import inspect
from itertools import chain

import numpy as np
import pytest
import torch
from support.alike import real_ids, same

import staticgraph as sg
from staticgraph.batches.loading.loader_options import ELSEWHERE


@pytest.fixture(scope="module")
def plan(esol):
    return sg.plan_buckets(esol, batch_size=32)


def ids_of(loader) -> list[list[int]]:
    return [real_ids(batch) for batch in loader]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_graph_exactly_once_an_epoch(esol, plan, exact, shuffle):
    loader = sg.StaticLoader(esol, plan, exact=exact, shuffle=shuffle)
    for _ in range(3):
        batches = ids_of(loader)
        assert sorted(chain(*batches)) == list(range(len(esol)))
        if exact and shuffle:
            assert [len(ids) for ids in batches] == [32] * (len(esol) // 32) + [len(esol) % 32]


def test_indices_choose_the_graphs(esol, plan):
    chosen = np.random.default_rng(0).permutation(len(esol))[:900]
    for indices in (chosen, chosen.tolist(), torch.from_numpy(chosen)):
        loader = sg.StaticLoader(esol, plan, indices=indices, shuffle=True)
        assert sorted(chain(*ids_of(loader))) == sorted(chosen.tolist())


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(esol, plan, workers):
    alone = sg.StaticLoader(esol, plan, shuffle=True, seed=5)
    helped = sg.StaticLoader(esol, plan, shuffle=True, seed=5, num_workers=workers)
    for _ in range(2):
        for one, other in zip(alone, helped, strict=True):
            assert same(dict(one.tensors()), dict(other.tensors()))


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_in_the_middle_of_an_epoch(esol, plan, workers):
    whole = sg.StaticLoader(esol, plan, shuffle=True, seed=1)
    expected = [ids_of(whole) for _ in range(3)]
    broken = sg.StaticLoader(esol, plan, shuffle=True, seed=1, num_workers=workers)
    ids_of(broken)
    stream = iter(broken)
    done = [real_ids(next(stream)) for _ in range(7)]
    state = broken.state_dict()
    del stream
    resumed = sg.StaticLoader(esol, plan, shuffle=True, seed=1, num_workers=workers)
    resumed.load_state_dict(state)
    assert done + ids_of(resumed) == expected[1]
    assert ids_of(resumed) == expected[2]


def test_breaking_off_starts_the_next_epoch(esol, plan):
    expected = sg.StaticLoader(esol, plan, shuffle=True)
    ids_of(expected)
    loader = sg.StaticLoader(esol, plan, shuffle=True)
    for _ in loader:
        break
    assert ids_of(loader) == ids_of(expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_keeping_batches_is_told(esol, plan, workers):
    loader = sg.StaticLoader(esol, plan, slots=3, num_workers=workers)
    with pytest.raises(sg.errors.SlotsExhausted, match=r"slots are held.*batch\.clone\(\)"):
        list(loader)
    assert len(ids_of(loader)) == len(loader), "the loader is usable afterwards"


def test_a_plan_for_other_data_is_refused(esol, hiv, plan):
    with pytest.raises(sg.PlanMismatch, match="1,128 graphs then, 41,127 now"):
        sg.StaticLoader(hiv, plan)


def test_a_plan_for_other_fields_is_refused(esol, plan):
    from dataclasses import replace

    schema = sg.Schema(tuple(replace(f, dtype="int32") for f in plan.schema))
    with pytest.raises(sg.PlanMismatch, match="edge_attr, x, y differ"):
        sg.StaticLoader(esol, replace(plan, schema=schema))


def test_a_graph_that_fits_no_bucket_is_named(esol):
    biggest = int(esol.sizes[:, 0].argmax())
    with pytest.raises(sg.errors.GraphTooLarge, match=f"graph {biggest} has 55 nodes"):
        sg.StaticLoader(esol, [(50, 300, 9)])


def test_ranks_share_the_epoch(esol, plan):
    loaders = [
        sg.StaticLoader(esol, plan, shuffle=True, rank=rank, world_size=2) for rank in range(2)
    ]
    assert len(loaders[0]) == len(loaders[1])
    buckets = [[batch.bucket for batch in loader] for loader in loaders]
    assert buckets[0] == buckets[1]
    alone = len(sg.StaticLoader(esol, plan, shuffle=True))
    assert len(loaders[0]) <= -(-alone // 2) + len(plan.capacities) - 1, "steps are wasted"
    seen = [batch for loader in loaders for batch in ids_of(loader)]
    assert sorted(chain(*seen)) == list(range(len(esol)))


def test_oversize_graphs_get_a_bucket_or_are_skipped(esol):
    small = [(30, 80, 9)]
    added = sg.StaticLoader(esol, small, oversize="bucket")
    assert len(added.plan.capacities) == 2
    assert sorted(chain(*ids_of(added))) == list(range(len(esol)))
    skipping = sg.StaticLoader(esol, small, oversize="skip")
    kept = sorted(chain(*ids_of(skipping)))
    fits = np.flatnonzero((esol.sizes <= (29, 80)).all(1)).tolist()
    assert kept == fits
    assert skipping.batcher.stats.skipped == len(esol) - len(fits)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("drop_last", "leave it out: the last batch has the shape of the others"),
        ("batch_size", "plan_buckets(store, batch_size=...)"),
        ("collate_fn", "transform= changes each before it is used"),
        ("numworkers", "did you mean num_workers=?"),
        ("unheard_of", "it has batch_sampler, device, exact, follow_batch, indices"),
    ],
)
def test_an_option_that_there_is_not_is_named_with_the_remedy(esol, plan, option, remedy):
    runner = sg.StaticGraphRunner(torch.nn.Linear(1, 1), plan, "eager")
    for made in (
        lambda: sg.StaticLoader(esol, plan, **{option: True}),
        lambda: runner.loader(esol, **{option: True}),
    ):
        with pytest.raises(TypeError) as caught:
            made()
        assert str(caught.value).startswith(f"a StaticLoader has no {option}=: ")
        assert remedy in str(caught.value)


def test_options_of_torchs_loader_are_all_answered(esol, plan):
    """Each option either exists here too or has an error that names the alternative."""
    torchs = inspect.signature(torch.utils.data.DataLoader).parameters
    here = inspect.signature(sg.StaticLoader).parameters
    for option in [*torchs, "follow_batch", "exclude_keys"]:
        assert option in ELSEWHERE or option in here or option == "dataset", option


def test_workers_are_a_number_of_threads(esol, plan):
    with pytest.raises(ValueError, match=r"num_workers=-1: give a whole number of at least 0"):
        sg.StaticLoader(esol, plan, num_workers=-1)


@pytest.mark.parametrize("option", ["device", "pointers"])
def test_what_a_runner_says_itself_is_no_option_of_its_loader(esol, plan, option):
    runner = sg.StaticGraphRunner(torch.nn.Linear(1, 1), plan, "eager")
    with pytest.raises(TypeError, match=rf"gives {option}= itself, by the runner's model"):
        runner.loader(esol, **{option: "cpu"})


def test_a_device_that_is_not_there_is_told_in_a_line(esol, plan, monkeypatch):
    """torch itself fails with an assertion, or an error about memory that cannot be pinned."""
    for count, message in ((0, "torch sees no CUDA device"), (1, "torch sees 1 CUDA devices")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda count=count: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        for made in (
            lambda: sg.StaticLoader(esol, plan, device="cuda:3"),
            lambda: esol.to("cuda:3"),
        ):
            with pytest.raises(ValueError, match=f"device='cuda:3': {message}"):
                made()
    with pytest.raises(ValueError, match="device='tpu': torch knows no such device; give 'cpu'"):
        sg.StaticLoader(esol, plan, device="tpu")


@pytest.mark.parametrize("state", [{}, {"model": {}, "loader": {"epoch": 1}}, None, [1, 2]])
def test_what_is_no_state_is_refused_with_words(esol, plan, state):
    loader = sg.StaticLoader(esol, plan)
    with pytest.raises(
        ValueError, match=r"is not the state of a loader: pass what loader\.state_dict"
    ):
        loader.load_state_dict(state)
