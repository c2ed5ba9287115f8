"""Whatever cannot be recorded, or was changed after recording, is an error that says why."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from support.alike import assert_same_state
from support.arena import ArenaRecorder, HostRead
from support.gine_net import Net, adam, batches_of, eager_of
from support.recorded_net import runner_of
from torch.utils._python_dispatch import TorchDispatchMode

import staticgraph as sg
from staticgraph.steps.state.recordable_optimizer import make_capturable


class TestRefusals:
    """Whatever cannot be part of a recording is refused with a reason and a remedy."""

    def test_an_optimizer_that_has_counted_on_the_host(self, hiv):
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        eager_of(model, optimizer).step(batches_of(hiv, 1)[0])
        with pytest.raises(sg.NotStatic, match=r"capturable=True.*make_capturable"):
            runner_of(model, hiv, optimizer)
        assert not optimizer.param_groups[0]["capturable"], "it is left as it was"
        assert make_capturable(optimizer).param_groups[0]["capturable"]

    def test_an_optimizer_without_a_recordable_form(self, hiv):
        model = Net()
        with pytest.raises(sg.NotStatic, match="scope='forward_backward'"):
            runner_of(model, hiv, torch.optim.Adafactor(model.parameters()))
        with pytest.raises(sg.NotStatic, match="LBFGS has no capturable form"):
            make_capturable(torch.optim.LBFGS(model.parameters()))

    def test_a_setting_that_a_scheduler_changes(self, hiv):
        """``OneCycleLR`` also changes the momentum, which a recording holds as it was."""
        model = Net()
        optimizer = adam(model)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
        runner = runner_of(model, hiv, optimizer)
        runner.step(batches_of(hiv, 1)[0])
        schedule.step()
        with pytest.raises(sg.NotStatic, match=r"betas changed after.*cycle_momentum=False"):
            runner.step(batches_of(hiv, 1)[0])

    def test_state_loaded_later(self, hiv):
        model = Net()
        optimizer = adam(model)
        runner = runner_of(model, hiv, optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        with pytest.raises(sg.NotStatic, match="load it before warmup"):
            runner.step(batches_of(hiv, 1)[0])
        runner.warmup(hiv)
        runner.step(batches_of(hiv, 1)[0])

    @pytest.mark.parametrize(
        ("first", "following"),
        [
            (torch.zeros(()), lambda before, now: before / 2 + now),
            (torch.zeros((), dtype=torch.int64), lambda before, now: before + 1),
            (torch.zeros(()), lambda before, now: now),  # without regard to what it was
            (0, lambda before, now: before + 1),
        ],
    )
    def test_a_tensor_that_the_next_step_reads(self, hiv, first, following):
        class Carries(Net):
            def __init__(self):
                super().__init__()
                self.seen = first

            def forward(self, x, edge_index, edge_attr, batch):
                before, self.seen = self.seen, following(self.seen, self.head.bias.detach().mean())
                return super().forward(x, edge_index, edge_attr, batch) + before

        model = Carries()
        seen, state = model.seen, copy.deepcopy(model.state_dict())
        with pytest.raises(sg.NotStatic, match=r"computes with the seen of the forward before"):
            runner_of(model, hiv)
        assert model.seen is seen
        assert_same_state(model, state)

    @pytest.mark.parametrize("seldom", [False, True])
    def test_a_tensor_for_inspection_alone_is_recorded(self, hiv, seldom):
        forwards = []

        class Shows(Net):
            def __init__(self):
                super().__init__()
                self.shown, self.other, self.calls = torch.zeros(()), torch.zeros(()), 0
                self.turns = itertools.cycle([seldom, False])

            def forward(self, x, edge_index, edge_attr, batch):
                out = super().forward(x, edge_index, edge_attr, batch)
                forwards.append(self.training)
                self.shown, self.calls = out.detach(), self.calls + 1
                self.other = out.detach() if next(self.turns) else None
                return out

        model = Shows()
        runner = runner_of(model, hiv)
        runner.step(batches_of(hiv, 1)[0])
        assert model.calls <= len(forwards), "no other count is left behind"
        assert model.shown.any()
        assert model.shown.isfinite().all()

    def test_a_host_read_tears_all_down_and_leaves_the_model_usable(self, hiv):
        class Reads(Net):
            def forward(self, x, edge_index, edge_attr, batch):
                scale = float(x.float().mean().detach())
                return super().forward(x, edge_index, edge_attr, batch) * scale

        model = Reads()
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(sg.NotStatic, match=r"bucket 1 step.*HostRead") as caught:
            runner_of(model, hiv, check_padding=False)
        assert isinstance(caught.value.__cause__, HostRead)
        assert_same_state(model, before)
        eager_of(model, adam(model), check_padding=False).step(batches_of(hiv, 1)[0])

    def test_a_hook_that_reads_a_gradient_on_the_host(self, hiv):
        model = Net()
        model.head.weight.register_hook(lambda grad: grad * float(grad.norm() < 1e9))
        with pytest.raises(sg.NotStatic, match=r"step.*HostRead.*\n.*a hook that synchronises"):
            runner_of(model, hiv)

    def test_the_first_error_is_not_lost_where_the_device_then_refuses_everything(self, hiv):
        """As CUDA does after a failed capture: reads, copies and the teardown all raise."""
        refusal = "operation failed due to a previous error during capture"

        class Refuses(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                raise RuntimeError(refusal)

        refuses = Refuses()

        class Dying(ArenaRecorder):
            def record(self, body):
                refuses.__enter__()
                raise HostRead("the first error")

            def close(self):
                super().close()
                raise RuntimeError(refusal)

        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True, capturable=True)
        runner = runner_of(model, hiv, optimizer, warm=False, recorder=Dying)
        try:
            with pytest.raises(sg.NotStatic, match="HostRead: the first error") as caught:
                runner.warmup(hiv, phases=("step",))
        finally:
            refuses.__exit__(None, None, None)
        assert isinstance(caught.value.__cause__, HostRead)
        notes = " ".join(caught.value.__cause__.__notes__)
        assert "could not be put back" in notes
        assert f"the teardown failed as well: RuntimeError: {refusal}" in notes
        assert optimizer.param_groups[0]["lr"] == 0.01, "a number again, without reading the device"


def test_a_miss_after_warmup_is_an_error_or_eager(hiv):
    model = Net()
    runner = runner_of(model, hiv, warm=False).warmup(hiv, phases=("eval",))
    batch = batches_of(hiv, 1)[0]
    with pytest.raises(sg.NotStatic, match=r"bucket 0 step.*has no recording.*on_miss='eager'"):
        runner.step(batch)
    twin = copy.deepcopy(model)
    lenient = runner_of(model, hiv, warm=False, on_miss="eager")
    lenient.warmup(hiv, phases=("eval",))
    eager = eager_of(twin, adam(twin))
    for batch in batches_of(hiv, 4):
        assert torch.equal(lenient.step(batch), eager.step(batch))
    fallbacks = lenient.report().fallbacks
    assert len(fallbacks) == 2
    assert "ran in eager 2 times" in fallbacks[0]
