"""What was changed in a model after recording is named before a replay would ignore it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.gine_net import CAPACITIES, Net, batches_of
from support.recorded_net import runner_of
from torch import nn

import staticgraph as sg


def loader_of(hiv):
    """Two batches of one bucket, repeatedly."""
    return sg.StaticLoader(hiv, sg.BucketPlan.of(CAPACITIES[:1], batch_size=30), indices=range(60))


def half(model):
    model.dropout.p = 0.5


def hooked(model):
    model.atoms.register_forward_hook(lambda *_: None)


def other_class(model):
    model.head.__class__ = type("Other", (nn.Linear,), {})


def other_forward(model):
    model.head.forward = partial(nn.Linear.forward, model.head)


def moved_buffer(model):
    norm = model.conv.nn[1]
    norm.running_mean.data = norm.running_mean.clone()


def moved_parameter(model):
    model.head.weight.data = model.head.weight.data.clone()


def parameter_hook(model):
    model.atoms.weight.register_hook(lambda grad: grad * 2)


def message_hook(model):
    model.conv.register_message_forward_hook(lambda *_: None)


def other_weight(model):
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


def other_mean(model):
    model.conv.nn[1].running_mean = torch.zeros(8)


def other_layer(model):
    model.dropout = nn.Identity()


def more(model):
    model.bonds.register_parameter("extra", nn.Parameter(torch.ones(1)))


CHANGES = {
    # Changes that no torch hook reports.
    "frozen": (
        lambda model: model.bonds.requires_grad_(False),
        r"bonds\.weight\.requires_grad was True, is False; bonds\.bias\.requires_grad was",
    ),
    "norm in eval": (lambda m: m.conv.nn[1].eval(), r"conv\.nn\.1\.training was True, is False"),
    "dropout": (half, r"dropout\.p was 0\.0, is 0\.5"),
    "deleted": (lambda m: delattr(m.dropout, "inplace"), r"dropout\.inplace was False, is not"),
    "class": (other_class, r"head was Linear, is Other"),
    "forward": (other_forward, r"head\.forward was Linear\.forward, is a partial"),
    "buffer's memory": (moved_buffer, r"conv\.nn\.1\.running_mean was at address"),
    "parameter's memory": (moved_parameter, "has another address"),
    # Changes that torch reports.
    "hook": (hooked, r"atoms\.hooks was 0, is 1"),
    "hook of a parameter": (
        parameter_hook,
        r"hooks of parameters and of the optimizer was 0, is 1",
    ),
    "hook on messages": (message_hook, r"conv\.hooks was 0, is 1"),
    "parameter": (other_weight, r"head\.weight was a Parameter, is another"),
    "buffer": (other_mean, r"conv\.nn\.1\.running_mean was a Tensor, is another"),
    "module": (other_layer, r"dropout was a Dropout, is a Identity"),
    "new parameter": (more, r"bonds\.extra was not there, is a Parameter"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_before_the_first_replay_is_found_and_after_a_warm_up_is_no_change(hiv, what):
    change, message = CHANGES[what]
    model = Net()
    runner = runner_of(model, hiv)
    change(model)
    batch = batches_of(hiv, 1)[0]
    with pytest.raises(sg.NotStatic, match=message):
        runner.step(batch)
    if what in ("hook", "deleted"):
        return  # a hook is refused by every compiled or recorded step, the deletion by the layer
    runner.warmup(hiv)
    runner.step(batch)


def test_flags_matter_for_the_recording_that_they_were_made_with(hiv):
    """A frozen layer does not matter in an evaluation; a module in training mode does."""
    model = Net()
    runner = runner_of(model, hiv)
    batch = batches_of(hiv, 1)[0]
    model.bonds.requires_grad_(False)
    runner.eval_step(batch)
    with pytest.raises(sg.NotStatic, match="bonds"):
        runner.step(batch)
    model.bonds.requires_grad_(True)
    runner.step(batch)
    model.eval()
    model.dropout.train()
    monte_carlo = runner_of(model, hiv, warm=False).warmup(hiv, phases=("eval",))
    with torch.no_grad(), pytest.raises(sg.NotStatic, match=r"dropout\.training was False"):
        monte_carlo(batch)


def test_a_model_in_evaluation_mode_at_the_warm_up_is_not_changed(hiv):
    model = Net().eval()
    runner = runner_of(model, hiv)
    for batch in loader_of(hiv):
        runner.step(batch)
        model.eval()
        with torch.no_grad():
            runner(batch)


def test_what_the_forward_writes_is_no_premise(hiv):
    """Counters, kept tensors and private attributes are not; other public, plain attributes are."""

    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen, self._own, self.scale = 0, None, 0, 1.0

        def forward(self, x, edge_index, edge_attr, batch):
            self.calls += 1
            self.seen = x
            return self.scale * super().forward(x, edge_index, edge_attr, batch)

    model = Counting()
    runner = runner_of(model, hiv)
    batch = batches_of(hiv, 1)[0]
    runner.step(batch)
    runner.eager_step(batch)
    model._own = 1
    for batch in loader_of(hiv):
        runner.step(batch)
    model.scale = 2.0
    with pytest.raises(sg.NotStatic, match=r"scale was 1\.0, is 2\.0.*begins with an underscore"):
        runner.step(next(iter(loader_of(hiv))))


def test_a_key_recorded_later_does_not_hide_a_change(hiv):
    """Without a warm-up, the second bucket's recording would take the changed value as original."""
    model = Net()
    runner = runner_of(model, hiv, warm=False)
    first, second = batches_of(hiv, 2)
    runner.step(first)
    half(model)
    with pytest.raises(sg.NotStatic, match=r"bucket 1 step.*dropout\.p was 0\.0, is 0\.5"):
        runner.step(second)
