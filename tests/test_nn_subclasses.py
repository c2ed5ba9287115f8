"""A user's subclass of a layer takes the static form of its parent and keeps its own additions."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from support.alike import assert_same_state
from support.parity import BATCH
from torch import nn

import staticgraph as sg
from staticgraph.nn.subclasses import form_of, static_forms


class Fancy(nn.BatchNorm1d):
    """A user's BatchNorm, at module level, so that it can be pickled."""

    def __init__(self, channels, shift=0.5):
        super().__init__(channels)
        self.shift = shift

    def forward(self, input):
        return super().forward(input) + self.shift


class FancyPool(pyg.TopKPooling):
    pass


class Slotted(nn.BatchNorm1d):
    __slots__ = ("mark",)


class Meta(type):
    pass


class WithMeta(nn.BatchNorm1d, metaclass=Meta):
    pass


class Registered(nn.BatchNorm1d):
    def __init_subclass__(cls, **kwargs):
        raise TypeError("no further subclasses")


def subclass_of(stock):
    return type(f"My{stock.__name__}", (stock,), {})


@pytest.mark.parametrize("stock", [*static_forms()], ids=lambda k: k.__name__)
def test_every_exchanged_class_takes_its_subclasses_along(stock):
    kind = subclass_of(stock)
    made = form_of(kind)
    assert made.__mro__[:3] == (made, kind, static_forms()[stock])
    assert form_of(kind) is made  # cached
    assert form_of(made) is None  # converted already
    assert form_of(subclass_of(kind)).__mro__[3] is static_forms()[stock]
    assert made.__name__ == f"StaticMy{stock.__name__}"


def test_a_subclass_keeps_what_is_its_own_and_converts_once():
    model = nn.Sequential(Fancy(8, shift=2.0), Slotted(8), WithMeta(8)).double()
    model[1].mark = 7
    keys, stock = list(model.state_dict()), copy.deepcopy(model)
    kinds = [type(m) for m in sg.convert(sg.convert(model))]
    assert [k.__name__ for k in kinds] == ["StaticFancy", "StaticSlotted", "StaticWithMeta"]
    assert list(model.state_dict()) == keys
    assert (model[0].shift, model[1].mark) == (2.0, 7)
    assert isinstance(model[0], Fancy)
    x = BATCH.x[:7]
    assert torch.equal(model(x), stock(x))  # unchanged outside the runner


def test_where_python_allows_no_class_of_both_the_layer_stays():
    model = sg.convert(nn.Sequential(Registered(8)))
    assert type(model[0]) is Registered


@pytest.mark.parametrize("build", [lambda: Fancy(8), lambda: FancyPool(8)])
def test_a_converted_subclass_can_be_copied_pickled_and_saved(build, tmp_path):
    model = sg.convert(nn.Sequential(build(), pyg.GraphNorm(8)))
    torch.save(model, tmp_path / "model.pt")
    for again in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(tmp_path / "model.pt", weights_only=False),
    ):
        assert type(again[0]) is type(model[0])
        assert again[0]._staticgraph is again[1]._staticgraph is not model[0]._staticgraph
        assert_same_state(again, model)
    plain = nn.Sequential(build(), pyg.GraphNorm(8))
    plain.load_state_dict(model.state_dict())
