"""Several threads, several runners and plain PyG at once: each gets the result it would get alone.

Interleaving is forced, not left to chance: a forward stops halfway until the other thread has
finished or waits for its turn, or until all meet at a barrier.
"""

from __future__ import annotations

import copy
import functools
import threading

import pytest
import torch
from support.threaded import (
    GRAPHS,
    PATIENCE_S,
    Elsewhere,
    Net,
    Once,
    batch_of,
    batch_with_pointers,
    plain,
    runner_of,
    same,
)
from torch import nn

import staticgraph as sg


def test_three_threads_predict_with_one_runner():
    middle = Once()
    model = Net(middle=middle)
    model.train()
    before = copy.deepcopy(model.state_dict())
    runner = runner_of(model)
    parts = [GRAPHS[:9], GRAPHS[9:14], GRAPHS[14:]]
    expected = [runner.predict(part) for part in parts]
    twin = Net().eval()
    assert all(same(e, plain(twin, part)) for e, part in zip(expected, parts, strict=True))
    others = [Elsewhere(lambda p=part: runner.predict(p)) for part in parts[1:]]
    middle.work = lambda: [other.start_and_let_run() for other in others]
    found = [runner.predict(parts[0]), *(other.result() for other in others)]
    assert all(same(f, e) for f, e in zip(found, expected, strict=True))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("ask", ["predict", "eval_step", "runner"])
def test_a_step_is_not_disturbed_from_another_thread(ask):
    """Neither by the flags that evaluation sets nor by another batch."""
    middle = Once()
    alone, model = Net(), Net(middle=middle)
    expected = runner_of(alone).step(batch_of())
    runner = runner_of(model)
    work = {
        "predict": lambda: runner.predict(GRAPHS[10:]),
        "eval_step": lambda: runner.eval_step(batch_of(10, 12)).out,
        "runner": lambda: runner(batch_of(10, 12)).detach(),
    }[ask]
    other = Elsewhere(work)
    middle.work = other.start_and_let_run
    assert same(runner.step(batch_of()), expected)
    asked = other.result()
    if ask != "runner":  # calling the runner in training mode updates the statistics
        for name, value in model.state_dict().items():
            assert same(value, alone.state_dict()[name]), name
        assert same(asked, work())
    assert model.training


def test_two_runners_over_one_model_take_turns():
    middle = Once()
    alone, model = Net(), Net(middle=middle)
    expected = [runner_of(alone).step(batch_of()), runner_of(alone).step(batch_of(10))]
    first, second = (
        runner_of(model),
        runner_of(nn.Sequential(model), forward=lambda m, b: m[0](b.x, b.edge_index, b.batch)),
    )
    other = Elsewhere(lambda: second.step(batch_of(10)))
    middle.work = other.start_and_let_run
    assert same(first.step(batch_of()), expected[0])
    assert same(other.result(), expected[1])


def test_two_runners_and_plain_pyg_in_three_threads():
    """All three are in the middle of a forward at the same time."""
    alone = [Net(seed) for seed in range(3)]
    with_kernels = sg.convert(alone[1], kernels=True)
    expected = [
        runner_of(alone[0]).step(batch_of()),
        runner_of(with_kernels).step(batch_with_pointers(10)),
        plain(alone[2], GRAPHS[:7]),
    ]
    barrier = threading.Barrier(3)
    meet = functools.partial(barrier.wait, PATIENCE_S)
    models = [Net(seed, middle=meet) for seed in range(3)]
    runners = [runner_of(models[0]), runner_of(sg.convert(models[1], kernels=True))]
    works = [
        Elsewhere(lambda: runners[0].step(batch_of())),
        Elsewhere(lambda: runners[1].step(batch_with_pointers(10))),
        Elsewhere(lambda: plain(models[2], GRAPHS[:7])),
    ]
    for work in works:
        work.start()
    for work, value in zip(works, expected, strict=True):
        assert same(work.result(), value)


def test_plain_pyg_does_not_wait_for_a_step():
    middle = Once()
    other = Elsewhere(lambda: plain(Net(1), GRAPHS[:7]))
    found = []
    middle.work = lambda: (other.start(), found.append(other.result()))
    runner_of(Net(middle=middle)).step(batch_of())
    assert same(found[0], plain(Net(1), GRAPHS[:7]))


def test_modules_shared_with_a_later_model_stay_static_in_the_earlier():
    """Runners over two models, then one over both: the layers see whichever batch is current."""
    models = [Net(0), Net(1)]
    expected = [runner_of(Net(seed)).step(batch_of()) for seed in range(2)]
    runners = [runner_of(model) for model in models]
    runner_of(
        nn.ModuleList(models), forward=lambda m, b: sum(n(b.x, b.edge_index, b.batch) for n in m)
    )
    for runner, value in zip(runners, expected, strict=True):
        assert same(runner.step(batch_of()), value)
