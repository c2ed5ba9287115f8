"""The memory of a compiled step: the allocator's segments, what is refused, a probe end to end."""

from __future__ import annotations

import pytest
from support.command import printed_json
from torch import nn

import staticgraph as sg
from staticgraph.dryrun.compiled_probe import CompiledReader, probe
from staticgraph.dryrun.device_guard import why_not
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.probing import probe as probing
from staticgraph.probing.fake_tensors import CUBLAS_WORKSPACES
from staticgraph.probing.live_storages import CachingPool
from staticgraph.probing.step_reading import Probed
from staticgraph.steps.computation.model_setup import Subject

MIB = 1 << 20


def test_segments_are_taken_as_the_allocator_takes_them():
    """Small: 2 MiB per segment, remainders split off and merged; large: 20 MiB, or the request."""
    pool = CachingPool()
    pool.allocate(1, 100)
    pool.allocate(2, MIB)
    assert pool.reserved_bytes == 2 * MIB
    pool.allocate(3, MIB)  # 512 bytes short of fitting
    assert pool.reserved_bytes == 4 * MIB
    pool.free(1)
    pool.free(2)
    pool.allocate(4, MIB)
    pool.allocate(5, MIB)  # room in both segments, the first one merged again
    assert pool.reserved_bytes == 4 * MIB
    pool.allocate(6, 3 * MIB)
    pool.allocate(7, 9 * MIB)
    assert pool.reserved_bytes == 24 * MIB
    pool.allocate(8, 11 * MIB + 1)  # only 8 of the 20 MiB are left: its own segment, in 2 MiB steps
    assert pool.reserved_bytes == 36 * MIB
    pool.free(99)
    pool.allocate(100, 0)
    assert pool.reserved_bytes == 36 * MIB


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"like": "gpu"}, "like='gpu'; choose 'cpu' or 'cuda'"),
        ({"compiled": True}, "pass like='cuda', not None"),
        ({"like": "cpu", "compiled": True}, "pass like='cuda', not 'cpu'"),
        ({"like": "cpu", "reader": "fake"}, "give one of them"),
    ],
)
def test_options_that_contradict_each_other_are_refused(esol, options, said):
    with pytest.raises(ValueError, match=said):
        probe(nn.Linear(1, 1), esol, **options)


def test_what_no_compiled_step_does_is_refused_before_a_child_starts(esol):
    subject = Probed(Subject(nn.Linear(1, 1)), esol.schema, accumulate=2)
    with (
        pytest.raises(ValueError, match="has no compiled reading"),
        CompiledReader().open(subject),
    ):
        pass


@pytest.mark.slow
def test_a_compiled_step_is_predicted_and_takes_less_than_its_operations(
    esol, tmp_path, monkeypatch, capsys
):
    """``staticgraph probe`` end to end, with kernels in the model, at six of the nine capacities:
    the prediction at a larger capacity against the wrapper's own peak there."""
    if reason := why_not():
        pytest.skip(reason)
    monkeypatch.setattr(probing, "SHAPES", probing.SHAPES[:1] + probing.SHAPES[4:])
    sg.GraphStore.from_pyg(esol[:200], name="few").save(tmp_path / "few")
    command = ["probe", "--data", str(tmp_path / "few"), "--like", "cuda", "--kernels"]
    command += ["--model", "support.dryrun_models:Neighbours", "--json"]
    compiled = MemoryModel.from_dict(printed_json([*command, "--compiled"], capsys))
    assert compiled.fit.held_out == pytest.approx(0, abs=0.03)
    assert compiled.workspace_bytes > CUBLAS_WORKSPACES
    assert "a dry run of the step compiled for" in compiled.reader
    assert "not run there" in compiled.reader
    plain = MemoryModel.from_dict(printed_json(command, capsys))
    assert compiled.checked is not None
    assert plain.checked is not None
    assert compiled.checked.capacity == plain.checked.capacity
    assert compiled.checked.nbytes < plain.checked.nbytes
