"""A wrong number given as an option is refused by its name, before anything is computed with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import staticgraph as sg
from staticgraph.epochs.blocks import Blocks
from staticgraph.plans.worker_count import autosize_workers
from staticgraph.runner.ways import Auto
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.store.writer import StoreWriter
from staticgraph.text.numeric_options import real_option, whole_option

NO_WHOLE = ["4", 4.5, 4.0, True, np.True_, math.nan, math.inf, [3], None, np.float32(3)]
NO_NUMBER = ["4", True, math.nan, [3, 4], None, 1j, b"4"]


@pytest.mark.parametrize("given", [3, np.int8(3), np.uint64(3), torch.tensor(3)])
def test_integers_of_every_kind_become_pythons(given):
    found = whole_option("k", given, 3)
    assert type(found) is int
    assert found == 3
    with pytest.raises(ValueError, match=r"k=.*: give a whole number of at least 4"):
        whole_option("k", given, 4)


@pytest.mark.parametrize("given", [2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0)])
def test_numbers_of_every_kind_become_pythons(given):
    found = real_option("x", given, 2)
    assert type(found) is float
    assert found == 2.0
    with pytest.raises(ValueError, match=r"x=.*: give a number above 2"):
        real_option("x", given, 2, more=True)


def test_infinity_is_a_number_only_where_it_may_be():
    assert real_option("x", math.inf, 0, infinite=True) == math.inf
    with pytest.raises(ValueError, match="x=inf: give a number of at least 0"):
        real_option("x", math.inf, 0)
    with pytest.raises(ValueError, match="x=-inf"):
        real_option("x", -math.inf, 0, infinite=True)


PLAN = [(50, 110, 8)]


def plan(store: sg.GraphStore, **given: Any) -> object:
    return sg.plan_buckets(store, **{"batch_size": 4, **given})


def subject(store: sg.GraphStore, **given: Any) -> object:
    return Subject(nn.Linear(1, 1), **given)


def loader(store: sg.GraphStore, **given: Any) -> object:
    return sg.StaticLoader(store, PLAN, exact=False, oversize="skip", **given)


# For each: the options of whole numbers, then those of any numbers.
OPTIONS: dict[str, tuple[Callable[..., object], str, str]] = {
    "plan": (plan, "batch_size num_buckets graphs min_steps_per_epoch seed", "margin time_limit"),
    "loader": (loader, "seed num_workers slots rank world_size window min_steps", ""),
    "epoch": (lambda store, **given: loader(store).set_epoch(**given), "epoch", ""),
    "blocks": (lambda store, **given: Blocks(**given), "graphs window", ""),
    "subject": (subject, "accumulate check_finite", "clip_norm"),
    "auto": (lambda store, **given: Auto(**given), "rounds", "limit_s"),
    "budget": (
        lambda store, **given: sg.MemoryBudget(1, **given),
        "driver_bytes headroom_bytes data_set_bytes",
        "",
    ),
    "writer": (lambda store, **given: StoreWriter("no", **given), "shard part_graphs", ""),
    "workers": (
        lambda store, **given: autosize_workers(
            **{"read_s": 1.0, "collate_s": 1.0, "step_s": 1.0, **given}
        ),
        "cores",
        "read_s collate_s step_s",
    ),
    "capacity": (
        lambda store, **given: sg.Capacity(**{"nodes": 50, "edges": 110, "graphs": 8, **given}),
        "nodes edges graphs max_graph_nodes edge_reserve node_reserve",
        "",
    ),
    "given plan": (
        lambda store, **given: sg.BucketPlan((sg.Capacity(50, 110, 8),), **given),
        "batch_size num_graphs",
        "margin",
    ),
    "size": (lambda store, **given: store.size(**given), "graph", ""),
    "server": (
        lambda store, **given: sg.Server(None, **given),  # refused before the runner is looked at
        "max_queue",
        "max_wait_ms",
    ),
}
# Options for which None means that the library chooses.
CHOSEN = {"batch_size", "num_buckets", "margin", "window", "shard", "cores", "clip_norm"}


@pytest.mark.parametrize("what", OPTIONS)
def test_the_option_is_named(what, esol):
    make, wholes, reals = OPTIONS[what]
    for names, wrong in ((wholes, NO_WHOLE), (reals, NO_NUMBER)):
        for name in names.split():
            for value in wrong:
                if value is None and name in CHOSEN:
                    continue
                with pytest.raises(ValueError, match=rf"^{name}=.*: give a (whole )?number"):
                    make(esol, **{name: value})


def test_a_number_of_rows_of_a_capacity_is_named():
    with pytest.raises(ValueError, match=r"extra\['angles'\]=12.5: give a whole number"):
        sg.Capacity(50, 110, 8, extra={"angles": 12.5})
