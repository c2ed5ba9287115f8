"""Compiled code from one process serves the next; a file that does not fit is said, not used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from staticgraph.running import warm_start

PROGRAM = """
import sys, torch
torch.set_num_threads(1)
import staticgraph as sg
from staticgraph.models import build
from torch._dynamo.utils import counters
store = sg.datasets.open("examples/data/esol.npz")
plan = sg.plan_buckets(store, batch_size=16)
torch.manual_seed(0)
model = build("gin", store, hidden=8, layers=1)
runner = sg.StaticGraphRunner(model, plan, mode="default").warmup(progress=False, cache=sys.argv[1])
batch = next(iter(sg.StaticLoader(store, plan)))
report = runner.report()
print(counters["inductor"]["fxgraph_cache_hit"], report.warm_start,
      float(runner.eval_step(batch).out.sum()), report.warmup_s, report.cold_start_s)
"""


def run(path, cache_dir) -> list[str]:
    """In a process of its own whose other caches are empty."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache_dir)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_a_second_process_starts_from_the_file(tmp_path):
    file = tmp_path / "compiled.bin"
    first = run(file, tmp_path / "one")
    second = run(file, tmp_path / "two")
    assert first[:2] == ["0", "False"]
    assert int(second[0]) >= 1
    assert second[1] == "True"
    assert first[2] == second[2]
    assert float(second[4]) == float(first[3]), "the report has the time of both starts"


def test_a_file_that_does_not_fit_is_said(tmp_path):
    device = torch.device("cpu")
    assert warm_start.load(tmp_path / "none", device) is None
    foreign = tmp_path / "foreign"
    foreign.write_bytes(warm_start.MAGIC + b'{"torch": "1.0", "device": "cpu"}\nabc')
    with pytest.warns(UserWarning, match=r"was not made by torch.*it says \{'torch': '1\.0'"):
        assert warm_start.load(foreign, device) is None
    foreign.write_bytes(b"something else")
    with pytest.warns(UserWarning, match="compiling anew"):
        assert warm_start.load(foreign, device) is None
