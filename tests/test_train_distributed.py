"""``staticgraph train`` on several processes: one run, one folder, whichever rank stops or dies."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support.few_molecules import few_molecules
from support.patience import patience
from support.program import run_program
from support.ranks import on_ranks
from support.trained_run import assert_same_run

import staticgraph as sg
from staticgraph import models
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.distributed.ranks import Ranks
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.training import checkpoint, train
from staticgraph.training.config import TrainConfig
from staticgraph.training.job import Interrupted, device_of
from staticgraph.training.report import TrainReport, read_steps
from staticgraph.training.run import Training
from staticgraph.training.tasks import evaluate, task_of


@pytest.fixture(scope="module")
def molecules(tmp_path_factory, esol) -> Path:
    """200 molecules of ESOL, 160 to train: with two ranks of 15 graphs, 6 steps per epoch."""
    return few_molecules(esol, 200, tmp_path_factory, split=True)


@pytest.fixture(scope="module")
def config(molecules) -> TrainConfig:
    """With dropout, so that a lost random state shows. Modes chosen by timing may round
    differently; that ranks agree on them is tested with the runner and used by the example."""
    return TrainConfig(
        str(molecules), hidden=8, layers=2, dropout=0.2, batch_size=15, epochs=2, lr=0.01,
        checkpoint_every=4, compile_mode="eager",
    )  # fmt: skip


def test_a_ranks_gpu_is_its_present_one(monkeypatch):
    """Otherwise each rank would hold a context on the first GPU."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "2")
    ranks = Ranks(lambda: None, 6, 8, "cpu:gloo,cuda:nccl")
    assert device_of("auto", ranks) == torch.device("cuda", 2)
    assert device_of("cuda:1") == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 2)], "one process alone keeps its own"


@pytest.mark.parametrize("fails", [False, True])
def test_recordings_end_before_the_group_does(monkeypatch, fails):
    """Destroying the group would wait forever for CUDA graphs that contain its collectives."""
    ended = []

    def run(training):
        ended.append("run")
        if fails:
            raise Interrupted("by a test")

    monkeypatch.setattr(Training, "_run", run)
    training = object.__new__(Training)
    training.ranks = Ranks(lambda: None, 0, 2, "cpu:gloo,cuda:nccl")
    training.runner = SimpleNamespace(close=lambda: ended.append("close"))
    with pytest.raises(Interrupted) if fails else nullcontext():
        training.run()
    assert ended == ["run", "close"]


def trained(config: TrainConfig, folder: str) -> dict:
    return train.train(config, folder).to_dict()


@pytest.fixture(scope="module")
def uninterrupted(config, tmp_path_factory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, on_ranks(2, trained, config, str(folder))


def test_ranks_are_one_run(uninterrupted, config):
    """Steps count the rows of all ranks, and each rank has the same numbers."""
    folder, reports = uninterrupted
    store = sg.GraphStore.load(config.data)
    expected = store.sizes[store.splits["train"]].sum(axis=0).tolist()
    steps = read_steps(folder / "steps.csv")
    for epoch in range(2):
        mine = [step for step in steps if step.epoch == epoch]
        assert [step.graphs for step in mine][:5] == [30] * 5
        assert sum(step.graphs for step in mine) == 160
        assert [sum(s.nodes for s in mine), sum(s.edges for s in mine)] == expected
    timed = ("seconds", "graphs_per_s")
    first, second = (
        [{k: v for k, v in epoch.items() if k not in timed} for epoch in report["epochs"]]
        for report in reports
    )
    assert first == second
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1


def test_the_metric_is_of_all_ranks_graphs(uninterrupted, config):
    """A single process with the same weights finds the same metric."""
    folder, reports = uninterrupted
    store = sg.GraphStore.load(config.data)
    task = task_of(store)
    model = models.build(
        config.model, store, hidden=8, layers=2, dropout=0.2, pool="mean",
        num_outputs=task.num_outputs,
    )  # fmt: skip
    model.load_state_dict(checkpoint.load(folder)["model"])
    plan = sg.BucketPlan.load(folder / "plan.json")
    runner = StaticGraphRunner(model, plan, "eager")
    for split, found in (
        ("test", reports[0]["test_metric"]),
        ("val", TrainReport.load(folder).epochs[-1].val_metric),
    ):
        loader = StaticLoader(store, plan, indices=store.splits[split], exact=False)
        assert evaluate(runner, loader, task).metric == pytest.approx(found, rel=1e-5)


def _stopped_and_resumed(config: TrainConfig, folder: str) -> list:
    """Only rank 1 receives the signal to stop, in its 5th step."""
    step, calls = StaticGraphRunner.step, []

    @functools.wraps(step)
    def stepping(runner, batch):
        calls.append(batch.bucket)
        if len(calls) == 5 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(runner, batch)

    StaticGraphRunner.step = stepping
    with pytest.raises(Interrupted):
        train.train(config, folder)
    stopped = len(calls)
    report = train.resume(folder)
    return [stopped, len(calls), report.resumed_at]


def test_ranks_stop_together_and_go_on_as_if_they_had_not(uninterrupted, config, tmp_path):
    folder, _ = uninterrupted
    total = len(read_steps(folder / "steps.csv"))
    for found in on_ranks(2, _stopped_and_resumed, config, str(tmp_path / "run")):
        assert found == [8, total, 8]  # where the ranks next communicate: at a checkpoint
    assert_same_run(tmp_path / "run", folder)


def test_another_number_of_processes_goes_on_with_the_next_epoch(config, tmp_path):
    on_ranks(2, trained, replace(config, epochs=1), str(tmp_path / "run"))
    report = train.resume(tmp_path / "run", {"epochs": 2})
    assert report.resumed_at == 6
    steps = read_steps(tmp_path / "run" / "steps.csv")
    assert [s.graphs for s in steps if s.epoch == 1] == [15] * 10 + [10]


def _fails(folder: str, config: TrainConfig) -> str:
    with pytest.raises(Exception) as caught:
        train.train(config, folder)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_what_rank_0_finds_wrong_ends_all(config, uninterrupted):
    first, second = on_ranks(2, _fails, str(uninterrupted[0]), config)
    assert first.startswith("FileExistsError: ")
    assert second.startswith("RankLost: rank 0 ended with FileExistsError: ")
    assert "holds a run already" in second


# ---------------------------------------------------------------- torchrun


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a job of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1",
        f"--master-port={port}", *arguments,
    ]  # fmt: skip
    return run_program(words, env=ENVIRONMENT, timeout=patience(120))


