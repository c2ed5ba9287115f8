"""Data sets that several processes write as stores equal the store that one process saves."""

from __future__ import annotations

import json
import os
import signal
from multiprocessing import get_context

import numpy as np
import pytest
from support.fork_server import CONTEXT
from support.written_stores import LEVELS, assert_same_files, graphs_of

import staticgraph as sg
from staticgraph.cli import main
from staticgraph.datasets import convert as converting
from staticgraph.datasets.convert import convert
from staticgraph.datasets.table import Table
from staticgraph.errors import BadGraph
from staticgraph.store import files
from staticgraph.store.writer import StoreWriter, parts_folder

TABLE = """\
name,SMILES,a,b,split
"x,1",CCO,1.5,,train
,C,,2,val
y,c1ccccc1,-1,3,train

"z
z",CC,2,4,test
w,CCN,0,5,train
"""


@pytest.fixture
def saved(tmp_path):
    store = sg.GraphStore.from_pyg(graphs_of(40), levels=LEVELS, name="s")
    store.with_splits(train=np.arange(30), val=[30, 31], test=np.arange(32, 40)).save(
        tmp_path / "s"
    )
    return tmp_path / "s"


@pytest.fixture
def forked(monkeypatch):
    """Run :func:`convert` in forked processes, which get pickled arguments but import no torch."""
    monkeypatch.setattr(converting, "get_context", lambda kind: CONTEXT)


@pytest.mark.usefixtures("forked")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("merged", [True, False])
def test_several_processes_write_what_one_would(saved, tmp_path, merged):
    found = convert(saved, tmp_path / "out", workers=2, part_graphs=7, merged=merged)
    assert_same_files(found, sg.GraphStore.load(saved))
    assert not parts_folder(tmp_path / "out").exists()
    with pytest.raises(FileExistsError, match="out "):
        convert(saved, tmp_path / "out", workers=2, progress=False)
    assert not parts_folder(tmp_path / "out").exists(), "nothing was done before the refusal"
    again = convert(tmp_path / "out", tmp_path / "one", part_graphs=100, progress=False)
    assert_same_files(again, sg.GraphStore.load(saved))


@pytest.mark.usefixtures("forked")
def test_a_table_in_stretches_is_the_table(tmp_path, capsys):
    pytest.importorskip("rdkit")
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    expected = sg.datasets.open(path, progress=False)
    for part in (1, 2, 9):
        found = convert(path, tmp_path / f"{part}", part_graphs=part, progress=False)
        assert_same_files(found, expected)
    assert main(["convert", "--data", str(path), "--out", str(tmp_path / "c"), "--workers", "2",
                 "--part-graphs", "2", "--json"]) == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert (told["graphs"], told["split train"]) == (5, 3)
    assert_same_files(sg.GraphStore.load(tmp_path / "c"), expected)
    one = Table.of(path, "b")
    assert (one.graphs, one.target.columns) == (5, ("b",))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("smiles,a,split\nC,1,now\n", "split is 'now'"),
        ("smiles,a\nC,1\nC-,2\n", "line 3: RDKit cannot read"),
    ],
)
def test_a_bad_table_is_refused(table, said, tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "t.csv").write_text(table)
    with pytest.raises(BadGraph, match=said):
        convert(tmp_path / "t.csv", tmp_path / "out", progress=False)


def _killed_after_a_part(job, worker, folder, source, tell):
    """A worker that is killed after it has committed one part."""

    def telling(graphs):
        tell(graphs)
        if worker == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    _write(job, worker, folder, source, telling)


_write = converting._write


def test_a_killed_worker_is_named_and_the_same_call_goes_on(saved, tmp_path, monkeypatch):
    """What was committed stays, and a different conversion does not take it over."""
    out = tmp_path / "out"
    monkeypatch.setattr(converting, "get_context", lambda kind: get_context("fork"))
    monkeypatch.setattr(converting, "_write", _killed_after_a_part)
    with pytest.raises(ChildProcessError, match=r"worker 1 was ended from outside .*-9.* goes on"):
        convert(saved, out, workers=2, part_graphs=7, progress=False)
    assert StoreWriter(out, shard=1).committed == 7
    with pytest.raises(FileExistsError, match="another conversion"):
        convert(saved, out, workers=1, part_graphs=7, progress=False)
    monkeypatch.setattr(converting, "_write", _write)
    written = []
    monkeypatch.setattr(StoreWriter, "append_part", _counting(StoreWriter.append_part, written))
    monkeypatch.setattr(converting, "_write_in_processes", _in_this_process)
    found = convert(saved, out, workers=2, part_graphs=7, progress=False)
    assert sum(written) <= 33
    assert_same_files(found, sg.GraphStore.load(saved))


def _counting(append, written):
    def appending(self, part):
        written.append(len(part))
        append(self, part)

    return appending


def _in_this_process(job, folder, source, tell):
    for worker in range(job.workers):
        _write(job, worker, folder, source, tell)


def test_what_a_worker_meets_is_the_error(saved, tmp_path, capfd, monkeypatch):
    """With processes that start from scratch."""
    monkeypatch.setattr(files, "WHOLE_BYTES", 0)
    path = saved / "column.x.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"column\.x"):
        convert(saved, tmp_path / "out", workers=2, part_graphs=5, progress=False)
    assert "Traceback" not in capfd.readouterr().err
