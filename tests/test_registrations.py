"""Every listener on a module hears of each registration on it, once, for as long as it lives."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from staticgraph.nn import registrations
from staticgraph.nn.registrations import watch


class Heard:
    """What one listener heard."""

    def __init__(self) -> None:
        self.layers: list[bool] = []

    def registered(self, layer: bool) -> None:
        self.layers.append(layer)


def test_layers_and_tensors_are_told_apart_and_each_once():
    model, heard = nn.Sequential(nn.Linear(1, 1)), Heard()
    watch(model.modules(), heard)
    watch(model.modules(), heard)
    model[0].weight = nn.Parameter(torch.ones(1, 1))
    model[0].register_buffer("seen", torch.ones(1))
    assert heard.layers == [False, False]
    model.append(nn.ReLU())
    assert heard.layers == [False, False, True]
    nn.Sequential(nn.Linear(1, 1))
    assert len(heard.layers) == 3


def test_neither_models_nor_listeners_are_kept():
    model, heard, others = nn.Sequential(), Heard(), Heard()
    watch([model], heard)
    gone = weakref.ref(heard)
    del heard
    gc.collect()
    assert gone() is None
    model.append(nn.ReLU())
    watch([model], others)
    assert len(registrations._LISTENERS[model]) == 1, "the one that is gone has left its place"
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
