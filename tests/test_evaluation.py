"""Evaluation mode and back: the flags that are set, and that no batch walks over the modules."""

from __future__ import annotations

import pytest
import torch
from support.alike import sgd
from support.gine_net import CAPACITIES, Net, batches_of, bce
from torch import nn

import staticgraph as sg
from staticgraph.steps.state.training_state import Evaluation, evaluating


def flags(model) -> list[bool]:
    return [module.training for module in model.modules()]


def deep() -> nn.Sequential:
    frozen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    return nn.Sequential(nn.Linear(2, 2), frozen, nn.ModuleList([nn.Dropout(0.1)]))


def test_flags_return_after_an_error_and_from_inside_each_other():
    model = deep().train()
    evaluation, before = Evaluation(model), flags(model)

    def fails_inside():
        with evaluation():
            with evaluation():
                pass
            assert not any(flags(model))
            assert not torch.is_grad_enabled()
            raise KeyError

    with pytest.raises(KeyError):
        fails_inside()
    assert flags(model) == before


CHANGES = {
    "append": lambda model: model.append(nn.Dropout(0.3)),
    "insert": lambda model: model.insert(0, nn.Dropout(0.3)),  # torch has no hook for it
    "exchange": lambda model: model._modules.__setitem__("0", nn.Sequential(nn.Dropout(0.3))),
    "exchange below": lambda model: model[2].__setitem__(0, nn.Dropout(0.3)),
    "take away": lambda model: model.__delitem__(2),
    "to None": lambda model: setattr(model, "0", None),
    "under a leaf": lambda model: model[0].add_module("more", nn.Dropout(0.3)),
    "another dict": lambda model: vars(model).__setitem__(
        "_modules", {"0": nn.Dropout(0.3), **model._modules}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_tree_is_listed_anew(change):
    model = deep().train()
    evaluation = Evaluation(model)
    with evaluation():
        pass
    gone = list(model.modules())
    CHANGES[change](model)
    model.train()
    before = flags(model)
    for module in gone:
        module.train()
    with evaluation():
        assert not any(flags(model))
        inside = set(model.modules())
        assert all(module.training for module in gone if module not in inside)
    assert flags(model) == before


class Frozen(nn.Sequential):
    """Defines its own modes: one part never trains, and one always does."""

    def train(self, mode: bool = True):
        super().train(mode)
        self[0].eval()
        self[1].train()
        return self


def test_a_model_that_says_itself_what_evaluation_is_is_asked():
    model = Frozen(nn.BatchNorm1d(2), nn.Dropout(0.5))
    model.train()
    with Evaluation(model)():
        assert flags(model) == [False, False, True]
    assert flags(model) == [True, False, True]
    own = nn.Sequential(nn.Linear(1, 1))
    own.eval = lambda: own
    with Evaluation(own)():
        assert flags(own) == [True, True]


@pytest.mark.parametrize("training", [True, False])
def test_an_evaluation_walks_over_no_modules(hiv, monkeypatch, training):
    model = Net().train(training)
    runner = sg.StaticGraphRunner(model, CAPACITIES, "eager", loss=bce)
    batches = batches_of(hiv, 4)
    for batch in batches[:2]:
        runner.eval_step(batch)
        runner.predict_batch(batch)
    walks = []
    for name in ("named_modules", "modules", "children", "train", "apply"):
        stock = getattr(nn.Module, name)

        def counted(self, *args, _name=name, _stock=stock, **kwargs):
            walks.append(_name)
            return _stock(self, *args, **kwargs)

        monkeypatch.setattr(nn.Module, name, counted)
    for batch in batches[2:]:
        runner.eval_step(batch)
        runner.predict_batch(batch)
    assert walks == []
    with evaluating(model):
        assert walks, "the count sees a walk"


class FreezesNorms(Net):
    """As in common fine-tuning: norms keep the statistics that they came with."""

    def train(self, mode: bool = True):
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self


def statistics_moved(model, hiv, prepared=lambda model: model) -> bool:
    runner = sg.StaticGraphRunner(
        prepared(model),
        CAPACITIES,
        "eager",
        loss=bce,
        optimizer=sgd(model, 0.1),
    )
    runner.step(next(iter(batches_of(hiv))))
    return any(int(b) for name, b in model.named_buffers() if name.endswith("batches_tracked"))


def test_a_model_just_made_is_asked_what_training_is(hiv):
    """Its flags are all on, but its own ``train()`` turns some off. Without that call, norms that
    it freezes would be trained, and the loss would differ from that of a loop that calls
    ``model.train()``."""
    assert statistics_moved(Net(), hiv)
    assert not statistics_moved(FreezesNorms(), hiv)


def test_a_model_that_was_told_already_is_not_asked_again(hiv):
    def told(model):
        model.head.eval()
        return model

    assert statistics_moved(FreezesNorms(), hiv, told)
