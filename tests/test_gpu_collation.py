"""Batches made from ids on a GPU, bit for bit the host's; and the same test bodies on the CPU."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from support.collated import (
    assert_same_bits,
    collated,
    filled,
    layout_for,
    odd_graphs,
    padded_ids,
    with_positions,
)
from support.places import DEVICES

import staticgraph as sg
from staticgraph.batches.collation.collate_arguments import collate_arguments
from staticgraph.kernels.collate import Arguments, collate, collate_reference


def by_operator(ids, *arguments):
    collate(ids, Arguments(*arguments))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("collating", [by_operator, collate_reference], ids=["triton", "reference"])
@pytest.mark.parametrize("pointers", [True, False])
def test_molecules_equal_the_host(hiv, collating, pointers, device):
    moved = hiv.to(device)
    for count in (0, 1, 32, 1024, 3000) if device == "cuda" else (0, 1, 32):
        ids = np.random.default_rng(count).integers(0, len(hiv), count)
        layout = layout_for(hiv, ids, pointers)
        assert_same_bits(collated(collating, moved, ids, layout), filled(hiv, ids, layout))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spare", [(1, 0, 1), (2, 5, 1), (30, 3, 8)])
@pytest.mark.parametrize("store", [odd_graphs(), with_positions(1000), with_positions(9)])
def test_every_dtype_and_padding_equal_the_host(store, spare, device):
    moved = store.to(device)
    for ids in ([], [3], [1], [2, 1, 4, 0, 1, 5]):
        layout = layout_for(store, ids, True, spare)
        assert_same_bits(collated(by_operator, moved, ids, layout), filled(store, ids, layout))


@pytest.mark.parametrize("place", DEVICES, indirect=True)
@pytest.mark.parametrize("exact", [True, False])
def test_loader_equals_the_host_while_the_device_is_busy(hiv, exact, place):
    plan = sg.plan_buckets(hiv, batch_size=64)
    chosen = hiv.splits["train"][: 4000 if place.cuda else 400]
    options = {"indices": chosen, "exact": exact, "shuffle": True}
    busy = torch.randn((2048, 2048) if place.cuda else (8, 8), device=place.device)
    device = sg.StaticLoader(hiv.to(place.device), plan, pointers=True, **options)
    host = sg.StaticLoader(hiv, plan, pointers=True, **options)
    for one, other in zip(device, host, strict=True):
        busy = busy @ busy
        found = {name: value.cpu() for name, value in one.tensors().items()}
        assert_same_bits(found, dict(other.tensors()))


def test_a_recording_of_collation_follows_its_ids(place, hiv):
    """One graph, two kernels, different ids in each replay."""
    device = place.device
    moved = hiv.to(device)
    layout = layout_for(hiv, range(500))
    tensors = layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8, device=device))
    ids = padded_ids([], layout, device)
    arguments = collate_arguments(moved, layout, tensors)
    recorder = sg.Recording(recorder=place.recorder).recorder_on(torch.device(device))
    body = partial(collate, ids, arguments)
    recorder.warm(body, 1)
    recorded = recorder.record(body)
    for chosen in (range(500), range(1000, 1300), [3], []):
        ids.copy_(padded_ids(chosen, layout))
        recorded.replay()
        found = {name: value.cpu() for name, value in tensors.items()}
        assert_same_bits(found, filled(hiv, chosen, layout))
