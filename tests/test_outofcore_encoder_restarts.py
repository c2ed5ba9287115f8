"""Training an encoder over a graph on disk, killed or interrupted, goes on from its last epoch."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from support.encoder_trainers import N, everything, generated, made

from staticgraph.outofcore import Comet, partition


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partition(generated(), N, 6, tmp_path_factory.mktemp("graph") / "g")


@pytest.mark.parametrize(("call", "number"), [("pwrite", 3), ("pwrite", 20), ("replace", 2)])
def test_a_killed_run_goes_on_from_its_last_epoch(graph, tmp_path, call, number):
    whole = made(graph, Comet(4, 3), tmp_path / "whole")
    for _ in range(3):
        whole.train_epoch()
    child = os.fork()
    if not child:
        try:
            real, seen = getattr(os, call), [0]

            def fatal(*arguments):
                seen[0] += 1
                if seen[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments)

            setattr(os, call, fatal)
            trainer = made(graph, Comet(4, 3), tmp_path / "killed")
            for _ in range(3):
                trainer.train_epoch()
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    trainer = made(graph, Comet(4, 3), tmp_path / "killed")
    assert trainer.epoch < 3
    while trainer.epoch < 3:
        trainer.train_epoch()
    for now, then in zip(everything(trainer), everything(whole), strict=True):
        np.testing.assert_array_equal(now, then)
    trainer.close()
    whole.close()


def test_an_interrupted_epoch_begins_anew(graph, tmp_path):
    whole = made(graph, Comet(4, 3), tmp_path / "whole")
    trainer = made(graph, Comet(4, 3), tmp_path / "interrupted")

    def interrupt(number, of):
        if number == 1:
            raise KeyboardInterrupt

    for _ in range(2):
        whole.train_epoch()
        with pytest.raises(KeyboardInterrupt):
            trainer.train_epoch(interrupt)
        trainer.train_epoch()
    for now, then in zip(everything(trainer), everything(whole), strict=True):
        np.testing.assert_array_equal(now, then)
    trainer.close()
    whole.close()
