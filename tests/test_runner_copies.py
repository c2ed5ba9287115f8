"""A runner belongs to its model and process; copying or pickling one says what to do instead."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import staticgraph as sg
from staticgraph import models


@pytest.fixture(scope="module")
def runner(esol):
    torch.manual_seed(0)
    model = models.build("gcn", esol, hidden=8, layers=1)
    return sg.StaticGraphRunner(model, sg.plan_buckets(esol, 32), "eager")


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, pickle.dumps, lambda runner: torch.save(runner, io.BytesIO())],
    ids=["copy", "deepcopy", "pickle", "torch.save"],
)
def test_a_runner_says_what_to_copy_and_what_to_save(runner, copied):
    with pytest.raises(TypeError) as caught:
        copied(runner)
    said = str(caught.value)
    assert said.startswith("a StaticGraphRunner cannot be copied or pickled")
    for remedy in ("StaticGraphRunner(copy.deepcopy(runner.model)", "state_dict()", "export("):
        assert remedy in said


def test_what_it_says_to_do_works(runner, esol):
    """A runner of the copied model gives the same answers and shares no weights."""
    other = sg.StaticGraphRunner(copy.deepcopy(runner.model), runner.plan, "eager")
    before = runner.predict(esol[:40])
    torch.testing.assert_close(other.predict(esol[:40]), before, rtol=0, atol=0)
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.zero_()
    torch.testing.assert_close(runner.predict(esol[:40]), before, rtol=0, atol=0)
