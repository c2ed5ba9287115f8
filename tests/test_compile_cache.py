"""Compiled code from one process serves the next; an unfit file is reported and not used."""

from __future__ import annotations

import os
import stat

import pytest
import torch
from support.patience import patience
from support.program import run_program

from staticgraph.runner import compile_cache

CPU = torch.device("cpu")

PROGRAM = """
import sys, torch
torch.set_num_threads(1)
import staticgraph as sg
from torch._dynamo.utils import counters

# A fresh cache would try the compiler on each set of instructions, longer than on the model.
torch._inductor.config.cpp.vec_isa_ok = True
# Nor are its headers worth compiling for one kernel.
torch._inductor.config.cpp_cache_precompile_headers = False

class Summed(torch.nn.Module):
    "Few kernels: a C++ compiler takes two seconds for each, in each of two processes."

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(9, 1)

    def forward(self, x, batch, batch_size):
        h = self.head(x.float())
        return h.new_zeros(batch_size, 1).index_add(0, batch, h)

store = sg.datasets.open("examples/data/esol.npz")
plan = sg.plan_buckets(store, batch_size=16, num_buckets=1)
torch.manual_seed(0)
model = Summed()
runner = sg.StaticGraphRunner(model, plan, mode="default")
runner.warmup(phases=("eval",), cache=sys.argv[1])
batch = next(iter(sg.StaticLoader(store, plan)))
report = runner.report()
print(counters["inductor"]["fxgraph_cache_hit"], report.warm_start,
      float(runner.eval_step(batch).out.sum()), report.warmup_s, report.cold_start_s)
"""


def run(path, cache_dir) -> list[str]:
    """Run the program in a process whose other caches are empty."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache_dir),
        "XDG_CACHE_HOME": str(cache_dir.parent / "own"),
    }
    done = run_program(["-c", PROGRAM, str(path)], env=environment, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_a_second_process_starts_from_the_file(tmp_path):
    file = tmp_path / "compiled.bin"
    first = run(file, tmp_path / "one")
    second = run(file, tmp_path / "two")
    assert first[:2] == ["0", "False"]
    assert int(second[0]) >= 1
    assert second[1] == "True"
    assert first[2] == second[2]
    assert float(second[4]) == float(first[3]), "the report has the time of both starts"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A cache folder for this test alone, and a file signed in it, whose loading is recorded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"artefacts", None))
    handed = []
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", lambda b: handed.append(b) or b)
    file = tmp_path / "compiled.bin"
    assert compile_cache.save(file, CPU, 7.0)
    return file, handed


def assert_not_read(file, words):
    with pytest.warns(UserWarning, match=words):
        assert compile_cache.load(file, CPU) is None


def test_a_signed_file_of_the_owner_is_used_and_private(own, tmp_path):
    file, handed = own
    assert compile_cache.load(file, CPU) == 7.0
    assert handed == [b"artefacts"]
    folder = tmp_path / "cache" / "staticgraph" / "compiled"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert compile_cache.default_path("model", "plan").parent == folder
    assert compile_cache.default_path("model", "plan") != compile_cache.default_path(
        "model", "other"
    )
    assert [path.name for path in folder.iterdir()] == ["key"]


def test_no_changed_byte_reaches_torch(own):
    file, handed = own
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert_not_read(file, "compiling again")
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert_not_read(file, "compiling again")
    assert not handed


def test_a_file_signed_with_another_key_is_not_read(own, tmp_path, monkeypatch):
    file, handed = own
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert_not_read(file, "holds programs and is not read: .*not signed by you")
    assert not handed


def test_a_file_that_others_could_have_written_is_not_read(own, monkeypatch):
    file, handed = own
    for mode in (0o620, 0o602):
        file.chmod(mode)
        assert_not_read(file, r"can be written by others .*chmod go-w")
    file.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert_not_read(file, r"belongs to user \d+, not to you \(4711\)")
    assert not handed


def test_a_key_that_others_can_read_signs_nothing(own, tmp_path):
    file, handed = own
    (tmp_path / "cache" / "staticgraph" / "compiled" / "key").chmod(0o640)
    assert_not_read(file, r"signature cannot be checked: .*read or written by oth")
    assert not handed


def test_without_a_cache_folder_nothing_is_kept_or_read(own, tmp_path, monkeypatch):
    file, handed = own
    (tmp_path / "blocked").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    assert_not_read(file, "signature cannot be checked: no cache folder")
    with pytest.warns(UserWarning, match="is not kept in .*unsigned: no cache folder"):
        assert not compile_cache.save(tmp_path / "new.bin", CPU, 1.0)
    with pytest.warns(UserWarning, match="compiled code is not kept: no cache folder"):
        assert compile_cache.default_path("model") is None
    assert not handed
    assert not (tmp_path / "new.bin").exists()


def test_a_file_that_does_not_fit_is_said(tmp_path):
    assert compile_cache.load(tmp_path / "none", CPU) is None
    foreign = tmp_path / "foreign"
    foreign.write_bytes(compile_cache.MAGIC + b'{"torch": "1.0", "device": "cpu"}\nabc')
    assert_not_read(foreign, r"was not made by torch.*it says \{'torch': '1\.0'")
    foreign.write_bytes(b"something else")
    assert_not_read(foreign, "compiling again")