def command(config: TrainConfig, folder: Path, *more: str) -> list[str]:
    return [
        "-m", "staticgraph.cli", "train", "--data", config.data, "--hidden", "8", "--layers", "2",
        "--dropout", "0.2", "--batch-size", "15", "--lr", "0.01", "--checkpoint-every", "4",
        "--epochs", "2", "--compile-mode", "eager", "--out", str(folder), *more,
    ]  # fmt: skip


KILLED = Path(__file__).parent / "support" / "killed_rank.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_killed_rank_ends_the_job_or_starts_it_again(uninterrupted, config, tmp_path, restarts):
    """With --max-restarts, the same command continues from the last checkpoint."""
    folder = tmp_path / "run"
    _, _, *words = command(config, folder)
    done = torchrun(f"--max-restarts={restarts}", str(KILLED), *words)
    if restarts:
        assert done.returncode == 0, done.stderr
        assert "resuming after step 4" in done.stderr
        assert_same_run(folder, uninterrupted[0])
    else:
        assert done.returncode != 0
        assert "Signal 9 (SIGKILL)" in done.stderr
        assert len(checkpoint.load(folder)["steps"]) == 4


# Two hosts: network namespaces that only reach each other through a virtual cable.
TWO_HOSTS = """
set -e
unshare -n sleep 600 & there=$!
trap 'kill $there' EXIT
until [ "$(readlink /proc/$there/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
ip link add cable0 type veth peer name cable1
ip link set cable1 netns $there
on_there() { nsenter -t $there -n "$@"; }
ip addr add 10.77.0.1/24 dev cable0; ip link set cable0 up; ip link set lo up
on_there ip addr add 10.77.0.2/24 dev cable1
on_there ip link set cable1 up; on_there ip link set lo up
[ $# -gt 0 ] || exit 0
export MASTER_ADDR=10.77.0.1
run="-m torch.distributed.run --nnodes=2 --nproc-per-node=1 --master-addr=10.77.0.1"
run="$run --master-port=29511"
python=$1; shift
GLOO_SOCKET_IFNAME=cable1 on_there $python $run --node-rank=1 "$@" >/dev/null & other=$!
GLOO_SOCKET_IFNAME=cable0 $python $run --node-rank=0 "$@"
wait $other
"""


def two_hosts(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["unshare", "-rn", "bash", "-c", TWO_HOSTS, "hosts", *arguments],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=patience(120),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.release
def test_two_hosts_are_the_same_run(uninterrupted, config, tmp_path):
    """Both see the folder here, but the second host's rank neither reads nor writes it."""
    try:
        allowed = two_hosts()
    except OSError as error:
        pytest.skip(f"no network namespaces: {error}")
    if allowed.returncode:
        pytest.skip(f"no network namespaces: {allowed.stderr.strip().splitlines()[-1]}")
    done = two_hosts(sys.executable, *command(config, tmp_path / "run", "--json"))
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "run", uninterrupted[0])
