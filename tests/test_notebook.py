"""Reports as the last value of a notebook cell show their text, as on a terminal."""

from __future__ import annotations

import pytest

import staticgraph as sg
from staticgraph.checking.report import CheckReport
from staticgraph.dryrun.report import DryRun
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.rewrites.explain import Explanation
from staticgraph.runner.report import Report
from staticgraph.runner.verification import Verification
from staticgraph.training.report import TrainReport
from staticgraph.training.versus.report import VersusReport

SHOWN = (
    *(Report, sg.BucketPlan, CheckReport, DryRun, MemoryModel),
    *(Explanation, Verification, TrainReport, VersusReport),
)


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.__name__)
def test_a_report_shows_its_text(kind):
    class Two(kind):
        def __init__(self):
            pass

        def __str__(self):
            return "a < b\n1   2"

    assert Two()._repr_html_() == "<pre>a &lt; b\n1   2</pre>"
